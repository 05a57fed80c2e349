// ONEGRU_KERNEL: the kernels for matrices stored as ONEGRU_STORED, for the target AVX3 and VNNI, which Highway has in
// no target that all CPUs with it run. Included once for each target, and compiled for that one.

#define ONEGRU_ARITHMETIC separate_vnni
#define ONEGRU_VNNI 1

#include "hwy/foreach_target.h"  // before highway.h: it chooses the target that highway.h sets up

#include "hwy/highway.h"
#include "native/kernel.h"

#if HWY_TARGET == HWY_AVX3

#undef HWY_TARGET_STR
#define HWY_TARGET_STR HWY_TARGET_STR_AVX3 ",avx512vnni"

#include "native/kernels/sequence-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {

constexpr Kernel kKernels[2] = {MakeKernel<float, ONEGRU_STORED, false>(), MakeKernel<float, ONEGRU_STORED, true>()};

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET == HWY_AVX3

#if HWY_ONCE

namespace onegru {

const Kernel& ONEGRU_KERNEL(bool linear_before_reset, [[maybe_unused]] std::size_t target) {
#if HWY_TARGETS & HWY_AVX3
  return N_AVX3::kKernels[linear_before_reset];
#else
  return ONEGRU_ELSE(linear_before_reset, target);
#endif
}

}  // namespace onegru

#endif  // HWY_ONCE
