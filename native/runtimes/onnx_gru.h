// Checks a GRU or AUGRU node of an ONNX model, and lowers it to the structures in problem.h, for programs without
// Python. The rules and the messages are those of the Python package, and tests compare them.

#ifndef ONEGRU_NATIVE_RUNTIMES_ONNX_GRU_H_
#define ONEGRU_NATIVE_RUNTIMES_ONNX_GRU_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "native/packing/packed.h"
#include "native/problem.h"

namespace onegru {

// Thrown if a node violates the specification. The message names the argument, its value, and the required value.
class InvalidArgument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// An activation function. takes: 0, 1 (alpha) or 2 (alpha and beta). alpha, beta: the defaults.
struct FunctionFacts {
  const char* name;
  int takes;
  float alpha;
  float beta;
};
inline constexpr float kNoDefault = std::numeric_limits<float>::quiet_NaN();
// table: native_activations
inline constexpr FunctionFacts kFunctionFacts[kFunctions] = {
    {"Relu", 0, 0, 0},
    {"Tanh", 0, 0, 0},
    {"Sigmoid", 0, 0, 0},
    {"Affine", 2, 1.0f, 0.0f},
    {"LeakyRelu", 1, 0.01f, 0},
    {"ThresholdedRelu", 1, 1.0f, 0},
    {"ScaledTanh", 2, kNoDefault, kNoDefault},
    {"HardSigmoid", 2, 0.2f, 0.5f},
    {"Elu", 1, 1.0f, 0},
    {"Softsign", 0, 0, 0},
    {"Softplus", 0, 0, 0},
};
// end

// A version of an operator. since: the first opset of its domain that has it.
struct OnnxOperator {
  const char* name;
  const char* domain;
  int since;
  bool attention;
  bool has_bfloat16;
  bool may_misspell;  // allows the direction "foward", which is in the published schema of this version
};
// clang-format off
// table: native_operators
inline constexpr OnnxOperator kOnnxOperators[] = {
    {"GRU", "", 1, false, false, true},
    {"GRU", "", 3, false, false, false},
    {"GRU", "", 7, false, false, false},
    {"GRU", "", 14, false, false, false},
    {"GRU", "", 22, false, true, false},
    {"AUGRU", "onegru", 1, true, true, false},
    {"AUGRU", "onegru.2", 1, true, true, false},
    {"AUGRU", "onegru.3", 1, true, true, false},
    {"AUGRU", "onegru.4", 1, true, true, false},
    {"AUGRU", "onegru.5", 1, true, true, false},
    {"AUGRU", "onegru.6", 1, true, true, false},
    {"AUGRU", "onegru.7", 1, true, true, false},
    {"AUGRU", "onegru.8", 1, true, true, false},
};
inline constexpr const OnnxOperator &kNewestGru = kOnnxOperators[4], &kAugru = kOnnxOperators[5];
// end
// clang-format on

// Absent attributes have no value, or are empty.
// table: native_attributes
struct OnnxGruAttributes {
  std::vector<float> activation_alpha;
  std::vector<float> activation_beta;
  std::optional<std::vector<std::string>> activations;
  std::optional<float> clip;
  std::optional<std::string> direction;
  std::optional<std::int64_t> hidden_size;
  std::optional<std::int64_t> linear_before_reset;
  std::optional<std::int64_t> layout;
  std::optional<std::string> attention;
  std::optional<std::int64_t> output_sequence;
};

// Calls visit(name, value) for each attribute.
template <class Attributes, class F>
void ForEachAttribute(Attributes& attributes, F&& visit) {
  visit("activation_alpha", attributes.activation_alpha);
  visit("activation_beta", attributes.activation_beta);
  visit("activations", attributes.activations);
  visit("clip", attributes.clip);
  visit("direction", attributes.direction);
  visit("hidden_size", attributes.hidden_size);
  visit("linear_before_reset", attributes.linear_before_reset);
  visit("layout", attributes.layout);
  visit("attention", attributes.attention);
  visit("output_sequence", attributes.output_sequence);
}

constexpr const char* kAttributesOnlyOfGru[] = {"output_sequence"};
// end

// A tensor of contiguous elements.
struct Tensor {
  ElementType type = ElementType::kFloat32;  // ignored for lengths, which are int32
  std::span<const std::int64_t> shape;
  const void* data = nullptr;
  bool is_given = false;

  std::size_t count() const;
  std::size_t bytes() const { return count() * SizeOf(type); }
};

// Options of the packed weights. storage: default: the type of W. The other options are those of Spec.
struct PackOptions {
  std::optional<ElementType> storage;
  std::size_t planes = 1, group = 0;
  bool rounds_inputs = false, flush_subnormals = false;
};

class OnnxGru {
 public:
  // Throws InvalidArgument.
  OnnxGru(const OnnxGruAttributes& attributes, const OnnxOperator& kind);

  // Returns warnings about attributes without effect, each in one line.
  const std::vector<std::string>& warnings() const { return warnings_; }

  // Packs the weights. Throws InvalidArgument.
  std::shared_ptr<const Packed> Pack(const Tensor& W, const Tensor& R, const Tensor& B,
                                     const PackOptions& options = {}) const;

  // Returns a call without outputs. Their shapes are [T, D, B, H] and [D, B, H], or batch first with layout 1. A is
  // read only with attention. `lengths` is memory for the call. Throws InvalidArgument.
  Call MakeCall(const Packed& packed, const Tensor& X, const Tensor& sequence_lens, const Tensor& initial_h,
                const Tensor& A, std::vector<std::int64_t>& lengths) const;
  std::array<std::int64_t, 4> YShape(const Packed& packed, const Call& call) const;
  std::array<std::int64_t, 3> StateShape(const Packed& packed, const Call& call) const;
  void SetY(const Packed& packed, Call& call, void* Y) const;
  void SetYh(const Packed& packed, Call& call, void* Y_h) const;

 private:
  Rows StateRows(const Packed& packed, const Call& call, const void* data) const;

  Spec spec_{};  // without sizes and types
  std::vector<std::string> warnings_;
  std::optional<std::int64_t> hidden_size_;
  bool batch_first_ = false;
};

}  // namespace onegru

#endif  // ONEGRU_NATIVE_RUNTIMES_ONNX_GRU_H_
