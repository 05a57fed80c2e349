// Runs calls from Python without the GIL. Signals can stop them.

#ifndef ONEGRU_NATIVE_PYTHON_RUN_FROM_PYTHON_H_
#define ONEGRU_NATIVE_PYTHON_RUN_FROM_PYTHON_H_

#include <Python.h>

#include <functional>
#include <memory>

#include "native/kernel.h"
#include "native/plan.h"

namespace onegru {

// At exit, Python ends every other thread that acquires the GIL. Before 3.14, it unwinds the stack, which terminates
// the process at a noexcept function. With these classes, such a thread hangs instead, as it does since 3.14.

// Releases the GIL for its lifetime.
class GilReleaser {
 public:
  GilReleaser() { Release(); }
  ~GilReleaser() { Take(); }
  GilReleaser(const GilReleaser&) = delete;
  GilReleaser& operator=(const GilReleaser&) = delete;

  void Release() { state_ = PyEval_SaveThread(); }
  void Take();

 private:
  PyThreadState* state_;
};

// Holds the GIL for its lifetime, on a thread that Python may not know.
class GilHolder {
 public:
  GilHolder();
  ~GilHolder() { PyGILState_Release(state_); }
  GilHolder(const GilHolder&) = delete;
  GilHolder& operator=(const GilHolder&) = delete;

 private:
  PyGILState_STATE state_;
};

// Whether a call is long enough to be watched for signals.
bool IsWatched(double flops);

// Calls `run` without the GIL, with a token if the work is watched. Throws the exception of a signal handler that ran
// during the call.
void RunWithoutGil(bool is_watched, const std::function<void(CancellationToken*)>& run);

// A call with fewer FLOPs takes less time than releasing the GIL.
inline constexpr double kFlopsToRelease = 1.0e6;

// Runs a call, and watches long calls. It is inline, because another function call would slow down tiny calls.
inline void RunFromPython(const std::shared_ptr<const Packed>& packed, const Call& call) {
  const double flops = Flops(packed->spec(), call);
  if (flops < kFlopsToRelease) return Run(packed, call);
  RunWithoutGil(IsWatched(flops), [&](CancellationToken* token) {
    Call watched = call;
    watched.token = token;
    Run(packed, watched);
  });
}

}  // namespace onegru

#endif  // ONEGRU_NATIVE_PYTHON_RUN_FROM_PYTHON_H_
