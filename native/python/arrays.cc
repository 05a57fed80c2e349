#define ONEGRU_IMPORTS_NUMPY
#include "native/python/arrays.h"

#include <cstring>
#include <vector>

#include "native/memory_pool.h"

namespace nb = nanobind;

namespace onegru {
namespace {

// From this size on, the pool is faster than fresh memory, which the system provides page by page.
constexpr double kBytesFromPool = 64 * 1024;

PyDataMem_Handler g_handler = {"onegru",
                               1,
                               {nullptr, [](void*, std::size_t bytes) { return ThePool().Allocate(bytes); },
                                [](void*, std::size_t count, std::size_t each) -> void* {
                                  if (each != 0 && count > SIZE_MAX / each) return nullptr;
                                  void* const data = ThePool().Allocate(count * each);
                                  return data == nullptr ? nullptr : std::memset(data, 0, count * each);
                                },
                                [](void*, void* data, std::size_t bytes) { return ThePool().Reallocate(data, bytes); },
                                [](void*, void* data, std::size_t) { ThePool().Free(data); }}};

bool Import() {
  import_array1(false);
  return true;
}

// Sets NumPy's memory handler. Returns false, without an exception, if that fails.
bool SetHandler(PyObject* handler) {
  PyObject* const before = handler == nullptr ? nullptr : PyDataMem_SetHandler(handler);
  if (before == nullptr) PyErr_Clear();
  Py_XDECREF(before);
  return before != nullptr;
}

// NumPy allocates an array with the current handler, and frees it with the same one. The pool replaces only NumPy's
// default handler, because another handler is the user's choice.
PyObject* g_ours = nullptr;

PyObject* NewFromPool(PyArray_Descr* descr, const Shape& shape) {
  const nb::object before = nb::steal(PyDataMem_GetHandler());
  const bool is_ours = before.ptr() == PyDataMem_DefaultHandler && SetHandler(g_ours);
  PyErr_Clear();
  PyObject* const array = PyArray_Empty(shape.rank, shape.sizes, descr, 0);
  if (array == nullptr) PyErr_Clear();
  if (is_ours) SetHandler(before.ptr());
  return array;
}

bool HasSizes(PyArrayObject* array, const Shape& shape) {
  bool same = true;  // faster than a library call for few numbers
  for (int axis = 0; axis < shape.rank; ++axis) same &= PyArray_DIM(array, axis) == shape.sizes[axis];
  return same;
}

PyArrayObject* AsAligned(PyObject* object, PyArray_Descr* descr) {
  PyArrayObject* const array = AsArray(object);
  return array != nullptr && PyArray_DESCR(array) == descr && PyArray_ISALIGNED(array) ? array : nullptr;
}

}  // namespace

void ImportNumpy() {
  if (!Import()) throw nb::python_error();
  g_ours = PyCapsule_New(&g_handler, "mem_handler", nullptr);
  if (g_ours == nullptr) throw nb::python_error();
}

PyArrayObject* AsInput(PyObject* object, PyArray_Descr* descr, int rank) {
  PyArrayObject* const array = AsAligned(object, descr);
  if (array == nullptr || PyArray_NDIM(array) != rank) return nullptr;
  const int last = rank - 1;
  const bool contiguous = PyArray_DIM(array, last) <= 1 || PyArray_STRIDE(array, last) == PyArray_ITEMSIZE(array) ||
                          PyArray_SIZE(array) == 0;
  return contiguous ? array : nullptr;
}

PyArrayObject* AsInput(PyObject* object, PyArray_Descr* descr, const Shape& shape) {
  PyArrayObject* const array = AsInput(object, descr, shape.rank);
  return array != nullptr && HasSizes(array, shape) ? array : nullptr;
}

PyArrayObject* AsOutput(PyObject* object, PyArray_Descr* descr, const Shape& shape) {
  PyArrayObject* const array = AsInput(object, descr, shape);
  constexpr int kWanted = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_WRITEABLE;
  return array != nullptr && (PyArray_FLAGS(array) & kWanted) == kWanted ? array : nullptr;
}

PyArrayObject* AsScores(PyObject* object, PyArray_Descr* descr, const Shape& shape) {
  PyArrayObject* const array = AsAligned(object, descr);
  if (array == nullptr) return nullptr;
  const int rank = PyArray_NDIM(array);
  const bool fits = rank == shape.rank || (rank == shape.rank + 1 && PyArray_DIM(array, shape.rank) == 1);
  return fits && HasSizes(array, shape) ? array : nullptr;
}

nb::object NewArray(PyArray_Descr* descr, const Shape& shape) {
  double bytes = static_cast<double>(PyDataType_ELSIZE(descr));
  for (int axis = 0; axis < shape.rank; ++axis) bytes *= static_cast<double>(shape.sizes[axis]);
  Py_INCREF(reinterpret_cast<PyObject*>(descr));  // for the new array
  PyObject* const array =
      bytes < kBytesFromPool ? PyArray_Empty(shape.rank, shape.sizes, descr, 0) : NewFromPool(descr, shape);
  if (array == nullptr) PyErr_Clear();
  return nb::steal(array);
}

template <class T>
void Integers<T>::MakeRoom(std::size_t size) {
  if (size > std::size(few_)) {
    many_.reset(new T[size]);
    data_ = many_.get();
  }
  size_ = size;
}

template <class T>
bool Integers<T>::Read(PyObject* object, std::int64_t most) {
  if (PyArrayObject* const array = AsArray(object)) {
    const npy_intp each = PyArray_ITEMSIZE(array);
    if (PyArray_NDIM(array) != 1 || !PyTypeNum_ISSIGNED(PyArray_TYPE(array)) || (each != 4 && each != 8) ||
        !PyArray_ISBEHAVED_RO(array)) {
      return false;
    }
    MakeRoom(static_cast<std::size_t>(PyArray_DIM(array, 0)));
    const char* from = Data(array);
    bool good = true;
    for (std::size_t i = 0; i < size_; ++i, from += PyArray_STRIDE(array, 0)) {
      good &= Put(
          i, each == 4 ? *reinterpret_cast<const std::int32_t*>(from) : *reinterpret_cast<const std::int64_t*>(from),
          most);
    }
    return good;
  }
  const bool is_list = PyList_CheckExact(object);
  if (!is_list && !PyTuple_CheckExact(object)) return false;
  MakeRoom(static_cast<std::size_t>(is_list ? PyList_Size(object) : PyTuple_Size(object)));
  for (std::size_t i = 0; i < size_; ++i) {
    const auto index = static_cast<Py_ssize_t>(i);
#if defined(Py_GIL_DISABLED)
    // Another thread may change the list during the loop.
    const nb::object item =
        is_list ? nb::steal(PyList_GetItemRef(object, index)) : nb::borrow(PyTuple_GetItem(object, index));
    if (!item.is_valid()) PyErr_Clear();
#else
    const nb::handle item = is_list ? PyList_GetItem(object, index) : PyTuple_GetItem(object, index);
#endif
    if (!item.is_valid() || !PyLong_CheckExact(item.ptr())) return false;
    int overflow = 0;
    const std::int64_t value = PyLong_AsLongLongAndOverflow(item.ptr(), &overflow);
    if (overflow != 0 || !Put(i, value, most)) return false;
  }
  return true;
}

template <class T>
bool Integers<T>::AreDistinct(std::int64_t most) const {
  std::vector<bool> seen(static_cast<std::size_t>(most) + 1);
  for (std::size_t i = 0; i < size_; ++i) {
    if (seen[static_cast<std::size_t>(data_[i])]) return false;
    seen[static_cast<std::size_t>(data_[i])] = true;
  }
  return true;
}

template class Integers<std::int32_t>;
template class Integers<std::int64_t>;

}  // namespace onegru
