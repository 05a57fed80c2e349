// The gradients of a chunk of steps: backward-inl.h has the equations. Included once for each SIMD target.

#include "hwy/highway.h"
#include "native/gradients.h"
#include "native/kernels/backward-inl.h"
#include "native/kernels/gemm-inl.h"
#include "native/kernels/weight_gradients-inl.h"

#if defined(ONEGRU_NATIVE_KERNELS_GRADIENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_GRADIENTS_INL_H_
#undef ONEGRU_NATIVE_KERNELS_GRADIENTS_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_GRADIENTS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {
namespace hn = hwy::HWY_NAMESPACE;

template <class C>
void RunRows(const GradientChunk& chunk, size_t first_slot, size_t last_slot, unsigned char* scratch) {
  GradientsOfRows<C>(chunk, first_slot, last_slot, scratch).Run();
}

template <class C>
size_t ScratchOfRows(const GradientChunk& chunk, size_t slots) {
  return RowsScratch<C>(chunk, slots, nullptr).bytes;
}

template <class C>
constexpr GradientKernel MakeGradientKernel() {
  return {hn::MaxLanes(hn::ScalableTag<C>()),
          &PackedColumns<C>,
          &PackColumns<C>,
          &RunRows<C>,
          &ScratchOfRows<C>,
          &ScratchOfWeights<C>,
          &GradientsOfWeights<C>};
}

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
