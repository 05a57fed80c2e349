// Worker threads. They start when first needed. After a job, they yield for up to 250 µs, and then sleep.
//
// A call never waits for a worker that has not joined. The caller invites free workers and starts at once. Workers that
// join help, and invitations that remain at the end are withdrawn. A helper may still use a job whose call has
// returned, so a job owns all memory that helpers access, and lives until the last helper has left. All callers share
// the workers. The number of helpers never changes a result. A forked child starts without workers and creates its own.
//
// A thread waits only for work that a running thread is about to finish: a window (team.h), or a task of training
// (gradients.cc, few_steps.cc), which adds to sums in place and cannot be repeated. Such a task is a share of a chunk
// or a direction of a call of few steps, and takes milliseconds at most. If the system suspends the helper in it, the
// caller waits until it runs again. Waiting threads yield their CPU.

#ifndef ONEGRU_NATIVE_THREADS_THREADS_H_
#define ONEGRU_NATIVE_THREADS_THREADS_H_

#include <atomic>
#include <chrono>
#include <cstddef>

#include "native/system/threads.h"

namespace onegru {

// table: native_threads
inline constexpr std::size_t kMaxThreads = 64;
// end

// Returns the number of threads that a call may use, including the caller's own; at least 1.
std::size_t NumThreads();
// Limits the calls of this thread to `most` threads; 0 removes the limit.
void LimitThreads(std::size_t most);
// `avoids_contention`: whether a call uses fewer threads while other processes compete for the CPUs. Otherwise the
// system suspends the caller and its helpers in turn, they wait for each other, and the call takes longer than with one
// thread.
void SetNumThreads(std::size_t count, bool avoids_contention = false);
// Returns the number of threads that the calling thread's next call should use.
std::size_t UncontendedThreads();

// Work that other threads may help with.
class Job {
 public:
  virtual ~Job() = default;
  // May be called at any time, even after the work is done.
  virtual void Help() = 0;

  void Ref() { holders_.fetch_add(1, std::memory_order_relaxed); }
  void Unref() {
    if (holders_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  // Returns whether every helper has left.
  bool HasNoHelpers() const { return holders_.load(std::memory_order_acquire) == 1; }

 private:
  std::atomic<std::size_t> holders_{1};
};

// How long a leader waits for helpers that are awake.
inline constexpr std::chrono::nanoseconds kGatherTimeout{2000};

// Invites up to `count` workers to a job. The destructor withdraws invitations that no worker has accepted.
class Invitation {
 public:
  // wakes: whether sleeping workers are woken and invited. predicted: the time of the job on one thread. Without memory
  // or threads, it invites fewer workers, or none.
  Invitation(Job& job, std::size_t count, bool wakes, std::chrono::nanoseconds predicted) noexcept;
  ~Invitation();
  Invitation(const Invitation&) = delete;
  Invitation& operator=(const Invitation&) = delete;

  // The number of invited workers, the number of them that are worth waiting for, and how long to wait: a moment for
  // workers that are awake, and their usual delay for workers that were asleep. Unreliable workers do not count.
  std::size_t count() const { return count_; }
  std::size_t expected_helpers() const { return expected_helpers_; }
  std::chrono::nanoseconds wait_budget() const { return wait_budget_; }

 private:
  std::size_t count_ = 0;
  std::size_t expected_helpers_ = 0;
  std::chrono::nanoseconds wait_budget_ = kGatherTimeout;
  struct Worker* workers_[kMaxThreads];
};

// Busy-waits: pauses first, then yields, because the awaited thread may need this CPU.
class Spin {
 public:
  void Once() {
    if (spins_ < kPauses) {
      ++spins_;
      Pause();
    } else {
      Yield();
    }
  }
  // Like Once, but sleeps after some milliseconds: a yield keeps the CPU from threads of lower priority, and the
  // awaited one may be among them. Sleeps become longer over time, because each costs about 10 µs.
  void OnceOrNap() {
    if (naps_from_now_ == 0) return Nap();
    if (spins_ == kPauses) --naps_from_now_;
    Once();
  }
  static void Pause();

 private:
  static constexpr int kPauses = 2000;  // about 50 µs: longer than a step
  static constexpr int kYields = 4000;
  static constexpr std::chrono::microseconds kMaxNap{1000};
  static void Yield();
  void Nap();
  int spins_ = 0;
  int naps_from_now_ = kYields;
  std::chrono::microseconds nap_{50};
};

// Busy-waits with a timeout. Reads the clock only occasionally.
class SpinDeadline {
 public:
  explicit SpinDeadline(std::chrono::nanoseconds most) : most_(most) {}
  // Waits briefly. Returns false after the timeout.
  bool Wait();

 private:
  std::chrono::nanoseconds most_;
  std::chrono::steady_clock::time_point begin_{};
  int spins_ = 0;
};

// While a helper is in a window, it accesses a caller's memory, and the process does not fork. Otherwise the child
// would have partly written memory, and no thread to complete it.
class Window {
 public:
  static void Open();
  static void Close() { open_.fetch_sub(1, std::memory_order_release); }

 private:
  friend struct Forks;
  static inline std::atomic<std::size_t> open_{0};
};

// A lock for process-wide state. It is held briefly, and never during a fork, because the child would have no thread to
// release it.
class ForkLock {
 public:
  ForkLock();
  ~ForkLock();
  ForkLock(const ForkLock&) = delete;
  ForkLock& operator=(const ForkLock&) = delete;
};

// Registers the memory pool's mutex, which is then locked during a fork: after windows are closed, because a helper may
// allocate in one. Separate fork handlers would run in an order that depends on the linker.
void LockWhileForking(system::Mutex& mutex);

#if defined(ONEGRU_STALL)
// For tests: MayStall is a hook at each point where the system may suspend a helper, and ONEGRU_COUNT counts an event.
struct Events {
  std::atomic<void (*)()> stall{nullptr};
  bool wakes_all = false;  // also invite sleeping workers
  std::atomic<std::size_t> left_asleep{0}, late{0}, reclaimed{0}, windows_closed{0}, joined{0};
};
extern Events g_events;
inline void MayStall() {
  if (auto* const stall = g_events.stall.load(std::memory_order_relaxed)) stall();
}
#define ONEGRU_COUNT(event) g_events.event.fetch_add(1, std::memory_order_relaxed)
#else
inline void MayStall() {}
#define ONEGRU_COUNT(event) static_cast<void>(0)
#endif

}  // namespace onegru

#endif  // ONEGRU_NATIVE_THREADS_THREADS_H_
