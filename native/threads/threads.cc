#include "native/threads/threads.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>

#include "native/assert.h"
#include "native/system/system.h"
#include "native/system/threads.h"
#include "native/threads/room.h"

namespace onegru {

namespace {

// After a job a worker spins for about 3 µs, then yields for about 250 µs, to a runtime's threads that compute the
// rest of a model, say: longer than the gap between two calls, too short to matter.
constexpr int kSpinsWhenIdle = 100;
constexpr int kYieldsWhenIdle = 400;
// A worker that has missed this many calls in a row is not waited for at all.
constexpr int kMaxMisses = 2;
// How long a sleeping worker takes to come is learned: it depends on the CPU, its idle states, a hypervisor, and on
// what else runs. That is how long the first one is expected to take; a call that is predicted to last this many times
// as long waits for it, up to twice the time.
constexpr std::chrono::nanoseconds kUsualDelay{60000};
constexpr int kDelaysToWait = 3;
constexpr std::chrono::nanoseconds kMaxSpin{250000};

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

std::atomic<std::size_t> g_num_threads{1};
std::atomic<bool> g_makes_room{false};

// The handshake of a worker and the one caller that holds it.
enum State : std::uint32_t {
  kFree,
  kReserved,  // by a caller
  kInvited,
  kAtWork,
};

}  // namespace

struct alignas(64) Worker {
  std::atomic<std::uint32_t> state{kFree};
  std::atomic<std::uint32_t> bell{0};  // rung to wake it
  std::atomic<bool> asleep{false};
  std::atomic<int> thread{0};
  // Written by the caller that has reserved it.
  Job* job = nullptr;
  int caller_cpu = -1;
  system::ScopedCpuExclusion detour;
  std::chrono::steady_clock::time_point rung{};  // in this invitation; never, if it was awake
  int misses = 0;                                // how many invitations in a row were withdrawn
  std::atomic<std::int64_t> delay{kUsualDelay.count()};

  // A delay of a moment alone, as by another process, changes it by half at most.
  void Learn(std::chrono::nanoseconds took) {
    const std::int64_t before = delay.load(std::memory_order_relaxed);
    delay.store(std::clamp<std::int64_t>(took.count(), before - before / 4, before + before / 2),
                std::memory_order_relaxed);
  }
  std::chrono::nanoseconds Delay() const { return std::chrono::nanoseconds(delay.load(std::memory_order_relaxed)); }

  void Loop() {
    thread.store(system::CurrentThread(), std::memory_order_relaxed);
    int spins = 0;
    for (;;) {
      if (state.load(std::memory_order_acquire) == kInvited) {
        std::uint32_t expected = kInvited;
        if (state.compare_exchange_strong(expected, kAtWork, std::memory_order_acq_rel)) {
          if (caller_cpu >= 0 && system::CurrentCpu() == caller_cpu) {  // moved there later
            detour.Begin(thread, caller_cpu);
            detour.End();
          }
          if (rung != std::chrono::steady_clock::time_point{}) Learn(std::chrono::steady_clock::now() - rung);
          Job* const mine = job;
          misses = 0;
          mine->Help();
          mine->Drop();
          state.store(kFree, std::memory_order_release);
          spins = 0;
        }
      } else if (++spins < kSpinsWhenIdle) {
        Pause();
      } else if (spins < kSpinsWhenIdle + kYieldsWhenIdle) {
        system::Yield();
      } else {
        const std::uint32_t seen = bell.load(std::memory_order_relaxed);
        asleep.store(true, std::memory_order_seq_cst);
        if (state.load(std::memory_order_seq_cst) != kInvited) bell.wait(seen, std::memory_order_seq_cst);
        asleep.store(false, std::memory_order_relaxed);
        detour.End();
        spins = 0;
      }
    }
  }

  void Ring() {
    bell.fetch_add(1, std::memory_order_seq_cst);
    bell.notify_one();
  }
};

namespace {

// Never destroyed: its threads run until the process ends.
struct Pool {
  system::Mutex mutex;  // held while a worker is started
  std::atomic<std::size_t> count{0};
  std::unique_ptr<Worker> workers[kMaxThreads];

  // The n-th worker, started if need be; null if the system can start no more threads.
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

// A forked child has none of the threads: it abandons them, with their locks in whatever state.
struct Forks {
  static inline std::atomic<std::size_t> under_way{0};
  static inline std::atomic<system::Mutex*> another{nullptr};
  static inline system::Mutex* locked = nullptr;  // `another`, as the fork that is under way found it

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

// When the library is loaded: done by a call, a fork beside it would leave the child with half of it.
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

// Null if there is no memory for it.
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

namespace {
thread_local std::size_t t_most_threads = kMaxThreads;
}  // namespace

std::size_t NumThreads() { return std::min(g_num_threads.load(std::memory_order_relaxed), t_most_threads); }

void LimitThreads(std::size_t most) { t_most_threads = most == 0 ? kMaxThreads : most; }

void SetNumThreads(std::size_t count, bool makes_room) {
  g_makes_room.store(makes_room, std::memory_order_relaxed);
  g_num_threads.store(std::clamp<std::size_t>(count, 1, kMaxThreads), std::memory_order_relaxed);
}

namespace {
thread_local Room t_room;
}  // namespace

std::size_t ThreadsWithRoom() {
  const std::size_t threads = NumThreads();
  if (threads == 1 || !g_makes_room.load(std::memory_order_relaxed)) return threads;
  return t_room.Of(threads, std::chrono::steady_clock::now(), &system::Preemptions);
}

Invitation::Invitation(Job& job, std::size_t count, Sleepers sleepers, std::chrono::nanoseconds predicted) noexcept {
  ONEGRU_REQUIRE(count < kMaxThreads);
  if (count == 0) return;
#if defined(ONEGRU_STALL)
  if (g_events.wakes_all) sleepers = Sleepers::kWake;
#endif
  Pool* const pool = ThePool();
  if (pool == nullptr) return;
  const int cpu = system::CurrentCpu();
  for (std::size_t n = 0; n < count; ++n) {  // no more than that may there be, whoever has them
    Worker* const worker = pool->At(n);
    if (worker == nullptr) break;
    const bool asleep = worker->asleep.load(std::memory_order_relaxed);
    if (asleep && sleepers == Sleepers::kLeave) continue;
    std::uint32_t expected = kFree;
    if (!worker->state.compare_exchange_strong(expected, kReserved, std::memory_order_acquire)) continue;
    // The system may wake a thread on the CPU of the one that wakes it, and leave it there for milliseconds, waiting or
    // switching with the caller at a higher cost than that of the work. (A very short sleep does not help.)
    if (asleep) worker->detour.Begin(worker->thread.load(std::memory_order_relaxed), cpu);
    if (asleep && sleepers == Sleepers::kNudge) {
      worker->Ring();
      worker->state.store(kFree, std::memory_order_release);
      continue;
    }
    job.Keep();
    worker->job = &job;
    worker->caller_cpu = cpu;
    worker->rung = {};
    if (asleep) {
      worker->rung = std::chrono::steady_clock::now();
      if (worker->misses < kMaxMisses && predicted >= kDelaysToWait * worker->Delay()) {
        ++ready_;
        spin_ = std::max(spin_, std::min(2 * worker->Delay(), kMaxSpin));
      }
    } else if (worker->misses < kMaxMisses) {
      ++ready_;
    }
    worker->state.store(kInvited, std::memory_order_seq_cst);
    if (worker->asleep.load(std::memory_order_seq_cst)) worker->Ring();
    workers_[count_++] = worker;
  }
}

Invitation::~Invitation() {
  for (std::size_t n = 0; n < count_; ++n) {
    Worker& worker = *workers_[n];
    std::uint32_t expected = kInvited;
    if (worker.state.compare_exchange_strong(expected, kReserved, std::memory_order_acquire)) {
      ++worker.misses;
      worker.job->Drop();
      worker.state.store(kFree, std::memory_order_release);
    }
  }
}

void Spin::Pause() { onegru::Pause(); }
void Spin::Yield() { system::Yield(); }
void Spin::Nap() {
  system::Nap(nap_);
  nap_ = std::min(2 * nap_, kMaxNap);
}

bool SpinDeadline::Wait() {
  constexpr int kSpinsToLook = 32;
  Pause();
  if (++spins_ % kSpinsToLook != 0) return true;
  const auto now = std::chrono::steady_clock::now();
  if (spins_ == kSpinsToLook) begin_ = now;
  return now - begin_ < most_;
}

#if defined(ONEGRU_STALL)
Events g_events;
#endif

}  // namespace onegru
