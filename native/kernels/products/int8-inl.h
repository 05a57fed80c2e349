// Products with int8 matrices: integer inputs, and 32-bit sums that are exact in any order.
//
// An input x of a row is q times the row's scale. With one plane, q is an int8 in ±127. With two, q = 128·hi + lo is in
// ±127·128; the planes hi and lo are int8, and each has its own sum. A product is then
//
//   (scale of the row · scale of the channel) · sum        with two planes, sum = 128·(sum of hi) + (sum of lo)
//
// in float32, with each operation rounded separately. The row's scale is NaN if an input is not finite.
//
// Some targets multiply pairs of 16-bit words in one instruction, but not quads of bytes. There, q of two planes is a
// word: one 32-bit sum of q·w replaces those of both planes, in half the time. With up to kMaxInWords inputs, |q·w·K| ≤
// 127·128·127·1040 < 2^31, and each plane's sum is ≤ 127·127·1040 < 2^24, which is exact in float32, so the bits are
// the same. If a sum has more inputs, hi and lo are separate words.

#include <cstring>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
#include "native/kernel.h"
#include "native/kernels/products/arithmetic-inl.h"
#include "native/kernels/products/multiply-inl.h"

#if defined(ONEGRU_NATIVE_KERNELS_PRODUCTS_INT8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_PRODUCTS_INT8_INL_H_
#undef ONEGRU_NATIVE_KERNELS_PRODUCTS_INT8_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_PRODUCTS_INT8_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {
namespace hn = hwy::HWY_NAMESPACE;

// int8 storage, for inputs with kPlanes planes.
template <size_t kPlanes>
struct Int8 {
  std::int8_t q;
};

// The number of planes of inputs for matrices stored as S; 0 if inputs have the compute type.
template <class S>
inline constexpr size_t kPlanesOf = 0;
template <size_t kPlanes>
inline constexpr size_t kPlanesOf<Int8<kPlanes>> = kPlanes;
template <class S>
inline constexpr bool kIsInt8 = kPlanesOf<S> != 0;
// Whether inputs with two planes are words.
#undef ONEGRU_WORDS
#if !ONEGRU_VNNI && (HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4)
#define ONEGRU_WORDS 1
#else
#define ONEGRU_WORDS 0
#endif
template <class S>
inline constexpr bool kInWords = ONEGRU_WORDS && kPlanesOf<S> == 2;
// The number of simultaneous sums of a row of inputs for each channel.
template <class S>
inline constexpr size_t kSumsPerGateOf = kIsInt8<S> && !kInWords<S> ? kPlanesOf<S> : 1;

// Whether rows of inputs are converted to another format for their products.
template <class S>
inline constexpr bool kConvertsInputs = kIsInt8<S> || kIsRounded<S>;

// Whether kernels for matrices stored as S can use AMX.
#if !ONEGRU_AMX || HWY_TARGET != HWY_AVX3
template <class S>
inline constexpr bool kHasAmx = false;
#elif ONEGRU_VNNI
template <class S>
inline constexpr bool kHasAmx = kConvertsInputs<S>;
#else
template <class S>
inline constexpr bool kHasAmx = kIsRounded<S>;
#endif

// VNNI multiplies unsigned by signed values, so 128 is added to inputs. The channels' corrections compensate for it.
#if ONEGRU_VNNI
inline constexpr int kInputOffset = 128;
#else
inline constexpr int kInputOffset = 0;
#endif

// --- AddQuads: sum[i] + the products of the four int8 of x[i] and w[i], where w may be -128, too

#if ONEGRU_VNNI
#undef ONEGRU_DPBUSD_256
#undef ONEGRU_DPBUSD_128
#if HWY_TARGET == HWY_AVX3 || ONEGRU_VNNI_AS_EVEX
#define ONEGRU_DPBUSD_256 _mm256_dpbusd_epi32
#define ONEGRU_DPBUSD_128 _mm_dpbusd_epi32
#else
#define ONEGRU_DPBUSD_256 _mm256_dpbusd_avx_epi32
#define ONEGRU_DPBUSD_128 _mm_dpbusd_avx_epi32
#endif
#if HWY_TARGET == HWY_AVX3
HWY_INLINE hn::Vec512<std::int32_t> AddQuads(hn::Vec512<std::int32_t> sum, hn::Vec512<std::int32_t> x,
                                             hn::Vec512<std::int32_t> w) {
  return hn::Vec512<std::int32_t>{_mm512_dpbusd_epi32(sum.raw, x.raw, w.raw)};
}
#endif
HWY_INLINE hn::Vec256<std::int32_t> AddQuads(hn::Vec256<std::int32_t> sum, hn::Vec256<std::int32_t> x,
                                             hn::Vec256<std::int32_t> w) {
  return hn::Vec256<std::int32_t>{ONEGRU_DPBUSD_256(sum.raw, x.raw, w.raw)};
}
HWY_INLINE hn::Vec128<std::int32_t> AddQuads(hn::Vec128<std::int32_t> sum, hn::Vec128<std::int32_t> x,
                                             hn::Vec128<std::int32_t> w) {
  return hn::Vec128<std::int32_t>{ONEGRU_DPBUSD_128(sum.raw, x.raw, w.raw)};
}
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4
// Multiplies |w| by x with the sign of w. The sum of two products of at most 128 · 127 fits into 16 bits.
HWY_INLINE hn::Vec128<std::int32_t> AddQuads(hn::Vec128<std::int32_t> sum, hn::Vec128<std::int32_t> x,
                                             hn::Vec128<std::int32_t> w) {
  const __m128i pairs = _mm_maddubs_epi16(_mm_abs_epi8(w.raw), _mm_sign_epi8(x.raw, w.raw));
  return hn::Vec128<std::int32_t>{_mm_add_epi32(sum.raw, _mm_madd_epi16(pairs, _mm_set1_epi16(1)))};
}
#if HWY_TARGET != HWY_SSE4
HWY_INLINE hn::Vec256<std::int32_t> AddQuads(hn::Vec256<std::int32_t> sum, hn::Vec256<std::int32_t> x,
                                             hn::Vec256<std::int32_t> w) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w.raw), _mm256_sign_epi8(x.raw, w.raw));
  return hn::Vec256<std::int32_t>{_mm256_add_epi32(sum.raw, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
}
#endif
#if HWY_TARGET == HWY_AVX3
HWY_INLINE hn::Vec512<std::int32_t> AddQuads(hn::Vec512<std::int32_t> sum, hn::Vec512<std::int32_t> x,
                                             hn::Vec512<std::int32_t> w) {
  const __m512i with_sign = _mm512_mask_sub_epi8(x.raw, _mm512_movepi8_mask(w.raw), _mm512_setzero_si512(), x.raw);
  const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(w.raw), with_sign);
  return hn::Vec512<std::int32_t>{_mm512_add_epi32(sum.raw, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
}
#endif
#elif HWY_ARCH_ARM_A64 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_INLINE hn::Vec128<std::int32_t> AddQuads(hn::Vec128<std::int32_t> sum, hn::Vec128<std::int32_t> x,
                                             hn::Vec128<std::int32_t> w) {
  const int8x16_t a = vreinterpretq_s8_s32(x.raw), b = vreinterpretq_s8_s32(w.raw);
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
  const int32x4_t high = vpaddlq_s16(vmull_high_s8(a, b));
  return hn::Vec128<std::int32_t>(vaddq_s32(sum.raw, vpaddq_s32(low, high)));
}
#else
template <class V>
HWY_INLINE V AddQuads(V sum, V x, V w) {
  const auto product = [](V a, V b) HWY_ATTR { return hn::Mul(hn::ShiftRight<24>(a), hn::ShiftRight<24>(b)); };
  sum = hn::Add(sum, product(hn::ShiftLeft<24>(x), hn::ShiftLeft<24>(w)));
  sum = hn::Add(sum, product(hn::ShiftLeft<16>(x), hn::ShiftLeft<16>(w)));
  sum = hn::Add(sum, product(hn::ShiftLeft<8>(x), hn::ShiftLeft<8>(w)));
  return hn::Add(sum, product(x, w));
}
#endif

// --- rows of inputs

// Returns a plane of a row of K inputs. The planes follow the row's scale.
inline const unsigned char* PlaneOf(const unsigned char* row, size_t K, size_t plane) {
  return row + kQuantizedHeader + plane * QuantizedPlane(K);
}

// Returns whether the planes of a row are separate words, because a sum (of all inputs or a group) has too many.
inline bool IsSplit(const Spec& spec, size_t K) {
  return K > kMaxInWords && (spec.group == 0 || spec.group > kMaxInWords);
}

inline float ScaleOf(const unsigned char* row) {
  float scale;
  std::memcpy(&scale, row, sizeof(scale));
  return scale;
}

// The largest magnitude of a row of states that counts as 1: rounding can make states slightly larger than 1.
inline constexpr float kUnit = 1 + 0x1p-20f;

#if ONEGRU_WORDS
// Stores integers as words. Four inputs are in the order 0, 2, 1, 3, in which the weights' bytes are paired.
HWY_INLINE void StoreWords(hn::Vec128<std::int32_t> q, unsigned char* to) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_shufflelo_epi16(_mm_packs_epi32(q.raw, q.raw), 0xd8));
}
#if HWY_TARGET != HWY_SSE4
HWY_INLINE void StoreWords(hn::Vec256<std::int32_t> q, unsigned char* to) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(q.raw, q.raw), 0xd8);
  const __m128i both = _mm_shufflehi_epi16(_mm_shufflelo_epi16(_mm256_castsi256_si128(words), 0xd8), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), both);
}
#endif
#if HWY_TARGET == HWY_AVX3
HWY_INLINE void StoreWords(hn::Vec512<std::int32_t> q, unsigned char* to) {
  const __m256i words = _mm512_cvtsepi32_epi16(q.raw);
  const __m256i all = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), all);
}
#endif
#endif

// Quantizes the K elements of x to `row`, scaled by the largest magnitude. is_state: the range is at least 1, because
// states rarely exceed 1. is_bounded: no element exceeds 1, but elements may be NaN. is_split: the result of IsSplit.
template <size_t kPlanes>
HWY_NOINLINE void QuantizeRow(const float* x, size_t K, bool is_state, bool is_bounded, [[maybe_unused]] bool is_split,
                              unsigned char* row) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<std::int8_t, decltype(d)> d8;
  constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<float>());
  constexpr float kRange = kPlanes == 1 ? 127 : 127 * 128;
  constexpr float kMagic = 0x1.8p23f;  // adding it rounds to an integer
  const size_t in_vectors = K / kLanes * kLanes;
  HWY_ALIGN float tail[kLanes] = {};
  if (in_vectors != K) std::memcpy(tail, x + in_vectors, (K - in_vectors) * sizeof(float));

  // The bits of magnitudes, as integers, are ordered like floats; infinity and NaN are the largest.
  auto most = hn::Zero(di);
  const auto update_max = [&](auto numbers) HWY_ATTR { most = hn::Max(most, hn::BitCast(di, hn::Abs(numbers))); };
  const auto is_finite = [&]() HWY_ATTR {
    if (hn::GetLane(hn::MaxOfLanes(di, most)) < 0x7f800000) return true;
    const float scale = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(row, &scale, sizeof(scale));
    std::memset(row + kQuantizedHeader, kInputOffset, QuantizedRow(kPlanes, K) - kQuantizedHeader);
    return false;
  };
  float range = 1;
  if (!is_bounded) {
    update_max(hn::Load(d, tail));
    for (size_t k = 0; k < in_vectors; k += kLanes) update_max(hn::LoadU(d, x + k));
    if (!is_finite()) return;
    const std::int32_t bits = hn::GetLane(hn::MaxOfLanes(di, most));
    std::memcpy(&range, &bits, sizeof(range));
    range = is_state ? (range > kUnit ? range : 1) : HWY_MAX(range, kMinRange);
  }
  const float scale = range / kRange;
  std::memcpy(row, &scale, sizeof(scale));

  auto* const planes = reinterpret_cast<std::int8_t*>(row + kQuantizedHeader);
  const auto factor = hn::Set(d, kRange / range), high = hn::Set(d, kRange), low = hn::Set(d, -kRange);
  const auto quantize_and_store = [&](auto numbers, size_t k) HWY_ATTR {
    update_max(numbers);
    const auto bounded = hn::Min(hn::Max(hn::Mul(numbers, factor), low), high);
    const auto q = hn::Sub(hn::BitCast(di, hn::Add(bounded, hn::Set(d, kMagic))), hn::Set(di, 0x4b400000));
    const auto store = [&](auto plane, std::int8_t* to) HWY_ATTR {
      if constexpr (kInputOffset == 0) {
        hn::StoreU(hn::DemoteTo(d8, plane), d8, to);
      } else {  // adding 128 to a byte flips its highest bit
        hn::StoreU(hn::Xor(hn::DemoteTo(d8, plane), hn::Set(d8, -128)), d8, to);
      }
    };
    if constexpr (kPlanes == 1) {
      store(q, planes + k);
#if ONEGRU_WORDS
    } else if constexpr (kInWords<Int8<kPlanes>>) {
      unsigned char* const to = row + kQuantizedHeader + 2 * k;
      if (HWY_LIKELY(!is_split)) return StoreWords(q, to);
      const auto hi = hn::ShiftRight<7>(hn::Add(q, hn::Set(di, 64)));
      StoreWords(hi, to);
      StoreWords(hn::Sub(q, hn::ShiftLeft<7>(hi)), to + 2 * QuantizedPlane(K));
#endif
    } else {
      const auto hi = hn::ShiftRight<7>(hn::Add(q, hn::Set(di, 64)));
      store(hi, planes + k);
      store(hn::Sub(q, hn::ShiftLeft<7>(hi)), planes + QuantizedPlane(K) + k);
    }
  };
  for (size_t k = 0; k < in_vectors; k += kLanes) quantize_and_store(hn::LoadU(d, x + k), k);
  if (in_vectors != K) quantize_and_store(hn::Load(d, tail), in_vectors);
  const size_t stored_K = RoundUpTo(kQuad, K);
  if constexpr (kLanes < kQuad) {
    for (size_t k = K; k < stored_K; ++k) quantize_and_store(hn::Zero(d), k);
  }
  if constexpr (kHasAmx<Int8<kPlanes>>) {
    const size_t plane = QuantizedPlane(K);
    for (size_t p = 0; p < kPlanes; ++p) std::memset(planes + p * plane + stored_K, 0, plane - stored_K);
  }
  is_finite();
}

// --- products

// Keeps a loop's sum in its register. GCC would store it in each iteration if registers are scarce after the loop.
template <class V>
HWY_INLINE void KeepInRegister([[maybe_unused]] V& sum) {
#if HWY_ARCH_X86 && HWY_COMPILER_GCC_ACTUAL  // Clang checks "+v" against the flags of the whole unit
#if HWY_TARGET == HWY_AVX3
  asm("" : "+v"(sum.raw));
#elif HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  asm("" : "+x"(sum.raw));
#endif
#endif
}

// Forces the value at `place` to stay in memory. GCC would otherwise keep it in registers.
template <class T>
HWY_INLINE void KeepInMemory([[maybe_unused]] T*& place) {
#if !defined(_MSC_VER)
  asm("" : "+r"(place));
#endif
}

// Adds the products of a plane of a row and a panel's gate to sums[row * kPlanes + plane][panel * kGates + gate].
//
// quads: K / 4, rounded up. rows: the planes. panels, width: as for Multiply.
template <size_t kRows, size_t kPanels, size_t kGates, class D, class Width, class V>
HWY_INLINE void MultiplyQuads(D d, size_t quads, const unsigned char* const (&rows)[kRows],
                              const std::int8_t* const (&panels)[kPanels], Width width,
                              V (&sums)[kRows][kPanels * kGates]) {
  for (size_t k = 0; k < quads; ++k) {
    V weights[kPanels * kGates];
#pragma GCC unroll 16
    for (size_t p = 0; p < kPanels; ++p) {
      const size_t units = p + 1 < kPanels ? size_t{hn::MaxLanes(D())} : size_t{width};
#pragma GCC unroll 4
      for (size_t g = 0; g < kGates; ++g) {
        const std::int8_t* const from = panels[p] + (k * kGates + g) * units * kQuad;
        weights[p * kGates + g] = hn::LoadU(d, reinterpret_cast<const std::int32_t*>(from));
      }
    }
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      std::int32_t quad;
      std::memcpy(&quad, rows[r] + k * kQuad, sizeof(quad));
      const V input = hn::Set(d, quad);
#pragma GCC unroll 16
      for (size_t v = 0; v < kPanels * kGates; ++v) sums[r][v] = AddQuads(sums[r][v], input, weights[v]);
    }
  }
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (size_t v = 0; v < kPanels * kGates; ++v) KeepInRegister(sums[r][v]);
  }
}

#if ONEGRU_WORDS
// Returns sum + the products of pairs of words.
HWY_INLINE hn::Vec128<std::int32_t> AddPairs(hn::Vec128<std::int32_t> sum, hn::Vec128<std::int32_t> x,
                                             hn::Vec128<std::int32_t> w) {
  return hn::Vec128<std::int32_t>{_mm_add_epi32(sum.raw, _mm_madd_epi16(x.raw, w.raw))};
}
#if HWY_TARGET != HWY_SSE4
HWY_INLINE hn::Vec256<std::int32_t> AddPairs(hn::Vec256<std::int32_t> sum, hn::Vec256<std::int32_t> x,
                                             hn::Vec256<std::int32_t> w) {
  return hn::Vec256<std::int32_t>{_mm256_add_epi32(sum.raw, _mm256_madd_epi16(x.raw, w.raw))};
}
#endif
#if HWY_TARGET == HWY_AVX3
HWY_INLINE hn::Vec512<std::int32_t> AddPairs(hn::Vec512<std::int32_t> sum, hn::Vec512<std::int32_t> x,
                                             hn::Vec512<std::int32_t> w) {
  return hn::Vec512<std::int32_t>{_mm512_add_epi32(sum.raw, _mm512_madd_epi16(x.raw, w.raw))};
}
#endif

// MultiplyQuads for rows of words.
template <size_t kRows, size_t kPanels, size_t kGates, class D, class Width, class V>
HWY_INLINE void MultiplyWords(D d, size_t quads, const unsigned char* const (&rows)[kRows],
                              const std::int8_t* const (&panels)[kPanels], Width width,
                              V (&sums)[kRows][kPanels * kGates]) {
  const hn::Repartition<std::int16_t, D> d16;
  const auto add = [&](size_t k, auto is_odd) HWY_ATTR __attribute__((always_inline)) {
    V inputs[kRows];
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      std::int32_t pair;
      std::memcpy(&pair, rows[r] + 2 * k * kQuad + (is_odd ? sizeof(pair) : 0), sizeof(pair));
      inputs[r] = hn::Set(d, pair);
    }
#pragma GCC unroll 16
    for (size_t v = 0; v < kPanels * kGates; ++v) {
      const size_t p = v / kGates, units = p + 1 < kPanels ? size_t{hn::MaxLanes(D())} : size_t{width};
      const std::int8_t* const from = panels[p] + (k * kGates + v % kGates) * units * kQuad;
      const auto bytes = hn::BitCast(d16, hn::LoadU(d, reinterpret_cast<const std::int32_t*>(from)));
      const V weights = hn::BitCast(d, hn::ShiftRight<8>(is_odd ? bytes : hn::ShiftLeft<8>(bytes)));
#pragma GCC unroll 16
      for (size_t r = 0; r < kRows; ++r) sums[r][v] = AddPairs(sums[r][v], inputs[r], weights);
    }
  };
  for (size_t k = 0; k < quads; ++k) {
    add(k, std::false_type());  // by parity, so that inputs stay in registers
    add(k, std::true_type());
  }
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (size_t v = 0; v < kPanels * kGates; ++v) KeepInRegister(sums[r][v]);
  }
}
#endif

// Returns the sum of both planes.
template <class D, class V>
HWY_INLINE V JoinPlanes(D d, V hi, V lo) {
  return MultiplyAdd(hi, hn::Set(d, 128.0f), lo);
}

// Returns to + scale · (vector v of a row's sums, over all planes).
template <size_t kPlanes, class D, class V, class Sums>
HWY_INLINE V AddScaled(D d, V scale, const Sums* sums, size_t v, V to) {
  V sum = hn::ConvertTo(d, sums[0][v]);
  if constexpr (kPlanes == 2) sum = JoinPlanes(d, sum, hn::ConvertTo(d, sums[1][v]));
  return MultiplyAdd(scale, sum, to);
}

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
