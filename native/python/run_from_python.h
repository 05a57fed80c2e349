// Calls made by Python: without the interpreter's lock, and stopped by signals.

#ifndef ONEGRU_NATIVE_PYTHON_RUN_FROM_PYTHON_H_
#define ONEGRU_NATIVE_PYTHON_RUN_FROM_PYTHON_H_

#include <memory>

#include "native/packed.h"
#include "native/problem.h"

namespace onegru {

// Whether a call is long enough to be watched for signals.
bool IsWatched(const Spec& spec, const Call& call);

// Runs a call. Throws what a signal's handler raised meanwhile.
void RunFromPython(const std::shared_ptr<const Packed>& packed, const Call& call);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_PYTHON_RUN_FROM_PYTHON_H_
