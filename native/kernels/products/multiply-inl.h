// Products of rows of inputs with panels of packed weights, accumulated in registers.
//
// Each output is one sum, in the order of k, of fused multiply-adds. A tile only determines how many sums run in
// parallel, so results are bitwise identical for every tile, and on every target with FMA.

#include <type_traits>

#include "hwy/highway.h"
#include "native/kernels/products/arithmetic-inl.h"
#include "native/packing/packed.h"

#if defined(ONEGRU_NATIVE_KERNELS_PRODUCTS_MULTIPLY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_PRODUCTS_MULTIPLY_INL_H_
#undef ONEGRU_NATIVE_KERNELS_PRODUCTS_MULTIPLY_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_PRODUCTS_MULTIPLY_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {
namespace hn = hwy::HWY_NAMESPACE;

// 16-bit storage types, which distinguish the meaning of the bits.
struct StoredFloat16 {
  std::uint16_t bits;
};
struct StoredBFloat16 {
  std::uint16_t bits;
};
// bfloat16 matrices with inputs rounded to bfloat16; see bfloat16-inl.h.
struct StoredRoundedBFloat16 {
  std::uint16_t bits;
};
template <class S>
inline constexpr bool kIsRounded = std::is_same_v<S, StoredRoundedBFloat16>;

template <class D>
HWY_INLINE hn::Vec<D> LoadWeights(D d, const hn::TFromD<D>* from) {
  return hn::LoadU(d, from);
}

template <class D>
HWY_INLINE hn::Vec<D> LoadWeights(D d, const StoredBFloat16* from) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

// Whether the target has instructions that convert float16.
#undef ONEGRU_CONVERTS_FLOAT16
#define ONEGRU_CONVERTS_FLOAT16 (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON)
inline constexpr bool kConvertsFloat16 = ONEGRU_CONVERTS_FLOAT16;

template <class D>
HWY_INLINE hn::Vec<D> LoadWeights(D d, const StoredFloat16* from) {
#if ONEGRU_CONVERTS_FLOAT16
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
#else
  // After the shift, the exponent is off by 112. A multiplication corrects it, also for subnormals.
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  const auto bits = hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from)));
  const auto magnitude = hn::And(bits, hn::Set(d32, 0x7fffu));
  const auto sign = hn::ShiftLeft<16>(hn::Sub(bits, magnitude));
  const auto finite = hn::Mul(hn::BitCast(d, hn::ShiftLeft<13>(magnitude)), hn::Set(d, 0x1p112f));
  const auto special = hn::BitCast(d, hn::Or(hn::ShiftLeft<13>(magnitude), hn::Set(d32, 0x7f800000u)));
  const auto is_special = hn::Gt(hn::BitCast(d, magnitude), hn::BitCast(d, hn::Set(d32, 0x7bffu)));
  const auto value = hn::IfThenElse(is_special, special, finite);
  return hn::BitCast(d, hn::Or(hn::BitCast(d32, value), sign));
#endif
}

// The position of input k in its bfloat16 pair. kUnpaired: k has no pair, as in all other types, or is the last of an
// odd number.
enum class PairLane { kFirst, kSecond, kUnpaired };

// Loads the weights of input k for one of kGates gates; see packed.h.
template <PairLane kLane, size_t kGates, class D, class S>
HWY_INLINE hn::Vec<D> WeightsOf(D d, const S* panel, size_t k, size_t gate, size_t units) {
  if constexpr (!std::is_same_v<S, StoredBFloat16> || kLane == PairLane::kUnpaired) {
    return LoadWeights(d, panel + (k * kGates + gate) * units);
  } else {
    const hn::RebindToUnsigned<D> d32;
    constexpr size_t kPlace = kLane == PairLane::kSecond ? 1 : 0;
    const auto* const pairs =
        reinterpret_cast<const std::uint32_t*>(panel + ((k - kPlace) * kGates + 2 * gate) * units);
    const auto both = hn::LoadU(d32, pairs);
    if constexpr (kLane == PairLane::kFirst) return hn::BitCast(d, hn::ShiftLeft<16>(both));
    return hn::BitCast(d, hn::And(both, hn::Set(d32, 0xffff0000u)));
  }
}

// The units of a full panel, as a constant, so that address offsets are constant.
template <class D>
using FullWidth = std::integral_constant<size_t, hn::MaxLanes(D())>;

// Adds x[row][k] · the weights of input k in each panel and gate to sums[row][panel * kGates + gate].
template <PairLane kLane, size_t kGates, size_t kRows, size_t kPanels, class D, class S, class Width, class V>
HWY_INLINE void AddInput(D d, const hn::TFromD<D>* const (&x)[kRows], const S* const (&w)[kPanels], size_t k,
                         Width width, V (&sums)[kRows][kPanels * kGates]) {
  constexpr size_t kVectors = kPanels * kGates;
  const auto weights_of = [&](size_t v) HWY_ATTR {
    const size_t p = v / kGates, units = p + 1 < kPanels ? size_t{FullWidth<D>::value} : size_t{width};
    return WeightsOf<kLane, kGates>(d, w[p], k, v % kGates, units);
  };
  // The smaller set, inputs or weights, stays in registers while the other is loaded one by one. With 12 sums, 16
  // registers have room for three and one. With four and one, the compiler keeps sums in memory, which takes twice as
  // long.
  if constexpr (kRows < kVectors) {
    V inputs[kRows];
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) inputs[r] = hn::Set(d, x[r][k]);
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) {
      const V weights = weights_of(v);
#pragma GCC unroll 16
      for (size_t r = 0; r < kRows; ++r) sums[r][v] = MultiplyAdd(inputs[r], weights, sums[r][v]);
    }
  } else {
    V weights[kVectors];
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) weights[v] = weights_of(v);
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      const V input = hn::Set(d, x[r][k]);
#pragma GCC unroll 16
      for (size_t v = 0; v < kVectors; ++v) sums[r][v] = MultiplyAdd(input, weights[v], sums[r][v]);
    }
  }
}

// Adds inputs[row] · the gate of each panel to sums[row][panel * kGates + gate].
//
// inputs: rows of K elements. panels: the first weights of each panel. width: the units of the last panel, a variable
// or FullWidth; the panels before it are full.
template <size_t kRows, size_t kPanels, size_t kGates, class D, class S, class Width, class V = hn::Vec<D>>
HWY_INLINE void Multiply(D d, size_t K, const hn::TFromD<D>* const* inputs, const S* const* panels, Width width,
                         V (&sums)[kRows][kPanels * kGates]) {
  const hn::TFromD<D>* x[kRows];
  const S* w[kPanels];
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) x[r] = inputs[r];
#pragma GCC unroll 16
  for (size_t p = 0; p < kPanels; ++p) w[p] = panels[p];
  size_t k = 0;
  if constexpr (std::is_same_v<S, StoredBFloat16>) {
#pragma GCC unroll 2
    for (; k < K / 2 * 2; k += 2) {
      AddInput<PairLane::kFirst, kGates>(d, x, w, k, width, sums);
      AddInput<PairLane::kSecond, kGates>(d, x, w, k + 1, width, sums);
    }
    if constexpr (kRows > 1) {  // at most one is left; for a single row, the loop below is faster
      if (k < K) AddInput<PairLane::kUnpaired, kGates>(d, x, w, k, width, sums);
      return;
    }
  }
  if constexpr (std::is_same_v<S, StoredFloat16> && !kConvertsFloat16) {  // the conversion is slow anyway
    for (; k < K; ++k) AddInput<PairLane::kUnpaired, kGates>(d, x, w, k, width, sums);
  } else {
#pragma GCC unroll 4
    for (; k < K; ++k) AddInput<PairLane::kUnpaired, kGates>(d, x, w, k, width, sums);
  }
}

// AddInput for a narrow panel, whose three gates are adjacent in memory and fill one or two vectors.
// sums[row][v]: vector v of the 3·width sums of a row.
template <PairLane kLane, size_t kRows, size_t kVectors, class D, class S, class V>
HWY_INLINE void AddJoint(D d, const hn::TFromD<D>* const (&x)[kRows], const S* panel, size_t k, size_t units,
                         V (&sums)[kRows][kVectors]) {
  constexpr size_t kEach =
      hn::MaxLanes(D()) * (std::is_same_v<S, StoredBFloat16> && kLane != PairLane::kUnpaired ? 2 : 1);
  V weights[kVectors];
#pragma GCC unroll 2
  for (size_t v = 0; v < kVectors; ++v) weights[v] = WeightsOf<kLane, 1>(d, panel + v * kEach, k, 0, units);
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
    const V input = hn::Set(d, x[r][k]);
#pragma GCC unroll 2
    for (size_t v = 0; v < kVectors; ++v) sums[r][v] = MultiplyAdd(input, weights[v], sums[r][v]);
  }
}

template <size_t kRows, size_t kVectors, class D, class S, class V = hn::Vec<D>>
HWY_INLINE void MultiplyJoint(D d, size_t K, const hn::TFromD<D>* const* inputs, const S* panel, size_t width,
                              V (&sums)[kRows][kVectors]) {
  const hn::TFromD<D>* x[kRows];
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) x[r] = inputs[r];
  size_t k = 0;
  if constexpr (std::is_same_v<S, StoredBFloat16>) {
    for (; k < K / 2 * 2; k += 2) {
      AddJoint<PairLane::kFirst>(d, x, panel, k, 3 * width, sums);
      AddJoint<PairLane::kSecond>(d, x, panel, k + 1, 3 * width, sums);
    }
    if (k < K) AddJoint<PairLane::kUnpaired>(d, x, panel, k, 3 * width, sums);
    return;
  }
#pragma GCC unroll 4
  for (; k < K; ++k) AddJoint<PairLane::kUnpaired>(d, x, panel, k, 3 * width, sums);
}

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
