#include "native/tests/check_threads.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "native/plan.h"
#include "native/targets/targets.h"
#include "native/tests/problems.h"
#include "native/tests/system.h"
#include "native/threads/preemption_governor.h"

namespace onegru {
namespace {

constexpr std::size_t kMaxThreadsOfCall = onegru::kMaxThreads;
constexpr std::size_t kMaxThreads = 4;

// Several callers, also of the same layer, share the workers.
void CheckCallers(std::size_t target) {
  constexpr std::size_t kCallers = 4, kCalls = 12;
  const std::size_t numbers[] = {9, 19, 29};
  std::vector<Problem> problems;
  std::vector<std::shared_ptr<const Packed>> layers;
  std::vector<Result> expected;
  SetNumThreads(1);
  for (const std::size_t number : numbers) {
    problems.push_back(MakeProblem(number));
    layers.push_back(Pack(problems.back(), target));
    expected.push_back(RunOnce(problems.back(), layers.back()));
  }
  SetNumThreads(3);
  std::vector<int> good(kCallers);
  std::vector<std::thread> callers;
  for (std::size_t caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&, caller] {
      for (std::size_t n = 0; n < kCalls; ++n) {
        const std::size_t which = (caller + n) % std::size(numbers);
        good[caller] += SameBits(RunOnce(problems[which], layers[which]), expected[which]);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (std::size_t caller = 0; caller < kCallers; ++caller)
    Check(good[caller] == static_cast<int>(kCalls), "concurrent callers", caller, CompiledTargets()[target].name, 3);
}

// A caller uses fewer threads while the system often suspends it, and all threads afterwards.
void CheckPreemptionGovernor() {
  PreemptionGovernor governor;
  auto now = std::chrono::steady_clock::time_point{};
  std::size_t suspended = 0;
  const auto after = [&](std::size_t times, std::chrono::milliseconds passed, std::size_t threads) {
    now += passed;
    suspended += times;
    return governor.UsableThreads(threads, now, [&] { return suspended; });
  };
  const auto interval = PreemptionGovernor::kInterval;
  Check(after(50, std::chrono::hours(24), 16) == 16, "ignores suspensions before the first call");
  Check(after(PreemptionGovernor::kMinPreemptions - 1, interval, 16) == 16, "ignores a few suspensions");
  Check(after(50, interval / 2, 16) == 16, "checks an interval at its end");
  Check(after(0, interval, 16) == 15, "uses one thread less");
  Check(after(50, interval, 16) == 13 && after(50, interval, 16) == 9 && after(50, interval, 16) == 1,
        "uses one thread");
  for (int n = 0; n < 20; ++n) Check(after(50, interval, 16) == 1, "always uses the caller");
  for (int n = 0; n < 12; ++n) after(0, interval, 16);
  Check(after(0, interval, 16) == 16, "uses all threads again");
  for (int n = 0; n < 20; ++n) after(50, interval, 2);
  Check(after(0, interval, 2) == 1, "does not retry at once on a busy machine");
  Check(after(1, 10 * interval, 2) == 2, "forgets suspensions after a pause");
  for (int n = 0; n < 20; ++n) after(50, interval, 2);
  Check(after(0, std::chrono::hours(24), 2) == 2, "forgets them after a long pause");
  for (int n = 0; n < 20; ++n) after(50, interval, 2);
  suspended = 0;
  Check(after(0, 10 * interval, 2) == 2, "counts from zero in the child of a fork");
}

// --- helpers that the system suspends

enum class Stalls { kNone, kShort, kRare, kUntilReleased };
std::atomic<Stalls> g_stalls{Stalls::kNone};
std::atomic<bool> g_released{true};

// Called at all points where the system may suspend a helper.
void Stall() {
  static std::atomic<std::uint64_t> seeds{1};
  thread_local Random random(seeds.fetch_add(1));
  const Stalls stalls = g_stalls.load();
  if (stalls == Stalls::kShort && random.OneIn(4)) {
    std::this_thread::sleep_for(std::chrono::microseconds(random.OneIn(8) ? 3000 : random.Below(200)));
  } else if (stalls == Stalls::kRare && random.OneIn(256)) {
    std::this_thread::sleep_for(std::chrono::microseconds(random.OneIn(8) ? 1000 : random.Below(100)));
  } else if (stalls == Stalls::kUntilReleased && random.OneIn(16)) {
    while (!g_released.load()) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

// For its lifetime, if `always`, calls are split by units, as on a machine whose cores wait for matrices.
class ByUnits {
 public:
  explicit ByUnits(bool always) { g_always_by_units = always; }
  ~ByUnits() { g_always_by_units = false; }
  ByUnits(const ByUnits&) = delete;
  ByUnits& operator=(const ByUnits&) = delete;
};

// Returns the number of a problem for several threads, which every tenth problem is.
std::size_t LargeProblem(std::size_t n) { return 10 * n + 9; }

// Checks that no helper accesses a call's memory after it has returned. A helper is suspended until the results, the
// inputs and the layer are freed.
void CheckStalled(std::size_t target, std::size_t problems) {
  const char* const name = CompiledTargets()[target].name;
  const Stalling stalling;
  for (std::size_t n = 0; n < problems; ++n) {
    auto p = std::make_unique<Problem>(MakeProblem(LargeProblem(n)));
    auto packed = Pack(*p, target);
    SetNumThreads(1);
    auto expected = std::make_unique<Result>(RunOnce(*p, packed));
    SetNumThreads(2 + n % 3);
    const ByUnits by_units(n % 2 == 1);
    for (const Stalls stalls : {Stalls::kShort, Stalls::kUntilReleased}) {
      g_released = false;
      g_stalls = stalls;
      for (int again = 0; again < 6; ++again) {
        auto result = std::make_unique<Result>(RunOnce(*p, packed));
        Check(SameBits(*result, *expected), "the same bits with helpers that stop", LargeProblem(n), name, 2 + n % 3);
      }
      if (stalls == Stalls::kUntilReleased) p = nullptr, packed = nullptr, expected = nullptr;
      g_stalls = Stalls::kNone;
      g_released = true;
    }
  }
}

struct Layer {
  Problem problem;
  std::shared_ptr<const Packed> packed;
};

Layer MakeLayer(const Shape& shape, bool linear_before_reset, std::size_t target) {
  Random random(shape.H);
  Layer layer{MakeUsualProblem(shape, linear_before_reset, random), nullptr};
  layer.packed = Pack(layer.problem, target);
  return layer;
}

// Checks that few members split a small step with any number of threads. Meetings of more members cost more.
void CheckMembers() {
  std::size_t before = 2;
  for (const std::size_t H : {128, 256, 512, 1024}) {
    const Layer layer = MakeLayer({100, 1, 4, H, 1}, true, ChosenTargetIndex());
    Call call{};
    call.T = 100, call.B = 1;
    const auto members = [&](std::size_t threads) { return MakePlan(*layer.packed, call, threads).members; };
    Check(members(2) == 2, "two members", H);
    Check(members(64) >= before && members(64) <= H / 32, "members of a step", H, "", members(64));
    before = members(64);
  }
}

// --- another runtime's pool

struct Tasks {
  static void InTurn(void*, std::size_t count, void (*task)(void*, std::size_t), void* data) {
    for (std::size_t i = 0; i < count; ++i) task(data, i);
  }
  static void AtOnce(void*, std::size_t count, void (*task)(void*, std::size_t), void* data) {
    OnThreads(count, [&](std::size_t i) { task(data, i); });
  }
  static void Drop(void*, std::size_t, void (*)(void*, std::size_t), void*) {}
};

void CheckForeignPools(std::size_t target, std::size_t problems) {
  const char* const name = CompiledTargets()[target].name;
  for (std::size_t n = 0; n < problems; ++n) {
    const Problem p = MakeProblem(LargeProblem(n));
    const auto packed = Pack(p, target);
    SetNumThreads(1);
    const Result expected = RunOnce(p, packed);
    const ByUnits by_units(n % 2 == 1);
    for (const auto run : {Tasks::InTurn, Tasks::AtOnce}) {
      for (std::size_t threads = 1; threads <= kMaxThreads; ++threads) {
        const ForeignPool pool{run, nullptr, threads};
        Check(SameBits(RunOnce(p, packed, &pool), expected), "the same bits in a foreign pool", LargeProblem(n), name,
              threads);
      }
    }
  }
}

// Pools with more threads than a call may use, as on machines with many cores: by rows, by units, by directions.
void CheckLargePools(std::size_t target) {
  const char* const name = CompiledTargets()[target].name;
  for (const Shape& shape :
       {Shape{2, 800, 4, 16, 1}, Shape{3, 1, 8, 1088, 1}, Shape{2, 403, 4, 16, 2}, Shape{2, 2, 8, 544, 2}}) {
    const Layer layer = MakeLayer(shape, shape.B % 2 == 0, target);
    SetNumThreads(1);
    const Result expected = RunOnce(layer.problem, layer.packed);
    SetNumThreads(200);
    Check(NumThreads() == kMaxThreadsOfCall && SameBits(RunOnce(layer.problem, layer.packed), expected),
          "the same bits with all threads", shape.H, name, NumThreads());
    for (const std::size_t threads : std::initializer_list<std::size_t>{64, 65, 96, 128, 200}) {
      for (const auto run : {Tasks::InTurn, Tasks::AtOnce}) {
        bool good = false;
        const auto call = [&, pool = ForeignPool{run, nullptr, threads}] {
          good = SameBits(RunOnce(layer.problem, layer.packed, &pool), expected);
        };
        std::thread(call).join();  // a new thread: this one may have measured that pools do not help
        Check(good, "the same bits in a large pool", shape.H, name, threads);
      }
    }
    for (const auto run : {Tasks::Drop, Tasks::InTurn}) {
      const ForeignPool pool{run, nullptr, run == Tasks::Drop ? std::size_t{3} : 0};
      bool good = false;
      std::thread([&] { good = SameBits(RunOnce(layer.problem, layer.packed, &pool), expected); }).join();
      Check(good, "a pool that does nothing", shape.H, name);
    }
  }
  SetNumThreads(1);
}

// --- sleeping helpers

struct NoWork final : Job {
  void Help() override { has_come = true; }
  std::atomic<bool> has_come{false};
};

// Checks that a long call waits for a sleeping helper, and a short call does not. On a busy machine, a helper takes
// seconds to fall asleep, because it first yields to other threads.
void CheckWaitForSleepingWorker() {
  bool waits = false, goes_on = false;
  for (std::size_t n = 0; n < 26 && !(waits && goes_on); ++n) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2 << n / 2));
    auto* const job = new NoWork;
    const bool is_long = n % 2 == 0;
    {
      const Invitation invitation(*job, 1, true, std::chrono::seconds(is_long ? 3600 : 0));
      const bool waits_longer = invitation.wait_budget() > kGatherTimeout;
      if (is_long) waits |= invitation.expected_helpers() == 1 && waits_longer;
      if (!is_long) goes_on |= invitation.count() == 1 && invitation.expected_helpers() == 0 && !waits_longer;
      // The helper joins before its invitation is withdrawn.
      for (std::size_t i = 0; i < 1000 && !job->has_come; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    job->Unref();
  }
  Check(waits, "a long call waits for a sleeping helper");
  Check(goes_on, "a short call does not wait");
}

// Checks small calls that leave sleeping workers asleep, and calls that follow closely and wake them.
void CheckCallsThatWakeNone() {
  const Layer layer = MakeLayer({6, 24, 16, 24, 1}, true, ChosenTargetIndex());
  SetNumThreads(1);
  const Result expected = RunOnce(layer.problem, layer.packed);
  const auto is_same = [&] { return SameBits(RunOnce(layer.problem, layer.packed), expected); };
  SetNumThreads(2);
  bool good = is_same();  // starts a worker
  const std::size_t before = g_events.left_asleep;
  g_events.wakes_all = false;
  for (std::size_t n = 0; n < 13 && g_events.left_asleep == before; ++n) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2 << n));
    good = is_same() && good;
  }
  for (int n = 0; n < 10; ++n) good = is_same() && good;
  g_events.wakes_all = true;
  Check(good, "the same bits of calls that wake none");
  Check(g_events.left_asleep != before, "a small call leaves a worker asleep");
}

// Checks the set-up of a worker that a real-time thread on one CPU starts. Runs in a child, which has no workers.
void CheckNewWorker() {
  struct Look final : Job {
    void Help() override { found = IsUsualWorker() ? kYes : kNo; }
    enum { kUnknown, kYes, kNo };
    std::atomic<int> found{kUnknown};
  };
  if (kThreadsOfChildren == 1) return;
  const bool good = InChild([] {
    bool is_usual = false;
    std::thread([&] {
      BecomeAudioThread();
      auto* const job = new Look;
      {
        const Invitation invitation(*job, 1, true, std::chrono::seconds(3600));
        while (job->found == Look::kUnknown) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      is_usual = job->found == Look::kYes;
      job->Unref();
    }).join();
    return is_usual;
  });
  Check(good, "a worker of a real-time thread");
}

// --- forks

// Checks that a fork waits for a helper in a window, so that no window is open in the child.
void CheckForkDuringWindow() {
  for (std::size_t n = 0; n < 20; ++n) {
    std::atomic<bool> open{false}, half_written{false};
    std::thread helper([&] {
      Window::Open();
      half_written = true;
      open = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      half_written = false;
      Window::Close();
    });
    while (!open) std::this_thread::yield();
    const bool good = InChild([&] {
      Window::Open();  // the child can open a window
      Window::Close();
      return !half_written;
    });
    helper.join();
    Check(good, "a fork during a window", n);
  }
}

// --- many calls

// Small layers, whose threads meet more often: by rows, by units and by directions.
struct KnownLayer : Layer {
  Result expected;
};

std::vector<KnownLayer> MakeLayers() {
  std::vector<KnownLayer> layers;
  SetNumThreads(1);
  for (const Shape& shape : {Shape{6, 24, 16, 24, 1}, Shape{6, 1, 8, 96, 1}, Shape{3, 3, 8, 96, 1},
                             Shape{8, 1, 8, 64, 2}, Shape{4, 1, 8, 96, 2}}) {
    KnownLayer layer{MakeLayer(shape, layers.size() % 2 == 0, ChosenTargetIndex()), {}};
    layer.expected = RunOnce(layer.problem, layer.packed);
    layers.push_back(std::move(layer));
  }
  return layers;
}

// Ends the process, and prints its last activity, if no call is counted for a minute.
class Watchdog {
 public:
  Watchdog() : thread_([this] { Poll(); }) {}
  ~Watchdog() {
    over_ = true;
    thread_.join();
  }
  void Begin(const char* what) {
    what_ = what;
    count_ = 0;
  }
  void Count() { count_.fetch_add(1, std::memory_order_relaxed); }

 private:
  void Poll() {
    std::size_t before = 0;
    for (int seconds = 0; !over_ && seconds < 60; ++seconds) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      if (const std::size_t now = count_; now != before) before = now, seconds = 0;
    }
    if (over_) return;
    std::printf("FAILED %s: no call finishes after %zu calls\n", what_.load(), count_.load());
    std::fflush(stdout);
    std::abort();
  }

  std::atomic<const char*> what_{""};
  std::atomic<std::size_t> count_{0};
  std::atomic<bool> over_{false};
  std::thread thread_;
};

// A thread that runs the tasks of other threads, one after another.
class PoolOfOne {
 public:
  PoolOfOne() : thread_([this] { Loop(); }) {}
  ~PoolOfOne() {
    tasks_.store(kOver, std::memory_order_release);
    thread_.join();
  }

  static void Run(void* pool, std::size_t count, void (*task)(void*, std::size_t), void* data) {
    auto& self = *static_cast<PoolOfOne*>(pool);
    self.task_ = task;
    self.data_ = data;
    self.tasks_.store(count, std::memory_order_release);
    while (self.tasks_.load(std::memory_order_acquire) != 0) std::this_thread::yield();
  }

 private:
  static constexpr std::size_t kOver = SIZE_MAX;

  void Loop() {
    for (std::size_t count; (count = tasks_.load(std::memory_order_acquire)) != kOver; std::this_thread::yield()) {
      for (std::size_t i = 0; i < count; ++i) task_(data_, i);
      if (count != 0) tasks_.store(0, std::memory_order_release);
    }
  }

  void (*task_)(void*, std::size_t) = nullptr;
  void* data_ = nullptr;
  std::atomic<std::size_t> tasks_{0};
  std::thread thread_;
};

// A thread that repeats an action.
class Meanwhile {
 public:
  template <class F>
  explicit Meanwhile(F&& f)
      : thread_([this, f] {
          for (std::size_t n = 0; !over_; ++n) f(n);
        }) {}
  ~Meanwhile() {
    over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace

Stalling::Stalling() {
  g_stalls = Stalls::kShort;
  g_events.stall = Stall;
}
Stalling::~Stalling() {
  g_events.stall = nullptr;
  g_stalls = Stalls::kNone;
}

// Processes with one thread run each first call, which measures the CPU before it is split.
void CheckFirstCalls() {
  const Layer layer = MakeLayer({1, 1, 4, 1024, 2}, true, ChosenTargetIndex());
  const auto call = [&](std::size_t threads) {
    SetNumThreads(threads);
    return RunOnce(layer.problem, layer.packed);
  };
  for (std::size_t n = 0; n < 20; ++n) {
    const auto call_and_fork = [&] {
      std::thread caller([&] { call(2); });
      std::this_thread::sleep_for(std::chrono::microseconds(250 * n));
      const bool good = InChild([&] { return SameBits(call(kThreadsOfChildren), call(1)); }, 10);
      caller.join();
      return good && SameBits(call(2), call(1));
    };
    Check(InChild(call_and_fork, 20), "a fork during a first call", n);
  }
}

int CallAtExit(std::size_t threads) {
  static const Layer& layer = *new Layer(MakeLayer({6, 24, 16, 24, 1}, true, ChosenTargetIndex()));
  static const auto call = [] { return RunOnce(layer.problem, layer.packed); };
  SetNumThreads(1);
  static const Result& expected = *new Result(call());
  SetNumThreads(threads);
  std::atexit([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // until helpers have left the previous call
    if (!SameBits(call(), expected)) std::_Exit(1);
  });
  return !SameBits(call(), expected);
}

void CheckThreads(std::size_t target, std::size_t problems) {
  CheckCallers(target);
  CheckStalled(target, problems / 10);
  CheckForeignPools(target, problems / 10);
  CheckLargePools(target);
  CheckWaitForSleepingWorker();
  CheckCallsThatWakeNone();
  CheckNewWorker();
  CheckMembers();
  CheckPreemptionGovernor();
  CheckForkDuringWindow();
}

void CheckCalls(std::size_t calls) {
  const std::vector<KnownLayer> layers = MakeLayers();
  Watchdog watchdog;
  const auto call = [&](std::size_t n, const ForeignPool* pool = nullptr) {
    const KnownLayer& layer = layers[n % layers.size()];
    const bool good = SameBits(RunOnce(layer.problem, layer.packed, pool), layer.expected);
    watchdog.Count();
    return good;
  };
  const auto all = [&](const char* what, auto&& body) {
    watchdog.Begin(what);
    const auto begin = std::chrono::steady_clock::now();
    std::size_t good = 0;
    for (std::size_t n = 0; n < calls; ++n) good += body(n);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::printf("%-40s %zu calls, %zu right, %.0f s\n", what, calls, good, seconds.count());
    std::fflush(stdout);
    Check(good == calls, what, calls);
  };

  SetNumThreads(3);
  for (const bool by_units : {false, true}) {
    const ByUnits divided(by_units);
    all(by_units ? "units split by fast helpers" : "fast helpers", [&](std::size_t n) { return call(n); });
    const Stalling stalling;
    g_stalls = Stalls::kRare;
    all(by_units ? "units split by helpers that pause" : "helpers that pause", [&](std::size_t n) { return call(n); });
  }
  {
    PoolOfOne one;
    const ForeignPool pool{PoolOfOne::Run, &one, 3};
    all("a pool of one", [&](std::size_t n) { return call(n, &pool); });
  }
  {
    const ForeignPool pool{Tasks::InTurn, nullptr, 3};
    all("tasks one after another", [&](std::size_t n) { return call(n, &pool); });
  }
  {
    std::atomic<bool> over{false};
    std::atomic<std::size_t> wrong{0};
    std::vector<std::thread> others;
    for (std::size_t caller = 1; caller < 8; ++caller) {
      others.emplace_back([&, caller] {
        for (std::size_t n = caller; !over; ++n) wrong += !call(n);
      });
    }
    all("8 concurrent callers", [&](std::size_t n) { return call(n); });
    over = true;
    for (std::thread& other : others) other.join();
    Check(wrong == 0, "the other 7 callers", calls);
  }
  const auto use_cpus = CpusOfThisThread();
  {
    const Meanwhile changes([&](std::size_t n) {
      SetNumThreads(1 + n % 4);
      use_cpus(n);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    });
    all("other numbers of threads, other CPUs", [&](std::size_t n) { return call(n); });
  }
  use_cpus(2);
  SetNumThreads(3);
  if (kForks) {
    std::atomic<std::size_t> children{0}, wrong{0};
    const Meanwhile forks([&](std::size_t) {
      ++children;
      wrong += !InChild([&] {
        bool good = true;
        for (std::size_t n = 0; n < 2 * layers.size(); ++n) good = call(n) && good;
        return good;
      });
    });
    all("forks", [&](std::size_t n) { return call(n); });
    std::printf("%-40s %zu, %zu wrong\n", "children of forks", children.load(), wrong.load());
    Check(wrong == 0 && children != 0, "children of forks", children);
  }
}

}  // namespace onegru
