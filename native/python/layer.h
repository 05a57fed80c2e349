// The Python classes onegru._native.Layer and Stream, and the calls that they take from native code; see layer.cc.

#ifndef ONEGRU_NATIVE_PYTHON_LAYER_H_
#define ONEGRU_NATIVE_PYTHON_LAYER_H_

#include <nanobind/nanobind.h>

namespace onegru {

class Layer;
class Stream;

// An argument that may be left out: null, or None.
inline bool IsGiven(PyObject* object) { return object != nullptr && object != Py_None; }

// What a call is given, as Python's objects.
struct CallArguments {
  PyObject* X = nullptr;
  PyObject* initial_h = nullptr;
  PyObject* sequence_lens = nullptr;
  PyObject* attention = nullptr;
  PyObject* Y = nullptr;
  PyObject* Y_h = nullptr;
  PyObject* out = nullptr;  // (Y, Y_h), if they came so: what to return then
  int layout = 0;
};

// One step, X [n, I], or any number, X [T, n, I].
struct StepArguments {
  bool is_one_step;
  PyObject* X = nullptr;
  PyObject* attention = nullptr;
  PyObject* rows = nullptr;
  PyObject* out = nullptr;
};

// Do a plain call: arrays of the layer's type, aligned, of the right shapes; inputs whose last axis is contiguous,
// attention of any strides; lengths and rows as int32, int64, list or tuple; outputs that are contiguous, apart
// from inputs (Y_h may be initial_h) and from each other, or absent, then new. Return (Y, Y_h), or Y. Otherwise
// nothing is done and what they return is not valid: the caller then finds what is wrong, or falls back to the
// general path. They throw what a signal's handler raised meanwhile.
nanobind::object TryCall(const Layer& layer, const CallArguments& given);
nanobind::object TrySteps(Stream& stream, const StepArguments& given);

// What is in an object of theirs; null for None.
const Layer* LayerIn(nanobind::handle object);
Stream* StreamIn(nanobind::handle object);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_PYTHON_LAYER_H_
