// A GRU or AUGRU node in a session of ONNX Runtime.

#ifndef ONEGRU_NATIVE_RUNTIMES_GRU_KERNEL_H_
#define ONEGRU_NATIVE_RUNTIMES_GRU_KERNEL_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "native/runtimes/ort_api.h"

namespace onegru {

// The options of a session.
struct Options {
  std::size_t threads = 0;  // 0: onegru's own number
  bool reference = false;   // the observer computes
  std::optional<ElementType> weight_storage;
  std::size_t planes = 2;     // of inputs of products with weights in int8
  std::int64_t observer = 0;  // the session's number for the observer; 0: not observed
  const ort::Logger* logger = nullptr;
};

// The kernel of the node of `info`; the caller owns it. `api`, `options` and `kind` must outlive it.
ort::Status* MakeGruKernel(const Api& api, const Options& options, const OnnxOperator& kind,
                           const ort::KernelInfo* info, ort::Kernel** kernel);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_RUNTIMES_GRU_KERNEL_H_
