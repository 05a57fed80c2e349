// The weight gradients: sums over rows and steps of products of dz, dr, dn, dq with x and h. Included once for each
// SIMD target.

#include <cstring>

#include "hwy/highway.h"
#include "native/gradients.h"
#include "native/kernels/products/multiply-inl.h"

#if defined(ONEGRU_NATIVE_KERNELS_TRAINING_WEIGHT_GRADIENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_TRAINING_WEIGHT_GRADIENTS_INL_H_
#undef ONEGRU_NATIVE_KERNELS_TRAINING_WEIGHT_GRADIENTS_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_TRAINING_WEIGHT_GRADIENTS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {
namespace hn = hwy::HWY_NAMESPACE;

// The rows and vectors of a tile. It has a sum for each pair of them, enough to hide the latency of a multiply-add.
inline constexpr size_t kTileRows = kLargeTiles ? 8 : 4;
inline constexpr size_t kTileVectors = 3;
// The entries of a block, whose part of X or h stays in the first-level cache.
inline constexpr size_t kRowsOfBlock = 128;

// Computes to[i][v] += Σ a[entry][i] · b[entry][v] over entries.
template <size_t kRows, size_t kVectors, class D, class C = hn::TFromD<D>>
HWY_INLINE void AddOuter(D d, size_t count, const C* a, const C* b, C* to, size_t stride) {
  constexpr size_t kLanes = hn::MaxLanes(D());
  hn::Vec<D> sums[kRows][kVectors];
#pragma GCC unroll 16
  for (size_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) sums[i][v] = hn::LoadU(d, to + i * stride + v * kLanes);
  }
  for (size_t entry = 0; entry < count; ++entry, a += kTileRows, b += kVectors * kLanes) {
    hn::Vec<D> row[kVectors];
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) row[v] = hn::LoadU(d, b + v * kLanes);
#pragma GCC unroll 16
    for (size_t i = 0; i < kRows; ++i) {
      const auto factor = hn::Set(d, a[i]);
#pragma GCC unroll 4
      for (size_t v = 0; v < kVectors; ++v) sums[i][v] = MultiplyAdd(factor, row[v], sums[i][v]);
    }
  }
#pragma GCC unroll 16
  for (size_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) hn::StoreU(sums[i][v], d, to + i * stride + v * kLanes);
  }
}

// The operands of the sums over entries. Their order in memory is the order of reading, which touches few pages.
template <class C>
class WeightsScratch {
 public:
  WeightsScratch(const GradientChunk& chunk, unsigned char* scratch)
      : padded_(chunk.packed->geometry().padded()),
        tiles_((padded_ + kTileRows - 1) / kTileRows),
        rows_(chunk.rows),
        gates_(reinterpret_cast<C*>(scratch)),
        columns_(gates_ + kGradientGates * tiles_ * kTileRows * rows_) {}

  static size_t Bytes(const GradientChunk& chunk, size_t rows) {
    const size_t padded = chunk.packed->geometry().padded(), tiles = (padded + kTileRows - 1) / kTileRows;
    return (kGradientGates * tiles * kTileRows + kTileVectors * hn::MaxLanes(hn::ScalableTag<C>())) * rows * sizeof(C);
  }

  // Packs the gates' gradients as [gate][tile][entry][kTileRows].
  void PackGates(const GradientChunk& chunk, size_t gates) {
    const C* const from = static_cast<const C*>(chunk.g);
    for (size_t g = 0; g < gates; ++g) {
      for (size_t t = 0; t < tiles_; ++t) {
        const size_t width = HWY_MIN(kTileRows, padded_ - t * kTileRows);
        const C* row = from + g * padded_ + t * kTileRows;
        C* to = gates_ + (g * tiles_ + t) * rows_ * kTileRows;
        for (size_t entry = 0; entry < rows_; ++entry, row += chunk.stride_g, to += kTileRows) {
          std::memcpy(to, row, width * sizeof(C));
        }
      }
    }
  }

  // Packs the rows that begin at row(entry), as [entry][vectors].
  template <class Row>
  void PackColumns(const Row& row, size_t vectors) {
    const hn::ScalableTag<C> d;
    C* to = columns_;
    for (size_t entry = 0; entry < rows_; ++entry) {
      const C* const from = row(entry);
      for (size_t v = 0; v < vectors; ++v, to += hn::MaxLanes(d))
        hn::StoreU(hn::LoadU(d, from + v * hn::MaxLanes(d)), d, to);
    }
  }

  // Adds the sums of a gate to its rows of `to`, in the packed columns.
  HWY_NOINLINE void Add(size_t gate, size_t vectors, C* to, size_t stride) const {
    const hn::ScalableTag<C> d;
    for (size_t begin = 0; begin < rows_; begin += kRowsOfBlock) {
      const size_t some = HWY_MIN(kRowsOfBlock, rows_ - begin);
      const C* const b = columns_ + begin * vectors * hn::MaxLanes(d);
      for (size_t t = 0; t < tiles_; ++t) {
        const C* const a = gates_ + ((gate * tiles_ + t) * rows_ + begin) * kTileRows;
        C* const at = to + t * kTileRows * stride;
        WithRows<1, kTileRows>(HWY_MIN(kTileRows, padded_ - t * kTileRows), [&](auto rows) HWY_ATTR {
          if (vectors == 3) {
            AddOuter<rows, 3>(d, some, a, b, at, stride);
          } else if (vectors == 2) {
            AddOuter<rows, 2>(d, some, a, b, at, stride);
          } else {
            AddOuter<rows, 1>(d, some, a, b, at, stride);
          }
        });
      }
    }
  }

 private:
  const size_t padded_, tiles_, rows_;
  C* const gates_;
  C* const columns_;
};

template <class C>
void GradientsOfWeights(const GradientChunk& c, size_t first_strip, size_t last_strip, unsigned char* memory) {
  const size_t lanes = hn::MaxLanes(hn::ScalableTag<C>());
  const Spec& spec = c.packed->spec();
  const size_t padded = c.packed->geometry().padded(), columns = WholePanels(spec.I, lanes).units;
  const size_t strip = kTileVectors * lanes, of_x = (columns + strip - 1) / strip;
  const bool after = spec.linear_before_reset;
  WeightsScratch<C> scratch(c, memory);
  scratch.PackGates(c, after ? kGradientGates : kGradientQ);
  for (size_t s = first_strip; s < last_strip; ++s) {
    const bool is_x = s < of_x;
    const size_t begin = (is_x ? s : s - of_x) * strip, width = is_x ? columns : padded;
    const size_t vectors = HWY_MIN(kTileVectors, (width - begin) / lanes);
    if (is_x) {
      scratch.PackColumns([&](size_t i) { return static_cast<const C*>(c.x) + i * c.stride_x + begin; }, vectors);
      for (size_t gate = kGradientN; gate < kGradientQ; ++gate) {
        scratch.Add(gate, vectors, static_cast<C*>(c.dW) + gate * padded * columns + begin, columns);
      }
      continue;
    }
    C* const to = static_cast<C*>(c.dR) + begin;
    scratch.PackColumns([&](size_t i) { return static_cast<const C*>(c.h) + i * c.stride_h + begin; }, vectors);
    for (size_t gate = kGradientZ; gate < (after ? kGradientGates : kGradientQ); ++gate) {
      scratch.Add(gate, vectors, to + (gate - kGradientZ) * padded * padded, padded);
    }
    if (after) continue;
    const size_t q = kSavedQ * padded + begin;
    scratch.PackColumns([&](size_t i) { return static_cast<const C*>(c.gates[i]) + q; }, vectors);
    scratch.Add(kGradientN, vectors, to + 2 * padded * padded, padded);
  }
  if (first_strip != 0 || last_strip == 0) return;
  C* const sums = static_cast<C*>(c.dB);
  for (size_t entry = 0; entry < c.rows; ++entry) {
    const C* const row = static_cast<const C*>(c.g) + entry * c.stride_g;
    for (size_t j = 0; j < (after ? kGradientGates : kGradientQ) * padded; ++j) sums[j] += row[j];
  }
}

template <class C>
size_t ScratchOfWeights(const GradientChunk& chunk, size_t rows) {
  return WeightsScratch<C>::Bytes(chunk, rows);
}

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
