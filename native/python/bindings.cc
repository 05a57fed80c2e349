// The Python module onegru._native: converts arguments and results, computes nothing.
// Its stub is src/onegru/_native.pyi; keep the two together.

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
    "2a9a1522e25c Relu Tanh Sigmoid Affine LeakyRelu ThresholdedRelu ScaledTanh HardSigmoid Elu Softsign "
    "Softplus float16 bfloat16 float32 float64 int8 64";
// end

std::string NameAt(std::size_t index) { return onegru::CompiledTargets()[index].name; }

}  // namespace

// nanobind's own PyInit__native goes by another name: it must not run in a second interpreter.
#define PyInit__native onegru_PyInit
NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // an exit while a daemon thread is in a call leaks its objects
  m.doc() = "Compiled part of onegru; private. Use the functions of onegru instead.";

  // What this build or this CPU does not have: the message names the remedy.
  nb::exception<onegru::Unsupported>(m, "UnsupportedError", PyExc_RuntimeError);

  onegru::BindLayer(m);
  onegru::BindCalls(m);
  onegru::BindObserver(m);
  onegru::BindFewSteps(m);
  onegru::BindTensorMemory(m);
  m.def("num_threads", &onegru::NumThreads, "How many threads a call may use.");
  m.def("limit_threads", &onegru::LimitThreads, nb::arg("most"),
        "No call of this thread uses more; 0 for no such bound.");
  m.def("set_num_threads", &onegru::SetNumThreads, nb::arg("count"), nb::arg("makes_room"),
        "How many threads a call may use, 1…64, and whether it uses fewer while other processes want the CPUs.");
  m.def(
      "release_memory", [] { return onegru::ThePool().Release(); },
      "Gives back the memory that is kept for new outputs; returns how many bytes.");

  m.def(
      "set_float_mode",
      [](std::optional<std::uint32_t> mode) {
        const std::uint32_t before = onegru::GetFloatMode();
        onegru::SetFloatMode(mode.value_or(onegru::kDefaultFloatMode));
        return before;
      },
      nb::arg("mode").none(),
      "Sets the thread's floating-point mode, IEEE 754's default for None; returns the one before.");

  m.def("fma_peak", &onegru::FmaPeak, nb::arg("seconds"), "float32 FLOP/s that one core reaches at most.");
  m.def("read_bandwidth", &onegru::ReadBandwidth, nb::arg("bytes"), nb::arg("seconds"),
        "Bytes/s at which one core reads a buffer of this size.");

  m.def(
      "interface", [] { return std::string(kInterface); },
      "What this module takes, for a look at whether it is older.");
  m.def("version", [] { return std::string(ONEGRU_VERSION); }, "Version of the package.");
  m.def("highway_version", &onegru::HighwayVersion, "Version of the Highway headers used for the build.");
  m.def("is_native", [] { return onegru::kIsNative; }, "Whether the build is for one machine's SIMD target alone.");
  m.def("compiled_targets", [] { return TargetNames(false); }, "Names of the SIMD targets in this build, best first.");
  m.def(
      "available_targets", [] { return TargetNames(true); },
      "Those of the compiled targets that this CPU can run, best first.");
  m.def("chosen_target", [] { return NameAt(onegru::ChosenTargetIndex()); }, "Name of the target the kernels use.");
  m.def(
      "select_target", [](std::optional<std::string_view> name) { return NameAt(onegru::SelectTarget(name)); },
      nb::arg("name").none() = nb::none(),
      "Use the named target, or the best available one for None; returns its name.\n\n"
      "Raises ValueError, which lists the available targets, for any other name.");
  m.def(
      "int8_products",
      [] {
        const auto products = onegru::Int8ProductsOf(onegru::ChosenTargetIndex());
        return onegru::kInt8ProductsNames[static_cast<std::size_t>(products)];
      },
      "What multiplies in int8 on the chosen target: simd, vnni or amx.");
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
      nb::arg("most"), "Lets kernels in int8 use this and what is before it, for tests.");
  m.def(
      "target_traits",
      [](std::string_view name) {
        const onegru::Target& target = onegru::FindTarget(name);
        return std::pair(target.native_fma, target.vector_bytes());
      },
      nb::arg("name"), "(native_fma, vector_bytes) of an available target.");
}

#undef PyInit__native

// nanobind keeps what it has of an interpreter in static variables: an import in another interpreter, even one
// that fails, would leave the first one's layers with types that are not theirs.
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
  // From Python 3.13 on the main interpreter runs this for the others, too, which then run the slot.
  for (PyModuleDef_Slot* slot = reinterpret_cast<PyModuleDef*>(made)->m_slots; slot->slot != 0; ++slot) {
    if (slot->slot != Py_mod_exec || slot->value == reinterpret_cast<void*>(&ExecInMain)) continue;
    nanobind_exec = reinterpret_cast<int (*)(PyObject*)>(slot->value);
    slot->value = reinterpret_cast<void*>(&ExecInMain);
  }
  return made;
}
