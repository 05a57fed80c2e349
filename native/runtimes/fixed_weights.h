// Weights of GRU nodes that are not constants, but do not change from run to run. Nodes such as DequantizeLinear,
// Unsqueeze or Cast compute them from constants. ONNX Runtime's kernels compute them once, when a session is created.
// After all GRU nodes have packed the results, the nodes are idle. Others are defaults of inputs, which a caller may
// replace: their address identifies them.

#ifndef ONEGRU_NATIVE_RUNTIMES_FIXED_WEIGHTS_H_
#define ONEGRU_NATIVE_RUNTIMES_FIXED_WEIGHTS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "native/runtimes/ort_api.h"

namespace onegru {

using ValueHandle = std::shared_ptr<ort::Value>;

// A weight that nodes compute from constants.
struct ComputedWeight {
  ValueHandle value;             // null after all readers have packed it
  std::set<std::string> users;   // inputs of GRU nodes
  std::set<std::string> packed;  // users whose nodes have packed it
  bool is_ambiguous = false;     // another input has the same key

  bool IsNeeded() const { return is_ambiguous || packed.size() != users.size(); }
};

class FixedWeights {
 public:
  explicit FixedWeights(const Api& api) : api_(api) {}

  // Returns the operators whose results are constant if all their inputs are.
  static std::span<const char* const> Carriers();

  // Computes the weights of a graph's GRU nodes, and returns the idle nodes.
  //
  // is_gru: whether the provider runs a node as a GRU.
  std::vector<const ort::Node*> Add(const ort::Graph* graph, bool (*is_gru)(const Api&, const ort::Node*));

  // Returns the computed weight of a GRU node's input, or null. key: from KeyOf.
  std::shared_ptr<ComputedWeight> Find(const std::string& key) const;

  // Whether an input's default has this address. No other tensor can have it during the lifetime of this object.
  bool IsDefault(const void* memory) const { return defaults_.contains(memory); }

  // Creates a kernel for an idle node.
  ort::Status* MakeKernel(const ort::KernelInfo* info, ort::Kernel** kernel) const;

  // Frees weights without readers. Call it after all kernels of the session have been created.
  void Finish();

  // Returns the key of a GRU node's input: the names of its value and of the node's outputs.
  static std::string KeyOf(const std::string& value, const std::vector<std::string>& outputs);

  // An output of an idle node.
  struct Output {
    std::vector<std::int64_t> shape;
    std::shared_ptr<ComputedWeight> weight;  // null if only idle nodes use it
  };
  struct Idle {
    std::vector<Output> outputs;
    std::vector<std::shared_ptr<ComputedWeight>> weights;  // all that depend on its outputs

    bool IsNeeded() const {
      for (const auto& weight : weights)
        if (weight->IsNeeded()) return true;
      return false;
    }
  };

 private:
  class Pass;

  const Api& api_;
  std::map<std::string, std::shared_ptr<ComputedWeight>> users_;          // by key; null: an input without one
  std::multimap<std::string, std::shared_ptr<ComputedWeight>> computed_;  // by name, which subgraphs may share
  std::map<std::string, std::shared_ptr<Idle>> idle_;                     // by the names of its outputs
  std::map<const void*, ValueHandle> defaults_;
  std::atomic_flag is_finished_;
};

}  // namespace onegru

#endif  // ONEGRU_NATIVE_RUNTIMES_FIXED_WEIGHTS_H_
