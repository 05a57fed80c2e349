// Weights of GRU nodes that DequantizeLinear nodes make of constants. ONNX Runtime runs these nodes in every run; here
// they are computed once, as the session is made, and run no more once every GRU node has packed their results.

#ifndef ONEGRU_NATIVE_RUNTIMES_DEQUANTIZED_H_
#define ONEGRU_NATIVE_RUNTIMES_DEQUANTIZED_H_

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

// The result of one such node.
struct Dequantized {
  std::vector<float> numbers;
  std::vector<std::int64_t> shape;         // of the node's output
  std::vector<std::int64_t> weight_shape;  // of the GRU nodes' input: a Reshape may lie in between
  std::string weight;                      // the name of that input
  std::size_t uses = 0;                    // inputs of GRU nodes
  std::atomic<std::size_t> taken = 0;      // those whose nodes have packed it

  bool IsNeeded() const { return taken < uses; }
};

class DequantizedWeights {
 public:
  explicit DequantizedWeights(const Api& api) : api_(api) {}

  // Computes the weights of a graph, and returns the nodes that this stands for.
  //
  // grus: its GRU nodes that the provider runs.
  std::vector<const ort::Node*> Add(const ort::Graph* graph, std::span<const ort::Node* const> grus);

  // The weight with this name; null if no DequantizeLinear node made it. Call Take once it has been packed.
  std::shared_ptr<Dequantized> Find(const std::string& weight) const;
  static void Take(Dequantized& found);

  // A kernel for DequantizeLinear.
  ort::Status* MakeKernel(const ort::KernelInfo* info, ort::Kernel** kernel) const;

 private:
  const Api& api_;
  std::map<std::string, std::shared_ptr<Dequantized>> weights_;  // by the names of the nodes' outputs
  std::set<std::string> nested_;  // names of weights in the bodies of other nodes, which may be others of that name
};

}  // namespace onegru

#endif  // ONEGRU_NATIVE_RUNTIMES_DEQUANTIZED_H_
