#include "native/runtimes/fixed_weights.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "native/runtimes/graph_view.h"
#include "native/runtimes/node_model.h"

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

// The weight inputs of a GRU node: W, R and B.
constexpr std::size_t kFirstWeight = 1, kLastWeight = 3;

// The limit of bytes that are computed while a session is created: kTimes the bytes of the constants, plus kFree.
constexpr double kTimes = 16, kFree = 1 << 26;

// --- idle nodes, which need not run

class IdleKernel : public ort::Kernel {
 public:
  IdleKernel(const Api& api, std::shared_ptr<const FixedWeights::Idle> node)
      : ort::Kernel{}, api_(api), node_(std::move(node)) {
    version = api.version;
    Compute = [](ort::Kernel* self, ort::KernelContext* context) {
      const auto& kernel = static_cast<IdleKernel&>(*self);
      return kernel.api_.Try([&] { kernel.Run(context); });
    };
    Release = [](ort::Kernel* self) { delete static_cast<IdleKernel*>(self); };
    PrePackWeight = [](ort::Kernel* self, const ort::Value*, int, ort::Allocator*, void*, bool* is_packed) {
      *is_packed = !static_cast<IdleKernel&>(*self).node_->IsNeeded();  // ONNX Runtime may free its constants
      return static_cast<ort::Status*>(nullptr);
    };
  }

 private:
  // ONNX Runtime may reuse the memory of the outputs, so the results need separate memory.
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
  const std::shared_ptr<const FixedWeights::Idle> node_;
};

}  // namespace

// --- analysis of a graph

class FixedWeights::Pass {
 public:
  Pass(FixedWeights& owner, const ort::Graph* graph, bool (*is_gru)(const Api&, const ort::Node*))
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
        // A model without nodes returns its input. Holding this tensor keeps its address unique.
        ValueHandle kept = Evaluate({}, {{name, default_of}}, name);
        if (kept != nullptr && BytesOf(api_, default_of) != 0 && DataOf(api_, kept.get()) == DataOf(api_, default_of))
          owner_.defaults_[DataOf(api_, default_of)] = std::move(kept);
      }
      const auto weight = default_of == nullptr ? Compute(name, value) : nullptr;
      if (weight != nullptr) weights_[name] = weight;
      for (const std::string& key : keys) Register(key, weight);
    }
    Nodes idle;
    if (producers_.empty()) return idle;
    for (const ort::Node* const node : nodes_) {
      for (const auto& values : {Inputs(api_, node), OuterInputs(api_, node)})
        for (const std::string& name : NamesOf(api_, values)) consumers_[name].insert(node);
    }
    for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node)
      if (producers_.contains(*node) && RecordIfIdle(*node)) idle.push_back(*node);
    return idle;
  }

 private:
  struct Use {
    const ort::ValueInfo* value;
    std::vector<std::string> keys;
  };

  // Records a weight of a GRU node. `seen`: for a node in a subgraph, the outer values that the subgraph uses.
  void AddUse(const ort::Node* gru, const ort::ValueInfo* value,
              const std::map<std::string, const ort::ValueInfo*>* seen) {
    if (value == nullptr) return;
    const std::string name = NameOf(api_, value);
    if (Asks(api_, value, ort::ValueInfo_IsFromOuterScope) != (seen != nullptr)) return;
    if (seen != nullptr && !seen->contains(name)) return;
    Use& use = uses_.try_emplace(name, Use{seen == nullptr ? value : seen->at(name), {}}).first->second;
    use.keys.push_back(KeyOf(name, NamesOf(api_, Outputs(api_, gru))));
  }

  // Records the weights of GRU nodes in a node's subgraphs, if they are values of this graph.
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

  // Computes a weight. Returns null if it depends on more than constants, or if each run must compute it.
  std::shared_ptr<ComputedWeight> Compute(const std::string& name, const ort::ValueInfo* value) {
    std::set<const ort::Node*> producers;
    std::map<std::string, const ort::Value*> constants;
    std::vector<const ort::ValueInfo*> waiting{value};
    double bytes = 0, most = kFree;
    while (!waiting.empty()) {
      const ort::ValueInfo* const source = waiting.back();
      waiting.pop_back();
      if (source == nullptr) continue;
      if (IsConstant(api_, source)) {
        const ort::Value* const tensor = Initializer(api_, source);
        if (tensor == nullptr) return nullptr;
        if (constants.emplace(NameOf(api_, source), tensor).second)
          most += kTimes * static_cast<double>(BytesOf(api_, tensor));
        continue;
      }
      const ort::Node* const node = Producer(source);
      if (node == nullptr || !IsCarrier(node)) return nullptr;
      if (!producers.insert(node).second) continue;
      for (const ort::ValueInfo* const given : Outputs(api_, node)) {
        if (given == nullptr) continue;
        const auto kind = KindOf(api_, given);
        if (!kind) return nullptr;
        bytes += kind->bytes();
      }
      const auto inputs = Inputs(api_, node);
      waiting.insert(waiting.end(), inputs.begin(), inputs.end());
    }
    if (producers.empty() || bytes > most) return nullptr;
    Nodes ordered;
    std::copy_if(nodes_.begin(), nodes_.end(), std::back_inserter(ordered),
                 [&](const ort::Node* node) { return producers.contains(node); });
    const ValueHandle result = Evaluate(ordered, constants, name);
    if (result == nullptr) return nullptr;
    producers_.merge(producers);
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

  // Records a node if all its consumers are GRU nodes that know its result, or idle nodes; returns whether they are.
  bool RecordIfIdle(const ort::Node* node) {
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
      for (const ort::Node* const consumer : consumers_[name]) {
        const auto known = idle_.find(consumer);
        if (known != idle_.end()) {
          found->weights.insert(found->weights.end(), known->second->weights.begin(), known->second->weights.end());
        } else if (weight == weights_.end() || !TakesAsWeight(consumer, name)) {
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

  // Whether a node and its subgraphs use a value only as a weight of GRU nodes.
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

  FixedWeights& owner_;
  const Api& api_;
  const ort::Graph* const graph_;
  bool (*const is_gru_)(const Api&, const ort::Node*);
  const Nodes nodes_;
  std::map<std::string, Use> uses_;
  std::map<std::string, std::shared_ptr<ComputedWeight>> weights_;
  std::set<const ort::Node*> producers_;                         // nodes that compute weights_
  std::map<std::string, std::set<const ort::Node*>> consumers_;  // consumers of each value
  std::map<const ort::Node*, std::shared_ptr<Idle>> idle_;
};

std::span<const char* const> FixedWeights::Carriers() { return kCarriers; }

std::vector<const ort::Node*> FixedWeights::Add(const ort::Graph* graph, bool (*is_gru)(const Api&, const ort::Node*)) {
  return Pass(*this, graph, is_gru).Run();
}

std::string FixedWeights::KeyOf(const std::string& value, const std::vector<std::string>& outputs) {
  std::string key = value;
  for (const std::string& name : outputs) key += '\0' + name;
  return key;
}

std::shared_ptr<ComputedWeight> FixedWeights::Find(const std::string& key) const {
  const auto found = users_.find(key);
  const bool is_known = found != users_.end() && found->second != nullptr && !found->second->is_ambiguous;
  return is_known ? found->second : nullptr;
}

ort::Status* FixedWeights::MakeKernel(const ort::KernelInfo* info, ort::Kernel** kernel) const {
  return api_.Try([&] {
    const auto found = idle_.find(KeyOf("", OutputNames(api_, info)));
    if (found == idle_.end()) throw std::runtime_error("unknown node");
    *kernel = new IdleKernel(api_, found->second);
  });
}

void FixedWeights::Finish() {
  if (is_finished_.test_and_set()) return;
  for (const auto& [name, weight] : computed_)
    if (!weight->IsNeeded()) weight->value.reset();
  users_.clear();
  computed_.clear();
  idle_.clear();
}

}  // namespace onegru
