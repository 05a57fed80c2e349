#include "native/runtimes/constant_weights.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <utility>

namespace onegru {
namespace {

// clang-format off
// table: native_carriers
inline constexpr const char* kCarriers[] = {
    "Cast",
    "Concat",
    "DequantizeLinear",
    "Identity",
    "QuantizeLinear",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
};
// end
// clang-format on

// The inputs of a GRU node that may be weights: W, R and B.
constexpr std::size_t kFirstWeight = 1, kLastWeight = 3;

// How many bytes may be computed as a session is made: so many times what the constants have, and these in any case.
constexpr double kTimes = 16, kFree = 1 << 26;

using Shape = std::vector<std::int64_t>;
using Nodes = std::vector<const ort::Node*>;

// --- the graph as ONNX Runtime shows it

template <class T, class Owner, class Count, class Get>
std::vector<const T*> List(const Api& api, const Owner* owner, const Count& count_of, const Get& get) {
  std::size_t count = 0;
  api.Check(count_of(api.api, owner, &count));
  std::vector<const T*> items(count);
  if (count != 0) api.Check(get(api.api, owner, items.data(), count));
  return items;
}

std::vector<const ort::ValueInfo*> Inputs(const Api& api, const ort::Node* node) {
  return List<ort::ValueInfo>(api, node, ort::Node_GetNumInputs, ort::Node_GetInputs);
}
std::vector<const ort::ValueInfo*> Outputs(const Api& api, const ort::Node* node) {
  return List<ort::ValueInfo>(api, node, ort::Node_GetNumOutputs, ort::Node_GetOutputs);
}
std::vector<const ort::ValueInfo*> OuterInputs(const Api& api, const ort::Node* node) {
  return List<ort::ValueInfo>(api, node, ort::Node_GetNumImplicitInputs, ort::Node_GetImplicitInputs);
}
Nodes NodesOf(const Api& api, const ort::Graph* graph) {
  return List<ort::Node>(api, graph, ort::Graph_GetNumNodes, ort::Graph_GetNodes);
}
std::vector<const ort::Graph*> Bodies(const Api& api, const ort::Node* node) {
  return List<ort::Graph>(api, node, ort::Node_GetNumSubgraphs,
                          [](ort::Table table, const ort::Node* of, const ort::Graph** bodies, std::size_t count) {
                            return ort::Node_GetSubgraphs(table, of, bodies, count, nullptr);
                          });
}

// Empty for an optional one that is left out.
std::string NameOf(const Api& api, const ort::ValueInfo* value) {
  const char* name = "";
  if (value != nullptr) api.Check(ort::GetValueInfoName(api.api, value, &name));
  return name;
}

std::vector<std::string> NamesOf(const Api& api, const std::vector<const ort::ValueInfo*>& values) {
  std::vector<std::string> names;
  for (const ort::ValueInfo* const value : values) names.push_back(NameOf(api, value));
  return names;
}

template <class Query>
bool Asks(const Api& api, const ort::ValueInfo* value, const Query& query) {
  bool answer = false;
  api.Check(query(api.api, value, &answer));
  return answer;
}

// The tensor of an initializer; null for any other value.
const ort::Value* Initializer(const Api& api, const ort::ValueInfo* value) {
  const ort::Value* tensor = nullptr;
  return api.Succeeds(ort::ValueInfo_GetInitializerValue(api.api, value, &tensor)) ? tensor : nullptr;
}

bool IsConstant(const Api& api, const ort::ValueInfo* value) {
  return Asks(api, value, ort::ValueInfo_IsConstantInitializer);
}

struct TensorKind {
  ort::TensorType type{};
  Shape shape;

  bool operator==(const TensorKind&) const = default;
  double bytes() const {
    double count = 8;  // no type that is used here has more
    for (const std::int64_t size : shape) count *= static_cast<double>(size);
    return count;
  }
};

TensorKind KindOf(const Api& api, const ort::Value* value) {
  TensorKind kind;
  const std::int64_t* sizes = nullptr;
  std::size_t rank = 0;
  api.Check(ort::GetTensorElementTypeAndShapeDataReference(api.api, value, &kind.type, &sizes, &rank));
  kind.shape.assign(sizes, sizes + rank);
  return kind;
}

// Of a value whose type and sizes are known before a run; none for others.
std::optional<TensorKind> KindOf(const Api& api, const ort::ValueInfo* value) {
  const ort::TypeInfo* type = nullptr;
  const ort::TensorInfo* tensor = nullptr;
  std::size_t rank = 0;
  TensorKind kind;
  if (!api.Succeeds(ort::GetValueInfoTypeInfo(api.api, value, &type)) || type == nullptr) return {};
  api.Check(ort::CastTypeInfoToTensorInfo(api.api, type, &tensor));
  if (tensor == nullptr) return {};
  api.Check(ort::GetTensorElementType(api.api, tensor, &kind.type));
  api.Check(ort::GetDimensionsCount(api.api, tensor, &rank));
  kind.shape.resize(rank);
  if (rank != 0) api.Check(ort::GetDimensions(api.api, tensor, kind.shape.data(), rank));
  if (std::any_of(kind.shape.begin(), kind.shape.end(), [](std::int64_t size) { return size < 0; })) return {};
  return kind;
}

const unsigned char* DataOf(const Api& api, const ort::Value* value) {
  void* data = nullptr;
  api.Check(ort::GetTensorMutableData(api.api, const_cast<ort::Value*>(value), &data));
  return static_cast<const unsigned char*>(data);
}

std::size_t BytesOf(const Api& api, const ort::Value* value) {
  std::size_t bytes = 0;
  api.Check(ort::GetTensorSizeInBytes(api.api, value, &bytes));
  return bytes;
}

bool AreEqual(const Api& api, const ort::Value* a, const ort::Value* b) {
  const std::size_t bytes = BytesOf(api, a);
  return KindOf(api, a) == KindOf(api, b) && bytes == BytesOf(api, b) &&
         (bytes == 0 || std::memcmp(DataOf(api, a), DataOf(api, b), bytes) == 0);
}

ValueHandle Owned(const Api& api, ort::Value* value) {
  return {value, [table = api.api](ort::Value* it) { ort::ReleaseValue(table, it); }};
}

// --- a model of some nodes

// A message of protocol buffers. The numbers of its fields are those of onnx.proto.
class Message {
 public:
  Message& Int(unsigned field, std::int64_t value) {
    Varint(field << 3);
    Varint(static_cast<std::uint64_t>(value));
    return *this;
  }
  Message& Float(unsigned field, float value) {
    Varint(field << 3 | 5);
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  Message& Text(unsigned field, const std::string& text) {
    Varint(field << 3 | 2);
    Varint(text.size());
    text_ += text;
    return *this;
  }
  Message& In(unsigned field, const Message& message) { return Text(field, message.text_); }
  const std::string& text() const { return text_; }

 private:
  void Varint(std::uint64_t value) {
    for (; value >= 128; value >>= 7) text_.push_back(static_cast<char>(value | 128));
    text_.push_back(static_cast<char>(value));
  }
  std::string text_;
};

// None for one of a kind that no listed operator has.
std::optional<Message> AttributeMessage(const Api& api, const ort::OpAttribute* attribute) {
  constexpr unsigned kName = 1, kF = 2, kI = 3, kS = 4, kInts = 8, kType = 20;
  enum { kIsFloat = 1, kIsInt = 2, kIsString = 3, kIsInts = 7 };
  const char* name = nullptr;
  ort::AttributeType type{};
  api.Check(ort::OpAttr_GetName(api.api, attribute, &name));
  api.Check(ort::OpAttr_GetType(api.api, attribute, &type));
  std::size_t bytes = 0;
  std::string data(sizeof(std::int64_t), '\0');
  if (!api.Succeeds(ort::ReadOpAttr(api.api, attribute, type, data.data(), data.size(), &bytes))) {
    data.resize(bytes);
    api.Check(ort::ReadOpAttr(api.api, attribute, type, data.data(), data.size(), &bytes));
  }
  data.resize(bytes);
  std::vector<std::int64_t> numbers(bytes / sizeof(std::int64_t));
  std::memcpy(numbers.data(), data.data(), numbers.size() * sizeof(std::int64_t));
  Message message;
  message.Text(kName, name);
  float number = 0;
  switch (type) {
    case ort::kIntAttribute:
      return message.Int(kI, numbers.at(0)).Int(kType, kIsInt);
    case ort::kIntsAttribute:
      for (const std::int64_t item : numbers) message.Int(kInts, item);
      return message.Int(kType, kIsInts);
    case ort::kFloatAttribute:
      std::memcpy(&number, data.data(), std::min(sizeof(number), data.size()));
      return message.Float(kF, number).Int(kType, kIsFloat);
    case ort::kStringAttribute:
      return message.Text(kS, data).Int(kType, kIsString);
  }
  return {};
}

std::optional<Message> NodeMessage(const Api& api, const ort::Node* node) {
  constexpr unsigned kInput = 1, kOutput = 2, kOperator = 4, kAttribute = 5;
  const char* kind = nullptr;
  api.Check(ort::Node_GetOperatorType(api.api, node, &kind));
  Message message;
  for (const auto& name : NamesOf(api, Inputs(api, node))) message.Text(kInput, name);
  for (const auto& name : NamesOf(api, Outputs(api, node))) message.Text(kOutput, name);
  message.Text(kOperator, kind);
  for (const auto* item : List<ort::OpAttribute>(api, node, ort::Node_GetNumAttributes, ort::Node_GetAttributes)) {
    const auto attribute = AttributeMessage(api, item);
    if (!attribute) return {};
    message.In(kAttribute, *attribute);
  }
  return message;
}

Message InputMessage(const std::string& name, const TensorKind& kind) {
  Message shape;
  for (const std::int64_t size : kind.shape) shape.In(1, Message().Int(1, size));
  return Message().Text(1, name).In(2, Message().In(1, Message().Int(1, kind.type).In(2, shape)));
}

// One that takes constants as inputs; none if it cannot be written.
std::optional<std::string> ModelOf(const Api& api, const ort::Graph* graph, const Nodes& nodes,
                                   const std::map<std::string, const ort::Value*>& constants,
                                   const std::string& output) {
  constexpr unsigned kNode = 1, kName = 2, kInput = 11, kOutput = 12, kVersion = 1, kGraph = 7, kOpset = 8;
  std::int64_t version = 0;
  std::size_t count = 0;
  api.Check(ort::Graph_GetOnnxIRVersion(api.api, graph, &version));
  api.Check(ort::Graph_GetNumOperatorSets(api.api, graph, &count));
  std::vector<const char*> domains(count);
  std::vector<std::int64_t> opsets(count);
  if (count != 0) api.Check(ort::Graph_GetOperatorSets(api.api, graph, domains.data(), opsets.data(), count));
  Message inner;
  for (const ort::Node* const node : nodes) {
    const auto message = NodeMessage(api, node);
    if (!message) return {};
    inner.In(kNode, *message);
  }
  inner.Text(kName, "weights");
  for (const auto& [name, value] : constants) inner.In(kInput, InputMessage(name, KindOf(api, value)));
  Message model;
  model.Int(kVersion, version).In(kGraph, inner.In(kOutput, Message().Text(1, output)));
  for (std::size_t i = 0; i < count; ++i)
    if (IsOnnx(domains[i])) model.In(kOpset, Message().Text(1, "").Int(2, opsets[i]));
  return model.text();
}

// What such a model gives; null if ONNX Runtime refuses it, or cannot run it.
ValueHandle RunModel(const Api& api, const std::string& model, const std::map<std::string, const ort::Value*>& given,
                     const std::string& output) {
  ort::Env* env = nullptr;
  ort::SessionOptions* options = nullptr;
  ort::Session* session = nullptr;
  ort::Value* result = nullptr;
  std::vector<const char*> names;
  std::vector<const ort::Value*> values;
  for (const auto& [name, value] : given) {
    names.push_back(name.c_str());
    values.push_back(value);
  }
  const char* const wanted = output.c_str();
  const bool is_run =
      api.Succeeds(ort::CreateEnv(api.api, ort::kWarning, "onegru", &env)) &&  // the one that is there
      api.Succeeds(ort::CreateSessionOptions(api.api, &options)) &&
      api.Succeeds(ort::SetSessionGraphOptimizationLevel(api.api, options, ort::kNoOptimizations)) &&
      api.Succeeds(ort::SetSessionLogSeverityLevel(api.api, options, ort::kFatal)) &&
      api.Succeeds(ort::SetIntraOpNumThreads(api.api, options, 1)) &&
      api.Succeeds(ort::DisableCpuMemArena(api.api, options)) &&  // which the result would keep
      api.Succeeds(ort::CreateSessionFromArray(api.api, env, model.data(), model.size(), options, &session)) &&
      api.Succeeds(ort::Run(api.api, session, nullptr, names.data(), values.data(), names.size(), &wanted, 1, &result));
  if (session != nullptr) ort::ReleaseSession(api.api, session);
  if (options != nullptr) ort::ReleaseSessionOptions(api.api, options);
  if (env != nullptr) ort::ReleaseEnv(api.api, env);
  return is_run ? Owned(api, result) : nullptr;
}

// --- a node that need not run

class IdleKernel : public ort::Kernel {
 public:
  IdleKernel(const Api& api, std::shared_ptr<const ConstantWeights::Idle> node)
      : ort::Kernel{}, api_(api), node_(std::move(node)) {
    version = api.version;
    Compute = [](ort::Kernel* self, ort::KernelContext* context) {
      const auto& kernel = static_cast<IdleKernel&>(*self);
      return kernel.api_.Try([&] { kernel.Run(context); });
    };
    Release = [](ort::Kernel* self) { delete static_cast<IdleKernel*>(self); };
    PrePackWeight = [](ort::Kernel* self, const ort::Value*, int, ort::Allocator*, void*, bool* is_packed) {
      *is_packed = !static_cast<IdleKernel&>(*self).node_->IsNeeded();  // its constants may go
      return static_cast<ort::Status*>(nullptr);
    };
  }

 private:
  // ONNX Runtime may have planned to put other values where the outputs lie, so there must be memory.
  void Run(ort::KernelContext* context) const {
    for (std::size_t i = 0; i < node_->outputs.size(); ++i) {
      const auto& [shape, weight] = node_->outputs[i];
      ort::Value* value = nullptr;
      api_.Check(ort::KernelContext_GetOutput(api_.api, context, i, shape.data(), shape.size(), &value));
      if (value == nullptr || weight == nullptr || !weight->IsNeeded()) continue;
      const std::size_t bytes = BytesOf(api_, weight->value.get());
      if (bytes != 0)
        std::memcpy(const_cast<unsigned char*>(DataOf(api_, value)), DataOf(api_, weight->value.get()), bytes);
    }
  }

  const Api& api_;
  const std::shared_ptr<const ConstantWeights::Idle> node_;
};

}  // namespace

// --- one look at a graph

class ConstantWeights::Pass {
 public:
  Pass(ConstantWeights& owner, const ort::Graph* graph, bool (*is_gru)(const Api&, const ort::Node*))
      : owner_(owner), api_(owner.api_), graph_(graph), is_gru_(is_gru), nodes_(NodesOf(api_, graph)) {}

  Nodes Run() {
    for (const ort::Node* const node : nodes_) {
      if (is_gru_(api_, node)) {
        const auto inputs = Inputs(api_, node);
        for (std::size_t i = kFirstWeight; i <= kLastWeight && i < inputs.size(); ++i) AddUse(node, inputs[i], nullptr);
      }
      AddInner(node, nullptr);
    }
    for (const auto& [name, use] : uses_) {
      const auto& [value, keys] = use;
      if (IsConstant(api_, value)) continue;
      const ort::Value* const default_of = Initializer(api_, value);
      if (default_of != nullptr) {
        // A model without nodes gives what it takes: the same tensor, which thereby stays where it is.
        ValueHandle kept = Evaluate({}, {{name, default_of}}, name);
        if (kept != nullptr && BytesOf(api_, default_of) != 0 && DataOf(api_, kept.get()) == DataOf(api_, default_of))
          owner_.defaults_[DataOf(api_, default_of)] = std::move(kept);
      }
      const auto weight = default_of == nullptr ? Compute(name, value) : nullptr;
      if (weight != nullptr) weights_[name] = weight;
      for (const std::string& key : keys) Register(key, weight);
    }
    Nodes idle;
    if (makers_.empty()) return idle;
    for (const ort::Node* const node : nodes_) {
      for (const auto& values : {Inputs(api_, node), OuterInputs(api_, node)})
        for (const std::string& name : NamesOf(api_, values)) takers_[name].insert(node);
    }
    for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node)
      if (makers_.contains(*node) && Idles(*node)) idle.push_back(*node);
    return idle;
  }

 private:
  struct Use {
    const ort::ValueInfo* value;
    std::vector<std::string> keys;
  };

  // A weight that a GRU node takes; of one in a body, those that bodies see.
  void AddUse(const ort::Node* gru, const ort::ValueInfo* value,
              const std::map<std::string, const ort::ValueInfo*>* seen) {
    if (value == nullptr) return;
    const std::string name = NameOf(api_, value);
    if (Asks(api_, value, ort::ValueInfo_IsFromOuterScope) != (seen != nullptr)) return;
    if (seen != nullptr && !seen->contains(name)) return;
    Use& use = uses_.try_emplace(name, Use{seen == nullptr ? value : seen->at(name), {}}).first->second;
    use.keys.push_back(KeyOf(name, NamesOf(api_, Outputs(api_, gru))));
  }

  // The GRU nodes in the bodies of a node that take values of this graph.
  void AddInner(const ort::Node* node, const std::map<std::string, const ort::ValueInfo*>* seen) {
    std::map<std::string, const ort::ValueInfo*> visible;
    for (const ort::ValueInfo* const value : OuterInputs(api_, node)) {
      const std::string name = NameOf(api_, value);
      if (seen == nullptr && !Asks(api_, value, ort::ValueInfo_IsFromOuterScope)) visible[name] = value;
      if (seen != nullptr && seen->contains(name)) visible[name] = seen->at(name);
    }
    if (visible.empty()) return;
    for (const ort::Graph* const body : Bodies(api_, node)) {
      for (const ort::Node* const inner : NodesOf(api_, body)) {
        if (is_gru_(api_, inner)) {
          const auto inputs = Inputs(api_, inner);
          for (std::size_t i = kFirstWeight; i <= kLastWeight && i < inputs.size(); ++i)
            AddUse(inner, inputs[i], &visible);
        }
        AddInner(inner, &visible);
      }
    }
  }

  const ort::Node* Producer(const ort::ValueInfo* value) const {
    const ort::Node* node = nullptr;
    std::size_t index = 0;
    return api_.Succeeds(ort::ValueInfo_GetValueProducer(api_.api, value, &node, &index)) ? node : nullptr;
  }

  bool IsCarrier(const ort::Node* node) const {
    const char *kind = nullptr, *domain = nullptr;
    api_.Check(ort::Node_GetOperatorType(api_.api, node, &kind));
    api_.Check(ort::Node_GetDomain(api_.api, node, &domain));
    return IsOnnx(domain) && std::any_of(std::begin(kCarriers), std::end(kCarriers),
                                         [&](auto* name) { return !std::strcmp(name, kind); });
  }

  // Null if it does not depend on constants alone, or if that is left to each run.
  std::shared_ptr<ComputedWeight> Compute(const std::string& name, const ort::ValueInfo* value) {
    std::set<const ort::Node*> makers;
    std::map<std::string, const ort::Value*> constants;
    std::vector<const ort::ValueInfo*> waiting{value};
    double bytes = 0, most = kFree;
    while (!waiting.empty()) {
      const ort::ValueInfo* const taken = waiting.back();
      waiting.pop_back();
      if (taken == nullptr) continue;
      if (IsConstant(api_, taken)) {
        const ort::Value* const tensor = Initializer(api_, taken);
        if (tensor == nullptr) return nullptr;
        if (constants.emplace(NameOf(api_, taken), tensor).second)
          most += kTimes * static_cast<double>(BytesOf(api_, tensor));
        continue;
      }
      const ort::Node* const node = Producer(taken);
      if (node == nullptr || !IsCarrier(node)) return nullptr;
      if (!makers.insert(node).second) continue;
      for (const ort::ValueInfo* const given : Outputs(api_, node)) {
        if (given == nullptr) continue;
        const auto kind = KindOf(api_, given);
        if (!kind) return nullptr;
        bytes += kind->bytes();
      }
      const auto inputs = Inputs(api_, node);
      waiting.insert(waiting.end(), inputs.begin(), inputs.end());
    }
    if (makers.empty() || bytes > most) return nullptr;
    Nodes ordered;
    std::copy_if(nodes_.begin(), nodes_.end(), std::back_inserter(ordered),
                 [&](const ort::Node* node) { return makers.contains(node); });
    const ValueHandle result = Evaluate(ordered, constants, name);
    if (result == nullptr) return nullptr;
    makers_.merge(makers);
    for (auto [item, end] = owner_.computed_.equal_range(name); item != end; ++item)
      if (AreEqual(api_, item->second->value.get(), result.get())) return item->second;
    auto weight = std::make_shared<ComputedWeight>();
    weight->value = result;
    owner_.computed_.emplace(name, weight);
    return weight;
  }

  ValueHandle Evaluate(const Nodes& nodes, const std::map<std::string, const ort::Value*>& given,
                       const std::string& output) const {
    const auto model = ModelOf(api_, graph_, nodes, given, output);
    return model ? RunModel(api_, *model, given, output) : nullptr;
  }

  void Register(const std::string& key, const std::shared_ptr<ComputedWeight>& weight) {
    const auto [known, is_new] = owner_.users_.emplace(key, weight);
    if (weight != nullptr) weight->users.insert(key);
    if (is_new || known->second == weight) return;
    for (const auto& one : {known->second, weight})
      if (one != nullptr) one->is_ambiguous = true;
  }

  // Whether a node need not run: GRU nodes that know what it gives take that, or nodes that need not run either.
  bool Idles(const ort::Node* node) {
    auto found = std::make_shared<Idle>();
    const auto outputs = Outputs(api_, node);
    for (const ort::ValueInfo* const value : outputs) {
      found->outputs.emplace_back();
      if (value == nullptr) continue;
      const std::string name = NameOf(api_, value);
      const auto weight = weights_.find(name);
      if (weight != weights_.end()) {
        found->outputs.back().weight = weight->second;
        found->weights.push_back(weight->second);
      }
      found->outputs.back().shape = KindOf(api_, value).value().shape;
      if (Asks(api_, value, ort::ValueInfo_IsGraphOutput)) return false;
      for (const ort::Node* const taker : takers_[name]) {
        const auto known = idle_.find(taker);
        if (known != idle_.end()) {
          found->weights.insert(found->weights.end(), known->second->weights.begin(), known->second->weights.end());
        } else if (weight == weights_.end() || !TakesAsWeight(taker, name)) {
          return false;
        }
      }
    }
    if (found->weights.empty()) return false;
    const auto [known, is_new] = owner_.idle_.emplace(KeyOf("", NamesOf(api_, outputs)), found);
    const auto same = [](const Output& a, const Output& b) { return a.shape == b.shape && a.weight == b.weight; };
    const auto& before = known->second->outputs;
    if (!std::equal(before.begin(), before.end(), found->outputs.begin(), found->outputs.end(), same)) return false;
    idle_[node] = known->second;
    return true;
  }

  // Whether it takes a value as a weight of GRU nodes, itself or in its bodies, and as nothing else.
  bool TakesAsWeight(const ort::Node* node, const std::string& name) const {
    const auto inputs = NamesOf(api_, Inputs(api_, node));
    const bool is_gru = is_gru_(api_, node);
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i] == name && !(is_gru && i >= kFirstWeight && i <= kLastWeight)) return false;
    for (const ort::Graph* const body : Bodies(api_, node)) {
      for (const auto* value : List<ort::ValueInfo>(api_, body, ort::Graph_GetNumOutputs, ort::Graph_GetOutputs))
        if (NameOf(api_, value) == name) return false;
      for (const ort::Node* const inner : NodesOf(api_, body))
        if (!TakesAsWeight(inner, name)) return false;
    }
    return true;
  }

  ConstantWeights& owner_;
  const Api& api_;
  const ort::Graph* const graph_;
  bool (*const is_gru_)(const Api&, const ort::Node*);
  const Nodes nodes_;
  std::map<std::string, Use> uses_;
  std::map<std::string, std::shared_ptr<ComputedWeight>> weights_;
  std::set<const ort::Node*> makers_;                         // nodes that make them
  std::map<std::string, std::set<const ort::Node*>> takers_;  // of each value
  std::map<const ort::Node*, std::shared_ptr<Idle>> idle_;
};

std::span<const char* const> ConstantWeights::Carriers() { return kCarriers; }

std::vector<const ort::Node*> ConstantWeights::Add(const ort::Graph* graph,
                                                   bool (*is_gru)(const Api&, const ort::Node*)) {
  return Pass(*this, graph, is_gru).Run();
}

std::string ConstantWeights::KeyOf(const std::string& value, const std::vector<std::string>& outputs) {
  std::string key = value;
  for (const std::string& name : outputs) key += '\0' + name;
  return key;
}

std::shared_ptr<ComputedWeight> ConstantWeights::Find(const std::string& key) const {
  const auto found = users_.find(key);
  const bool is_known = found != users_.end() && found->second != nullptr && !found->second->is_ambiguous;
  return is_known ? found->second : nullptr;
}

ort::Status* ConstantWeights::MakeKernel(const ort::KernelInfo* info, ort::Kernel** kernel) const {
  return api_.Try([&] {
    const auto found = idle_.find(KeyOf("", OutputNames(api_, info)));
    if (found == idle_.end()) throw std::runtime_error("unknown node");
    *kernel = new IdleKernel(api_, found->second);
  });
}

void ConstantWeights::Finish() {
  if (is_finished_.test_and_set()) return;
  for (const auto& [name, weight] : computed_)
    if (!weight->IsNeeded()) weight->value.reset();
  users_.clear();
  computed_.clear();
  idle_.clear();
}

}  // namespace onegru
