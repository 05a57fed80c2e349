// Calls made by Python: without the interpreter's lock, and stopped by signals.

#ifndef ONEGRU_NATIVE_PYTHON_RUN_FROM_PYTHON_H_
#define ONEGRU_NATIVE_PYTHON_RUN_FROM_PYTHON_H_

#include <memory>

#include "native/kernel.h"
#include "native/plan.h"

namespace onegru {

// Whether a call is long enough to be watched for signals.
bool IsWatched(const Spec& spec, const Call& call);

void RunUnlocked(const std::shared_ptr<const Packed>& packed, const Call& call);

// Below this many FLOPs a call takes less time than a release of the interpreter's lock.
inline constexpr double kFlopsToRelease = 1.0e6;

// Runs a call. Throws what a signal's handler raised meanwhile. Inline, as a tiny call notices one more call.
inline void RunFromPython(const std::shared_ptr<const Packed>& packed, const Call& call) {
  if (Flops(packed->spec(), call) < kFlopsToRelease) return Run(packed, call);
  RunUnlocked(packed, call);
}

}  // namespace onegru

#endif  // ONEGRU_NATIVE_PYTHON_RUN_FROM_PYTHON_H_
