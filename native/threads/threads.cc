#include "native/threads/threads.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>
#include <new>

#include "native/assert.h"
#include "native/system/system.h"
#include "native/system/threads.h"
#include "native/threads/heuristics.h"
#include "native/threads/preemption_governor.h"

namespace onegru {

namespace {

// After a job, a worker spins for about 3 µs, then yields for this time, for example to a runtime's threads that
// compute the rest of a model. This is longer than the gap between two calls, and too short to matter.
constexpr int kSpinsWhenIdle = 100;
constexpr std::chrono::microseconds kYieldTime{Uses(Heuristic::kYields) ? 250 : 0};
// Callers do not wait for a worker that has missed this many invitations in a row.
constexpr int kMaxMissedInvitations = Uses(Heuristic::kMissedInvitations) ? 2 : std::numeric_limits<int>::max();
// The time that a sleeping worker takes to join. A call waits for a sleeping worker only if it is predicted to take
// kWakeTimesToWait times as long, and then waits for at most twice this time. Measuring the time gained nothing.
constexpr std::chrono::nanoseconds kWakeTime{60000};
constexpr int kWakeTimesToWait = Uses(Heuristic::kWait) ? 3 : 1 << 20;

std::atomic<std::size_t> g_num_threads{1};
std::atomic<bool> g_avoids_contention{false};
thread_local std::size_t t_most_threads = kMaxThreads;
thread_local PreemptionGovernor t_preemption_governor;

// The handshake between a worker and the caller that has reserved it.
enum State : std::uint32_t {
  kFree,
  kReserved,  // by a caller
  kInvited,
  kAtWork,
};

}  // namespace

struct alignas(64) Worker {
  std::atomic<std::uint32_t> state{kFree};
  std::atomic<std::uint32_t> wake_count{0};  // increased to wake the worker
  std::atomic<bool> asleep{false};
  std::atomic<int> thread{0};
  // Written by the caller that has reserved the worker. The worker at work also writes missed_invitations. Both change
  // cpu_exclusion, which has its own synchronization.
  Job* job = nullptr;
  int caller_cpu = -1;
  system::ScopedCpuExclusion cpu_exclusion;
  int missed_invitations = 0;  // withdrawn in a row

  void Loop() {
    thread.store(system::CurrentThread(), std::memory_order_relaxed);
    int spins = 0;
    std::chrono::steady_clock::time_point idle_since{};
    for (;;) {
      if (state.load(std::memory_order_acquire) == kInvited) {
        std::uint32_t expected = kInvited;
        if (state.compare_exchange_strong(expected, kAtWork, std::memory_order_acq_rel)) {
          // The system may have moved this thread there since.
          if (Uses(Heuristic::kCpuExclusion) && caller_cpu >= 0 && system::CurrentCpu() == caller_cpu) {
            cpu_exclusion.Begin(thread, caller_cpu);
            cpu_exclusion.End();
          }
          Job* const mine = job;
          missed_invitations = 0;
          mine->Help();
          mine->Unref();
          state.store(kFree, std::memory_order_release);
          spins = 0;
        }
      } else if (++spins < kSpinsWhenIdle) {
        Spin::Pause();
        if (spins == kSpinsWhenIdle - 1) idle_since = std::chrono::steady_clock::now();
      } else if (std::chrono::steady_clock::now() - idle_since < kYieldTime) {
        system::Yield();
      } else {
        const std::uint32_t seen = wake_count.load(std::memory_order_relaxed);
        asleep.store(true, std::memory_order_seq_cst);
        if (state.load(std::memory_order_seq_cst) != kInvited) wake_count.wait(seen, std::memory_order_seq_cst);
        asleep.store(false, std::memory_order_relaxed);
        cpu_exclusion.End();
        spins = 0;
      }
    }
  }

  void Wake() {
    wake_count.fetch_add(1, std::memory_order_seq_cst);
    wake_count.notify_one();
  }
};

namespace {

// Never destroyed: its threads run until the process ends.
struct Pool {
  system::Mutex mutex;  // held while a worker is started
  std::atomic<std::size_t> count{0};
  std::unique_ptr<Worker> workers[kMaxThreads];

  // Returns the n-th worker, and starts it if necessary; null if the system can start no more threads.
  Worker* At(std::size_t n) noexcept {
    if (n < count.load(std::memory_order_acquire)) return workers[n].get();
    ONEGRU_REQUIRE(n < kMaxThreads);
    const std::lock_guard lock(mutex);
    const std::size_t now = count.load(std::memory_order_relaxed);
    if (n < now) return workers[n].get();
    std::unique_ptr<Worker> worker(new (std::nothrow) Worker);
    if (worker == nullptr) return nullptr;
    const bool started = system::StartThread([w = worker.get()] {
      system::SetUpWorker();
      w->Loop();
    });
    if (!started) return nullptr;
    workers[now] = std::move(worker);
    count.store(now + 1, std::memory_order_release);
    return workers[now].get();
  }
};

std::atomic<Pool*> g_pool{nullptr};

system::Mutex g_fork_mutex;

}  // namespace

// A forked child has none of the threads. It abandons their objects, whose locks may be in any state.
struct Forks {
  static inline std::atomic<std::size_t> under_way{0};
  static inline std::atomic<system::Mutex*> another{nullptr};
  static inline system::Mutex* locked = nullptr;  // the value of `another` at the start of the current fork

  static void Before() {
    under_way.fetch_add(1, std::memory_order_seq_cst);
    for (Spin spin; Window::open_.load(std::memory_order_seq_cst) != 0;) spin.OnceOrNap();
    g_fork_mutex.lock();
    locked = another.load(std::memory_order_acquire);
    if (locked != nullptr) locked->lock();
  }
  static void Unlock() {
    if (locked != nullptr) locked->unlock();
    g_fork_mutex.unlock();
  }
  static void AfterInParent() {
    Unlock();
    under_way.fetch_sub(1, std::memory_order_release);
  }
  static void AfterInChild() {
    Unlock();
    under_way.store(0, std::memory_order_relaxed);
    Window::open_.store(0, std::memory_order_relaxed);
    g_pool.store(nullptr);
  }
};

namespace {

// Registers the handlers when the library is loaded. If a call registered them, a simultaneous fork could leave the
// child with only some of them.
[[maybe_unused]] const bool g_sees_forks = [] {
  system::AtFork(&Forks::Before, &Forks::AfterInParent, &Forks::AfterInChild);
  return true;
}();

}  // namespace

ForkLock::ForkLock() { g_fork_mutex.lock(); }
ForkLock::~ForkLock() { g_fork_mutex.unlock(); }

void LockWhileForking(system::Mutex& mutex) { Forks::another.store(&mutex, std::memory_order_release); }

void Window::Open() {
  for (;;) {
    open_.fetch_add(1, std::memory_order_seq_cst);
    if (Forks::under_way.load(std::memory_order_seq_cst) == 0) return;
    open_.fetch_sub(1, std::memory_order_release);
    for (Spin spin; Forks::under_way.load(std::memory_order_acquire) != 0;) spin.OnceOrNap();
  }
}

namespace {

// Returns null if memory is exhausted.
Pool* ThePool() {
  if (Pool* pool = g_pool.load(std::memory_order_acquire)) return pool;
  system::StayLoaded();
  auto* const fresh = new (std::nothrow) Pool;
  Pool* expected = nullptr;
  if (g_pool.compare_exchange_strong(expected, fresh)) return fresh;
  delete fresh;
  return expected;
}

}  // namespace

std::size_t NumThreads() { return std::min(g_num_threads.load(std::memory_order_relaxed), t_most_threads); }

void LimitThreads(std::size_t most) { t_most_threads = most == 0 ? kMaxThreads : most; }

void SetNumThreads(std::size_t count, bool avoids_contention) {
  g_avoids_contention.store(avoids_contention, std::memory_order_relaxed);
  g_num_threads.store(std::clamp<std::size_t>(count, 1, kMaxThreads), std::memory_order_relaxed);
}

std::size_t UncontendedThreads() {
  const std::size_t threads = NumThreads();
  if (threads == 1 || !g_avoids_contention.load(std::memory_order_relaxed)) return threads;
  return t_preemption_governor.UsableThreads(threads, std::chrono::steady_clock::now(), &system::Preemptions);
}

Invitation::Invitation(Job& job, std::size_t count, bool wakes, std::chrono::nanoseconds predicted) noexcept {
  ONEGRU_REQUIRE(count < kMaxThreads);
  if (count == 0) return;
#if defined(ONEGRU_STALL)
  wakes |= g_events.wakes_all;
#endif
  Pool* const pool = ThePool();
  if (pool == nullptr) return;
  const int cpu = system::CurrentCpu();
  for (std::size_t n = 0; n < count; ++n) {  // callers share these workers
    Worker* const worker = pool->At(n);
    if (worker == nullptr) break;
    const bool asleep = worker->asleep.load(std::memory_order_relaxed);
    if (asleep && !wakes) {
      ONEGRU_COUNT(left_asleep);
      continue;
    }
    std::uint32_t expected = kFree;
    if (!worker->state.compare_exchange_strong(expected, kReserved, std::memory_order_acquire)) continue;
    // The system may wake a thread on the CPU of its waker, and leave it there for milliseconds. There it waits, or
    // alternates with the caller at a higher cost than that of the work. (A very short sleep does not help.)
    if (asleep && Uses(Heuristic::kCpuExclusion))
      worker->cpu_exclusion.Begin(worker->thread.load(std::memory_order_relaxed), cpu);
    job.Ref();
    worker->job = &job;
    worker->caller_cpu = cpu;
    if (asleep) {
      if (worker->missed_invitations < kMaxMissedInvitations && predicted >= kWakeTimesToWait * kWakeTime) {
        ++expected_helpers_;
        wait_budget_ = 2 * kWakeTime;
      }
    } else if (worker->missed_invitations < kMaxMissedInvitations) {
      ++expected_helpers_;
    }
    worker->state.store(kInvited, std::memory_order_seq_cst);
    if (worker->asleep.load(std::memory_order_seq_cst)) worker->Wake();
    workers_[count_++] = worker;
  }
}

Invitation::~Invitation() {
  for (std::size_t n = 0; n < count_; ++n) {
    Worker& worker = *workers_[n];
    std::uint32_t expected = kInvited;
    if (worker.state.compare_exchange_strong(expected, kReserved, std::memory_order_acquire)) {
      ++worker.missed_invitations;
      worker.job->Unref();
      worker.state.store(kFree, std::memory_order_release);
    }
  }
}

void Spin::Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}
void Spin::Yield() { system::Yield(); }
void Spin::Nap() {
  system::Nap(nap_);
  nap_ = std::min(2 * nap_, kMaxNap);
}

bool SpinDeadline::Wait() {
  constexpr int kSpinsToLook = 32;
  Spin::Pause();
  if (++spins_ % kSpinsToLook != 0) return true;
  const auto now = std::chrono::steady_clock::now();
  if (spins_ == kSpinsToLook) begin_ = now;
  return now - begin_ < most_;
}

#if defined(ONEGRU_STALL)
Events g_events;
#endif

}  // namespace onegru
