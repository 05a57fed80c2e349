// NumPy's arrays through its C API: to inspect one takes nanoseconds, against a quarter of a microsecond by any
// protocol, as long as a step of a small GRU.

#ifndef ONEGRU_NATIVE_PYTHON_ARRAYS_H_
#define ONEGRU_NATIVE_PYTHON_ARRAYS_H_

#include <nanobind/nanobind.h>

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#define NPY_TARGET_VERSION NPY_1_25_API_VERSION  // that of NumPy 1.26
#define PY_ARRAY_UNIQUE_SYMBOL onegru_numpy
#ifndef ONEGRU_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "native/assert.h"
#include "native/problem.h"

namespace onegru {

// Must be called before anything else here. Throws Python's exception.
void ImportNumpy();

inline PyArrayObject* AsArray(nanobind::handle object) {
  return object.is_valid() && PyArray_CheckExact(object.ptr()) ? reinterpret_cast<PyArrayObject*>(object.ptr())
                                                               : nullptr;
}

inline char* Data(PyArrayObject* array) { return static_cast<char*>(PyArray_DATA(array)); }

// The strides of rows along these axes; -1 for an axis that the array does not have.
inline Rows RowsOf(PyArrayObject* array, int time, int direction, int row) {
  const auto stride = [&](int axis) -> std::ptrdiff_t { return axis < 0 ? 0 : PyArray_STRIDE(array, axis); };
  return {Data(array), stride(time), stride(direction), stride(row)};
}

struct Shape {
  int rank;
  npy_intp sizes[4];
};

// The object as an array of this type and rank, its elements aligned, the last axis contiguous; else null. Types are
// compared by identity with the layer's.
PyArrayObject* AsInput(PyObject* object, PyArray_Descr* descr, int rank);
// As an array of this shape.
PyArrayObject* AsInput(PyObject* object, PyArray_Descr* descr, const Shape& shape);
// As a contiguous, writeable array of this shape.
PyArrayObject* AsOutput(PyObject* object, PyArray_Descr* descr, const Shape& shape);
// An array of this shape and any strides, or with one more axis of size one.
PyArrayObject* AsScores(PyObject* object, PyArray_Descr* descr, const Shape& shape);

// A new array, uninitialized. Not valid, without an exception, if none can be made.
nanobind::object NewArray(PyArray_Descr* descr, const Shape& shape);

// The address range of an array's elements.
struct Span {
  const char* begin = nullptr;
  const char* end = nullptr;

  bool Overlaps(const Span& other) const { return begin < other.end && other.begin < end; }
};
inline Span SpanOf(PyArrayObject* array) {  // of null: none
  if (array == nullptr) return {};
  Span span{Data(array), Data(array) + PyArray_ITEMSIZE(array)};
  for (int axis = 0; axis < PyArray_NDIM(array); ++axis) {
    const npy_intp size = PyArray_DIM(array, axis);
    if (size == 0) return {};
    const npy_intp reach = PyArray_STRIDE(array, axis) * (size - 1);
    (reach < 0 ? span.begin : span.end) += reach;
  }
  return span;
}

// A copy of a few integers 0…most, so that no other thread can change them after the check.
template <class T>
class Integers {
 public:
  // False: it is neither a list or tuple of such integers nor an int32 or int64 array [n] of them.
  bool Read(PyObject* object, std::int64_t most);
  bool AreDistinct(std::int64_t most) const;

  std::size_t size() const { return size_; }
  const T* data() const { return data_; }

 private:
  bool Put(std::size_t index, std::int64_t value, std::int64_t most) {
    ONEGRU_ASSERT(index < size_);
    data_[index] = static_cast<T>(value);
    return value >= 0 && value <= most;
  }
  void MakeRoom(std::size_t size);

  T few_[64];
  std::unique_ptr<T[]> many_;
  T* data_ = few_;
  std::size_t size_ = 0;
};

extern template class Integers<std::int32_t>;
extern template class Integers<std::int64_t>;

}  // namespace onegru

#endif  // ONEGRU_NATIVE_PYTHON_ARRAYS_H_
