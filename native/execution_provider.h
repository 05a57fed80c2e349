// The execution provider for ONNX Runtime: it has every GRU node of a session run here. The library that holds
// this is registered there; it exports CreateEpFactories and ReleaseEpFactory.

#ifndef ONEGRU_NATIVE_EXECUTION_PROVIDER_H_
#define ONEGRU_NATIVE_EXECUTION_PROVIDER_H_

#include <cstdint>
#include <span>
#include <string>

#include "native/onnx_gru.h"

namespace onegru {

// An input or output of a node.
struct Port {
  const char* name;
  Tensor tensor;
  bool is_lengths;
};

enum class Moment {
  kWeights,  // the node is made, its weights are constants: W, R, B
  kCompute,  // the outputs are to be written, as the engine is another
  kDone,     // the outputs are written
};

// Somebody who looks at the nodes of sessions, or runs them. It throws what a session is to fail with.
class Observer {
 public:
  virtual void See(std::int64_t session, Moment moment, const std::string& node, int version,
                   const OnnxGruAttributes& attributes, std::span<const Port> ports) = 0;

 protected:
  ~Observer() = default;
};
void SetObserver(Observer* observer);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_EXECUTION_PROVIDER_H_
