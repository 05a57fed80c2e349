// Defines ONEGRU_KERNEL: the kernels that compute in ONEGRU_COMPUTED on matrices stored as ONEGRU_STORED, once for each
// SIMD target. Each kernels_*.cc includes it once for each target, so it has no guard.

#include "hwy/foreach_target.h"  // before highway.h: it chooses the target that highway.h sets up

#include "hwy/highway.h"
#include "native/kernels/sequence-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {

constexpr Kernel kKernel = MakeKernel<ONEGRU_COMPUTED, ONEGRU_STORED>();

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "native/targets/target_list.h"

namespace onegru {

const Kernel& ONEGRU_KERNEL(std::size_t target) {
#define ONEGRU_ENTRY(ns, bit, name) &ns::kKernel,
  static constexpr const Kernel* kTable[] = {ONEGRU_FOR_EACH_TARGET(ONEGRU_ENTRY)};
#undef ONEGRU_ENTRY
  return *kTable[target];
}

}  // namespace onegru

#endif  // HWY_ONCE
