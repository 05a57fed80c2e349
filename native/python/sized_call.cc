// Runs a model of another runtime on inputs of one set of sizes, with arrays that the runtime reads and writes. In
// Python, the checks and copies of a call take some µs, which is half of the time of a small model. Why errors can be
// lost: see openvino_failures.py.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "native/python/arrays.h"
#include "native/python/bindings.h"
#include "native/runtimes/graph_layers.h"

namespace nb = nanobind;

namespace onegru {
namespace {

// Fills the last element of each output before a run. If it is still there, the run perhaps did not write the output.
constexpr int kUnwritten = 0xfb;

// The array of an input or output that the other runtime reads or writes, and the name of the argument or result.
struct Port {
  explicit Port(nb::handle pair) : name(pair[0]), object(pair[1]), array(AsArray(object)) {
    if (array == nullptr || !PyArray_ISCARRAY(array) || !PyUnicode_CheckExact(name.ptr())) {
      throw std::invalid_argument("ports: must be pairs of a name and a contiguous array");
    }
    PyObject* interned = name.release().ptr();
    PyUnicode_InternInPlace(&interned);
    name = nb::steal(interned);
  }

  std::size_t bytes() const { return static_cast<std::size_t>(PyArray_NBYTES(array)); }
  std::size_t element() const { return static_cast<std::size_t>(PyArray_ITEMSIZE(array)); }
  char* last() const { return Data(array) + bytes() - element(); }

  // Copies an argument. Returns false if it is not an array of the same type and sizes.
  bool CopyFrom(nb::handle given) const {
    PyArrayObject* const from = AsArray(given);
    if (from == nullptr || !IsOfType(from) || PyArray_NDIM(from) != PyArray_NDIM(array) || !PyArray_ISCARRAY_RO(from) ||
        !PyArray_CompareLists(PyArray_DIMS(from), PyArray_DIMS(array), PyArray_NDIM(array))) {
      return false;
    }
    std::memcpy(Data(array), Data(from), bytes());
    return true;
  }

  // An unpickled array has an equal but different type object.
  bool IsOfType(PyArrayObject* other) const {
    return PyArray_DESCR(other) == PyArray_DESCR(array) ||
           PyArray_EquivTypes(PyArray_DESCR(other), PyArray_DESCR(array)) != 0;
  }

  void MarkEnd() const {
    if (bytes() != 0) std::memset(last(), kUnwritten, element());
  }
  bool IsEndMarked() const {
    if (bytes() == 0) return false;
    const char* const end = last();
    for (std::size_t i = 0; i < element(); ++i) {
      if (static_cast<unsigned char>(end[i]) != kUnwritten) return false;
    }
    return true;
  }

  nb::object name, object;
  PyArrayObject* array;
};

class SizedCall {
 public:
  // inputs, outputs: pairs of a name and an array. run: runs the other runtime on these arrays. settle: called after a
  // run that perhaps did not write an output. lost: a list; while it is not empty, no call runs. Returns false, and
  // changes nothing, during a call on another thread.
  bool Prepare(nb::handle inputs, nb::handle outputs, nb::object run, nb::object settle, nb::object lost) {
    if (is_busy_.exchange(true, std::memory_order_acquire)) return false;
    const std::unique_ptr<std::atomic<bool>, Leave> leave(&is_busy_);
    if (!PyList_CheckExact(lost.ptr())) throw std::invalid_argument("lost: must be a list");
    run_.reset();
    inputs_.clear();
    outputs_.clear();
    for (nb::handle pair : inputs) inputs_.emplace_back(pair);
    for (nb::handle pair : outputs) outputs_.emplace_back(pair);
    run_ = std::move(run);
    settle_ = std::move(settle);
    lost_ = std::move(lost);
    return true;
  }

  // Returns the outputs by name. Returns None if the caller must run the model itself: for other arguments, on another
  // thread during a call, or after an error.
  nb::object Call(nb::handle given) {
    if (!PyDict_CheckExact(given.ptr()) || is_busy_.exchange(true, std::memory_order_acquire)) return nb::none();
    const std::unique_ptr<std::atomic<bool>, Leave> leave(&is_busy_);
    if (!run_.is_valid() || PyList_Size(lost_.ptr()) != 0 ||
        static_cast<std::size_t>(PyDict_Size(given.ptr())) != inputs_.size()) {
      return nb::none();
    }
    for (const Port& port : inputs_) {
      if (!port.CopyFrom(ItemOf(given, port.name))) return nb::none();
    }
    for (const Port& port : outputs_) port.MarkEnd();
    if (!Run()) return nb::none();
    nb::dict results;
    for (const Port& port : outputs_) {
      const nb::object copy = nb::steal(PyArray_NewCopy(port.array, NPY_CORDER));
      if (!copy.is_valid()) throw nb::python_error();
      results[port.name] = copy;
    }
    return results;
  }

 private:
  struct Leave {
    void operator()(std::atomic<bool>* is_busy) const { is_busy->store(false, std::memory_order_release); }
  };

  // Returns an argument, or an invalid object.
  static nb::object ItemOf(nb::handle arguments, nb::handle name) {
#if defined(Py_GIL_DISABLED)
    PyObject* item = nullptr;  // another thread may remove it from the dictionary
    PyDict_GetItemRef(arguments.ptr(), name.ptr(), &item);
    nb::object found = nb::steal(item);
#else
    nb::object found = nb::borrow(PyDict_GetItemWithError(arguments.ptr(), name.ptr()));
#endif
    if (!found.is_valid() && PyErr_Occurred() != nullptr) throw nb::python_error();
    return found;
  }

  // Returns false after an error of the other runtime, which is always a RuntimeError. The caller of Call raises it
  // when it repeats the run. Other exceptions are of signal handlers.
  bool Run() {
    const FailureWatch watch;
    try {
      run_();
      if (std::any_of(outputs_.begin(), outputs_.end(), [](const Port& port) { return port.IsEndMarked(); })) settle_();
    } catch (nb::python_error& error) {
      if (error.type().ptr() != PyExc_RuntimeError) throw;
      return false;
    }
    return watch.Failure().empty();
  }

  std::vector<Port> inputs_, outputs_;
  nb::object run_, settle_, lost_;
  std::atomic<bool> is_busy_{false};
};

}  // namespace

void BindSizedCall(nb::module_& m) {
  nb::class_<SizedCall>(m, "SizedCall")
      .def(nb::init<>(), "A call of another runtime's model, which runs nothing until it is prepared.")
      .def("prepare", &SizedCall::Prepare, nb::arg("inputs"), nb::arg("outputs"), nb::arg("run"), nb::arg("settle"),
           nb::arg("lost"), "Sets the arrays and functions. Returns False during a call on another thread.")
      .def("__call__", &SizedCall::Call, nb::arg("inputs").none(),
           "Returns the outputs, or None if the caller must run the model itself.");
}

}  // namespace onegru
