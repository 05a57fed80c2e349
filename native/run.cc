// A call, by one thread or several. Which thread does which part of the plan is decided as they come: team.h.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <vector>

#include "native/assert.h"
#include "native/float_mode.h"
#include "native/kernel.h"
#include "native/plan.h"
#include "native/targets/targets.h"

namespace onegru {

const Kernel& KernelFor(const Spec& spec, std::size_t target) {
  switch (spec.storage) {
#if defined(ONEGRU_SMALL)
    default:
      throw Unsupported("this build has kernels of float32 and int8 alone");
#else
    case ElementType::kFloat64:
      return Float64Kernel(target);
    case ElementType::kFloat16:
      return Float16Kernel(target);
    case ElementType::kBFloat16:
      return BFloat16Kernel(target);
#endif
    case ElementType::kInt8:
#if !ONEGRU_WITHOUT_VNNI
      if (Int8ProductsOf(target) != Int8Products::kSimd) {
        return (spec.planes == 1 ? Int8VnniKernel : Int8By16VnniKernel)(target);
      }
#endif
#if ONEGRU_ONLY_VNNI
      throw Unsupported("this build's kernels for int8 weights need VNNI, which this CPU does not have");
#else
      return (spec.planes == 1 ? Int8Kernel : Int8By16Kernel)(target);
#endif
    case ElementType::kFloat32:
      break;
  }
  return Float32Kernel(target);
}

namespace {

// From these FLOPs of a call on, measured, it pays to share it, and to wake threads for it.
constexpr double kFlopsToShare = 1.2e5;
constexpr double kFlopsToWake = 4.0e6;

// How many threads are worth inviting: the caller does that one after another. A thread takes it about as long as the
// least work that is shared takes, and a call of n threads ends soonest where n² is its work by that. For more than two
// threads this was never measured.
std::size_t UsefulThreads(double flops) {
  return static_cast<std::size_t>(std::clamp(std::sqrt(flops / kFlopsToShare), 2.0, double{kMaxThreads}));
}
// For a thread that calls again within this time it pays to wake a worker in advance.
constexpr std::chrono::microseconds kSoon{200};
// A call that takes this long ends after a worker woken in advance has gone to sleep again: it is woken for each.
constexpr std::chrono::microseconds kLong{100};

// Memory reused from call to call.
struct Buffer {
  AlignedBytes memory;
  std::size_t size = 0;

  unsigned char* AtLeast(std::size_t bytes) {
    const bool huge_call_is_over = size > kKept && bytes < size / 4;
    if (size < bytes || huge_call_is_over) {
      memory = nullptr;
      size = 0;  // allocation may throw
      memory = AllocateAligned(bytes);
      size = bytes;
    }
    return memory.get();
  }

  static constexpr std::size_t kKept = 8 << 20;
};

// The memory of calls on one thread. Each thread has its own, so no call waits for another.
struct Workspace {
  Buffer scratch;
  std::vector<std::int32_t> order;
  unsigned turn = 0;
  bool taken = false;
};

thread_local Workspace t_workspace;

// The thread's workspace; a new one for a nested call, as a token's code may make.
class WorkspaceLoan {
 public:
  WorkspaceLoan() : lent_(&t_workspace) {
    if (lent_->taken) lent_ = (nested_ = std::make_unique<Workspace>()).get();
    lent_->taken = kIsReturned;
  }
  ~WorkspaceLoan() { lent_->taken = false; }
  WorkspaceLoan(const WorkspaceLoan&) = delete;
  WorkspaceLoan& operator=(const WorkspaceLoan&) = delete;

  bool is_nested() const { return nested_ != nullptr; }
  Workspace& operator*() const { return *lent_; }

 private:
  // WebAssembly has no exceptions: an error leaves by way of JavaScript, past all destructors. It has no tokens, and so
  // no nested calls, either.
#if defined(__wasi__) && defined(ONEGRU_WEB)
  static constexpr bool kIsReturned = false;
#else
  static constexpr bool kIsReturned = true;
#endif

  Workspace* lent_;
  std::unique_ptr<Workspace> nested_;
};

// When a thread makes calls that are worth sharing, but by their FLOPs not worth waking others for.
class WakePolicy {
 public:
  // What to do for the call that begins. Another one comes soon if one has just ended, or the last ones came in a row,
  // as those of a model's layers do for each frame. How long calls take depends on caches and chains, not on FLOPs.
  Sleepers Begin() {
    begin_ = std::chrono::steady_clock::now();
    const bool lately = begin_ - end_ < kSoon, again = lately || in_a_row_;
    in_a_row_ = lately;
    return !again ? Sleepers::kLeave : is_long_ ? Sleepers::kWake : Sleepers::kNudge;
  }
  void End() {
    end_ = std::chrono::steady_clock::now();
    is_long_ = end_ - begin_ >= kLong;
  }

 private:
  std::chrono::steady_clock::time_point begin_, end_;
  bool in_a_row_ = false, is_long_ = false;
};
thread_local WakePolicy t_rhythm;

const Kernel& KernelOf(const Packed& packed) { return KernelFor(packed.spec(), packed.target()); }

// A call that other threads may help with. It owns what they read and write, except the caller's memory, which they
// touch only in windows.
class CallJob final : public Job {
 public:
  // For the thread's next call.
  void Prepare(const std::shared_ptr<const Packed>& packed, const Call& call, const Plan& plan) {
    call_ = call;
    call_.token = nullptr;
    plan_ = plan;
    OrderByLength(call, order_);
    if (call.lengths != nullptr) {
      lengths_.assign(call.lengths, call.lengths + call.B);
      call_.lengths = lengths_.data();
    }
    const Scratch scratch(*packed, plan);
    next_scratch_ = scratch_.AtLeast(scratch.bytes);
    caller_ = Take(1, scratch.caller);
    helpers_ = Take(scratch.helpers, helper_bytes_ = scratch.helper);
    members_ = Take(scratch.seats, member_bytes_ = scratch.member);
    for (std::size_t i = 0; i < scratch.crews; ++i) {
      crews_[i].Reset(scratch.seats, plan.members, scratch.epochs, Take(scratch.epochs, scratch.epoch), scratch.epoch);
    }
    shares_ = packed->spec().D * plan.row_groups;
    ONEGRU_REQUIRE(shares_ <= std::size(claims_) && scratch.crews <= std::size(crews_));
    for (std::size_t i = 0; i < shares_; ++i) claims_[i].Reset();
    next_seat_.store(0, std::memory_order_relaxed);
    closed_.store(false, std::memory_order_relaxed);
    packed_ = packed;  // last, as allocation may throw: the job would keep the layer
    inside_.store(1, std::memory_order_release);
  }

  // Does everything that nobody else does. `ready`: how many helpers are about to come, within `patience`. `token` may
  // cancel it.
  void Lead(std::size_t ready, std::chrono::nanoseconds patience, CancellationToken* token) {
    Call call = call_;
    call.token = token;
    const auto begin = std::chrono::steady_clock::now();
    std::size_t done = 0;
    for (std::size_t i = 0; i < shares_; ++i) {
      if (!claims_[i].ByCaller()) continue;
      WorkItem item = WorkItemOf(*packed_, call, plan_, order_, i, caller_);
      if (plan_.members > 1) {
        item.crew = &crews_[item.d];
        item.ready = std::min(plan_.members - 1, ready / plan_.directions);
        item.patience = patience;
      }
      KernelOf(*packed_).lead(item);
      ++done;
    }
    const std::chrono::nanoseconds each = (std::chrono::steady_clock::now() - begin) / done;
    const std::size_t chunks = 1 + call_.B / plan_.row_groups * call_.T / plan_.steps_at_once;
    for (std::size_t i = 0; i < shares_; ++i) WaitOrTakeBack(call, i, kMinSpin + each / chunks);
    closed_.store(true, std::memory_order_release);
    if (plan_.members > 1) {
      for (Crew& crew : crews_) crew.Close();
    }
    Leave();
  }

  // In the place of Lead, when nobody has come to do it.
  void Abandon() {
    closed_.store(true, std::memory_order_release);
    Leave();
  }

  void Help() override {
    MayStall();
    if (!Enter()) return;
    DoHelp();
    Leave();
  }

 private:
  static constexpr std::chrono::nanoseconds kMinSpin{10000};

  // Nobody enters once all have left: the layer may be freed then.
  bool Enter() {
    std::size_t inside = inside_.load(std::memory_order_relaxed);
    while (inside != 0) {
      if (inside_.compare_exchange_weak(inside, inside + 1, std::memory_order_acquire)) return true;
    }
    return false;
  }
  void Leave() {
    if (inside_.fetch_sub(1, std::memory_order_acq_rel) == 1) packed_ = nullptr;
  }

  void DoHelp() {
    const DefaultFloatMode mode;
    const std::size_t seat = next_seat_.fetch_add(1, std::memory_order_relaxed);
    while (!plan_.in_turn && !closed_.load(std::memory_order_acquire)) {
      const std::size_t mine = ClaimOne();
      if (mine == shares_) break;
      WorkItem item = WorkItemOf(*packed_, call_, plan_, order_, mine, helpers_ + (mine - 1) * helper_bytes_);
      item.claim = &claims_[mine];
      if (plan_.members > 1) item.crew = &crews_[item.d];
      KernelOf(*packed_).lead(item);
      if (!claims_[mine].IsDone()) return;
    }
    if (plan_.members == 1) return;
    for (std::size_t i = 0; i < shares_; ++i) {
      const std::size_t d = plan_.in_turn ? i : (seat + 1 + i) % shares_;
      const WorkItem item = WorkItemOf(*packed_, call_, plan_, order_, d, nullptr);
      crews_[d].Serve(seat, [&](Epoch& epoch, std::size_t member) {
        KernelOf(*packed_).join(item, epoch, member, members_ + seat * member_bytes_);
      });
    }
  }

  unsigned char* Take(std::size_t count, std::size_t bytes) {
    unsigned char* const at = next_scratch_;
    next_scratch_ += count * bytes;
    return at;
  }

  // Claims the last item that is free, as the caller begins with the first.
  std::size_t ClaimOne() {
    for (std::size_t i = shares_; i-- > 1;) {
      if (claims_[i].ByHelper()) return i;
    }
    return shares_;
  }

  // Waits for a helper as long as it makes progress, taking at most `most` from one window to the next; else does the
  // rest of its item.
  void WaitOrTakeBack(const Call& call, std::size_t index, std::chrono::nanoseconds most) {
    Claim& claim = claims_[index];
    std::uint32_t windows = claim.windows();
    for (SpinDeadline patience(most); !claim.IsDone();) {
      if (patience.Wait()) continue;
      if (call.token != nullptr) call.token->Ask();
      const bool stopped = call.token != nullptr && call.token->stopped();
      if (claim.windows() != windows && !stopped) {
        windows = claim.windows();
        patience = SpinDeadline(most);
      } else if (claim.TakeBack()) {
        WorkItem item = WorkItemOf(*packed_, call, plan_, order_, index, caller_);
        item.from = claim.place();
        KernelOf(*packed_).lead(item);  // does nothing if the call is stopped
        return;
      }
    }
  }

  std::shared_ptr<const Packed> packed_;
  Call call_{};
  Plan plan_{};
  std::vector<std::int32_t> order_;
  std::vector<std::int64_t> lengths_;
  Buffer scratch_;
  unsigned char* next_scratch_ = nullptr;
  unsigned char* caller_ = nullptr;
  unsigned char* helpers_ = nullptr;
  unsigned char* members_ = nullptr;
  std::size_t helper_bytes_ = 0, member_bytes_ = 0;
  std::size_t shares_ = 0;
  Claim claims_[2 * kMaxThreads];
  Crew crews_[2];
  std::atomic<std::size_t> next_seat_{0};
  std::atomic<bool> closed_{true};
  std::atomic<std::size_t> inside_{0};  // the caller and its helpers
};

// A thread's jobs: a helper may still be in the previous one.
class Jobs {
 public:
  ~Jobs() {
    for (CallJob* job : jobs_) {
      if (job != nullptr) job->Drop();
    }
  }

  CallJob& Next() {
    for (CallJob*& job : jobs_) {
      if (job == nullptr) job = new CallJob;
      if (job->IsOurs()) return *job;
    }
    jobs_[0]->Drop();
    jobs_[0] = nullptr;  // allocation may throw
    return *(jobs_[0] = new CallJob);
  }

 private:
  CallJob* jobs_[3] = {};
};

thread_local Jobs t_jobs;

std::size_t CallerBytes(const Packed& packed, const Plan& plan) {
  return ScratchPlan(ScratchOwner::kCaller, packed, ComputedSize(packed.spec().type), plan.rows_at_once,
                     plan.steps_at_once)
      .bytes;
}

// memory: `each`, of CallerBytes, for each direction that runs at a time; only pairs use `each`.
void RunAlone(const Packed& packed, const Call& call, const Plan& plan, const std::vector<std::int32_t>& order,
              unsigned char* memory, std::size_t each) {
  const DefaultFloatMode mode;
  const auto item = [&](std::size_t d, unsigned char* at) { return WorkItemOf(packed, call, plan, order, d, at); };
  if (plan.paired) return KernelOf(packed).run_pair(item(0, memory), item(1, memory + each));
  for (std::size_t d = 0; d < packed.spec().D; ++d) KernelOf(packed).lead(item(d, memory));
}

// Identical tasks: the first one to run leads.
struct ForeignTasks {
  CallJob& job;
  CancellationToken* token;
  std::size_t ready;
  std::atomic<bool> has_leader{false};
  std::atomic<bool> is_done{false};
  std::atomic<bool> has_helper{false};  // one that came in time

  ~ForeignTasks() {
    if (!has_leader.load(std::memory_order_relaxed)) job.Abandon();  // the pool threw
  }

  static void Run(void* data, std::size_t) {
    auto& tasks = *static_cast<ForeignTasks*>(data);
    if (tasks.has_leader.exchange(true)) {
      if (tasks.is_done.load(std::memory_order_acquire)) return;
      tasks.has_helper.store(true, std::memory_order_relaxed);
      return tasks.job.Help();
    }
    const DefaultFloatMode mode;
    tasks.job.Lead(tasks.ready, kGatherTimeout, tasks.token);
    tasks.is_done.store(true, std::memory_order_release);
  }
};

// Whether other runtimes' pools help a thread. A pool that runs its tasks one after another, or wakes its threads too
// late, costs more than it gains: it is only tried now and then.
class PoolTrials {
 public:
  bool IsDue() { return misses_ < kMaxMisses || ++calls_ % kCallsToTry == 0; }
  void Count(bool helped) { misses_ = helped ? 0 : misses_ + 1; }

 private:
  static constexpr unsigned kMaxMisses = 3;
  static constexpr unsigned kCallsToTry = 64;
  unsigned misses_ = 0;
  unsigned calls_ = 0;
};
thread_local PoolTrials t_pool_trials;

}  // namespace

void RunAlone(const Packed& packed, const Call& call, unsigned char* scratch) {
  const Plan plan = MakeStreamPlan(packed, call);
  const std::vector<std::int32_t> no_order;  // no memory
  RunAlone(packed, call, plan, no_order, scratch, plan.paired ? CallerBytes(packed, plan) : 0);
}

void Run(const std::shared_ptr<const Packed>& packed, const Call& given, const ForeignPool* pool) {
  if (given.B == 0 || (given.T == 0 && given.Y_h.data == nullptr)) return;  // however many steps or rows that are
  Call call = given;
  const double flops = Flops(packed->spec(), call);
  const WorkspaceLoan loan;
  call.turn = (*loan).turn++;
  // Another runtime's pool may be as large as it likes.
  const auto most = [&] {
    if (pool == nullptr) return ThreadsWithRoom();
    return t_pool_trials.IsDue() ? std::clamp<std::size_t>(pool->threads, 1, kMaxThreads) : 1;
  };
  // Helpers may come late, and have no memory of their own for gates.
  const bool is_alone = flops < kFlopsToShare || loan.is_nested() || call.gates.data != nullptr;
  const std::size_t allowed = is_alone ? 1 : std::min(most(), UsefulThreads(flops));
  const Plan plan = MakePlan(*packed, call, allowed);
  if (plan.threads() == 1) {
    OrderByLength(call, (*loan).order);
    const std::size_t each = CallerBytes(*packed, plan);
    return RunAlone(*packed, call, plan, (*loan).order, (*loan).scratch.AtLeast((plan.paired ? 2 : 1) * each), each);
  }
  CallJob& job = t_jobs.Next();
  job.Prepare(packed, call, plan);
  if (pool != nullptr) {
    ForeignTasks tasks{job, call.token, plan.threads() - 1};
    pool->run(pool->pool, plan.threads(), &ForeignTasks::Run, &tasks);
    if (!tasks.has_leader.load(std::memory_order_relaxed)) ForeignTasks::Run(&tasks, 0);
    return t_pool_trials.Count(tasks.has_helper.load(std::memory_order_relaxed));
  }
  const bool is_large = flops >= kFlopsToWake;
  const Invitation invitation(job, plan.threads() - 1, is_large ? Sleepers::kWake : t_rhythm.Begin(),
                              is_large ? LeastTime(packed->spec(), call) : std::chrono::nanoseconds{});
  const DefaultFloatMode mode;
  job.Lead(invitation.ready(), invitation.patience(), call.token);
  if (!is_large) t_rhythm.End();
}

}  // namespace onegru
