// The fast path of calls: base classes of onegru.GRU and onegru.reports.Stream. A usual Python call takes as long as a
// step of a small layer: 0.4 µs for layer(X, initial_h, out=(Y, Y_h)), 0.1 µs for stream.step(x, out=h). If the fast
// path declines a call, a Python method runs it.

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "native/python/bindings.h"
#include "native/python/layer.h"

namespace nb = nanobind;

namespace onegru {
namespace {

PyObject* CallByVector(PyObject* self, PyObject* const* args, std::size_t flags, PyObject* keywords);

// `native` is the engine's object, or None. It keeps the layer or the stream alive.
struct Caller {
  Caller(nb::object object, int own_layout) : native(std::move(object)), layer(LayerIn(native)), layout(own_layout) {}

  nb::object native;
  const Layer* layer;
  int layout;
  vectorcallfunc call = CallByVector;
};

struct Stepper {
  explicit Stepper(nb::object object) : native(std::move(object)), stream(StreamIn(native)) {}

  nb::object native;
  Stream* stream;
};

// The names of a method's arguments, in order.
template <std::size_t kCount>
struct Names {
  template <class... Texts>
  explicit Names(Texts... texts) : names{PyUnicode_InternFromString(texts)...} {}

  // Returns false if there is no such argument, or if it already has a value.
  bool Put(PyObject* name, PyObject* value, PyObject* (&values)[kCount]) const {
    for (std::size_t i = 0; i < kCount; ++i) {
      if (names[i] == name) return std::exchange(values[i], value) == nullptr;
    }
    return false;
  }
  // Stores a method's arguments. Returns false for unknown names, or more than `most` positional arguments.
  bool Put(PyObject* const* args, Py_ssize_t given, PyObject* keywords, Py_ssize_t most,
           PyObject* (&values)[kCount]) const {
    if (given > most) return false;
    std::copy(args, args + given, values);
    const Py_ssize_t named = keywords == nullptr ? 0 : PyTuple_Size(keywords);
    for (Py_ssize_t i = 0; i < named; ++i) {
      if (!Put(PyTuple_GetItem(keywords, i), args[given + i], values)) return false;
    }
    return true;
  }

  PyObject* names[kCount];
};

// Returns a layout argument, or nullopt if the fast path does not support it.
std::optional<int> LayoutOf(PyObject* object, int own) {
  if (!IsGiven(object)) return own;
  int overflow = 0;
  const long value = PyLong_CheckExact(object) ? PyLong_AsLongAndOverflow(object, &overflow) : -1;
  if (value != 0 && value != 1) return {};
  return static_cast<int>(value);
}

// Returns a new reference to the result of `call`, or null if it is not valid. If `call` throws, sets an exception.
template <class F>
PyObject* Try(F&& call) {
  try {
    return call().release().ptr();
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

enum CallName { kX, kInitialH, kSequenceLens, kAttention, kLayout, kOut, kCallNames };
enum StepName { kStepX, kStepAttention, kRows, kStepOut, kStepNames };

struct AllNames {
  Names<kCallNames> call{"X", "initial_h", "sequence_lens", "attention", "layout", "out"};
  Names<kStepNames> step{"x", "attention", "rows", "out"};
  PyObject* run = PyUnicode_InternFromString("run");
  PyObject* other_step = PyUnicode_InternFromString("_step");
};

// Initialized when the module is created. In free-threaded Python, a thread could otherwise wait for the initializing
// thread while that is stopped for garbage collection.
const AllNames& TheNames() {
  static const AllNames names;
  return names;
}

// Runs caller(…) on the fast path. Returns null if it declines.
PyObject* TryGiven(const Caller& caller, PyObject* const (&values)[kCallNames]) {
  const std::optional<int> layout = LayoutOf(values[kLayout], caller.layout);
  if (caller.layer == nullptr || values[kX] == nullptr || !layout) return nullptr;
  CallArguments call{values[kX], values[kInitialH], values[kSequenceLens], values[kAttention]};
  call.layout = *layout;
  if (PyObject* const out = values[kOut]; IsGiven(out)) {
    if (!PyTuple_CheckExact(out) || PyTuple_Size(out) != 2) return nullptr;
    call.Y = PyTuple_GetItem(out, 0);
    call.Y_h = PyTuple_GetItem(out, 1);
    call.out = out;
  }
  return Try([&] { return TryCall(*caller.layer, call); });
}

bool PutAll(PyObject* args, PyObject* kwargs, PyObject* (&values)[kCallNames]) {
  const Py_ssize_t given = PyTuple_Size(args);
  if (given > 2) return false;
  for (Py_ssize_t i = 0; i < given; ++i) values[i] = PyTuple_GetItem(args, i);
  Py_ssize_t position = 0;
  for (PyObject *name, *value; kwargs != nullptr && PyDict_Next(kwargs, &position, &name, &value);) {
    if (!TheNames().call.Put(name, value, values)) return false;
  }
  return true;
}

PyObject* TryIfMade(PyObject* self, PyObject* const (&values)[kCallNames]) {
  return nb::inst_ready(self) ? TryGiven(*nb::inst_ptr<Caller>(self), values) : nullptr;
}

nb::object RunOf(PyObject* self) { return nb::steal(PyObject_GetAttr(self, TheNames().run)); }

// Runs caller(…), or caller.run(…) if the fast path declines.
PyObject* CallByTuple(PyObject* self, PyObject* args, PyObject* kwargs) {
  PyObject* values[kCallNames] = {};
  if (PutAll(args, kwargs, values)) {
    PyObject* const result = TryIfMade(self, values);
    if (result != nullptr || PyErr_Occurred()) return result;
  }
  const nb::object run = RunOf(self);
  return run.is_valid() ? PyObject_Call(run.ptr(), args, kwargs) : nullptr;
}

// The same without a tuple and a dictionary of the arguments, whose creation takes 0.1 µs.
PyObject* CallByVector(PyObject* self, PyObject* const* args, std::size_t flags, PyObject* keywords) {
  const Py_ssize_t given = PyVectorcall_NARGS(flags);
  PyObject* values[kCallNames] = {};
#ifdef Py_LIMITED_API
  const auto call = reinterpret_cast<ternaryfunc>(PyType_GetSlot(Py_TYPE(self), Py_tp_call));
#else
  const ternaryfunc call = Py_TYPE(self)->tp_call;
#endif
  if (call != CallByTuple) {  // the class's __call__ was replaced, but Python 3.11 still calls this function
    const nb::object all = nb::steal(PyTuple_New(given)), named = nb::steal(PyDict_New());
    if (!all.is_valid() || !named.is_valid()) return nullptr;
    for (Py_ssize_t i = 0; i < given; ++i) PyTuple_SetItem(all.ptr(), i, Py_NewRef(args[i]));
    const Py_ssize_t count = keywords == nullptr ? 0 : PyTuple_Size(keywords);
    for (Py_ssize_t i = 0; i < count; ++i) {
      if (PyDict_SetItem(named.ptr(), PyTuple_GetItem(keywords, i), args[given + i]) != 0) return nullptr;
    }
    return call(self, all.ptr(), named.ptr());
  }
  if (TheNames().call.Put(args, given, keywords, 2, values)) {
    PyObject* const result = TryIfMade(self, values);
    if (result != nullptr || PyErr_Occurred()) return result;
  }
  const nb::object run = RunOf(self);
  return run.is_valid() ? PyObject_Vectorcall(run.ptr(), args, static_cast<std::size_t>(given), keywords) : nullptr;
}

// Implements caller.try_call(…), which returns the result of caller(…) on the fast path, otherwise None.
PyObject* TryCallMethod(PyObject* self, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  PyObject* values[kCallNames] = {};
  const bool is_made = nb::inst_ready(self);
  if (!is_made || !TheNames().call.Put(args, given, keywords, 2, values)) {
    PyErr_SetString(PyExc_TypeError, is_made ? "try_call: takes the arguments of a call of the layer"
                                             : "the layer was never made: its __init__ was not called");
    return nullptr;
  }
  PyObject* const result = TryGiven(*nb::inst_ptr<Caller>(self), values);
  return result != nullptr || PyErr_Occurred() ? result : Py_NewRef(Py_None);
}

// Runs stepper.step(…), or stepper._step(…) if the fast path declines.
PyObject* Step(PyObject* self, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  PyObject* values[kStepNames] = {};
  if (nb::inst_ready(self) && TheNames().step.Put(args, given, keywords, 1, values) && values[kStepX] != nullptr) {
    const StepArguments step{true, values[kStepX], values[kStepAttention], values[kRows], values[kStepOut]};
    Stream* const stream = nb::inst_ptr<Stepper>(self)->stream;
    PyObject* const result = stream == nullptr ? nullptr : Try([&] { return TrySteps(*stream, step); });
    if (result != nullptr || PyErr_Occurred()) return result;
  }
  PyObject* const step = PyObject_GetAttr(self, TheNames().other_step);
  if (step == nullptr) return nullptr;
  PyObject* const result = PyObject_Vectorcall(step, args, static_cast<std::size_t>(given), keywords);
  Py_DECREF(step);
  return result;
}

constexpr char kStep[] = R"(step($self, /, x, *, attention=None, rows=None, out=None)
--

Run one step.

Args:
    x: [B, I], or [n, I] for n rows, in the layer's type.
    attention: [B] or [B, 1], or [n] or [n, 1]; required if and only if the layer has attention.
    rows: indices of the rows to run, each at most once; None for all rows.
    out: array for h; None for a new array.

Returns:
    h, the new state of these rows, [B, H] or [n, H], in the layer's type.

Raises:
    SpecError: an argument is invalid.)";

constexpr char kTryCall[] =
    R"(try_call($self, /, X, initial_h=None, *, sequence_lens=None, attention=None, layout=None, out=None)
--

Call the layer if all arguments are plain, and return its result. Otherwise do nothing, and return None.)";

template <class F>
PyCFunction Method(F* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

// Gives a subclass of Caller a `__call__` with a signature and a docstring, and enables vectorcall. It copies Python's
// slot descriptor with another text, because any other `__call__` would be slower. The text begins with the signature
// and "--", and is never freed, like the class. Before Python 3.12, Python classes do not inherit vectorcall.
void DescribeCall(nb::handle type, const char* text) {
#ifndef Py_LIMITED_API
  const nb::object plain = type.attr("__call__");
  if (Py_TYPE(plain.ptr()) != &PyWrapperDescr_Type) return;
  const auto* const descriptor = reinterpret_cast<PyWrapperDescrObject*>(plain.ptr());
  auto* const base = new wrapperbase(*descriptor->d_base);
  base->doc = strdup(text);
  auto* const object = reinterpret_cast<PyTypeObject*>(type.ptr());
  type.attr("__call__") = nb::steal(PyDescr_NewWrapper(object, base, descriptor->d_wrapped));
  const nb::object made = nb::inst_alloc(type);
  const auto* const at = reinterpret_cast<const char*>(&nb::inst_ptr<Caller>(made)->call);
  object->tp_vectorcall_offset = at - reinterpret_cast<const char*>(made.ptr());
  object->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
  PyType_Modified(object);
#else
  static_cast<void>(type), static_cast<void>(text);  // the stable ABI hides descriptors
#endif
}

}  // namespace

void BindCalls(nb::module_& m) {
  TheNames();
  static PyMethodDef caller_methods[] = {{"try_call", Method(TryCallMethod), METH_FASTCALL | METH_KEYWORDS, kTryCall},
                                         {nullptr, nullptr, 0, nullptr}};
  static PyType_Slot caller[] = {
      {Py_tp_call, reinterpret_cast<void*>(CallByTuple)}, {Py_tp_methods, caller_methods}, {0, nullptr}};
  nb::class_<Caller>(m, "Caller", nb::type_slots(caller))
      .def(nb::init<nb::object, int>(), nb::arg("native").none(), nb::arg("layout"),
           "An object whose plain calls run a layer, if there is one. Its method `run` handles other calls.");
  m.def("describe_call", &DescribeCall, nb::arg("type"), nb::arg("text"),
        "Gives a class's __call__ a signature and a docstring.");

  static PyMethodDef stepper_methods[] = {{"step", Method(Step), METH_FASTCALL | METH_KEYWORDS, kStep},
                                          {nullptr, nullptr, 0, nullptr}};
  static PyType_Slot stepper[] = {{Py_tp_methods, stepper_methods}, {0, nullptr}};
  nb::class_<Stepper>(m, "Stepper", nb::type_slots(stepper))
      .def(nb::init<nb::object>(), nb::arg("native").none(),
           "An object whose plain steps run a stream, if there is one. Its method `_step` handles other steps.")
      .def(
          "try_run",
          [](const Stepper& self, nb::handle X, nb::handle attention, nb::handle out) -> nb::object {
            if (self.stream == nullptr) return nb::none();
            const nb::object Y = TrySteps(*self.stream, {false, X.ptr(), attention.ptr(), nullptr, out.ptr()});
            return Y.is_valid() ? Y : nb::none();
          },
          nb::arg("X").none(), nb::arg("attention").none(), nb::arg("out").none(),
          "Runs plain steps, and returns Y. Otherwise does nothing, and returns None.");
  m.def(
      "run_stack",
      [](nb::object steppers, nb::handle X, bool batch_first, nb::handle out) -> nb::object {
        std::vector<const Stream*> streams;
        const nb::tuple kept(steppers);  // keeps the streams alive while other threads run
        for (const nb::handle item : kept) {
          if (!nb::isinstance<Stepper>(item) || !nb::inst_ready(item)) return nb::none();
          streams.push_back(nb::inst_ptr<Stepper>(item)->stream);
          if (streams.back() == nullptr) return nb::none();
        }
        const nb::object Y = streams.empty() ? nb::object() : TryStack(streams, X, batch_first, out);
        return Y.is_valid() ? Y : nb::none();
      },
      nb::arg("steppers"), nb::arg("X").none(), nb::arg("batch_first"), nb::arg("out") = nb::none(),
      "Runs the streams of a stack on several threads. Does nothing, and returns None, if that is not faster.");
}

}  // namespace onegru
