// The kernel of a GRU or AUGRU node in an ONNX Runtime session.

#ifndef ONEGRU_NATIVE_RUNTIMES_GRU_KERNEL_H_
#define ONEGRU_NATIVE_RUNTIMES_GRU_KERNEL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "native/runtimes/fixed_weights.h"
#include "native/runtimes/ort_api.h"

namespace onegru {

// The value of an option: a word for all nodes, or for each named node.
struct NodeOption {
  std::optional<std::string> all;
  std::map<std::string, std::string> named;

  std::optional<std::string> Of(const std::string& node) const {
    const auto found = named.find(node);
    return found == named.end() ? all : found->second;
  }
};

// Whether a word selects int8 weights.
inline bool IsInt8(const std::optional<std::string>& word) {
  return word.has_value() && word->starts_with(NameOf(ElementType::kInt8));
}

// Whether a node with these weights can convert its inputs to this type.
inline bool MayConvert(const std::optional<std::string>& weights, const std::optional<std::string>& activations) {
  return activations == NameOf(ElementType::kBFloat16) ? weights == activations : IsInt8(weights);
}

// The options of a session.
struct Options {
  std::size_t threads = 0;  // 0: onegru's default
  bool reference = false;   // the observer computes
  NodeOption weight_storage, activation_storage;
  bool flush_subnormals = false;  // see Spec
  std::int64_t observer = 0;      // the session's number for the observer, or 0 for no observer
  const ort::Logger* logger = nullptr;
};

// Creates a kernel, which the caller owns. All other arguments except `info` must outlive it.
ort::Status* MakeGruKernel(const Api& api, const Options& options, const FixedWeights& fixed_weights,
                           const OnnxOperator& kind, const ort::KernelInfo* info, ort::Kernel** kernel);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_RUNTIMES_GRU_KERNEL_H_
