// The calls that are made once for every frame, taken by C where Python's own way to a method costs as much as the
// step of a small layer: 0.4 µs for layer(X, initial_h, out=(Y, Y_h)), 0.1 µs for stream.step(x, out=h).
//
// The base classes of onegru.GRU and onegru.Stream. Each hands a call that has everything to a function, try_call
// or try_step, which says whether it has done it. All other calls, and what is declined, go to a method in Python.

#include "native/calls.h"

#include <cstring>

namespace nb = nanobind;

namespace onegru {
namespace {

struct Caller {
  nb::object try_call;
};

struct Stepper {
  nb::object try_step;
};

// `out` if the function has done what it was asked, null if it has not, or has raised an exception.
template <std::size_t kCount>
PyObject* Try(const nb::object& function, PyObject* const (&arguments)[kCount], PyObject* out) {
  PyObject* const done = PyObject_Vectorcall(function.ptr(), arguments, kCount, nullptr);
  if (done == nullptr) return nullptr;
  const bool is_done = done == Py_True;
  Py_DECREF(done);
  return is_done ? Py_NewRef(out) : nullptr;
}

struct Names {
  PyObject* out = PyUnicode_InternFromString("out");
  PyObject* run = PyUnicode_InternFromString("run");
  PyObject* step = PyUnicode_InternFromString("_step");
};
const Names& TheNames() {
  static const Names names;
  return names;
}

// caller(X[, initial_h], out=(Y, Y_h)); else caller.run(…).
PyObject* Call(PyObject* self, PyObject* args, PyObject* kwargs) {
  const Py_ssize_t given = PyTuple_Size(args);
  if ((given == 1 || given == 2) && kwargs != nullptr && PyDict_Size(kwargs) == 1 && nb::inst_ready(self)) {
    PyObject* const out = PyDict_GetItemWithError(kwargs, TheNames().out);
    if (out != nullptr && PyTuple_CheckExact(out) && PyTuple_Size(out) == 2) {
      PyObject* const all[] = {PyTuple_GetItem(args, 0), given == 2 ? PyTuple_GetItem(args, 1) : Py_None,
                               PyTuple_GetItem(out, 0), PyTuple_GetItem(out, 1)};
      if (PyObject* const result = Try(nb::inst_ptr<Caller>(self)->try_call, all, out)) return result;
    }
    if (PyErr_Occurred()) return nullptr;
  }
  PyObject* const run = PyObject_GetAttr(self, TheNames().run);
  if (run == nullptr) return nullptr;
  PyObject* const result = PyObject_Call(run, args, kwargs);
  Py_DECREF(run);
  return result;
}

// stepper.step(x, out=h); else stepper._step(…).
PyObject* Step(PyObject* self, PyObject* const* args, Py_ssize_t given, PyObject* names) {
  if (given == 1 && names != nullptr && PyTuple_Size(names) == 1 && PyTuple_GetItem(names, 0) == TheNames().out &&
      nb::inst_ready(self)) {
    PyObject* const all[] = {args[0], args[1]};
    if (PyObject* const result = Try(nb::inst_ptr<Stepper>(self)->try_step, all, args[1])) return result;
    if (PyErr_Occurred()) return nullptr;
  }
  PyObject* const step = PyObject_GetAttr(self, TheNames().step);
  if (step == nullptr) return nullptr;
  PyObject* const result = PyObject_Vectorcall(step, args, static_cast<std::size_t>(given), names);
  Py_DECREF(step);
  return result;
}

constexpr char kStep[] = R"(step($self, /, x, *, attention=None, rows=None, out=None)
--

Take one step.

Args:
    x: [B, I], or [n, I] for n rows; of the layer's type.
    attention: [B] or [B, 1], or [n] or [n, 1]; required if and only if the layer has attention.
    rows: indices of the rows that take the step, each at most once; None for all.
    out: what to write h into; None for a new array.

Returns:
    h, the new state of these rows, [B, H] or [n, H], of the layer's type.

Raises:
    SpecError: an argument is not legal.)";

// Gives a class that calls by tp_call, as Caller does, a `__call__` that has a signature and a docstring: Python's
// own descriptor of the slot with another text, as any other kind of `__call__` would make calls slower. The text
// begins with the signature and "--", and is kept for ever, as the class is.
void DescribeCall(nb::handle type, const char* text) {
#ifndef Py_LIMITED_API
  const nb::object plain = type.attr("__call__");
  if (Py_TYPE(plain.ptr()) != &PyWrapperDescr_Type) return;
  const auto* const descriptor = reinterpret_cast<PyWrapperDescrObject*>(plain.ptr());
  auto* const base = new wrapperbase(*descriptor->d_base);
  base->doc = strdup(text);
  type.attr("__call__") =
      nb::steal(PyDescr_NewWrapper(reinterpret_cast<PyTypeObject*>(type.ptr()), base, descriptor->d_wrapped));
#else
  static_cast<void>(type), static_cast<void>(text);  // the stable ABI does not show descriptors
#endif
}

}  // namespace

void BindCalls(nb::module_& m) {
  static PyType_Slot caller[] = {{Py_tp_call, reinterpret_cast<void*>(Call)}, {0, nullptr}};
  nb::class_<Caller>(m, "Caller", nb::type_slots(caller))
      .def(nb::init<nb::object>(), nb::arg("try_call"), "An object that calls try_call, else its method `run`.")
      .def_ro("try_call", &Caller::try_call);
  m.def("describe_call", &DescribeCall, nb::arg("type"), nb::arg("text"),
        "Gives a class's __call__ a signature and a docstring.");

  static PyMethodDef methods[] = {{"step", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Step)),
                                   METH_FASTCALL | METH_KEYWORDS, kStep},
                                  {nullptr, nullptr, 0, nullptr}};
  static PyType_Slot stepper[] = {{Py_tp_methods, methods}, {0, nullptr}};
  nb::class_<Stepper>(m, "Stepper", nb::type_slots(stepper))
      .def(nb::init<nb::object>(), nb::arg("try_step"),
           "An object whose method `step` calls try_step, else its method `_step`.");
}

}  // namespace onegru
