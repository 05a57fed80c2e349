#include "native/runtimes/dequantized.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace onegru {
namespace {

using Shape = std::vector<std::int64_t>;

// The inputs of a GRU node that may be weights: W, R and B.
constexpr std::int64_t kFirstWeight = 1, kLastWeight = 3;

// The graph as ONNX Runtime shows it.
class GraphView {
 public:
  explicit GraphView(const Api& api) : api_(api) {}

  std::vector<const ort::ValueInfo*> Inputs(const ort::Node* node) const {
    std::size_t count = 0;
    api_.Check(ort::Node_GetNumInputs(api_.api, node, &count));
    std::vector<const ort::ValueInfo*> values(count);
    if (count != 0) api_.Check(ort::Node_GetInputs(api_.api, node, values.data(), count));
    return values;
  }

  std::string Name(const ort::ValueInfo* value) const {
    const char* name = nullptr;
    api_.Check(ort::GetValueInfoName(api_.api, value, &name));
    return name;
  }

  // The node of ONNX's operator `kind` that gives a value; null if it is another one.
  const ort::Node* Producer(const ort::ValueInfo* value, const char* kind) const {
    const ort::Node* node = nullptr;
    std::size_t index = 0;
    if (!api_.Succeeds(ort::ValueInfo_GetValueProducer(api_.api, value, &node, &index)) || node == nullptr) return {};
    const char *type = nullptr, *domain = nullptr;
    api_.Check(ort::Node_GetOperatorType(api_.api, node, &type));
    api_.Check(ort::Node_GetDomain(api_.api, node, &domain));
    const bool is_onnx = *domain == '\0' || std::strcmp(domain, "ai.onnx") == 0;
    return is_onnx && std::strcmp(type, kind) == 0 ? node : nullptr;
  }

  // How many inputs take a value; none if one of them is not among `accepted`, or if the graph returns it.
  template <class F>
  std::size_t Uses(const ort::ValueInfo* value, F&& accepted) const {
    bool is_output = false;
    std::size_t count = 0;
    api_.Check(ort::ValueInfo_IsGraphOutput(api_.api, value, &is_output));
    api_.Check(ort::ValueInfo_GetValueNumConsumers(api_.api, value, &count));
    if (is_output || count == 0) return 0;
    std::vector<const ort::Node*> nodes(count);
    std::vector<std::int64_t> indices(count);
    api_.Check(ort::ValueInfo_GetValueConsumers(api_.api, value, nodes.data(), indices.data(), count));
    for (std::size_t i = 0; i < count; ++i)
      if (!accepted(nodes[i], indices[i])) return 0;
    return count;
  }

  // The tensor of a constant; null for any other value.
  const ort::Value* Constant(const ort::ValueInfo* value) const {
    bool is_constant = false;
    const ort::Value* tensor = nullptr;
    if (value == nullptr) return nullptr;
    api_.Check(ort::ValueInfo_IsConstantInitializer(api_.api, value, &is_constant));
    if (is_constant) api_.Check(ort::ValueInfo_GetInitializerValue(api_.api, value, &tensor));
    return tensor;
  }

  std::int64_t Attribute(const ort::Node* node, const char* name, std::int64_t otherwise) const {
    const ort::OpAttribute* attribute = nullptr;
    if (!api_.Succeeds(ort::Node_GetAttributeByName(api_.api, node, name, &attribute)) || attribute == nullptr)
      return otherwise;
    std::int64_t value = otherwise;
    std::size_t size = 0;
    api_.Check(ort::ReadOpAttr(api_.api, attribute, ort::kIntAttribute, &value, sizeof(value), &size));
    return value;
  }

 private:
  const Api& api_;
};

// The tensor of a constant.
struct Constant {
  Constant(const Api& api, const ort::Value* value) {
    const std::int64_t* sizes = nullptr;
    std::size_t rank = 0;
    void* memory = nullptr;
    api.Check(ort::GetTensorElementTypeAndShapeDataReference(api.api, value, &type, &sizes, &rank));
    api.Check(ort::GetTensorMutableData(api.api, const_cast<ort::Value*>(value), &memory));
    shape.assign(sizes, sizes + rank);
    data = memory;
  }

  std::size_t count() const {
    std::size_t count = 1;
    for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
    return count;
  }
  // An integer. Not for other types.
  std::int64_t operator[](std::size_t i) const {
    switch (type) {
      case ort::kInt8:
        return static_cast<const std::int8_t*>(data)[i];
      case ort::kUint8:
        return static_cast<const std::uint8_t*>(data)[i];
      case ort::kInt16:
        return static_cast<const std::int16_t*>(data)[i];
      case ort::kUint16:
        return static_cast<const std::uint16_t*>(data)[i];
      case ort::kInt64:
        return static_cast<const std::int64_t*>(data)[i];
      default:
        return static_cast<const std::int32_t*>(data)[i];
    }
  }

  ort::TensorType type{};
  Shape shape;
  const void* data = nullptr;
};

// The index of the scale of each element: one for all, one for each slice of an axis, or for each block along it.
class ScaleIndex {
 public:
  // False: the shapes do not fit, which ONNX Runtime will say.
  bool Prepare(const Shape& x, const Shape& scale, std::int64_t axis, std::int64_t block_size) {
    const auto rank = static_cast<std::int64_t>(x.size());
    is_single_ = scale.size() <= 1 && (scale.empty() || scale[0] == 1) && block_size == 0;
    if (is_single_) return true;
    if (axis < -rank || axis >= rank || block_size < 0) return false;
    const auto at = static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
    for (std::size_t i = at + 1; i < x.size(); ++i) inner_ *= static_cast<std::size_t>(x[i]);
    size_ = static_cast<std::size_t>(x[at]);
    block_ = static_cast<std::size_t>(block_size);
    if (block_ == 0) return scale == Shape{x[at]};
    Shape wanted = x;
    wanted[at] = static_cast<std::int64_t>((size_ + block_ - 1) / block_);
    blocks_ = static_cast<std::size_t>(wanted[at]);
    return scale == wanted;
  }
  std::size_t operator()(std::size_t i) const {
    if (is_single_) return 0;
    const std::size_t along = i / inner_ % size_;
    return block_ == 0 ? along : (i / inner_ / size_ * blocks_ + along / block_) * inner_ + i % inner_;
  }

 private:
  bool is_single_ = false;
  std::size_t inner_ = 1, size_ = 1, block_ = 0, blocks_ = 1;
};

// (x - x_zero_point)·x_scale in float32, as ONNX Runtime computes it; null for what is left to it.
std::shared_ptr<Dequantized> Compute(const Api& api, const ort::Node* node) {
  const GraphView view(api);
  const auto inputs = view.Inputs(node);
  if (inputs.size() < 2 || inputs.size() > 3) return nullptr;
  const ort::Value *const x_value = view.Constant(inputs[0]), *const scale_value = view.Constant(inputs[1]);
  if (x_value == nullptr || scale_value == nullptr) return nullptr;
  const Constant x(api, x_value), scale(api, scale_value);
  std::optional<Constant> zero_point;
  if (inputs.size() == 3 && inputs[2] != nullptr) {
    const ort::Value* const value = view.Constant(inputs[2]);
    if (value == nullptr) return nullptr;
    zero_point.emplace(api, value);
    if (zero_point->type != x.type || zero_point->shape != scale.shape) return nullptr;
  }
  const bool is_small =
      x.type == ort::kInt8 || x.type == ort::kUint8 || x.type == ort::kInt16 || x.type == ort::kUint16;
  if (scale.type != ort::kFloat || (!is_small && (x.type != ort::kInt32 || zero_point))) return nullptr;
  const std::int64_t output_type = view.Attribute(node, "output_dtype", 0);
  ScaleIndex index;
  if (!index.Prepare(x.shape, scale.shape, view.Attribute(node, "axis", 1), view.Attribute(node, "block_size", 0)) ||
      (output_type != 0 && output_type != ort::kFloat)) {
    return nullptr;
  }
  auto result = std::make_shared<Dequantized>();
  result->shape = x.shape;
  result->numbers.resize(x.count());
  for (std::size_t i = 0; i < result->numbers.size(); ++i) {
    const std::size_t at = index(i);
    const auto offset = static_cast<float>(x[i] - (zero_point ? (*zero_point)[at] : 0));
    result->numbers[i] = offset * static_cast<const float*>(scale.data)[at];
  }
  return result;
}

// The shape that a Reshape with a constant gives; empty where sizes are left to the operator.
Shape Reshaped(const Api& api, const ort::Node* node, std::size_t count) {
  const GraphView view(api);
  const auto inputs = view.Inputs(node);
  const ort::Value* const value = inputs.size() == 2 ? view.Constant(inputs[1]) : nullptr;
  if (value == nullptr) return {};
  const Constant sizes(api, value);
  Shape shape;
  std::size_t product = 1;
  for (std::size_t i = 0; i < sizes.count(); ++i) {
    if (sizes.type != ort::kInt64 || sizes[i] <= 0 || sizes[i] > static_cast<std::int64_t>(count)) return {};
    product *= static_cast<std::size_t>(sizes[i]);
    if (product > count) return {};
    shape.push_back(sizes[i]);
  }
  return product == count ? shape : Shape{};
}

class DequantizeKernel : public ort::Kernel {
 public:
  DequantizeKernel(const Api& api, std::shared_ptr<const Dequantized> result)
      : ort::Kernel{}, api_(api), result_(std::move(result)) {
    version = api.version;
    Compute = [](ort::Kernel* self, ort::KernelContext* context) {
      const auto& kernel = static_cast<DequantizeKernel&>(*self);
      return kernel.api_.Try([&] { kernel.Run(context); });
    };
    Release = [](ort::Kernel* self) { delete static_cast<DequantizeKernel*>(self); };
  }

 private:
  void Run(ort::KernelContext* context) const {
    const auto& [numbers, shape] = std::tie(result_->numbers, result_->shape);
    ort::Value* value = nullptr;
    void* data = nullptr;
    api_.Check(ort::KernelContext_GetOutput(api_.api, context, 0, shape.data(), shape.size(), &value));
    if (!result_->IsNeeded() || value == nullptr || numbers.empty()) return;  // nobody reads it
    api_.Check(ort::GetTensorMutableData(api_.api, value, &data));
    std::memcpy(data, numbers.data(), numbers.size() * sizeof(float));
  }

  const Api& api_;
  const std::shared_ptr<const Dequantized> result_;
};

}  // namespace

std::vector<const ort::Node*> DequantizedWeights::Add(const ort::Graph* graph, std::span<const ort::Node* const> grus) {
  const GraphView view(api_);
  const ort::Node* parent = nullptr;
  api_.Check(ort::Graph_GetParentNode(api_.api, graph, &parent));
  const auto is_weight = [&](const ort::Node* node, std::int64_t index) {
    return index >= kFirstWeight && index <= kLastWeight && std::find(grus.begin(), grus.end(), node) != grus.end();
  };
  std::vector<const ort::Node*> nodes;
  for (const ort::Node* const gru : grus) {
    const auto inputs = view.Inputs(gru);
    for (std::size_t i = kFirstWeight; i <= kLastWeight && i < inputs.size(); ++i) {
      const ort::ValueInfo *const weight = inputs[i], *value = weight;
      if (weight == nullptr) continue;
      if (parent != nullptr) {
        nested_.insert(view.Name(weight));
        continue;
      }
      const std::size_t uses = view.Uses(weight, is_weight);
      const ort::Node* const reshape = view.Producer(weight, "Reshape");
      if (reshape != nullptr) {
        value = view.Inputs(reshape)[0];
        if (view.Uses(value, [&](const ort::Node* node, std::int64_t) { return node == reshape; }) != 1) continue;
      }
      const ort::Node* const node = view.Producer(value, "DequantizeLinear");
      if (uses == 0 || node == nullptr || std::find(nodes.begin(), nodes.end(), node) != nodes.end()) continue;
      const auto result = Compute(api_, node);
      if (result == nullptr) continue;
      result->weight_shape = reshape == nullptr ? result->shape : Reshaped(api_, reshape, result->numbers.size());
      if (reshape != nullptr && result->weight_shape.empty()) continue;
      result->weight = view.Name(weight);
      result->uses = uses;
      weights_[view.Name(value)] = result;
      nodes.push_back(node);
    }
  }
  return nodes;
}

std::shared_ptr<Dequantized> DequantizedWeights::Find(const std::string& weight) const {
  if (nested_.contains(weight)) return nullptr;
  for (const auto& [name, result] : weights_)
    if (result->weight == weight) return result;
  return nullptr;
}

void DequantizedWeights::Take(Dequantized& found) {
  if (++found.taken >= found.uses) std::vector<float>().swap(found.numbers);
}

ort::Status* DequantizedWeights::MakeKernel(const ort::KernelInfo* info, ort::Kernel** kernel) const {
  return api_.Try([&] {
    const auto name = Text(api_, [&](char* text, std::size_t* size) {
      return ort::KernelInfo_GetOutputName(api_.api, info, 0, text, size);
    });
    const auto found = weights_.find(name.value_or(""));
    if (found == weights_.end()) throw std::runtime_error("DequantizeLinear: unknown node");
    *kernel = new DequantizeKernel(api_, found->second);
  });
}

}  // namespace onegru
