// Accesses arrays through NumPy's C API, which takes nanoseconds. Any protocol would take 0.25 µs, as long as a step of
// a small GRU.

#ifndef ONEGRU_NATIVE_PYTHON_ARRAYS_H_
#define ONEGRU_NATIVE_PYTHON_ARRAYS_H_

#include <nanobind/nanobind.h>

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#define NPY_TARGET_VERSION NPY_1_25_API_VERSION  // the version of NumPy 1.26
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

// Call this before all other functions here. Throws Python's exception.
void ImportNumpy();

inline PyArrayObject* AsArray(nanobind::handle object) {
  return object.is_valid() && PyArray_CheckExact(object.ptr()) ? reinterpret_cast<PyArrayObject*>(object.ptr())
                                                               : nullptr;
}

inline char* Data(PyArrayObject* array) { return static_cast<char*>(PyArray_DATA(array)); }

// Returns the rows along these axes; -1 means an axis that the array does not have.
inline Rows RowsOf(PyArrayObject* array, int time, int direction, int row) {
  const auto stride = [&](int axis) -> std::ptrdiff_t { return axis < 0 ? 0 : PyArray_STRIDE(array, axis); };
  return {Data(array), stride(time), stride(direction), stride(row)};
}

struct Shape {
  int rank;
  npy_intp sizes[4];
};

// Returns an object as an array of this type and rank, or null. Its elements must be aligned, and its last axis
// contiguous. Types are compared by identity.
PyArrayObject* AsInput(PyObject* object, PyArray_Descr* descr, int rank);
// The same for an array of this shape.
PyArrayObject* AsInput(PyObject* object, PyArray_Descr* descr, const Shape& shape);
// The same for a contiguous, writeable array of this shape.
PyArrayObject* AsOutput(PyObject* object, PyArray_Descr* descr, const Shape& shape);
// The same for an array of this shape with any strides, and optionally one more axis of size 1.
PyArrayObject* AsScores(PyObject* object, PyArray_Descr* descr, const Shape& shape);

// Returns a new, uninitialized array. If it cannot be created, the result is not valid, and no exception is set.
nanobind::object NewArray(PyArray_Descr* descr, const Shape& shape);

// The address range of an array's elements.
struct Span {
  const char* begin = nullptr;
  const char* end = nullptr;

  bool Overlaps(const Span& other) const { return begin < other.end && other.begin < end; }
};
inline Span SpanOf(PyArrayObject* array) {  // empty for null
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

// A copy of integers 0…most, which no other thread can change after the check.
template <class T>
class Integers {
 public:
  // Reads a list or tuple of integers, or an int32 or int64 array [n]. Returns false for other objects and numbers.
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
