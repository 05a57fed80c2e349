// Threads that stay: started when first needed, spinning for a moment after a job, then asleep.
//
// Nobody waits for them. A caller invites those that are free and goes on by itself; who comes helps, and who has
// not come when the caller is done is not missed. A helper may be late in a job whose call has returned: a job
// owns what it touches, and lives until the last helper has left. Several callers share the threads; how many
// come never changes a result. A forked child starts with none and makes its own.

#ifndef ONEGRU_NATIVE_THREADS_THREADS_H_
#define ONEGRU_NATIVE_THREADS_THREADS_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace onegru {

inline constexpr std::size_t kMostThreads = 64;

// How many threads a call may use, its own included; at least 1.
std::size_t NumThreads();
void SetNumThreads(std::size_t count);

// What others may help with.
class Job {
 public:
  virtual ~Job() = default;
  // At any time, also when all is done.
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
  kWake,   // they are invited
  kNudge,  // they are woken, but not invited: the next call finds them awake
  kLeave,
};

// Invites up to `count` threads to a job; withdrawn at the end of this from those that have not come.
class Invitation {
 public:
  Invitation(Job& job, std::size_t count, Sleepers sleepers);
  ~Invitation();
  Invitation(const Invitation&) = delete;
  Invitation& operator=(const Invitation&) = delete;

  // How many are invited; and how many of them were awake and have come whenever they were, so that a moment's
  // wait for them is well spent.
  std::size_t count() const { return count_; }
  std::size_t ready() const { return ready_; }

 private:
  std::size_t count_ = 0;
  std::size_t ready_ = 0;
  struct Worker* workers_[kMostThreads];
};

// Waiting without sleeping: pauses first, then lets other threads have the CPU, as whoever is waited for may need
// this very one.
class Spin {
 public:
  void Once() {
    if (++spins_ < kPauses) {
      Pause();
    } else {
      Yield();
    }
  }
  static void Pause();

 private:
  static constexpr int kPauses = 2000;  // some 50 µs: longer than a step
  static void Yield();
  int spins_ = 0;
};

// How long somebody has been waited for. Looks at the clock now and then only.
class Patience {
 public:
  explicit Patience(std::chrono::nanoseconds most) : most_(most) {}
  // Waits a little; false once it has been too long.
  bool Wait();

 private:
  std::chrono::nanoseconds most_;
  std::chrono::steady_clock::time_point begin_{};
  int spins_ = 0;
};

// While a helper lives in one of these, it touches memory of a caller, and the process does not fork: a child
// would find that memory half written, by a thread that it does not have.
class Window {
 public:
  static void Open();
  static void Close() { open_.fetch_sub(1, std::memory_order_release); }

 private:
  friend struct Forks;
  static inline std::atomic<std::size_t> open_{0};
};

#if defined(ONEGRU_STALL)
// For tests: called where a helper may be stopped by the system; and how often what happened.
struct Events {
  std::atomic<void (*)()> stall{nullptr};
  bool wakes_all = false;  // whoever sleeps is invited
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
