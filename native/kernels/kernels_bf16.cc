// The kernels for matrices stored as BFloat16, once for each SIMD target.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "native/kernels/kernels_bf16.cc"
#include "hwy/foreach_target.h"  // before highway.h: it chooses the target that highway.h sets up

#include "hwy/highway.h"
#include "native/kernels/sequence-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {

constexpr Kernel kBFloat16[2] = {MakeKernel<float, Brain, false>(), MakeKernel<float, Brain, true>()};

}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "native/targets/target_list.h"

namespace onegru {

const Kernel& BFloat16Kernel(bool linear_before_reset, std::size_t target) {
#define ONEGRU_ENTRY(ns, bit, name) ns::kBFloat16,
  static constexpr const Kernel* kTable[] = {ONEGRU_FOR_EACH_TARGET(ONEGRU_ENTRY)};
#undef ONEGRU_ENTRY
  return kTable[target][linear_before_reset];
}

}  // namespace onegru

#endif  // HWY_ONCE
