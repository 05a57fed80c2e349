// The Python module onegru._native, which converts arguments and results. Its stub is src/onegru/_native.pyi; change
// both together.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "native/float_mode.h"
#include "native/memory_pool.h"
#include "native/python/bindings.h"
#include "native/targets/limits.h"
#include "native/targets/targets.h"
#include "native/threads/threads.h"

namespace nb = nanobind;

namespace {

std::vector<std::string> TargetNames(bool only_available) {
  std::vector<std::string> names;
  for (const onegru::Target& target : onegru::CompiledTargets()) {
    if (!only_available || onegru::IsAvailable(target)) names.emplace_back(target.name);
  }
  return names;
}

// table: native_interface
constexpr const char kInterface[] =
    "b96eea54fe5f Relu Tanh Sigmoid Affine LeakyRelu ThresholdedRelu ScaledTanh HardSigmoid Elu Softsign "
    "Softplus float16 bfloat16 float32 float64 int8 64";
// end

std::string NameAt(std::size_t index) { return onegru::CompiledTargets()[index].name; }

}  // namespace

// Renames nanobind's PyInit__native, because it must not run in a second interpreter.
#define PyInit__native onegru_PyInit
NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // an exit during a call in a daemon thread leaks its objects
  m.doc() = "Compiled part of onegru; private. Use the functions of onegru instead.";

  // Raised if this build or CPU lacks a feature. The message says what to do.
  nb::exception<onegru::Unsupported>(m, "UnsupportedError", PyExc_RuntimeError);

  onegru::BindLayer(m);
  onegru::BindCalls(m);
  onegru::BindObserver(m);
  onegru::BindFewSteps(m);
  onegru::BindTensorMemory(m);
  onegru::BindSizedCall(m);
  m.def("num_threads", &onegru::NumThreads, "Returns how many threads a call may use.");
  m.def("limit_threads", &onegru::LimitThreads, nb::arg("most"),
        "Limits the threads that calls of this thread use; 0 removes the limit.");
  m.def("set_num_threads", &onegru::SetNumThreads, nb::arg("count"), nb::arg("avoids_contention"),
        "Sets how many threads a call may use, 1…64, and whether it uses fewer while other processes need the CPUs.");
  m.def(
      "release_memory", [] { return onegru::ThePool().Release(); },
      "Releases the memory that is cached for new outputs; returns its size in bytes.");

  m.def(
      "set_float_mode",
      [](std::optional<std::uint32_t> mode) {
        const std::uint32_t before = onegru::GetFloatMode();
        onegru::SetFloatMode(mode.value_or(onegru::kDefaultFloatMode));
        return before;
      },
      nb::arg("mode").none(),
      "Sets the thread's floating-point mode, or IEEE 754's default for None; returns the previous mode.");

  m.def("fma_peak", &onegru::FmaPeak, nb::arg("seconds"), "Measures the peak float32 FLOP/s of one core.");
  m.def("read_bandwidth", &onegru::ReadBandwidth, nb::arg("bytes"), nb::arg("seconds"),
        "Measures at how many bytes/s one core reads a buffer of this size.");

  m.def(
      "interface", [] { return std::string(kInterface); },
      "Describes the module's interface, to detect an outdated module.");
  m.def("version", [] { return std::string(ONEGRU_VERSION); }, "Version of the package.");
  m.def("highway_version", &onegru::HighwayVersion, "Version of the Highway headers used for the build.");
  m.def("is_native", [] { return onegru::kIsNative; }, "Whether the build has only the SIMD target of one machine.");
  m.def("compiled_targets", [] { return TargetNames(false); }, "Names of the SIMD targets in this build, best first.");
  m.def(
      "available_targets", [] { return TargetNames(true); },
      "Names of the compiled targets that this CPU can run, best first.");
  m.def("chosen_target", [] { return NameAt(onegru::ChosenTargetIndex()); }, "Name of the target the kernels use.");
  m.def(
      "select_target", [](std::optional<std::string_view> name) { return NameAt(onegru::SelectTarget(name)); },
      nb::arg("name").none() = nb::none(),
      "Selects the named target, or the best available one for None; returns its name.\n\n"
      "Raises ValueError, which lists the available targets, for any other name.");
  m.def(
      "int8_products",
      [] {
        const auto products = onegru::Int8ProductsOf(onegru::ChosenTargetIndex());
        return onegru::kInt8ProductsNames[static_cast<std::size_t>(products)];
      },
      "Instructions of int8 products on the chosen target: simd, vnni or amx.");
  m.def(
      "limit_int8_products",
      [](std::string_view most) {
        for (std::size_t i = 0; i < std::size(onegru::kInt8ProductsNames); ++i) {
          if (most == onegru::kInt8ProductsNames[i]) {
            return onegru::LimitInt8Products(static_cast<onegru::Int8Products>(i));
          }
        }
        throw std::invalid_argument("most: '" + std::string(most) + "'; must be simd, vnni or amx");
      },
      nb::arg("most"), "Limits int8 kernels to these instructions and lesser ones, for tests.");
  m.def(
      "target_traits",
      [](std::string_view name) {
        const onegru::Target& target = onegru::FindTarget(name);
        return std::pair(target.native_fma, target.vector_bytes());
      },
      nb::arg("name"), "(native_fma, vector_bytes) of an available target.");
}

#undef PyInit__native

// nanobind stores state of the interpreter in static variables. An import in another interpreter, even if it fails,
// would corrupt the types of the first interpreter's layers.
namespace {

bool IsMainInterpreter() {
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) == 0) return true;
  PyErr_SetString(PyExc_ImportError, "onegru: imported in a subinterpreter; must be imported in the main one");
  return false;
}

int (*nanobind_exec)(PyObject*) = nullptr;

int ExecInMain(PyObject* module) { return IsMainInterpreter() ? nanobind_exec(module) : -1; }

}  // namespace

extern "C" NB_EXPORT PyObject* PyInit__native() {
  if (!IsMainInterpreter()) return nullptr;
  try {
    onegru::CheckCpu();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_ImportError, error.what());
    return nullptr;
  }
  PyObject* const made = onegru_PyInit();
  if (made == nullptr || !PyObject_TypeCheck(made, &PyModuleDef_Type)) return made;
  // From Python 3.13 on, the main interpreter runs this function for other interpreters, which then run the slot.
  for (PyModuleDef_Slot* slot = reinterpret_cast<PyModuleDef*>(made)->m_slots; slot->slot != 0; ++slot) {
    if (slot->slot != Py_mod_exec || slot->value == reinterpret_cast<void*>(&ExecInMain)) continue;
    nanobind_exec = reinterpret_cast<int (*)(PyObject*)>(slot->value);
    slot->value = reinterpret_cast<void*>(&ExecInMain);
  }
  return made;
}
