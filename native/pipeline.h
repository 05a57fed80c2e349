// Runs a stack of layers on several threads. While one thread computes a chunk of steps of a layer, another thread
// computes the previous chunk of the layer above.

#ifndef ONEGRU_NATIVE_PIPELINE_H_
#define ONEGRU_NATIVE_PIPELINE_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "native/kernel.h"

namespace onegru {

// A forward layer, and its call over all steps: without lengths, with a state in the compute type. Only the first has X
// and only the last has Y, because each layer reads the outputs of the layer below.
struct StackedLayer {
  std::shared_ptr<const Packed> packed;
  Call call;
};

// Returns the number of threads that run the layers fastest; 1 if a pipeline is slower than running the layers one
// after another. T and B are those of all calls.
std::size_t PipelineThreads(const std::vector<StackedLayer>& layers);

// Runs all layers, unless `token` cancels the call.
void RunPipeline(const std::vector<StackedLayer>& layers, std::size_t threads, CancellationToken* token);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_PIPELINE_H_
