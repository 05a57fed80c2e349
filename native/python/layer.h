// The Python classes onegru._native.Layer and Stream, and the calls that they take from native code; see layer.cc.

#ifndef ONEGRU_NATIVE_PYTHON_LAYER_H_
#define ONEGRU_NATIVE_PYTHON_LAYER_H_

#include <nanobind/nanobind.h>

#include <vector>

namespace onegru {

class Layer;
class Stream;

// Whether an optional argument is given: neither null nor None.
inline bool IsGiven(PyObject* object) { return object != nullptr && object != Py_None; }

// What a call is given, as Python's objects.
struct CallArguments {
  PyObject* X = nullptr;
  PyObject* initial_h = nullptr;
  PyObject* sequence_lens = nullptr;
  PyObject* attention = nullptr;
  PyObject* Y = nullptr;
  PyObject* Y_h = nullptr;
  PyObject* out = nullptr;  // the tuple (Y, Y_h) to return, if `out` was a tuple
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

// The fast path: arrays of the layer's type, aligned, of the right shapes; inputs whose last axis is contiguous,
// attention of any strides; lengths and rows as int32, int64, list or tuple; outputs that are contiguous and overlap
// neither inputs (but Y_h may be initial_h) nor each other, or are absent, then new. Return (Y, Y_h), or Y. Otherwise
// nothing is done and the result is not valid: the caller then falls back to the general path, or finds what is wrong.
// Throws the exception of a signal handler that ran during the call.
nanobind::object TryCall(const Layer& layer, const CallArguments& given);
nanobind::object TrySteps(Stream& stream, const StepArguments& given);
// Runs the streams of a stack on several threads, if that is faster than one stream after another. X is the input of
// the first stream: [T, B, I], or [B, T, I] with `batch_first`. Returns the Y of the last stream.
nanobind::object TryStack(const std::vector<const Stream*>& streams, nanobind::handle X, bool batch_first);

// The C++ object of a Python object; null for None.
const Layer* LayerIn(nanobind::handle object);
Stream* StreamIn(nanobind::handle object);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_PYTHON_LAYER_H_
