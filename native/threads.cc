#include "native/threads.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace onegru {

namespace {

// Some 50 µs: longer than a step.
constexpr int kSpinsAtBarrier = 2000;
// Between calls about 3 µs, then about 250 µs in which any other thread may have the CPU, such as one of a runtime
// that does the rest of a model: longer than the gap between two calls, shorter than anybody minds.
constexpr int kSpinsWhenIdle = 100;
constexpr int kYieldsWhenIdle = 400;

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

std::atomic<std::size_t> g_num_threads{1};

// The CPU that this thread runs on; -1 where that is not known.
int CurrentCpu() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

// Goes to another CPU. A system may wake a thread on the CPU of the one that waits for it, and leave both there
// for milliseconds, taking turns of which each costs more than the work. (A sleep of an instant does not help.)
// If somebody else has changed the thread's CPUs meanwhile, theirs stay.
void LeaveCpu(int cpu) {
#if defined(__linux__)
  cpu_set_t allowed, now;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
  cpu_set_t others = allowed;
  CPU_CLR(cpu, &others);
  if (sched_setaffinity(0, sizeof(others), &others) != 0) return;
  if (sched_getaffinity(0, sizeof(now), &now) == 0 && CPU_EQUAL(&now, &others)) {
    sched_setaffinity(0, sizeof(allowed), &allowed);
  }
#else
  static_cast<void>(cpu);
#endif
}

}  // namespace

struct alignas(64) Worker {
  // Twice the number of jobs so far; the last bit changes when there is none, but the worker is to wake up.
  alignas(64) std::atomic<std::uint32_t> posted{0};
  std::atomic<bool> asleep{false};
  Work* work = nullptr;
  std::size_t rank = 0;
  int caller_cpu = -1;
  // The number of jobs that are done.
  alignas(64) std::atomic<std::uint32_t> finished{0};
  bool busy = false;  // guarded by the pool's mutex

  void Loop() {
    std::uint32_t done = 0;
    for (;;) {
      std::uint32_t seen;
      for (int spins = 0; (seen = posted.load(std::memory_order_acquire)) >> 1 == done;) {
        if (++spins < kSpinsWhenIdle) {
          Pause();
          continue;
        }
        if (spins < kSpinsWhenIdle + kYieldsWhenIdle) {
          sched_yield();
          continue;
        }
        asleep.store(true, std::memory_order_seq_cst);
        posted.wait(seen, std::memory_order_seq_cst);
        asleep.store(false, std::memory_order_relaxed);
        spins = 0;
      }
      done = seen >> 1;
      if (caller_cpu >= 0 && CurrentCpu() == caller_cpu) LeaveCpu(caller_cpu);
      work->Run(rank);
      finished.store(done, std::memory_order_release);
    }
  }
};

namespace {

// Never destroyed: its threads run until the process ends.
struct Pool {
  std::mutex mutex;
  std::vector<std::unique_ptr<Worker>> workers;

  // The n-th worker, started if there is none yet; null if the system has no thread to give.
  Worker* At(std::size_t n) {
    if (n < workers.size()) return workers[n].get();
    workers.reserve(workers.size() + 1);  // a thread that runs must not lose its Worker to a failure below
    auto worker = std::make_unique<Worker>();
    try {
      std::thread([w = worker.get()] { w->Loop(); }).detach();
    } catch (const std::system_error&) {
      return nullptr;
    }
    workers.push_back(std::move(worker));
    return workers.back().get();
  }
};

std::atomic<Pool*> g_pool{nullptr};

Pool* ThePool() {
  if (Pool* pool = g_pool.load(std::memory_order_acquire)) return pool;
  // A forked child has none of the threads: it forgets them, with their locks in whatever state.
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { g_pool.store(nullptr); }); });
  auto* const fresh = new Pool;
  Pool* expected = nullptr;
  if (g_pool.compare_exchange_strong(expected, fresh)) return fresh;
  delete fresh;
  return expected;
}

}  // namespace

std::size_t NumThreads() { return g_num_threads.load(std::memory_order_relaxed); }

void SetNumThreads(std::size_t count) {
  g_num_threads.store(std::clamp<std::size_t>(count, 1, Barrier::kMost), std::memory_order_relaxed);
}

Team::Team(std::size_t wanted, Sleepers sleepers) {
  if (wanted <= 1) return;
  Pool* const pool = ThePool();
  static thread_local Worker* lent[Barrier::kMost];
  workers_ = lent;
  pool_ = pool;
  const std::lock_guard lock(pool->mutex);
  for (std::size_t n = 0; size_ < wanted && n + 1 < Barrier::kMost; ++n) {
    if (n >= pool->workers.size() && n + 1 >= wanted) break;  // all there may be are busy
    Worker* const worker = pool->At(n);
    if (worker == nullptr) break;
    if (worker->busy) continue;
    if (sleepers != Sleepers::kWake && worker->asleep.load(std::memory_order_relaxed)) {
      if (sleepers == Sleepers::kNudge) {
        worker->posted.fetch_xor(1, std::memory_order_seq_cst);
        worker->posted.notify_one();
      }
      continue;
    }
    worker->busy = true;
    workers_[size_ - 1] = worker;
    ++size_;
  }
}

Team::~Team() {
  if (size_ <= 1) return;
  const std::lock_guard lock(static_cast<Pool*>(pool_)->mutex);
  for (std::size_t n = 0; n + 1 < size_; ++n) workers_[n]->busy = false;
}

void Team::Run(Work& work) {
  const int cpu = CurrentCpu();
  for (std::size_t n = 0; n + 1 < size_; ++n) {
    Worker& worker = *workers_[n];
    worker.work = &work;
    worker.rank = n + 1;
    worker.caller_cpu = cpu;
    worker.posted.fetch_add(2, std::memory_order_seq_cst);
    if (worker.asleep.load(std::memory_order_seq_cst)) worker.posted.notify_one();
  }
  work.Run(0);
  for (std::size_t n = 0; n + 1 < size_; ++n) {
    Worker& worker = *workers_[n];
    const std::uint32_t wanted = worker.posted.load(std::memory_order_relaxed) >> 1;
    for (int spins = 0; worker.finished.load(std::memory_order_acquire) != wanted; ++spins) {
      if (spins < kSpinsAtBarrier) {
        Pause();
      } else {
        sched_yield();
        work.WhileWaiting();
      }
    }
  }
}

void Barrier::Reset(std::size_t count) {
  count_ = count;
  for (std::size_t i = 0; i < count; ++i) counters_[i].value.store(0, std::memory_order_relaxed);
}

void Barrier::Wait(std::size_t rank) {
  if (count_ == 1) return;
  const std::uint32_t turn = counters_[rank].value.load(std::memory_order_relaxed) + 1;
  counters_[rank].value.store(turn, std::memory_order_release);
  for (std::size_t i = 0; i < count_; ++i) {
    if (i == rank) continue;
    for (int spins = 0; static_cast<std::int32_t>(counters_[i].value.load(std::memory_order_acquire) - turn) < 0;
         ++spins) {
      if (spins < kSpinsAtBarrier) {
        Pause();
      } else {
        sched_yield();  // whoever is late may be waiting for this very core
      }
    }
  }
}

}  // namespace onegru
