// The float64 kernels for gradients and short calls, once for each SIMD target.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "native/kernels/gradients_f64.cc"
#include "hwy/foreach_target.h"  // before highway.h: it chooses the target that highway.h sets up

#include "hwy/highway.h"
#include "native/kernels/few_steps_gradients-inl.h"
#include "native/kernels/gradients-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {

constexpr GradientKernel kGradients = MakeGradientKernel<double>();
constexpr FewStepsKernel kFewSteps = MakeFewStepsKernel<double>();

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "native/targets/target_list.h"

namespace onegru {

const GradientKernel& Float64GradientKernel(std::size_t target) {
#define ONEGRU_ENTRY(ns, bit, name) &ns::kGradients,
  static constexpr const GradientKernel* kTable[] = {ONEGRU_FOR_EACH_TARGET(ONEGRU_ENTRY)};
#undef ONEGRU_ENTRY
  return *kTable[target];
}

const FewStepsKernel& Float64FewSteps(std::size_t target) {
#define ONEGRU_ENTRY(ns, bit, name) &ns::kFewSteps,
  static constexpr const FewStepsKernel* kTable[] = {ONEGRU_FOR_EACH_TARGET(ONEGRU_ENTRY)};
#undef ONEGRU_ENTRY
  return *kTable[target];
}

}  // namespace onegru

#endif  // HWY_ONCE
