// Checks of GRU nodes and their tensors, with the messages of the Python package.

#ifndef ONEGRU_NATIVE_RUNTIMES_ONNX_CHECKS_H_
#define ONEGRU_NATIVE_RUNTIMES_ONNX_CHECKS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "native/kernel.h"
#include "native/runtimes/onnx_gru.h"

namespace onegru {

inline void CheckFlag(const char* name, const std::optional<std::int64_t>& value) {
  if (value && *value != 0 && *value != 1)
    throw InvalidArgument(std::string(name) + ": " + std::to_string(*value) + "; must be 0 or 1");
}

inline void CheckNumber(const char* name, float value) {
  if (std::isnan(value)) throw InvalidArgument(std::string(name) + ": NaN; must be a number");
}

inline double ReadClip(const std::optional<float>& clip) {
  if (!clip) return HUGE_VAL;
  if (*clip > 0) return *clip;
  char text[32];
  std::snprintf(text, sizeof(text), "%g", static_cast<double>(*clip));
  throw InvalidArgument("clip: " + std::string(text) + "; must be > 0");
}

inline bool IsPresent(const std::vector<float>& values) { return !values.empty(); }

template <class T>
bool IsPresent(const std::optional<T>& value) {
  return value.has_value();
}

// Rejects an attribute that AUGRU does not have. ONNX Runtime checks the attributes of GRU, but not those of AUGRU.
inline void CheckNames(const OnnxGruAttributes& attributes, const OnnxOperator& kind) {
  if (!kind.attention) return;
  std::string known, unknown;
  ForEachAttribute(attributes, [&](const std::string& name, const auto& value) {
    if (std::count(std::begin(kAttributesOnlyOfGru), std::end(kAttributesOnlyOfGru), name) == 0)
      known += (known.empty() ? "" : ", ") + name;
    else if (IsPresent(value) && unknown.empty())
      unknown = name;
  });
  if (!unknown.empty())
    throw InvalidArgument(unknown + ": not an attribute of " + std::string(kind.name) + "-" +
                          std::to_string(kind.since) + "; must be one of " + known);
}

inline std::string InWords(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

constexpr std::int64_t kAny = -1;

// Returns factor · size, or the largest number on overflow, because a file can contain any size.
inline std::int64_t Times(std::int64_t factor, std::int64_t size) {
  return size > std::numeric_limits<std::int64_t>::max() / factor ? std::numeric_limits<std::int64_t>::max()
                                                                  : factor * size;
}

// The name of an axis, and its required size.
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
  throw InvalidArgument(std::string(name) + ": " + rank + "shape " + InWords(tensor.shape) + "; must be [" + names +
                        "]" + (is_known ? " = [" + sizes + "]" : ""));
}

inline void CheckType(const char* name, const Tensor& tensor, ElementType type) {
  if (tensor.type == type) return;
  throw InvalidArgument(std::string(name) + ": type " + NameOf(tensor.type) + "; must be " + NameOf(type) + ", like W");
}

// Returns the elements in the compute type: the tensor's data, or a copy in `memory`.
inline const void* Widened(const Tensor& tensor, std::vector<float>& memory) {
  if (tensor.type == ElementType::kFloat32 || tensor.type == ElementType::kFloat64) return tensor.data;
  const auto* const bits = static_cast<const std::uint16_t*>(tensor.data);
  memory.resize(tensor.count());
  std::transform(bits, bits + memory.size(), memory.begin(),
                 tensor.type == ElementType::kFloat16 ? FromFloat16Bits : FromBFloat16Bits);
  return memory.data();
}

// Returns the largest number of a group if it is a mask weight, otherwise 0. With the group's scale, int8 then rounds
// numbers to 0 that are all over 1000 times smaller than the others.
inline float FindMaskWeight(std::span<const float> group) {
  constexpr float kLeast = 1e3f, kRatio = 1e3f;
  float most = 0, lost = 0, kept = std::numeric_limits<float>::infinity();
  for (const float number : group) most = std::max(most, std::abs(number));
  if (most < kLeast) return 0;
  for (const float number : group) {
    const float size = std::abs(number);
    if (size < most / 254) {
      lost = std::max(lost, size);
    } else {
      kept = std::min(kept, size);
    }
  }
  return lost > 0 && lost < kept / kRatio ? most : 0;
}

inline std::string ShortText(float number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", static_cast<double>(number));
  return text;
}

// Checks that float32 weights can be stored in another type: finite ones remain finite, and int8 has no mask weights
// and sums within 32 bits. src/onegru/engines/storage.py has the same checks.
inline void CheckStorage(const char* name, const Tensor& tensor, ElementType storage, std::size_t group_size) {
  const std::span<const float> numbers(static_cast<const float*>(tensor.data), tensor.count());
  const auto refuse = [&](const std::string& problem) { throw InvalidArgument(std::string(name) + ": " + problem); };
  if (storage == ElementType::kFloat16 || storage == ElementType::kBFloat16) {
    const bool is_short = storage == ElementType::kFloat16;
    for (const float number : numbers) {
      const float kept = is_short ? FromFloat16Bits(Float16Bits(number)) : FromBFloat16Bits(BFloat16Bits(number));
      if (std::isfinite(number) && !std::isfinite(kept))
        refuse("contains " + ShortText(number) + ", which is infinite in " + NameOf(storage) + "; must be stored as " +
               (is_short ? "bfloat16 or float32" : "float32"));
    }
  }
  if (storage != ElementType::kInt8) return;
  const auto inputs = static_cast<std::size_t>(tensor.shape[2]);
  if (inputs > kMaxInt8Inputs)
    refuse("shape " + InWords(tensor.shape) + "; its last axis must be at most " + std::to_string(kMaxInt8Inputs) +
           " for int8");
  if (!std::all_of(numbers.begin(), numbers.end(), [](float number) { return std::isfinite(number); }))
    refuse("contains NaN or infinity; must be finite for int8");
  for (std::size_t row = 0; row < numbers.size(); row += inputs) {
    for (std::size_t first = 0, size; first < inputs; first += size) {
      size = std::min(inputs - first, group_size == 0 ? inputs : group_size);
      if (const float found = FindMaskWeight(numbers.subspan(row + first, size)))
        refuse("contains " + ShortText(found) + ", a weight so large that int8 leaves no resolution for the other " +
               "weights; must be stored as bfloat16 or float32");
    }
  }
}

}  // namespace onegru

#endif
