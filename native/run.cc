// Runs a call with one or several threads. Threads claim work items when they join (team.h).

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
#include "native/threads/heuristics.h"

namespace onegru {
namespace {

// The minimum FLOPs, measured, of a call that is worth waking threads for.
constexpr double kFlopsToWake = 4.0e6;

// Returns the number of threads that are worth inviting. The caller invites them one after another, which takes about
// as long per thread as kFlopsToShareCall take to compute. So a call ends soonest with n threads if n² = flops /
// kFlopsToShareCall. This has not been measured for more than two threads.
std::size_t UsefulThreads(double flops) {
  return static_cast<std::size_t>(std::clamp(std::sqrt(flops / kFlopsToShareCall), 2.0, double{kMaxThreads}));
}
// If a thread calls again within this time, waking a worker is worthwhile.
constexpr std::chrono::microseconds kBackToBackGap{200};

// Memory that is reused from call to call.
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

// Decides from the previous calls of a thread whether to wake workers for a call below kFlopsToWake.
class WakeHistory {
 public:
  // Returns whether the call that begins wakes workers. Another call will follow soon if one has just ended, or if the
  // last calls were back to back, for example those of the layers of a model.
  bool Begin() {
    const bool lately = std::chrono::steady_clock::now() - end_ < kBackToBackGap, again = lately || in_a_row_;
    in_a_row_ = lately;
    return again || !Uses(Heuristic::kWakeHistory);
  }
  void End() { end_ = std::chrono::steady_clock::now(); }

 private:
  std::chrono::steady_clock::time_point end_;
  bool in_a_row_ = false;
};
thread_local WakeHistory t_wake_history;

const Kernel& KernelOf(const Packed& packed) { return KernelFor(packed.spec(), packed.target()); }

// A call that other threads may help with. It owns all memory that they access, except the caller's memory, which they
// access only in windows.
class CallJob final : public Job {
 public:
  // Prepares the thread's next call.
  void Prepare(const std::shared_ptr<const Packed>& packed, const Call& call, const Plan& plan) {
    call_ = call;
    call_.token = nullptr;
    plan_ = plan;
    OrderByLength(call, order_);
    if (call.lengths != nullptr) {
      lengths_.assign(call.lengths, call.lengths + call.B);
      call_.lengths = lengths_.data();
    }
    const CallScratch scratch(*packed, plan);
    next_scratch_ = scratch_.AtLeast(scratch.bytes);
    caller_ = Reserve(1, scratch.caller);
    claimers_ = Reserve(scratch.claimers, claimer_bytes_ = scratch.claimer);
    members_ = Reserve(scratch.seats, member_bytes_ = scratch.member);
    for (std::size_t i = 0; i < scratch.crews; ++i) {
      crews_[i].Reset(scratch.seats, plan.members, scratch.epochs, Reserve(scratch.epochs, scratch.epoch),
                      scratch.epoch);
    }
    item_count_ = packed->spec().D * plan.row_groups;
    ONEGRU_REQUIRE(item_count_ <= std::size(claims_) && scratch.crews <= std::size(crews_));
    for (std::size_t i = 0; i < item_count_; ++i) claims_[i].Reset();
    next_seat_.store(0, std::memory_order_relaxed);
    closed_.store(false, std::memory_order_relaxed);
    packed_ = packed;  // last, because an exception before this must not keep the layer alive
    inside_.store(1, std::memory_order_release);
  }

  // Runs all items that no helper claims. Waits for `expected_helpers` helpers, for at most `wait_budget`. `token` may
  // cancel the call.
  void Lead(std::size_t expected_helpers, std::chrono::nanoseconds wait_budget, CancellationToken* token) {
    Call call = call_;
    call.token = token;
    const auto begin = std::chrono::steady_clock::now();
    std::size_t done = 0;
    for (std::size_t i = 0; i < item_count_; ++i) {
      if (!claims_[i].TryClaimForCaller()) continue;
      WorkItem item = WorkItemOf(*packed_, call, plan_, order_, i, caller_);
      if (plan_.members > 1) {
        item.crew = &crews_[item.d];
        item.expected_helpers = std::min(plan_.members - 1, expected_helpers / plan_.directions);
        item.wait_budget = wait_budget;
      }
      KernelOf(*packed_).lead(item);
      ++done;
    }
    const std::chrono::nanoseconds each = (std::chrono::steady_clock::now() - begin) / done;
    const std::size_t chunks = 1 + call_.B / plan_.row_groups * call_.T / plan_.x_rows_at_once;
    for (std::size_t i = 0; i < item_count_; ++i) AwaitOrReclaim(call, i, kMinWaitForHelper + each / chunks);
    closed_.store(true, std::memory_order_release);
    if (plan_.members > 1) {
      for (Crew& crew : crews_) crew.Close();
    }
    Leave();
  }

  // Ends the job if no thread has called Lead.
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
  static constexpr std::chrono::nanoseconds kMinWaitForHelper{10000};

  // Returns false if all threads have left, because the layer may then have been freed.
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
    while (!plan_.directions_sequentially && !closed_.load(std::memory_order_acquire)) {
      const std::size_t mine = ClaimOne();
      if (mine == item_count_) break;
      WorkItem item = WorkItemOf(*packed_, call_, plan_, order_, mine, claimers_ + (mine - 1) * claimer_bytes_);
      item.claim = &claims_[mine];
      if (plan_.members > 1) item.crew = &crews_[item.d];
      KernelOf(*packed_).lead(item);
      if (!claims_[mine].IsDone()) return;
    }
    if (plan_.members == 1) return;
    for (std::size_t i = 0; i < item_count_; ++i) {
      const std::size_t d = plan_.directions_sequentially ? i : (seat + 1 + i) % item_count_;
      const WorkItem item = WorkItemOf(*packed_, call_, plan_, order_, d, nullptr);
      crews_[d].JoinEpochsUntilClosed(seat, [&](Epoch& epoch, std::size_t member) {
        KernelOf(*packed_).join(item, epoch, member, members_ + seat * member_bytes_);
      });
    }
  }

  unsigned char* Reserve(std::size_t count, std::size_t bytes) {
    unsigned char* const at = next_scratch_;
    next_scratch_ += count * bytes;
    return at;
  }

  // Claims the last free item, because the caller begins with the first.
  std::size_t ClaimOne() {
    for (std::size_t i = item_count_; i-- > 1;) {
      if (claims_[i].TryClaimForHelper()) return i;
    }
    return item_count_;
  }

  // Waits for a helper as long as it closes a window within `most`. Otherwise reclaims its item and runs the rest.
  void AwaitOrReclaim(const Call& call, std::size_t index, std::chrono::nanoseconds most) {
    Claim& claim = claims_[index];
    std::uint32_t windows = claim.windows();
    for (SpinDeadline deadline(most); !claim.IsDone();) {
      if (deadline.Wait()) continue;
      if (call.token != nullptr) call.token->Ask();
      const bool stopped = call.token != nullptr && call.token->stopped();
      if (claim.windows() != windows && !stopped) {
        windows = claim.windows();
        deadline = SpinDeadline(most);
      } else if (claim.Reclaim()) {
        WorkItem item = WorkItemOf(*packed_, call, plan_, order_, index, caller_);
        item.from = claim.checkpoint();
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
  unsigned char* claimers_ = nullptr;
  unsigned char* members_ = nullptr;
  std::size_t claimer_bytes_ = 0, member_bytes_ = 0;
  std::size_t item_count_ = 0;
  Claim claims_[2 * kMaxThreads];
  Crew crews_[2];
  std::atomic<std::size_t> next_seat_{0};
  std::atomic<bool> closed_{true};
  std::atomic<std::size_t> inside_{0};  // the caller and its helpers
};

// A thread's jobs. There are several, because a helper may still use the previous one.
class Jobs {
 public:
  ~Jobs() {
    for (CallJob* job : jobs_) {
      if (job != nullptr) job->Unref();
    }
  }

  CallJob& Next() {
    for (CallJob*& job : jobs_) {
      if (job == nullptr) job = new CallJob;
      if (job->HasNoHelpers()) return *job;
    }
    jobs_[0]->Unref();
    jobs_[0] = nullptr;  // allocation may throw
    return *(jobs_[0] = new CallJob);
  }

 private:
  CallJob* jobs_[3] = {};
};

// The memory for the calls of one thread.
struct Workspace {
  Buffer scratch;
  std::vector<std::int32_t> order;
  Jobs jobs;
  unsigned next_sweep_parity = 0;
};

// Whether the thread's workspace is lent or destroyed. It has no destructor, so it is valid until the thread ends.
thread_local bool t_workspace_is_unavailable = false;

struct WorkspaceOfThread : Workspace {
  ~WorkspaceOfThread() { t_workspace_is_unavailable = true; }
};
thread_local WorkspaceOfThread t_workspace;

// Lends the thread's workspace. Lends a new one to a nested call, which a token's code may make, and to a call that an
// exit handler or a destructor makes after the thread's workspace was destroyed.
class WorkspaceLoan {
 public:
  WorkspaceLoan() {
    if (t_workspace_is_unavailable) {
      lent_ = (new_ = std::make_unique<Workspace>()).get();
    } else {
      lent_ = &t_workspace;
      t_workspace_is_unavailable = kIsReturned;
    }
  }
  ~WorkspaceLoan() {
    if (new_ == nullptr) t_workspace_is_unavailable = false;
  }
  WorkspaceLoan(const WorkspaceLoan&) = delete;
  WorkspaceLoan& operator=(const WorkspaceLoan&) = delete;

  bool is_new() const { return new_ != nullptr; }
  Workspace& operator*() const { return *lent_; }

 private:
  // WebAssembly has no exceptions: an error returns to JavaScript and skips all destructors. It has no tokens, so it
  // has no nested calls.
#if defined(__wasi__) && defined(ONEGRU_WEB)
  static constexpr bool kIsReturned = false;
#else
  static constexpr bool kIsReturned = true;
#endif

  Workspace* lent_;
  std::unique_ptr<Workspace> new_;
};

std::size_t CallerBytes(const Packed& packed, const Plan& plan) {
  return ScratchPlan(ScratchOwner::kCaller, packed, ComputedSize(packed.spec().type), plan.rows_at_once,
                     plan.x_rows_at_once)
      .bytes;
}

// Runs a call on this thread. memory: `each` bytes (CallerBytes) for each interleaved direction.
void RunSerially(const Packed& packed, const Call& call, const Plan& plan, const std::vector<std::int32_t>& order,
                 unsigned char* memory, std::size_t each) {
  const DefaultFloatMode mode;
  const auto item = [&](std::size_t d, unsigned char* at) { return WorkItemOf(packed, call, plan, order, d, at); };
  if (plan.interleave_directions) return KernelOf(packed).run_pair(item(0, memory), item(1, memory + each));
  for (std::size_t d = 0; d < packed.spec().D; ++d) KernelOf(packed).lead(item(d, memory));
}

// The tasks for a foreign pool. They are identical: the first one to run leads.
struct ForeignTasks {
  CallJob& job;
  CancellationToken* token;
  std::size_t expected_helpers;
  std::atomic<bool> has_leader{false};
  std::atomic<bool> is_done{false};
  std::atomic<bool> has_helper{false};  // whether a helper joined before the leader finished

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
    tasks.job.Lead(tasks.expected_helpers, kGatherTimeout, tasks.token);
    tasks.is_done.store(true, std::memory_order_release);
  }
};

// Measures whether another runtime's pool helps a thread. A pool that runs its tasks one after another, or wakes its
// threads too late, costs more than it gains. After kMaxMisses calls, onegru tries it only once in kCallsToTry calls.
class ForeignPoolProbe {
 public:
  bool IsDue() { return misses_ < kMaxMisses || ++calls_ % kCallsToTry == 0; }
  void Count(bool helped) { misses_ = helped ? 0 : misses_ + 1; }

 private:
  static constexpr unsigned kMaxMisses = 3;
  static constexpr unsigned kCallsToTry = 64;
  unsigned misses_ = 0;
  unsigned calls_ = 0;
};
thread_local ForeignPoolProbe t_pool_probe;

}  // namespace

// A stream's memory contains the prepared sequence, then the scratch.
StreamCalls::StreamCalls(const Packed& packed, unsigned char* memory)
    : packed_(packed), kernel_(KernelOf(packed)), memory_(memory) {}

std::size_t StreamCalls::Bytes(const Packed& packed, std::size_t rows) {
  return RoundUpTo(kAlignment, KernelOf(packed).sequence_bytes) + StreamScratchBound(packed, rows);
}

void StreamCalls::Run() {
  const DefaultFloatMode mode;
  if (call_.B != B_ || call_.T != T_) SetUp();
  kernel_.run(memory_);
}

void StreamCalls::SetUp() {
  const std::vector<std::int32_t> no_order;  // empty, so it allocates nothing
  unsigned char* const scratch = memory_ + RoundUpTo(kAlignment, kernel_.sequence_bytes);
  item_ = WorkItemOf(packed_, call_, MakeStreamPlan(packed_, call_), no_order, 0, scratch);
  kernel_.set_up(item_, memory_);
  B_ = call_.B;
  T_ = call_.T;
}

void RunDirection(const Packed& packed, const Call& given, std::size_t d) {
  if (given.B == 0 || (given.T == 0 && given.Y_h.data == nullptr)) return;
  Call call = given;
  const WorkspaceLoan loan;
  call.sweep_parity = (*loan).next_sweep_parity++;
  const Plan plan = MakePlan(packed, call, 1);
  OrderByLength(call, (*loan).order);
  unsigned char* const scratch = (*loan).scratch.AtLeast(CallerBytes(packed, plan));
  const DefaultFloatMode mode;
  KernelOf(packed).lead(WorkItemOf(packed, call, plan, (*loan).order, d, scratch));
}

void Run(const std::shared_ptr<const Packed>& packed, const Call& given, const ForeignPool* pool) {
  if (given.B == 0 || (given.T == 0 && given.Y_h.data == nullptr)) return;
  Call call = given;
  const double flops = Flops(packed->spec(), call);
  const WorkspaceLoan loan;
  call.sweep_parity = (*loan).next_sweep_parity++;
  // The size of another runtime's pool is not limited.
  const auto most = [&] {
    if (pool == nullptr) return UncontendedThreads();
    return t_pool_probe.IsDue() ? std::clamp<std::size_t>(pool->threads, 1, kMaxThreads) : 1;
  };
  // Helpers may be late, and they have no memory for saved gates.
  const bool needs_one_thread = flops < kFlopsToShareCall || loan.is_new() || call.gates.data != nullptr;
  const std::size_t allowed = needs_one_thread ? 1 : std::min(most(), UsefulThreads(flops));
  const Plan plan = MakePlan(*packed, call, allowed);
  if (plan.threads() == 1) {
    OrderByLength(call, (*loan).order);
    const std::size_t each = CallerBytes(*packed, plan);
    return RunSerially(*packed, call, plan, (*loan).order,
                       (*loan).scratch.AtLeast((plan.interleave_directions ? 2 : 1) * each), each);
  }
  CallJob& job = (*loan).jobs.Next();
  job.Prepare(packed, call, plan);
  if (pool != nullptr) {
    ForeignTasks tasks{job, call.token, plan.threads() - 1};
    pool->run(pool->pool, plan.threads(), &ForeignTasks::Run, &tasks);
    if (!tasks.has_leader.load(std::memory_order_relaxed)) ForeignTasks::Run(&tasks, 0);
    return t_pool_probe.Count(tasks.has_helper.load(std::memory_order_relaxed));
  }
  const bool is_large = flops >= kFlopsToWake;
  const Invitation invitation(job, plan.threads() - 1, is_large || t_wake_history.Begin(),
                              is_large ? LeastTime(packed->spec(), call) : std::chrono::nanoseconds{});
  const DefaultFloatMode mode;
  job.Lead(invitation.expected_helpers(), invitation.wait_budget(), call.token);
  if (!is_large) t_wake_history.End();
}

}  // namespace onegru
