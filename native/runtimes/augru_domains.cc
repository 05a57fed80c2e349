#include "native/runtimes/augru_domains.h"

#include <cstring>

namespace onegru {
namespace {

constexpr std::size_t kRequiredInputs = 3, kInputs = 7, kOutputs = 2;  // X, W and R are required

}  // namespace

AugruDomains::AugruDomains(const Api& api) : api_(api), node_{} {
  node_.version = api.version;
  node_.GetName = [](const ort::CustomOp*) { return kAugru.name; };
  // No provider has this name. A session finds no kernel here, and uses that of the provider that claimed the node.
  node_.GetExecutionProviderType = [](const ort::CustomOp*) { return kAugru.domain; };
  node_.GetInputTypeCount = [](const ort::CustomOp*) { return kInputs; };
  node_.GetOutputTypeCount = [](const ort::CustomOp*) { return kOutputs; };
  // The kernel checks types. Here, outputs get the type of the last input, which is A.
  node_.GetInputType = [](const ort::CustomOp*, std::size_t) { return ort::kAnyType; };
  node_.GetOutputType = [](const ort::CustomOp*, std::size_t) { return ort::kAnyType; };
  node_.GetInputCharacteristic = [](const ort::CustomOp*, std::size_t index) {
    return index < kRequiredInputs ? ort::kRequired : ort::kOptional;
  };
  node_.GetOutputCharacteristic = [](const ort::CustomOp*, std::size_t) { return ort::kOptional; };
  node_.GetInputMemoryType = [](const ort::CustomOp*, std::size_t) { return 0; };
  try {
    for (const OnnxOperator& kind : kOnnxOperators) {
      if (std::strcmp(kind.name, kAugru.name) != 0) continue;
      domains_.push_back(nullptr);
      api.Check(ort::CreateCustomOpDomain(api.api, kind.domain, &domains_.back()));
      api.Check(ort::CustomOpDomain_Add(api.api, domains_.back(), &node_));
    }
  } catch (...) {
    Release();
    throw;
  }
}

AugruDomains::~AugruDomains() { Release(); }

void AugruDomains::Release() noexcept {
  for (ort::CustomOpDomain* const domain : domains_)
    if (domain != nullptr) ort::ReleaseCustomOpDomain(api_.api, domain);
}

}  // namespace onegru
