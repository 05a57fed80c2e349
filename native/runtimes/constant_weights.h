// Weights of GRU nodes that do not change from run to run though they are no plain constants. Those that nodes make of
// constants, such as DequantizeLinear, Unsqueeze or Cast, are computed once, as the session is made, by ONNX Runtime's
// own kernels; the nodes have nothing to do in a run once every GRU node has packed the results. Defaults of inputs are
// what a caller may replace, and are known by their memory.

#ifndef ONEGRU_NATIVE_RUNTIMES_CONSTANT_WEIGHTS_H_
#define ONEGRU_NATIVE_RUNTIMES_CONSTANT_WEIGHTS_H_

#include <atomic>
#include <cstddef>
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

// A weight that nodes make of constants.
struct ComputedWeight {
  ValueHandle value;            // null once no one reads it any more
  std::set<std::string> users;  // inputs of GRU nodes
  std::set<std::string> taken;  // those whose nodes have packed it
  bool is_ambiguous = false;    // another input has the same names, so they cannot be distinguished

  bool IsNeeded() const { return is_ambiguous || taken.size() != users.size(); }
};

class ConstantWeights {
 public:
  explicit ConstantWeights(const Api& api) : api_(api) {}

  // The operators whose results are constants where they take nothing else.
  static std::span<const char* const> Carriers();

  // Computes the weights that the nodes of a graph make, and returns those of these nodes that need not run.
  //
  // is_gru: whether the provider runs a node, as a GRU.
  std::vector<const ort::Node*> Add(const ort::Graph* graph, bool (*is_gru)(const Api&, const ort::Node*));

  // What a GRU node's input takes; null if that is no such weight.
  //
  // key: of the input, by KeyOf.
  std::shared_ptr<ComputedWeight> Find(const std::string& key) const;

  // Whether an input's default is at this address. No other tensor can be there while this object exists.
  bool IsDefault(const void* memory) const { return defaults_.contains(memory); }

  // A kernel for one of the nodes that need not run.
  ort::Status* MakeKernel(const ort::KernelInfo* info, ort::Kernel** kernel) const;

  // Frees constants without readers. Called after all kernels of the session were created.
  void Finish();

  // What tells an input of a GRU node from others: the names of its value and of the node's outputs.
  static std::string KeyOf(const std::string& value, const std::vector<std::string>& outputs);

  // An output of a node that need not run.
  struct Output {
    std::vector<std::int64_t> shape;
    std::shared_ptr<ComputedWeight> weight;  // null if only other such nodes take it
  };
  struct Idle {
    std::vector<Output> outputs;
    std::vector<std::shared_ptr<ComputedWeight>> weights;  // all that are made of its outputs

    bool IsNeeded() const {
      for (const auto& weight : weights)
        if (weight->IsNeeded()) return true;
      return false;
    }
  };

 private:
  class Pass;

  const Api& api_;
  std::map<std::string, std::shared_ptr<ComputedWeight>> users_;          // null: of an input that takes none
  std::multimap<std::string, std::shared_ptr<ComputedWeight>> computed_;  // by names, which bodies may share
  std::map<std::string, std::shared_ptr<Idle>> idle_;                     // by the names of their outputs
  std::map<const void*, ValueHandle> defaults_;
  std::atomic_flag is_finished_;
};

}  // namespace onegru

#endif  // ONEGRU_NATIVE_RUNTIMES_CONSTANT_WEIGHTS_H_
