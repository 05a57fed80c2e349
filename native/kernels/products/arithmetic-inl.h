// The multiply-adds of each set of kernels.
//
// Kernels with float weights use fused multiply-adds with one rounding, so results are bitwise identical on all targets
// with FMA. Kernels with int8 weights round twice, so targets with and without FMA agree. The two sets are in separate
// namespaces, which each .cc file selects before its includes.

#include "hwy/highway.h"

#if defined(ONEGRU_NATIVE_KERNELS_PRODUCTS_ARITHMETIC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_PRODUCTS_ARITHMETIC_INL_H_
#undef ONEGRU_NATIVE_KERNELS_PRODUCTS_ARITHMETIC_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_PRODUCTS_ARITHMETIC_INL_H_
#endif

#ifndef ONEGRU_ARITHMETIC
#define ONEGRU_ARITHMETIC fused
#define ONEGRU_IS_FUSED 1
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {
namespace hn = hwy::HWY_NAMESPACE;

// Returns a·b + c.
template <class V>
HWY_INLINE V MultiplyAdd(V a, V b, V c) {
#if ONEGRU_IS_FUSED
  return hn::MulAdd(a, b, c);
#else
  return hn::Add(hn::Mul(a, b), c);
#endif
}

// Returns c - a·b.
template <class V>
HWY_INLINE V NegMultiplyAdd(V a, V b, V c) {
#if ONEGRU_IS_FUSED
  return hn::NegMulAdd(a, b, c);
#else
  return hn::Sub(c, hn::Mul(a, b));
#endif
}

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
