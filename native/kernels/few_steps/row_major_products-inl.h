// Products of a few rows with row-major weights. Included once for each SIMD target.
//
// With fewer rows than lanes in a vector, each product is summed per lane, and then over the lanes. Otherwise, each
// lane has a row and accumulates its sum in the order of k.

#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "native/kernels/products/arithmetic-inl.h"
#include "native/memory_pool.h"
#include "native/packing/pack_matrix.h"

#if defined(ONEGRU_NATIVE_KERNELS_FEW_STEPS_ROW_MAJOR_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_FEW_STEPS_ROW_MAJOR_PRODUCTS_INL_H_
#undef ONEGRU_NATIVE_KERNELS_FEW_STEPS_ROW_MAJOR_PRODUCTS_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_FEW_STEPS_ROW_MAJOR_PRODUCTS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {
namespace hn = hwy::HWY_NAMESPACE;

// Memory for the duration of a call, aligned for full vectors.
template <class C>
class ScratchMemory {
 public:
  explicit ScratchMemory(size_t count, bool zeroed = false)
      : bytes_(AllocatePooled(HWY_MAX(count, 1) * sizeof(C), zeroed)) {}
  C* get() const { return reinterpret_cast<C*>(bytes_.get()); }

 private:
  PooledBytes bytes_;
};

// The number of batch rows that share each load of weights, limited by the registers for their sums.
inline constexpr size_t kRowsOfFewSteps = HWY_TARGET <= HWY_AVX3 ? 8 : 4;

// Load or store the first `count` elements of a vector, or all if `count` is larger. No others are accessed.
template <class D, class C = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> LoadPart(D d, const C* from, size_t count) {
  if (count >= hn::Lanes(d)) return hn::LoadU(d, from);
#if HWY_TARGET <= HWY_AVX2
  return hn::MaskedLoad(hn::FirstN(d, count), d, from);
#else
  HWY_ALIGN C part[hn::MaxLanes(D())] = {};
  std::memcpy(part, from, count * sizeof(C));
  return hn::Load(d, part);
#endif
}

template <class D, class C = hn::TFromD<D>>
HWY_INLINE void StorePart(hn::Vec<D> v, D d, C* to, size_t count) {
  if (count >= hn::Lanes(d)) return hn::StoreU(v, d, to);
#if HWY_TARGET <= HWY_AVX2
  hn::BlendedStore(v, hn::FirstN(d, count), d, to);
#else
  HWY_ALIGN C part[hn::MaxLanes(D())];
  hn::Store(v, d, part);
  std::memcpy(to, part, count * sizeof(C));
#endif
}

// Returns the sums over the lanes of kCount vectors, in the first lanes of one vector. Each sum is a tree over
// neighbours, so it does not depend on kCount.
template <size_t kCount, size_t kWidth, class D, class V = hn::Vec<D>>
HWY_INLINE V SumsOfLanes([[maybe_unused]] D d, const V (&v)[kCount]) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kWidth > 1) {
    V halves[(kCount + 1) / 2];
    for (size_t i = 0; i < (kCount + 1) / 2; ++i) {
      const V low = v[2 * i], high = v[HWY_MIN(2 * i + 1, kCount - 1)];
      halves[i] = hn::Add(hn::ConcatEven(d, high, low), hn::ConcatOdd(d, high, low));
    }
    return SumsOfLanes<(kCount + 1) / 2, kWidth / 2>(d, halves);
  }
#endif
  return v[0];
}

// Computes to[r][m] = M[m] · x[r] for kUnits rows of a matrix [rows, K]. x is padded with zeros to full vectors.
template <size_t kRows, size_t kUnits, class D, class C = hn::TFromD<D>>
HWY_INLINE void MultiplyRows(D d, const C* M, const C* end, size_t K, size_t m, const C* x, size_t stride_x, C* to,
                             size_t stride_to) {
  using V = hn::Vec<D>;
  const size_t lanes = hn::Lanes(d);
  V sums[kUnits][kRows];
  for (auto& unit : sums) {
    for (V& sum : unit) sum = hn::Zero(d);
  }
  size_t k = 0;
  for (; k + lanes <= K; k += lanes) {
    V row[kUnits];
    for (size_t u = 0; u < kUnits; ++u) row[u] = hn::LoadU(d, M + (m + u) * K + k);
    for (size_t r = 0; r < kRows; ++r) {
      const V v = hn::LoadU(d, x + r * stride_x + k);
      for (size_t u = 0; u < kUnits; ++u) sums[u][r] = MultiplyAdd(row[u], v, sums[u][r]);
    }
  }
  if (k < K) {  // another row follows each row of weights except the last
    const auto mask = hn::FirstN(d, K - k);
    for (size_t u = 0; u < kUnits; ++u) {
      const C* const from = M + (m + u) * K + k;
      V row;
      if (from + lanes <= end) {
        row = hn::IfThenElseZero(mask, hn::LoadU(d, from));
      } else {
        HWY_ALIGN C last[hn::MaxLanes(D())] = {};
        std::memcpy(last, from, (K - k) * sizeof(C));
        row = hn::Load(d, last);
      }
      for (size_t r = 0; r < kRows; ++r) {
        sums[u][r] = MultiplyAdd(row, hn::LoadU(d, x + r * stride_x + k), sums[u][r]);
      }
    }
  }
  constexpr size_t kLanes = hn::MaxLanes(D()), kAtOnce = HWY_MIN(kRows, kLanes);
  HWY_ALIGN C row_sums[kLanes];
  for (size_t u = 0; u < kUnits; ++u) {
    for (size_t first = 0; first < kRows; first += kAtOnce) {
      V some[kAtOnce];
      for (size_t r = 0; r < kAtOnce; ++r) some[r] = sums[u][first + r];
      hn::Store(SumsOfLanes<kAtOnce, kLanes>(d, some), d, row_sums);
      for (size_t r = 0; r < kAtOnce; ++r) to[(first + r) * stride_to + m + u] = row_sums[r];
    }
  }
}

template <size_t kRows, class C>
HWY_NOINLINE void Multiply(const C* M, const C* end, size_t K, size_t first, size_t last, const C* x, size_t stride_x,
                           C* to, size_t stride_to) {
  const hn::ScalableTag<C> d;
  constexpr size_t kUnits = kRows == 1 ? 6 : kRows == 2 ? 4 : 3;
  size_t m = first;
  for (; m + kUnits <= last; m += kUnits) {
    MultiplyRows<kRows, kUnits>(d, M, end, K, m, x, stride_x, to, stride_to);
  }
  for (; m < last; ++m) MultiplyRows<kRows, 1>(d, M, end, K, m, x, stride_x, to, stride_to);
}

// Calls f<kRows>(first) for all rows, the largest kRows first.
template <class F>
void ForRows(size_t rows, F&& f) {
  size_t at = 0;
  if constexpr (kRowsOfFewSteps == 8) {
    for (; at + 8 <= rows; at += 8) f.template operator()<8>(at);
  }
  for (; at + 4 <= rows; at += 4) f.template operator()<4>(at);
  for (; at + 2 <= rows; at += 2) f.template operator()<2>(at);
  for (; at < rows; ++at) f.template operator()<1>(at);
}

// --- lanes are rows

// The most rows of a matrix, and vectors of batch rows, in a tile: their sums fit into the registers.
inline constexpr size_t kUnitsOfTile = HWY_TARGET <= HWY_AVX3 ? 12 : 4;
inline constexpr size_t kVectorsOfTile = HWY_TARGET <= HWY_AVX3 ? 2 : 3;

// Returns the number of vectors for `rows` rows.
template <class C>
size_t VectorsOf(size_t rows) {
  const size_t lanes = hn::Lanes(hn::ScalableTag<C>());
  return (rows + lanes - 1) / lanes;
}

// Copies a block of rows to lanes, [K][vectors·lanes], with zeros after the last row.
template <class C>
void RowsToLanes(const C* x, size_t stride, size_t rows, size_t K, C* to) {
  const size_t width = VectorsOf<C>(rows) * hn::Lanes(hn::ScalableTag<C>());
  size_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const C* const from = x + r * stride;
    size_t k = 0;
    for (; k + 4 <= K; k += 4) Transpose4(from + k, stride, to + k * width + r, width);
    for (; k < K; ++k) {
      for (size_t i = 0; i < 4; ++i) to[k * width + r + i] = from[i * stride + k];
    }
  }
  for (; r < width; ++r) {
    for (size_t k = 0; k < K; ++k) to[k * width + r] = r < rows ? x[r * stride + k] : C{0};
  }
}

// Computes to[r][m + u] = M[m + u] · x[r] for kUnits rows of a matrix [rows, K] and a block of `count` rows x.
template <size_t kUnits, size_t kVectors, class D, class C = hn::TFromD<D>>
HWY_INLINE void MultiplyLanes(D d, const C* M, size_t K, size_t m, const C* x, size_t count, C* to, size_t stride_to) {
  using V = hn::Vec<D>;
  const size_t lanes = hn::Lanes(d);
  V sums[kUnits][kVectors];
  for (auto& unit : sums) {
    for (V& sum : unit) sum = hn::Zero(d);
  }
  const C* const rows = M + m * K;
  for (size_t k = 0; k < K; ++k) {
    V v[kVectors];
    for (size_t i = 0; i < kVectors; ++i) v[i] = hn::LoadU(d, x + (k * kVectors + i) * lanes);
    for (size_t u = 0; u < kUnits; ++u) {
      const V weight = hn::Set(d, rows[u * K + k]);
      for (size_t i = 0; i < kVectors; ++i) sums[u][i] = MultiplyAdd(weight, v[i], sums[u][i]);
    }
  }
  constexpr size_t kWidth = kVectors * hn::MaxLanes(D());
  HWY_ALIGN C tile[kUnits * kWidth];
  for (size_t u = 0; u < kUnits; ++u) {
    for (size_t i = 0; i < kVectors; ++i) hn::StoreU(sums[u][i], d, tile + u * kWidth + i * lanes);
  }
  size_t r = 0;
  if constexpr (kUnits % 4 == 0) {
    for (; r + 4 <= count; r += 4) {
      for (size_t u = 0; u < kUnits; u += 4) {
        Transpose4(tile + u * kWidth + r, kWidth, to + r * stride_to + m + u, stride_to);
      }
    }
  }
  for (; r < count; ++r) {
    for (size_t u = 0; u < kUnits; ++u) to[r * stride_to + m + u] = tile[u * kWidth + r];
  }
}

// Multiplies kUnits rows of a matrix, from row m on, by all rows x. RowsToLanes has divided x into blocks, all of
// kVectorsOfTile vectors except the last.
template <size_t kUnits, class C>
HWY_NOINLINE void MultiplyBlocks(const C* M, size_t K, size_t m, size_t rows, const C* x, C* to, size_t stride_to) {
  const hn::ScalableTag<C> d;
  const size_t lanes = hn::Lanes(d);
  while (rows != 0) {
    const size_t count = std::min(rows, kVectorsOfTile * lanes), vectors = VectorsOf<C>(count);
    if (vectors == kVectorsOfTile) {
      MultiplyLanes<kUnits, kVectorsOfTile>(d, M, K, m, x, count, to, stride_to);
    } else if (vectors == 1) {
      MultiplyLanes<kUnits, 1>(d, M, K, m, x, count, to, stride_to);
    } else {
      MultiplyLanes<kUnits, 2>(d, M, K, m, x, count, to, stride_to);
    }
    x += K * vectors * lanes;
    to += count * stride_to;
    rows -= count;
  }
}

template <class C>
void MultiplyLanesOfRows(const C* M, size_t K, size_t first, size_t last, size_t rows, const C* x, C* to,
                         size_t stride_to) {
  size_t m = first;
  for (; m + kUnitsOfTile <= last; m += kUnitsOfTile) {
    MultiplyBlocks<kUnitsOfTile>(M, K, m, rows, x, to, stride_to);
  }
  for (; m < last; ++m) MultiplyBlocks<1>(M, K, m, rows, x, to, stride_to);
}

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
