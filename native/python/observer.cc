// Calls a Python function with the inputs and outputs of GRU nodes that another runtime runs.

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "native/python/bindings.h"
#include "native/python/run_from_python.h"
#include "native/runtimes/observer.h"

namespace nb = nanobind;

namespace onegru {
namespace {

constexpr const char* kMoments[] = {"weights", "compute", "done"};

// Returns the elements as bytes, which are valid during the call of the observer.
nb::object BytesOf(const Port& port, bool writeable) {
  static char none = 0;
  const std::size_t size = port.tensor.count() * (port.is_lengths ? 4 : SizeOf(port.tensor.type));
  char* const data = size == 0 ? &none : static_cast<char*>(const_cast<void*>(port.tensor.data));
  return nb::steal(PyMemoryView_FromMemory(data, static_cast<Py_ssize_t>(size), writeable ? PyBUF_WRITE : PyBUF_READ));
}

nb::dict InPython(const OnnxGruAttributes& attributes) {
  nb::dict dict;
  ForEachAttribute(attributes, [&](const char* name, const auto& value) {
    if constexpr (requires { value.has_value(); }) {
      if (value) dict[name] = nb::cast(*value);
    } else {
      if (!value.empty()) dict[name] = nb::cast(value);
    }
  });
  return dict;
}

class PythonObserver final : public Observer {
 public:
  PythonObserver(nb::object see, nb::object warn) : see_(std::move(see)), warn_(std::move(warn)) {}

  void Warn(const std::string& message) override {
    Call([&] { warn_(nb::str(message.data(), message.size())); });
  }

  void See(std::int64_t session, Moment moment, const std::string& node, const OnnxOperator& kind,
           const OnnxGruAttributes& attributes, std::span<const Port> ports) override {
    Call([&] {
      nb::dict arrays;
      for (const Port& port : ports) {
        if (!port.tensor.is_given) continue;
        nb::list shape;
        for (const std::int64_t size : port.tensor.shape) shape.append(size);
        const char* const type = port.is_lengths ? "int32" : NameOf(port.tensor.type);
        const bool writeable = moment == Moment::kCompute && port.name[0] == 'Y';
        arrays[port.name] = nb::make_tuple(BytesOf(port, writeable), type, shape);
      }
      see_(session, kMoments[static_cast<int>(moment)], nb::str(node.data(), node.size()), kind.name, kind.since,
           InPython(attributes), arrays);
    });
  }

 private:
  template <class F>
  static void Call(F&& function) {
    if (!Py_IsInitialized()) return;
    const GilHolder gil;
    try {
      function();
    } catch (const nb::python_error& error) {
      throw std::runtime_error(nb::str(error.value()).c_str());
    }
  }

  nb::object see_, warn_;
};

}  // namespace

void BindObserver(nb::module_& m) {
  m.def(
      "observe",
      [](nb::object see, nb::object warn) { SetObserver(new PythonObserver(std::move(see), std::move(warn))); },
      nb::arg("see"), nb::arg("warn"),
      "Sets functions for GRU nodes in ONNX Runtime sessions. see(session, moment, node, operator, version, "
      "attributes, arrays) inspects or computes them, and warn(message) reports their warnings.");
}

}  // namespace onegru
