// The interface to Python, which inspects GRU nodes in ONNX Runtime sessions, issues their warnings, or computes them.

#ifndef ONEGRU_NATIVE_RUNTIMES_OBSERVER_H_
#define ONEGRU_NATIVE_RUNTIMES_OBSERVER_H_

#include <cstdint>
#include <span>
#include <string>

#include "native/runtimes/onnx_gru.h"

namespace onegru {

// An input or output of a node.
struct Port {
  const char* name;
  Tensor tensor;
  bool is_lengths;
};

enum class Moment {
  kWeights,  // W, R and B were packed: when the node was created if they are constants, otherwise in a run
  kCompute,  // the observer must compute the outputs
  kDone,     // the outputs are written
};

// If a function throws, the session fails.
class Observer {
 public:
  // Reports an attribute without effect, or an avoidable cost.
  virtual void Warn(const std::string& message) = 0;
  virtual void See(std::int64_t session, Moment moment, const std::string& node, const OnnxOperator& kind,
                   const OnnxGruAttributes& attributes, std::span<const Port> ports) = 0;

 protected:
  ~Observer() = default;
};

// A process has at most one observer, which is never destroyed.
void SetObserver(Observer* observer);
Observer* TheObserver();

}  // namespace onegru

#endif  // ONEGRU_NATIVE_RUNTIMES_OBSERVER_H_
