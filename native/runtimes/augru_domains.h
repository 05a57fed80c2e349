// The domains of AUGRU nodes, which a session has to know before it asks any execution provider: it opens no file with
// a node that nobody has told it of. They say what goes in and out; the provider computes.

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

  // As long as this lives.
  const std::vector<ort::CustomOpDomain*>& all() const { return domains_; }

 private:
  void Release() noexcept;

  const Api api_;
  ort::CustomOp node_;  // of each domain
  std::vector<ort::CustomOpDomain*> domains_;
};

}  // namespace onegru

#endif  // ONEGRU_NATIVE_RUNTIMES_AUGRU_DOMAINS_H_
