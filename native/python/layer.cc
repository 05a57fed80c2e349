// Binds layers and streams to Python.

#include "native/python/layer.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "native/gradients.h"
#include "native/kernel.h"
#include "native/python/arrays.h"
#include "native/python/bindings.h"
#include "native/python/layer_class.h"
#include "native/python/run_from_python.h"
#include "native/python/stream_class.h"
#include "native/runtimes/graph_layers.h"
#include "native/targets/targets.h"
#include "native/threads/threads.h"

namespace nb = nanobind;

namespace onegru {
nb::object TryCall(const Layer& layer, const CallArguments& given) { return layer.Try(given); }
nb::object TrySteps(Stream& stream, const StepArguments& given) { return stream.Try(given); }

// Returns another library's tensor memory as an array, which keeps the owner alive. Strides count elements.
nb::object ArrayAt(nb::handle owner, std::uintptr_t address, nb::tuple shape, nb::tuple strides, nb::object dtype) {
  PyArray_Descr* const descr = reinterpret_cast<PyArray_Descr*>(dtype.ptr());
  const auto rank = static_cast<int>(nb::len(shape));
  if (rank > 4 || nb::len(strides) != nb::len(shape) || !PyArray_DescrCheck(dtype.ptr())) {
    throw std::invalid_argument("array_at: must have a dtype, at most 4 axes, and a stride for each axis");
  }
  npy_intp sizes[4], steps[4];
  npy_intp count = 1;
  for (int axis = 0; axis < rank; ++axis) {
    sizes[axis] = PyNumber_AsSsize_t(nb::object(shape[axis]).ptr(), PyExc_OverflowError);
    steps[axis] = PyNumber_AsSsize_t(nb::object(strides[axis]).ptr(), PyExc_OverflowError) * PyDataType_ELSIZE(descr);
    count *= sizes[axis];
  }
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  if (address == 0 && count != 0) throw std::invalid_argument("address: 0; must be the address of the elements");
  Py_INCREF(dtype.ptr());  // for the new array
  // A null address is possible only without elements. NumPy then allocates memory.
  nb::object array = nb::steal(PyArray_NewFromDescr(&PyArray_Type, descr, rank, sizes, steps,
                                                    reinterpret_cast<void*>(address), NPY_ARRAY_WRITEABLE, nullptr));
  if (!array.is_valid()) throw nb::python_error();
  if (PyArray_SetBaseObject(AsArray(array), owner.inc_ref().ptr()) != 0) throw nb::python_error();
  return array;
}

const Layer* LayerIn(nb::handle object) { return object.is_none() ? nullptr : nb::cast<const Layer*>(object); }
Stream* StreamIn(nb::handle object) { return object.is_none() ? nullptr : nb::cast<Stream*>(object); }

void BindLayer(nb::module_& m) {
  ImportNumpy();
  nb::class_<Layer>(m, "Layer")
      .def(nb::init<std::size_t, std::size_t, nb::handle, bool, int, double, nb::handle, int, int, std::size_t,
                    std::size_t, bool, nb::object, nb::handle, nb::handle, nb::handle>(),
           nb::arg("input_size"), nb::arg("hidden_size"), nb::arg("reversed"), nb::arg("linear_before_reset"),
           nb::arg("attention"), nb::arg("clip"), nb::arg("activations"), nb::arg("type"), nb::arg("storage"),
           nb::arg("planes"), nb::arg("group"), nb::arg("flush_subnormals"), nb::arg("dtype"), nb::arg("W"),
           nb::arg("R"), nb::arg("B"), "A layer with packed weights.")
      .def("run",
           nb::overload_cast<nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, bool, nb::handle>(
               &Layer::Run, nb::const_),
           nb::arg("X"), nb::arg("initial_h").none(), nb::arg("lengths").none(), nb::arg("attention").none(),
           nb::arg("Y").none(), nb::arg("Y_h").none(), nb::arg("wide_state"), nb::arg("gates") = nb::none(),
           "Runs a checked call.")
      .def(nb::init<std::size_t, std::size_t, nb::handle, bool, int, double, nb::handle, int, nb::object, nb::handle,
                    nb::handle, bool>(),
           nb::arg("input_size"), nb::arg("hidden_size"), nb::arg("reversed"), nb::arg("linear_before_reset"),
           nb::arg("attention"), nb::arg("clip"), nb::arg("activations"), nb::arg("type"), nb::arg("dtype"),
           nb::arg("weights"), nb::arg("order"), nb::arg("packs"), "A layer for training.")
      .def("gradients", &Layer::Gradients, nb::arg("X"), nb::arg("initial_h").none(), nb::arg("lengths").none(),
           nb::arg("attention").none(), nb::arg("resets").none(), nb::arg("resets_to_initial"), nb::arg("Y"),
           nb::arg("gates").none(), nb::arg("dY").none(), nb::arg("dY_h").none(), nb::arg("dX").none(), nb::arg("by"),
           nb::arg("d_initial_h").none(), nb::arg("d_attention").none(), "Computes the gradients of a checked call.")
      .def(
          "unpack",
          [](const Layer& layer, nb::handle W, nb::handle R) {
            layer.RequirePacked();
            layer.packed().Unpack(Data(AsArray(W)), Data(AsArray(R)));
          },
          nb::arg("W"), nb::arg("R"), "Writes the original matrices.")
      .def(
          "scratch_bound",
          [](const Layer& layer, std::size_t batch_size) {
            return ScratchBound(layer.packed(), batch_size, NumThreads());
          },
          nb::arg("batch_size"), "The maximum scratch memory of a call, in bytes.")
      .def(
          "set_name",
          [](const Layer& layer, const char* name) {
            layer.RequirePacked();
            NameLayer(name, layer.shared());
          },
          nb::arg("name"), "Lets nodes of other runtimes' graphs find the layer during its lifetime.")
      .def_prop_ro(
          "saved_size", [](const Layer& layer) { return kSavedGates * layer.packed().geometry().padded(); },
          "How many numbers a call saves for each row and step.")
      .def_prop_ro(
          "bytes", [](const Layer& layer) { return layer.packed().bytes(); }, "Size of the packed weights in bytes.")
      .def_prop_ro(
          "target", [](const Layer& layer) { return std::string(CompiledTargets()[layer.packed().target()].name); },
          "The SIMD target that the layer was packed for and runs on.");
  nb::class_<Stream>(m, "Stream")
      .def(nb::init<nb::object, nb::object>(), nb::arg("layer"), nb::arg("state"), "A stream with a state.")
      .def("run", &Stream::Run, nb::arg("X"), nb::arg("attention").none(), nb::arg("rows").none(), nb::arg("Y"),
           "Runs checked steps.");
  m.def("array_at", &ArrayAt, nb::arg("owner"), nb::arg("address"), nb::arg("shape"), nb::arg("strides"),
        nb::arg("dtype"), "Returns another library's tensor memory as an array.");
  m.def(
      "graph_api", [] { return reinterpret_cast<std::uintptr_t>(&GraphApi()); },
      "The address of the functions that run layers in other runtimes' graphs.");
  m.def(
      "graph_fail",
      [](const char* message, bool is_watched, int threads) {
        return GraphApi().fail(message, is_watched, threads) != 0;
      },
      nb::arg("message"), nb::arg("is_watched"), nb::arg("threads"),
      "Records the message of a failed run of a node. Returns whether the node must raise it.");
  m.def(
      "run_watched",
      [](const nb::callable& run) {
        const FailureWatch watch;
        try {
          run();
        } catch (nb::python_error& error) {
          if (watch.Failure().empty() || !error.matches(PyExc_Exception)) throw;
        }
        return watch.Failure();
      },
      nb::arg("run"), "Calls run(). Returns the message of the first watched node that failed, or an empty string.");
  m.def("take_lost_errors", &TakeLostErrors, "Returns and clears the messages of failures that were not raised.");
  m.def(
      "activate",
      [](int function, double alpha, double beta, nb::handle x, nb::handle y) {
        PyArrayObject* const from = AsArray(x);
        PyArrayObject* const to = AsArray(y);
        const auto storage = PyArray_ITEMSIZE(from) == 8 ? ElementType::kFloat64 : ElementType::kFloat32;
        Spec spec{};
        spec.storage = storage;
        const Kernel& kernel = KernelFor(spec, ChosenTargetIndex());
        const auto count = static_cast<std::size_t>(PyArray_SIZE(from));
        if (count % kernel.lanes != 0) throw std::invalid_argument("x: size must be a multiple of the vector size");
        kernel.activate(CheckedActivation({function, 0, alpha, beta}), count, Data(from), Data(to));
      },
      nb::arg("function"), nb::arg("alpha"), nb::arg("beta"), nb::arg("x"), nb::arg("y"),
      "Computes y = function(x), for tests of accuracy.");
}

}  // namespace onegru
