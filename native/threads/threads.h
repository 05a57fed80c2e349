// Worker threads: started when first needed, spinning for a moment after a job, then asleep.
//
// Nobody waits for one that has not come. A caller invites those that are free and starts alone; those that come help,
// and those that have not come by the end are not needed. A helper may still be in a job whose call has returned: a job
// owns what it touches, and lives until the last helper has left. All callers share the workers; how many come never
// changes a result. A forked child starts with none and creates its own.
//
// Waits are for what a running thread is about to finish: a window, or a task of gradients (gradients.cc), which adds
// to sums where they are and cannot be done twice. Such a task is a share of a chunk, milliseconds at most; a helper
// that the system suspends in it is waited for until it runs again. Whoever waits gives up its CPU.

#ifndef ONEGRU_NATIVE_THREADS_THREADS_H_
#define ONEGRU_NATIVE_THREADS_THREADS_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "native/system/threads.h"

namespace onegru {

// table: native_threads
inline constexpr std::size_t kMaxThreads = 64;
// end

// How many threads a call may use, including its own; at least 1.
std::size_t NumThreads();
// No call of this thread uses more, whatever the number is, until it is told otherwise; 0: as many as there may be.
void LimitThreads(std::size_t most);
// `makes_room`: whether a call uses fewer while other processes want the CPUs. The system suspends the caller and its
// helpers in turns then, each waits for the others, and all together do less than the caller alone.
void SetNumThreads(std::size_t count, bool makes_room = false);
// How many the calling thread's next call should use.
std::size_t ThreadsWithRoom();

// Work that other threads may help with.
class Job {
 public:
  virtual ~Job() = default;
  // May be called at any time, even when all is done.
  virtual void Help() = 0;

  void Keep() { holders_.fetch_add(1, std::memory_order_relaxed); }
  void Drop() {
    if (holders_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  // Whether every helper has left.
  bool IsOurs() const { return holders_.load(std::memory_order_acquire) == 1; }

 private:
  std::atomic<std::size_t> holders_{1};
};

enum class Sleepers {
  kWake,   // invite them
  kNudge,  // wake them without an invitation: the next call finds them awake
  kLeave,
};

// For helpers that are awake.
inline constexpr std::chrono::nanoseconds kGatherTimeout{2000};

// Invites up to `count` workers to a job; the destructor uninvites those that have not come.
class Invitation {
 public:
  // `predicted`: how long the job takes one thread. Without memory or threads: fewer are invited, or none.
  Invitation(Job& job, std::size_t count, Sleepers sleepers, std::chrono::nanoseconds predicted) noexcept;
  ~Invitation();
  Invitation(const Invitation&) = delete;
  Invitation& operator=(const Invitation&) = delete;

  // How many are invited; and how many of them it pays to wait for, and how long: for those that are awake a moment,
  // for those that were asleep as long as they took lately. Those that have not come reliably are not waited for.
  std::size_t count() const { return count_; }
  std::size_t ready() const { return ready_; }
  std::chrono::nanoseconds patience() const { return spin_; }

 private:
  std::size_t count_ = 0;
  std::size_t ready_ = 0;
  std::chrono::nanoseconds spin_ = kGatherTimeout;
  struct Worker* workers_[kMaxThreads];
};

// Busy waiting: pauses first, then yields, as the thread that is waited for may need this CPU.
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
  // The same, and sleeps after some milliseconds: yielding alone keeps the CPU from a thread of lower priority, which
  // may be the one that is waited for. The longer it has waited the longer it sleeps, as each sleep costs some 10 µs.
  void OnceOrNap() {
    if (naps_from_now_ == 0) return Nap();
    if (spins_ == kPauses) --naps_from_now_;
    Once();
  }
  static void Pause();

 private:
  static constexpr int kPauses = 2000;  // some 50 µs: longer than a step
  static constexpr int kYields = 4000;
  static constexpr std::chrono::microseconds kMaxNap{1000};
  static void Yield();
  void Nap();
  int spins_ = 0;
  int naps_from_now_ = kYields;
  std::chrono::microseconds nap_{50};
};

// Busy waiting with a timeout. Reads the clock only now and then.
class SpinDeadline {
 public:
  explicit SpinDeadline(std::chrono::nanoseconds most) : most_(most) {}
  // Waits a little; false once it has been too long.
  bool Wait();

 private:
  std::chrono::nanoseconds most_;
  std::chrono::steady_clock::time_point begin_{};
  int spins_ = 0;
};

// While a helper is in a window it touches a caller's memory, and the process does not fork: the child would find that
// memory half written, by a thread that it does not have.
class Window {
 public:
  static void Open();
  static void Close() { open_.fetch_sub(1, std::memory_order_release); }

 private:
  friend struct Forks;
  static inline std::atomic<std::size_t> open_{0};
};

// Held for a moment by whoever reads or changes what belongs to the process, and never while the process forks: a child
// would find it held by a thread that it does not have.
class ForkLock {
 public:
  ForkLock();
  ~ForkLock();
  ForkLock(const ForkLock&) = delete;
  ForkLock& operator=(const ForkLock&) = delete;
};

// Has the mutex of the memory pool locked while the process forks, too: after windows are closed, as a helper may
// allocate in one. Separate handlers would run in an order that only the linker knows.
void LockWhileForking(system::Mutex& mutex);

#if defined(ONEGRU_STALL)
// For tests: a hook wherever the system may suspend a helper, and counts of events.
struct Events {
  std::atomic<void (*)()> stall{nullptr};
  bool wakes_all = false;  // invite sleeping workers, too
  std::atomic<std::size_t> late{0}, taken_back{0}, handed_over{0}, joined{0};
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
