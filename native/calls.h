// The Python classes onegru._native.Caller and Stepper; see calls.cc.

#ifndef ONEGRU_NATIVE_CALLS_H_
#define ONEGRU_NATIVE_CALLS_H_

#include <nanobind/nanobind.h>

namespace onegru {

void BindCalls(nanobind::module_& m);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_CALLS_H_
