#include "native/python/run_from_python.h"

#include <nanobind/nanobind.h>

#include <chrono>
#include <exception>
#include <thread>

namespace nb = nanobind;

namespace onegru {
namespace {

// Below this many FLOPs a call is over before anybody notices, even without SIMD: it is not watched for signals.
constexpr double kFlopsToWatch = 1.0e7;
// Between two reads of the clock: some 50 µs of a core, milliseconds without SIMD.
constexpr std::int64_t kProductsPerPoll = std::int64_t{1} << 22;
// Between two checks for signals. A check takes the interpreter's lock, which others may hold for 5 ms.
constexpr std::chrono::milliseconds kSignalsEvery{50};

[[noreturn]] void Hang() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

// Stops a call when a signal's handler raises an exception, which is then set.
class SignalToken final : public CancellationToken {
 public:
  explicit SignalToken(Unlocked& unlocked) : CancellationToken(kProductsPerPoll), unlocked_(unlocked) {}

 private:
  bool ShouldStop() override {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_) return false;
    unlocked_.Take();
    const bool raised = PyErr_CheckSignals() != 0;
    // Handlers run only on the main thread: others need not ask again.
    const bool again = !raised && IsMainThread();
    unlocked_.Release();
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
  Unlocked& unlocked_;
  Time next_ = std::chrono::steady_clock::now() + kSignalsEvery;
};

}  // namespace

void Unlocked::Take() {
  try {
    PyEval_RestoreThread(state_);
  } catch (...) {
    Hang();
  }
}

Locked::Locked() {
  try {
    state_ = PyGILState_Ensure();
  } catch (...) {
    Hang();
  }
}

bool IsWatched(double flops) { return flops >= kFlopsToWatch; }

void RunUnlocked(bool is_watched, const std::function<void(CancellationToken*)>& run) {
  bool stopped = false;
  {
    Unlocked unlocked;
    if (is_watched) {
      SignalToken token(unlocked);
      run(&token);
      stopped = token.stopped();
    } else {
      run(nullptr);
    }
  }
  if (stopped) throw nb::python_error();
}

}  // namespace onegru
