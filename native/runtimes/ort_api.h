// ONNX Runtime's interface with C++ exceptions instead of statuses.

#ifndef ONEGRU_NATIVE_RUNTIMES_ORT_API_H_
#define ONEGRU_NATIVE_RUNTIMES_ORT_API_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "native/runtimes/onnx_gru.h"
#include "native/runtimes/ort.h"

namespace onegru {

// Marks onegru's messages in ONNX Runtime.
inline constexpr char kMessagePrefix[] = "onegru: ";

// The function tables. Converts statuses to exceptions and back.
struct Api {
  ort::Table api;
  ort::Table ep;
  std::uint32_t version;

  void Check(ort::Status* status) const {
    if (status == nullptr) return;
    const std::string message = ort::GetErrorMessage(api, status);
    ort::ReleaseStatus(api, status);
    throw std::runtime_error(message);
  }
  // Returns false on failure, for example if an attribute is absent.
  bool Succeeds(ort::Status* status) const {
    if (status != nullptr) ort::ReleaseStatus(api, status);
    return status == nullptr;
  }
  ort::Status* Fail(ort::ErrorCode code, const std::string& message) const {
    return ort::CreateStatus(api, code, (kMessagePrefix + message).c_str());
  }

  // where: the prefix of a message, such as a node's name.
  template <class F>
  ort::Status* Try(F&& body, const std::string& where = "") const noexcept {
    try {
      body();
      return nullptr;
    } catch (const InvalidArgument& error) {
      return Fail(ort::kInvalidArgument, where + error.what());
    } catch (const std::bad_alloc&) {
      return ort::CreateStatus(api, ort::kFail, "onegru: out of memory");
    } catch (const std::exception& error) {
      return Fail(ort::kRuntimeException, error.what());
    } catch (...) {
      return ort::CreateStatus(api, ort::kFail, "onegru: unknown error");
    }
  }
};

// Returns a string. get(null, &size) returns its size.
template <class F>
std::optional<std::string> Text(const Api& api, F&& get) {
  std::size_t size = 0;
  api.Succeeds(get(nullptr, &size));
  if (size == 0) return {};
  std::string text(size, '\0');
  if (!api.Succeeds(get(text.data(), &size))) return {};
  text.resize(std::strlen(text.c_str()));
  return text;
}

// Returns the names of a node's outputs, empty for omitted ones.
inline std::vector<std::string> OutputNames(const Api& api, const ort::KernelInfo* info) {
  std::size_t count = 0;
  api.Check(ort::KernelInfo_GetOutputCount(api.api, info, &count));
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) {
    names.push_back(Text(api, [&](char* text, std::size_t* size) {
                      return ort::KernelInfo_GetOutputName(api.api, info, i, text, size);
                    }).value_or(""));
  }
  return names;
}

// Returns the name of a node in options: its name, or that of its first output.
inline std::string NodeKey(const std::string& name, const std::vector<std::string>& outputs) {
  if (!name.empty()) return name;
  for (const std::string& output : outputs)
    if (!output.empty()) return output;
  return name;
}

// Whether a domain is that of the ONNX operators.
inline bool IsOnnx(const char* domain) { return *domain == '\0' || std::strcmp(domain, "ai.onnx") == 0; }

inline std::optional<ElementType> TypeOf(ort::TensorType type) {
  switch (type) {
    case ort::kFloat16:
      return ElementType::kFloat16;
    case ort::kBFloat16:
      return ElementType::kBFloat16;
    case ort::kFloat:
      return ElementType::kFloat32;
    case ort::kDouble:
      return ElementType::kFloat64;
    default:
      break;
  }
  return {};
}

// Returns a view of an input, or an empty tensor for null. Throws InvalidArgument if a GRU does not take its type
// there.
inline Tensor View(const Api& api, const ort::Value* value, const char* name, bool is_lengths) {
  Tensor tensor;
  if (value == nullptr) return tensor;
  ort::TensorType type{};
  const std::int64_t* shape = nullptr;
  std::size_t rank = 0;
  void* data = nullptr;
  api.Check(ort::GetTensorElementTypeAndShapeDataReference(api.api, value, &type, &shape, &rank));
  api.Check(ort::GetTensorMutableData(api.api, const_cast<ort::Value*>(value), &data));
  const auto known = TypeOf(type);
  if (is_lengths ? type != ort::kInt32 : !known.has_value()) {
    throw InvalidArgument(std::string(name) + ": ONNX's element type " + std::to_string(type) + "; must be " +
                          (is_lengths ? "int32" : "float16, bfloat16, float32 or float64"));
  }
  tensor.type = known.value_or(ElementType::kFloat32);
  tensor.shape = {shape, rank};
  tensor.data = data;
  tensor.is_given = true;
  return tensor;
}

}  // namespace onegru

#endif  // ONEGRU_NATIVE_RUNTIMES_ORT_API_H_
