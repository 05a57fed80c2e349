// Defines ONEGRU_GRADIENT_KERNEL and ONEGRU_FEW_STEPS_KERNEL: the kernels for gradients and few steps that compute in
// ONEGRU_COMPUTED, once for each SIMD target. Each gradients_*.cc includes it once for each target, so it has no guard.
// backward-inl.h has the equations.

#include "hwy/foreach_target.h"  // before highway.h: it chooses the target that highway.h sets up

#include "hwy/highway.h"
#include "native/gradients.h"
#include "native/kernels/training/backward-inl.h"
#include "native/kernels/few_steps/gradients-inl.h"
#include "native/kernels/training/gemm-inl.h"
#include "native/kernels/training/weight_gradients-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {

template <class C>
void RunRows(const GradientChunk& chunk, size_t first_slot, size_t last_slot, unsigned char* scratch) {
  GradientsOfRows<C>(chunk, first_slot, last_slot, scratch).Run();
}

template <class C>
size_t ScratchOfRows(const GradientChunk& chunk, size_t slots) {
  return RowsScratch<C>(chunk, slots, nullptr).bytes;
}

constexpr GradientKernel kGradients = {hn::MaxLanes(hn::ScalableTag<ONEGRU_COMPUTED>()),
                                       &PackedColumns<ONEGRU_COMPUTED>,
                                       &PackColumns<ONEGRU_COMPUTED>,
                                       &RunRows<ONEGRU_COMPUTED>,
                                       &ScratchOfRows<ONEGRU_COMPUTED>,
                                       &ScratchOfWeights<ONEGRU_COMPUTED>,
                                       &GradientsOfWeights<ONEGRU_COMPUTED>};
constexpr FewStepsKernel kFewSteps = MakeFewStepsKernel<ONEGRU_COMPUTED>();

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "native/targets/target_list.h"

namespace onegru {

const GradientKernel& ONEGRU_GRADIENT_KERNEL(std::size_t target) {
#define ONEGRU_ENTRY(ns, bit, name) &ns::kGradients,
  static constexpr const GradientKernel* kTable[] = {ONEGRU_FOR_EACH_TARGET(ONEGRU_ENTRY)};
#undef ONEGRU_ENTRY
  return *kTable[target];
}

const FewStepsKernel& ONEGRU_FEW_STEPS_KERNEL(std::size_t target) {
#define ONEGRU_ENTRY(ns, bit, name) &ns::kFewSteps,
  static constexpr const FewStepsKernel* kTable[] = {ONEGRU_FOR_EACH_TARGET(ONEGRU_ENTRY)};
#undef ONEGRU_ENTRY
  return *kTable[target];
}

}  // namespace onegru

#endif  // HWY_ONCE
