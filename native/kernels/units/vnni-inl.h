// Defines ONEGRU_KERNEL: the kernels for matrices stored as ONEGRU_STORED, for AVX3 with AVX-512 VNNI and, if the
// compiler supports it, AVX2 with AVX-VNNI. Highway's targets with VNNI require features that some CPUs lack.
// Included once for each target, and compiled for these two.

#define ONEGRU_ARITHMETIC separate_vnni
#define ONEGRU_COMPUTED float

#include "hwy/foreach_target.h"  // before highway.h: it chooses the target that highway.h sets up

#include "hwy/highway.h"
#include "native/kernel.h"

#undef ONEGRU_VNNI
#if HWY_TARGET == HWY_AVX3 || (HWY_TARGET == HWY_AVX2 && ONEGRU_AVX_VNNI)
#define ONEGRU_VNNI 1

// Clang's immintrin.h omits some headers for clang-cl. highway.h has included those that they need.
#include <immintrin.h>
#undef HWY_TARGET_STR
#if HWY_TARGET == HWY_AVX3
#define HWY_TARGET_STR HWY_TARGET_STR_AVX3 ",avx512vnni"
#if HWY_COMPILER_CLANGCL
#include <avx512vnniintrin.h>
#include <avx512vlvnniintrin.h>
#endif
#elif ONEGRU_VNNI_AS_EVEX
#define HWY_TARGET_STR HWY_TARGET_STR_AVX2 ",avx512vl,avx512vnni"
#else
#define HWY_TARGET_STR HWY_TARGET_STR_AVX2 ",avxvnni"
#include <avxvnniintrin.h>
#endif

#endif  // HWY_TARGET == HWY_AVX3 || …

#include "native/kernels/sequence-inl.h"  // for each target, because its guard counts them

#if ONEGRU_VNNI

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {

constexpr Kernel kKernel = MakeKernel<float, ONEGRU_STORED>();

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // ONEGRU_VNNI

#if HWY_ONCE

#include "native/targets/targets.h"

namespace onegru {

const Kernel& ONEGRU_KERNEL([[maybe_unused]] std::size_t target) {
#if ONEGRU_ONLY_VNNI
  return HWY_STATIC_DISPATCH(kKernel);
#else
#if HWY_TARGETS & HWY_AVX3
  if (CompiledTargets()[target].bit == HWY_AVX3) return N_AVX3::kKernel;
#endif
#if HWY_TARGETS & HWY_AVX2 && ONEGRU_AVX_VNNI
  if (CompiledTargets()[target].bit == HWY_AVX2) return N_AVX2::kKernel;
#endif
  return ONEGRU_ELSE(target);
#endif
}

}  // namespace onegru

#endif  // HWY_ONCE
