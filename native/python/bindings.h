// The parts of the Python module onegru._native.

#ifndef ONEGRU_NATIVE_PYTHON_BINDINGS_H_
#define ONEGRU_NATIVE_PYTHON_BINDINGS_H_

#include <nanobind/nanobind.h>

namespace onegru {

void BindLayer(nanobind::module_& m);         // Layer, Stream: layer.cc
void BindCalls(nanobind::module_& m);         // Caller, Stepper: calls.cc
void BindObserver(nanobind::module_& m);      // observer.cc
void BindTensorMemory(nanobind::module_& m);  // tensor_memory.cc
void BindFewSteps(nanobind::module_& m);      // few_steps.cc
void BindSizedCall(nanobind::module_& m);     // SizedCall: sized_call.cc

}  // namespace onegru

#endif  // ONEGRU_NATIVE_PYTHON_BINDINGS_H_
