// Products of bfloat16 inputs and weights. Sums are bitwise identical on every CPU, with AMX or multiply-adds.
//
// A sum adds its inputs in blocks of kInputsPerBlock, with zeros after the last input. In a block, the products of even
// and of odd inputs are two chains of fused multiply-adds in float32:
//
//   even = fma(x[2i], w[2i], even)    odd = fma(x[2i + 1], w[2i + 1], odd)    sum = sum + (even + odd)
//
// All three begin at 0. The sum is then added to the bias, or to the products with x. Subnormal operands and results
// are zero. Measurements show that AMX's TDPBF16PS computes this way; AVX-512's VDPBF16PS does not.
//
// Inputs are rounded to nearest even. A row is stored in float32, so that a multiply-add can broadcast an input without
// conversion, and then, for AMX, in bfloat16.

#include <cstring>

#include "hwy/highway.h"
#include "native/kernel.h"
#include "native/kernels/products/int8-inl.h"
#include "native/kernels/products/multiply-inl.h"
#include "native/kernels/products/tile-inl.h"

#if defined(ONEGRU_NATIVE_KERNELS_PRODUCTS_BFLOAT16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_PRODUCTS_BFLOAT16_INL_H_
#undef ONEGRU_NATIVE_KERNELS_PRODUCTS_BFLOAT16_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_PRODUCTS_BFLOAT16_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {
namespace hn = hwy::HWY_NAMESPACE;

// Returns the part of a rounded row of K inputs that AMX reads.
inline const unsigned char* InputsForAmx(const unsigned char* row, size_t K) {
  return row + RoundUpTo(kInputsPerBlock, K) * sizeof(float);
}

// Loads the first `count` elements of a vector, followed by zeros.
template <class D>
HWY_INLINE hn::Vec<D> LoadFirst(D d, const float* from, size_t count) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2  // reads no other elements
  return hn::MaskedLoad(hn::FirstN(d, count), d, from);
#else
  HWY_ALIGN float elements[hn::MaxLanes(D())] = {};
  std::memcpy(elements, from, count * sizeof(float));
  return hn::Load(d, elements);
#endif
}

// Rounds the K elements of x to bfloat16 in `row`.
template <class S>
HWY_NOINLINE void RoundRow(const float* x, size_t K, unsigned char* row) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> d32;
  const hn::Rebind<std::uint16_t, decltype(d)> d16;
  constexpr size_t kLanes = hn::MaxLanes(d);
  auto* const to = reinterpret_cast<std::uint32_t*>(row);
  auto* const to_amx = reinterpret_cast<std::uint16_t*>(const_cast<unsigned char*>(InputsForAmx(row, K)));
  const auto round = [&](auto bits, size_t k) HWY_ATTR {
    const auto last = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
    const auto rounded = hn::Add(bits, hn::Add(last, hn::Set(d32, 0x7fffu)));
    const auto is_nan = hn::Gt(hn::And(bits, hn::Set(d32, 0x7fffffffu)), hn::Set(d32, 0x7f800000u));
    const auto quiet = hn::Or(bits, hn::Set(d32, 0x00400000u));
    const auto brain = hn::And(hn::IfThenElse(is_nan, quiet, rounded), hn::Set(d32, 0xffff0000u));
    hn::StoreU(brain, d32, to + k);
    if constexpr (kHasAmx<S>) hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(brain)), d16, to_amx + k);
  };
  const size_t in_vectors = K / kLanes * kLanes, stored_K = RoundUpTo(kInputsPerBlock, K);
  for (size_t k = 0; k < in_vectors; k += kLanes) round(hn::BitCast(d32, hn::LoadU(d, x + k)), k);
  size_t done = in_vectors;
  if (in_vectors != K) {
    round(hn::BitCast(d32, LoadFirst(d, x + in_vectors, K - in_vectors)), in_vectors);
    done += kLanes;
  }
  for (; done < stored_K; done += kLanes) {
    hn::StoreU(hn::Zero(d32), d32, to + done);
    if constexpr (kHasAmx<S>) hn::StoreU(hn::Zero(d16), d16, to_amx + done);
  }
}

// Computes sums[row][panel * kGates + gate], vectors in memory: the products of rows of K rounded inputs with panels of
// packed weights.
template <size_t kRows, size_t kPanels, size_t kGates, class D, class Width>
HWY_INLINE void MultiplyRounded(D d, size_t K, const float* const (&x)[kRows],
                                const StoredBFloat16* const (&w)[kPanels], Width width, float* HWY_RESTRICT sums) {
  using V = hn::Vec<D>;
  constexpr size_t kVectors = kPanels * kGates, kLanes = hn::MaxLanes(D()), kVectorsOfTile = kRows * kVectors;
  // Whether both chains fit into registers. Otherwise they run one after the other, which reads the weights twice.
  constexpr bool kTogether = 2 * kVectorsOfTile <= kMaxSums;
  HWY_ALIGN float evens[kTogether ? 1 : kVectorsOfTile * kLanes];
  if (HWY_UNLIKELY(K == 0)) std::memset(sums, 0, kVectorsOfTile * kLanes * sizeof(float));
  for (size_t k = 0; k < K; k += kInputsPerBlock) {
    const size_t end = HWY_MIN(k + kInputsPerBlock, K);
    V even[kRows][kVectors], odd[kRows][kVectors];
    const auto clear = [&](V(&chains)[kRows][kVectors]) HWY_ATTR __attribute__((always_inline)) {
#pragma GCC unroll 32
      for (size_t i = 0; i < kVectorsOfTile; ++i) chains[i / kVectors][i % kVectors] = hn::Zero(d);
    };
    if constexpr (kTogether) {
      clear(even);
      clear(odd);
      for (size_t i = k; i < end; i += 2) {
        AddInput<PairLane::kFirst, kGates>(d, x, w, i, width, even);
        AddInput<PairLane::kSecond, kGates>(d, x, w, i + 1, width, odd);
      }
    } else {
      clear(even);
      for (size_t i = k; i < end; i += 2) AddInput<PairLane::kFirst, kGates>(d, x, w, i, width, even);
#pragma GCC unroll 32
      for (size_t i = 0; i < kVectorsOfTile; ++i) hn::Store(even[i / kVectors][i % kVectors], d, evens + i * kLanes);
      clear(odd);
      for (size_t i = k; i < end; i += 2) AddInput<PairLane::kSecond, kGates>(d, x, w, i + 1, width, odd);
    }
    const auto add_to = [&](auto before) HWY_ATTR __attribute__((always_inline)) {
#pragma GCC unroll 32
      for (size_t i = 0; i < kVectorsOfTile; ++i) {
        const size_t r = i / kVectors, v = i % kVectors;
        V first = even[r][v];
        if constexpr (!kTogether) first = hn::Load(d, evens + i * kLanes);
        hn::Store(hn::Add(before(i), hn::Add(first, odd[r][v])), d, sums + i * kLanes);
      }
    };
    if (k == 0) {
      add_to([&](size_t) HWY_ATTR { return hn::Zero(d); });
    } else {
      add_to([&](size_t i) HWY_ATTR { return hn::Load(d, sums + i * kLanes); });
    }
  }
}

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
