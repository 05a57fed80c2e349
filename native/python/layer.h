// The Python classes onegru._native.Layer and Stream, and functions that run them from native code. See layer.cc.

#ifndef ONEGRU_NATIVE_PYTHON_LAYER_H_
#define ONEGRU_NATIVE_PYTHON_LAYER_H_

#include <nanobind/nanobind.h>

#include <vector>

namespace onegru {

class Layer;
class Stream;

// Whether an optional argument is given: neither null nor None.
inline bool IsGiven(PyObject* object) { return object != nullptr && object != Py_None; }

// The arguments of a call, as Python objects.
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

// The arguments of one step, X [n, I], or of T steps, X [T, n, I].
struct StepArguments {
  bool is_one_step;
  PyObject* X = nullptr;
  PyObject* attention = nullptr;
  PyObject* rows = nullptr;
  PyObject* out = nullptr;
};

// The fast path, which returns (Y, Y_h), or Y. Arrays must be aligned, and have the layer's type and the right shapes.
// The last axis of inputs must be contiguous; attention may have any strides. Lengths and rows are int32, int64, lists
// or tuples. Outputs must be contiguous, and must not overlap inputs (but Y_h may be initial_h) or each other; absent
// outputs are created. For all other arguments, the functions do nothing, and the result is not valid. The caller then
// uses the general path, which also finds errors. Throws the exception of a signal handler that ran during the call.
nanobind::object TryCall(const Layer& layer, const CallArguments& given);
nanobind::object TrySteps(Stream& stream, const StepArguments& given);
// Runs the streams of a stack on several threads, if that is faster than one stream after another. X is the input of
// the first stream: [T, B, I], or [B, T, I] with `batch_first`. Returns the Y of the last stream, which is `out` unless
// that is None.
nanobind::object TryStack(const std::vector<const Stream*>& streams, nanobind::handle X, bool batch_first,
                          nanobind::handle out);

// Return the C++ object of a Python object, or null for None.
const Layer* LayerIn(nanobind::handle object);
Stream* StreamIn(nanobind::handle object);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_PYTHON_LAYER_H_
