// What is checked of a GRU node and its tensors, with the messages of the Python package.

#ifndef ONEGRU_NATIVE_RUNTIMES_ONNX_CHECKS_H_
#define ONEGRU_NATIVE_RUNTIMES_ONNX_CHECKS_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "native/kernel.h"
#include "native/runtimes/onnx_gru.h"

namespace onegru {

inline void CheckFlag(const char* name, const std::optional<std::int64_t>& value) {
  if (value && *value != 0 && *value != 1)
    throw IllegalGru(std::string(name) + ": " + std::to_string(*value) + "; must be 0 or 1");
}

inline void CheckNumber(const char* name, float value) {
  if (std::isnan(value)) throw IllegalGru(std::string(name) + ": NaN; must be a number");
}

inline double ReadClip(const std::optional<float>& clip) {
  if (!clip) return HUGE_VAL;
  if (*clip > 0) return *clip;
  char text[32];
  std::snprintf(text, sizeof(text), "%g", static_cast<double>(*clip));
  throw IllegalGru("clip: " + std::string(text) + "; must be > 0");
}

// ONNX Runtime does so for GRU; it does not compare an AUGRU node with its function.
inline void CheckNames(const OnnxGruAttributes& attributes, const OnnxOperator& kind) {
  if (!kind.attention || !attributes.output_sequence) return;
  std::string known;
  ForEachAttribute(attributes, [&](const char* name, const auto&) {
    if (std::strcmp(name, "output_sequence") != 0) known += (known.empty() ? "" : ", ") + std::string(name);
  });
  throw IllegalGru("output_sequence: not an attribute of " + std::string(kind.name) + "-" + std::to_string(kind.since) +
                   "; must be one of " + known);
}

inline std::string InWords(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

constexpr std::int64_t kAny = -1;

// A size that is a multiple of another one, which may be any number that a file has.
inline std::int64_t Times(std::int64_t factor, std::int64_t size) {
  return size > std::numeric_limits<std::int64_t>::max() / factor ? std::numeric_limits<std::int64_t>::max()
                                                                  : factor * size;
}

// Of an axis: what it is called, and what it must be.
struct Axis {
  const char* name;
  std::int64_t size;
};

inline void CheckShape(const char* name, const Tensor& tensor, std::initializer_list<Axis> axes) {
  bool fits = tensor.shape.size() == axes.size(), is_known = false;
  std::string names, sizes;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const Axis& axis = axes.begin()[i];
    fits = fits && (axis.size == kAny || tensor.shape[i] == axis.size);
  }
  if (fits) return;
  for (const Axis& axis : axes) {
    names += (names.empty() ? "" : ", ") + std::string(axis.name);
    sizes += (sizes.empty() ? "" : ", ") + (axis.size == kAny ? "any" : std::to_string(axis.size));
    is_known |= axis.size != kAny;
  }
  const std::string rank =
      tensor.shape.size() == axes.size() ? "" : "rank " + std::to_string(tensor.shape.size()) + ", ";
  throw IllegalGru(std::string(name) + ": " + rank + "shape " + InWords(tensor.shape) + "; must be [" + names + "]" +
                   (is_known ? " = [" + sizes + "]" : ""));
}

inline void CheckType(const char* name, const Tensor& tensor, ElementType type) {
  if (tensor.type == type) return;
  throw IllegalGru(std::string(name) + ": type " + NameOf(tensor.type) + "; must be " + NameOf(type) + ", like W");
}

// The elements in the type that is computed in: as they are, or widened into `memory`.
inline const void* Widened(const Tensor& tensor, std::vector<float>& memory) {
  if (tensor.type == ElementType::kFloat32 || tensor.type == ElementType::kFloat64) return tensor.data;
  const auto* const bits = static_cast<const std::uint16_t*>(tensor.data);
  memory.resize(tensor.count());
  std::transform(bits, bits + memory.size(), memory.begin(),
                 tensor.type == ElementType::kFloat16 ? FromFloat16Bits : FromBFloat16Bits);
  return memory.data();
}

// Of weights that are kept in int8: their scales must be finite, and their sums fit into 32 bits.
inline void CheckInt8(const char* name, const Tensor& tensor) {
  if (tensor.shape[2] > static_cast<std::int64_t>(kMaxInt8Inputs))
    throw IllegalGru(std::string(name) + ": shape " + InWords(tensor.shape) + "; its last axis must be at most " +
                     std::to_string(kMaxInt8Inputs) + " to be kept in int8");
  const auto* const numbers = static_cast<const float*>(tensor.data);
  if (!std::all_of(numbers, numbers + tensor.count(), [](float number) { return std::isfinite(number); }))
    throw IllegalGru(std::string(name) + ": holds NaN or infinity; must be finite to be kept in int8");
}

}  // namespace onegru

#endif
