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

#include "native/kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

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
// Up to here a step takes as long as its longest chain of operations, and two chains take no longer than one.
// Vectors of a step, and bytes of both directions' matrices R.
constexpr std::size_t kMostVectorsOfPair = 4;
constexpr std::size_t kMostBytesOfPair = 24 * 1024;

// From here on, measured, threads pay: FLOPs of a call.
constexpr double kFlopsToShare = 1.2e5;
constexpr double kFlopsToWake = 4.0e6;
// FLOPs that a thread does in a nanosecond, roughly, and the meetings that it costs to call others in at all.
constexpr double kFlopsPerNanosecond = 50.0;
constexpr double kMeetingsToStart = 3.0;
// A thread that calls again within this time is worth a second one that is awake.
constexpr std::chrono::microseconds kSoon{200};

// IEEE 754's default mode, whatever the caller has set: nearest, subnormals kept. Restored at the end.
class DefaultFloatMode {
 public:
#if defined(__x86_64__)
  DefaultFloatMode() : saved_(_mm_getcsr()) {
    if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(kDefault | (saved_ & kFlags));
  }
  ~DefaultFloatMode() {
    if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(saved_);
  }

 private:
  static constexpr unsigned kFlags = 0x3f;
  static constexpr unsigned kDefault = 0x1f80;
  unsigned saved_;
#elif defined(__aarch64__)
  DefaultFloatMode() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    if (saved_ != 0) asm volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}));
  }
  ~DefaultFloatMode() {
    if (saved_ != 0) asm volatile("msr fpcr, %0" : : "r"(saved_));
  }

 private:
  std::uint64_t saved_;
#endif
};

// Memory that calls use again and again: as many pieces as calls ran at once. Each thread has its own, so
// no call waits for another.
struct Buffer {
  AlignedBytes memory;
  std::size_t size = 0;

  unsigned char* AtLeast(std::size_t bytes) {
    if (size < bytes) {
      memory = nullptr;
      memory = AllocateAligned(bytes);
      size = bytes;
    } else if (size > kKept && bytes < size / 4) {
      memory = nullptr;  // a huge call is over: give its memory back
      size = 0;
      return AtLeast(bytes);
    }
    return memory.get();
  }

  static constexpr std::size_t kKept = 8 << 20;
};

thread_local Buffer t_scratch;
thread_local std::vector<std::int32_t> t_order;
thread_local unsigned t_turn;

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

// Whether n threads are faster than one where they split the units and so meet after each part of a step.
bool SplittingPays(const Spec& spec, const Call& call, std::size_t n, double meeting) {
  const double saved =
      Flops(spec, call) / static_cast<double>(spec.D) / kFlopsPerNanosecond * (1.0 - 1.0 / static_cast<double>(n));
  const double meetings = kMeetingsToStart + static_cast<double>(call.T) * (spec.linear_before_reset ? 1.0 : 2.0);
  return saved > 1.25 * meeting * meetings;
}

// meeting: what a meeting of threads takes, in nanoseconds.
Plan MakePlan(const Packed& packed, const Call& call, std::size_t threads, double meeting) {
  const Spec& spec = packed.spec();
  const std::size_t panels = packed.geometry().panels();
  Plan plan{std::min(spec.D, threads), 1, 1, 1, 1, false};
  const std::size_t each = threads / plan.directions;
  if (call.B >= 4 * each) {
    plan.row_groups = each;
  } else if (each > 1 && SplittingPays(spec, call, std::min(each, panels), meeting)) {
    plan.members = std::min(each, panels);
  }
  const std::size_t row_bytes = 3 * packed.geometry().padded() * Computed(spec);
  const std::size_t fit = std::clamp<std::size_t>(kProjectionBytes / row_bytes / 8 * 8, 8, 1024);
  const std::size_t rows = (call.B + plan.row_groups - 1) / plan.row_groups;
  plan.rows_at_once = std::min({rows, fit, kMostRowsAtOnce});
  plan.steps_at_once = std::max(plan.rows_at_once, std::min(fit, plan.rows_at_once * call.T));
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
           unsigned char* scratch, std::size_t scratch_each, Barrier* barriers)
      : packed_(packed),
        call_(call),
        plan_(plan),
        order_(order),
        scratch_(scratch),
        scratch_each_(scratch_each),
        barriers_(barriers),
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
                   barriers_ + (plan_.members > 1 ? group : 0),
                   plan_.members,
                   scratch};
    };
    if (plan_.paired) return kernel_.run_pair(share(0, scratch_), share(1, scratch_ + scratch_each_));
    for (std::size_t d = group / groups; d < packed_.spec().D; d += plan_.directions) {
      kernel_.run(share(d, scratch_ + group * scratch_each_), member);
    }
  }

 private:
  const Packed& packed_;
  const Call& call_;
  const Plan& plan_;
  const std::int32_t* order_;
  unsigned char* scratch_;
  std::size_t scratch_each_;
  Barrier* barriers_;
  const Kernel& kernel_;
};

// The rows, the longest first; null if they are all of one length.
const std::int32_t* OrderByLength(const Call& call) {
  if (call.lengths == nullptr) return nullptr;
  const std::int64_t* const lengths = call.lengths;
  if (std::all_of(lengths, lengths + call.B, [&](std::int64_t n) { return n == lengths[0]; })) return nullptr;
  t_order.resize(call.B);
  std::iota(t_order.begin(), t_order.end(), 0);
  std::stable_sort(t_order.begin(), t_order.end(),
                   [&](std::int32_t a, std::int32_t b) { return lengths[a] > lengths[b]; });
  return t_order.data();
}

}  // namespace

void Run(const Packed& packed, const Call& given) {
  if (given.B == 0) return;
  Call call = given;
  call.turn = t_turn++;
  const Spec& spec = packed.spec();
  const double flops = Flops(spec, call);
  const std::size_t allowed = flops < kFlopsToShare ? 1 : NumThreads();
  Plan plan = MakePlan(packed, call, allowed, 0.0);
  Team team(plan.threads(), flops >= kFlopsToWake                  ? Team::Sleepers::kWake
                            : plan.threads() > 1 && CalledLately() ? Team::Sleepers::kNudge
                                                                   : Team::Sleepers::kLeave);
  if (team.size() < plan.threads() || plan.members > 1) {
    plan = MakePlan(packed, call, team.size(), plan.members > 1 ? team.MeetingCost() : 0.0);
  }

  const std::size_t groups = plan.directions * plan.row_groups;
  const std::size_t each =
      ScratchPlan(packed, Computed(spec), plan.rows_at_once, plan.steps_at_once, plan.members).bytes;
  unsigned char* const scratch = t_scratch.AtLeast(plan.shares() * each);
  static thread_local Barrier barriers[2];  // units are split in no more shares than there are directions
  for (std::size_t i = 0; i < std::min<std::size_t>(groups, 2); ++i) barriers[i].Reset(plan.members);
  CallWork work(packed, call, plan, OrderByLength(call), scratch, each, barriers);
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
    const Plan plan = MakePlan(packed, call, threads, 0.0);
    const ScratchPlan each(packed, Computed(packed.spec()), plan.rows_at_once, plan.steps_at_once, plan.members);
    most = std::max(most, plan.shares() * each.bytes);
  }
  return most;
}

}  // namespace onegru
