// Custom operator domains that declare the inputs and outputs of AUGRU nodes. ONNX Runtime rejects a file with unknown
// operators before it asks any execution provider. The provider computes the nodes.

#ifndef ONEGRU_NATIVE_RUNTIMES_AUGRU_DOMAINS_H_
#define ONEGRU_NATIVE_RUNTIMES_AUGRU_DOMAINS_H_

#include <vector>

#include "native/runtimes/ort_api.h"

namespace onegru {

class AugruDomains {
 public:
  explicit AugruDomains(const Api& api);
  ~AugruDomains();
  AugruDomains(const AugruDomains&) = delete;
  AugruDomains& operator=(const AugruDomains&) = delete;

  // Valid for the lifetime of this object.
  const std::vector<ort::CustomOpDomain*>& all() const { return domains_; }

 private:
  void Release() noexcept;

  const Api api_;
  ort::CustomOp node_;  // the operator of all domains
  std::vector<ort::CustomOpDomain*> domains_;
};

}  // namespace onegru

#endif  // ONEGRU_NATIVE_RUNTIMES_AUGRU_DOMAINS_H_
