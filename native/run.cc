// Deciding how a call is done: what runs beside what, in which portions, in which memory.
//
// First what needs no word between threads: directions, then rows of the batch. Then, for few rows, the
// hidden units of one direction, with a meeting after each step. None of this changes a result.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <vector>

#include "native/float_mode.h"
#include "native/kernel.h"

namespace onegru {

const Kernel& KernelFor(ElementType storage, bool linear_before_reset, std::size_t target) {
  switch (storage) {
    case ElementType::kFloat64:
      return Float64Kernel(linear_before_reset, target);
    case ElementType::kFloat16:
      return Float16Kernel(linear_before_reset, target);
    case ElementType::kBFloat16:
      return BFloat16Kernel(linear_before_reset, target);
    case ElementType::kFloat32:
      break;
  }
  return Float32Kernel(linear_before_reset, target);
}

namespace {

// What the projection of X may take: a part of the second-level cache of every CPU in use.
constexpr std::size_t kProjectionBytes = 192 * 1024;
constexpr std::size_t kMostRowsAtOnce = 64;
// Numbers of X that are projected together: a sweep of one panel over them takes some milliseconds.
constexpr std::size_t kMostInputsAtOnce = 1 << 22;
// Room for the products of two chunks of a single row, however large they are.
constexpr std::size_t kLeastStepsAtOnce = 2 * kAheadRows;
// Up to here a step takes as long as its longest chain of operations, and two chains take no longer than one.
// Vectors of a step, and bytes of both directions' matrices R.
constexpr std::size_t kMostVectorsOfPair = 4;
constexpr std::size_t kMostBytesOfPair = 24 * 1024;

// From here on, measured, threads pay: FLOPs of a call, and of one step that is split by units. Splitting a
// smaller step pays where two cores share a cache (64 units: 1.3 times as fast), and loses as much where a
// hypervisor has put them apart, which it may do at any time.
constexpr double kFlopsToShare = 1.2e5;
constexpr double kFlopsToWake = 4.0e6;
constexpr double kFlopsToSplitStep = 2.0e4;
// A thread that calls again within this time is worth a second one that is awake.
constexpr std::chrono::microseconds kSoon{200};

// Memory that calls use again and again.
struct Buffer {
  AlignedBytes memory;
  std::size_t size = 0;

  unsigned char* AtLeast(std::size_t bytes) {
    const bool huge_call_is_over = size > kKept && bytes < size / 4;
    if (size < bytes || huge_call_is_over) {
      memory = nullptr;
      size = 0;  // until there is memory again: there may be none
      memory = AllocateAligned(bytes);
      size = bytes;
    }
    return memory.get();
  }

  static constexpr std::size_t kKept = 8 << 20;
};

// What the units of one share are split by.
struct Split {
  Barrier barrier;
  std::atomic<std::size_t> last_step;
};

// What a call works with. Each thread has its own, so no call waits for another.
struct Workspace {
  Buffer scratch;
  std::vector<std::int32_t> order;
  Split splits[2];  // units are split in no more shares than there are directions
  unsigned turn = 0;
  bool taken = false;
};

thread_local Workspace t_workspace;

// The thread's workspace; a new one for a call within a call, as a watch may make.
class WorkspaceLoan {
 public:
  WorkspaceLoan() : lent_(&t_workspace) {
    if (lent_->taken) lent_ = (nested_ = std::make_unique<Workspace>()).get();
    lent_->taken = true;
  }
  ~WorkspaceLoan() { lent_->taken = false; }
  WorkspaceLoan(const WorkspaceLoan&) = delete;
  WorkspaceLoan& operator=(const WorkspaceLoan&) = delete;

  bool is_nested() const { return nested_ != nullptr; }
  Workspace& operator*() const { return *lent_; }

 private:
  Workspace* lent_;
  std::unique_ptr<Workspace> nested_;
};

struct Plan {
  std::size_t directions;  // how many run side by side
  std::size_t row_groups;  // into how many the rows are dealt
  std::size_t members;     // how many split the units of a share
  std::size_t rows_at_once;
  std::size_t steps_at_once;
  bool paired;  // one thread does both directions, step by step in turn

  std::size_t threads() const { return directions * row_groups * members; }
  // How many shares are under way at once; each has scratch of its own.
  std::size_t shares() const { return paired ? 2 : directions * row_groups; }
};

std::size_t Computed(const Spec& spec) { return spec.type == ElementType::kFloat64 ? 8 : 4; }

double Flops(const Spec& spec, const Call& call) {
  return 6.0 * static_cast<double>(spec.D) * static_cast<double>(spec.H) * static_cast<double>(spec.I + spec.H) *
         static_cast<double>(call.B) * static_cast<double>(call.T);
}

Plan MakePlan(const Packed& packed, const Call& call, std::size_t threads) {
  const Spec& spec = packed.spec();
  const std::size_t panels = packed.geometry().panels();
  Plan plan{std::min(spec.D, threads), 1, 1, 1, 1, false};
  const std::size_t each = threads / plan.directions;
  if (call.B >= 4 * each) {
    plan.row_groups = each;
  } else if (each > 1) {
    const double step = 6.0 * static_cast<double>(spec.H) * static_cast<double>(spec.H) *
                        static_cast<double>(call.B) / static_cast<double>(each);
    if (step >= kFlopsToSplitStep || (call.T == 1 && panels >= 2 * each)) plan.members = std::min(each, panels);
  }
  const std::size_t row_bytes = 3 * packed.geometry().padded() * Computed(spec);
  const std::size_t rows = (call.B + plan.row_groups - 1) / plan.row_groups;
  const bool large = 3 * spec.H * spec.H * SizeOf(spec.storage) >= kLargeMatrix;
  const std::size_t least = large ? kRowsOfLarge : kLeastStepsAtOnce;
  const std::size_t rows_that_fit = std::min(kProjectionBytes / row_bytes, kMostInputsAtOnce / (spec.I + 1));
  const std::size_t fit = std::clamp<std::size_t>(rows_that_fit / 8 * 8, least, 1024);
  plan.rows_at_once = std::min({rows, fit, kMostRowsAtOnce});
  plan.steps_at_once = std::max(kLeastStepsAtOnce, std::min(fit, plan.rows_at_once * call.T));
  plan.paired = spec.D == 2 && plan.threads() == 1 && panels * call.B <= kMostVectorsOfPair &&
                plan.rows_at_once == call.B && 6 * spec.H * spec.H * SizeOf(spec.storage) <= kMostBytesOfPair;
  return plan;
}

// Whether this thread made another such call just before.
bool CalledLately() {
  static thread_local std::chrono::steady_clock::time_point last;
  const auto now = std::chrono::steady_clock::now();
  const bool lately = now - last < kSoon;
  last = now;
  return lately;
}

class CallWork final : public Work {
 public:
  CallWork(const Packed& packed, const Call& call, const Plan& plan, const std::int32_t* order,
           unsigned char* scratch, std::size_t scratch_each, Split* splits)
      : packed_(packed),
        call_(call),
        plan_(plan),
        order_(order),
        scratch_(scratch),
        scratch_each_(scratch_each),
        splits_(splits),
        kernel_(KernelFor(packed.spec().storage, packed.spec().linear_before_reset, packed.target())) {}

  void Run(std::size_t rank) override {
    const DefaultFloatMode mode;
    const std::size_t member = rank % plan_.members;
    const std::size_t group = rank / plan_.members;
    const std::size_t row_group = group % plan_.row_groups;
    // Rows in order of length are dealt out like cards, others in one piece.
    const std::size_t B = call_.B, groups = plan_.row_groups;
    const std::size_t begin = order_ ? row_group : B * row_group / groups;
    const std::size_t rows = order_ ? (B - row_group + groups - 1) / groups : B * (row_group + 1) / groups - begin;
    Split& split = splits_[plan_.members > 1 ? group : 0];
    const auto share = [&](std::size_t d, unsigned char* scratch) {
      return Share{&packed_,
                   &call_,
                   d,
                   order_,
                   begin,
                   order_ ? groups : 1,
                   rows,
                   plan_.rows_at_once,
                   plan_.steps_at_once,
                   &split.barrier,
                   plan_.members,
                   &split.last_step,
                   rank == 0,
                   scratch};
    };
    if (plan_.paired) return kernel_.run_pair(share(0, scratch_), share(1, scratch_ + scratch_each_));
    for (std::size_t d = group / groups; d < packed_.spec().D; d += plan_.directions) {
      kernel_.run(share(d, scratch_ + group * scratch_each_), member);
    }
  }

  void WhileWaiting() override {
    if (call_.watch != nullptr) call_.watch->Ask();
  }

 private:
  const Packed& packed_;
  const Call& call_;
  const Plan& plan_;
  const std::int32_t* order_;
  unsigned char* scratch_;
  std::size_t scratch_each_;
  Split* splits_;
  const Kernel& kernel_;
};

// The rows, the longest first; null if they are all of one length.
const std::int32_t* OrderByLength(const Call& call, std::vector<std::int32_t>& order) {
  if (call.lengths == nullptr) return nullptr;
  const std::int64_t* const lengths = call.lengths;
  if (std::all_of(lengths, lengths + call.B, [&](std::int64_t n) { return n == lengths[0]; })) return nullptr;
  order.resize(call.B);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return lengths[a] > lengths[b]; });
  return order.data();
}

}  // namespace

void Run(const Packed& packed, const Call& given) {
  if (given.B == 0) return;
  const WorkspaceLoan loan;
  Workspace& workspace = *loan;
  Call call = given;
  call.turn = workspace.turn++;
  const Spec& spec = packed.spec();
  const double flops = Flops(spec, call);
  const std::size_t allowed = flops < kFlopsToShare || loan.is_nested() ? 1 : NumThreads();
  Plan plan = MakePlan(packed, call, allowed);
  Team team(plan.threads(), flops >= kFlopsToWake                  ? Team::Sleepers::kWake
                            : plan.threads() > 1 && CalledLately() ? Team::Sleepers::kNudge
                                                                   : Team::Sleepers::kLeave);
  if (team.size() < plan.threads()) plan = MakePlan(packed, call, team.size());

  const std::size_t groups = plan.directions * plan.row_groups;
  const std::size_t each =
      ScratchPlan(packed, Computed(spec), plan.rows_at_once, plan.steps_at_once, plan.members).bytes;
  unsigned char* const scratch = workspace.scratch.AtLeast(plan.shares() * each);
  for (std::size_t i = 0; i < std::min<std::size_t>(groups, 2); ++i) {
    workspace.splits[i].barrier.Reset(plan.members);
    workspace.splits[i].last_step.store(SIZE_MAX, std::memory_order_relaxed);
  }
  CallWork work(packed, call, plan, OrderByLength(call, workspace.order), scratch, each, workspace.splits);
  if (plan.threads() == 1) {
    work.Run(0);
  } else {
    team.Run(work);
  }
}

std::size_t ScratchBound(const Packed& packed, std::size_t B) {
  Call call{};
  call.B = B;
  call.T = std::size_t{1} << 40;
  std::size_t most = 0;
  for (std::size_t threads = 1; threads <= NumThreads(); ++threads) {
    const Plan plan = MakePlan(packed, call, threads);
    const ScratchPlan each(packed, Computed(packed.spec()), plan.rows_at_once, plan.steps_at_once, plan.members);
    most = std::max(most, plan.shares() * each.bytes);
  }
  return most;
}

}  // namespace onegru
