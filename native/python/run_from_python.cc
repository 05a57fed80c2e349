#include "native/python/run_from_python.h"

#include <nanobind/nanobind.h>

#include <chrono>
#include <exception>
#include <thread>

namespace nb = nanobind;

namespace onegru {
namespace {

// Calls with fewer FLOPs are not watched for signals, because they are short even without SIMD.
constexpr double kFlopsToWatch = 1.0e7;
// Products between two reads of the clock, about 50 µs on one core, or milliseconds without SIMD.
constexpr std::int64_t kProductsPerPoll = std::int64_t{1} << 22;
// The time between two checks for signals. A check acquires the GIL, which other threads may hold for 5 ms.
constexpr std::chrono::milliseconds kSignalsEvery{50};

[[noreturn]] void Hang() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

// Stops a call if a signal handler raises an exception, which is then set.
class SignalToken final : public CancellationToken {
 public:
  explicit SignalToken(GilReleaser& gil) : CancellationToken(kProductsPerPoll), gil_(gil) {}

 private:
  bool ShouldStop() override {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_) return false;
    gil_.Take();
    const bool raised = PyErr_CheckSignals() != 0;
    // Signal handlers run only on the main thread, so other threads need not check again.
    const bool again = !raised && IsMainThread();
    gil_.Release();
    next_ = again ? std::chrono::steady_clock::now() + kSignalsEvery : Time::max();
    return raised;
  }

  static bool IsMainThread() {
    try {
      const nb::object main = nb::module_::import_("threading").attr("main_thread")();
      return nb::cast<unsigned long>(main.attr("ident")) == PyThread_get_thread_ident();
    } catch (const std::exception&) {
      return false;  // the kernels must not throw, because other threads may run
    }
  }

  using Time = std::chrono::steady_clock::time_point;
  GilReleaser& gil_;
  Time next_ = std::chrono::steady_clock::now() + kSignalsEvery;
};

}  // namespace

void GilReleaser::Take() {
  try {
    PyEval_RestoreThread(state_);
  } catch (...) {
    Hang();
  }
}

GilHolder::GilHolder() {
  try {
    state_ = PyGILState_Ensure();
  } catch (...) {
    Hang();
  }
}

bool IsWatched(double flops) { return flops >= kFlopsToWatch; }

void RunWithoutGil(bool is_watched, const std::function<void(CancellationToken*)>& run) {
  bool stopped = false;
  {
    GilReleaser no_gil;
    if (is_watched) {
      SignalToken token(no_gil);
      run(&token);
      stopped = token.stopped();
    } else {
      run(nullptr);
    }
  }
  if (stopped) throw nb::python_error();
}

}  // namespace onegru
