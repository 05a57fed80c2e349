// Products of many rows with a packed matrix, for the gradients. Included once for each SIMD target.

#include "hwy/highway.h"
#include "native/kernels/products/multiply-inl.h"
#include "native/kernels/products/sweep-inl.h"

#if defined(ONEGRU_NATIVE_KERNELS_TRAINING_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_TRAINING_GEMM_INL_H_
#undef ONEGRU_NATIVE_KERNELS_TRAINING_GEMM_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_TRAINING_GEMM_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {
namespace hn = hwy::HWY_NAMESPACE;

// The interface for loops over tiles, without cancellation.
struct Uninterrupted {
  static constexpr bool IsLong(size_t) { return false; }
  static constexpr bool PollCancel(size_t) { return true; }
};

// Multiplies rows by a packed matrix of K inputs, with a sum for each of kGates gates, and adds a bias or the output.
template <class C, size_t kGates_>
struct Gemm {
  static constexpr size_t kGates = kGates_, kSumsPerGate = 1;
  static constexpr size_t kRowsForPanelPairs = RowsForPanelPairs<C>(kGates);
  static constexpr bool kOutlineEpilogue = false;
  struct Gate {
    C* to;          // [index][stride]
    const C* bias;  // [panel][bias_stride]; null: add to the output
    size_t bias_stride;
  };

  Uninterrupted s;
  Geometry geometry;
  const C* const* inputs;
  size_t K;
  const void* matrix;
  const size_t* index;  // the output row of each row
  size_t stride;
  Gate gates[kGates];
  size_t begin = 0, count = K;   // the inputs of the current part
  size_t segment = 0, live = 0;  // only the first `live` of each `segment` inputs are nonzero; 0: all

  const Gemm& Stages() const { return *this; }

  template <class Tile>
  HWY_INLINE void Sum(Tile& tile) const {
    tile.ForEach(ONEGRU_AT {
      if constexpr (kGates > 1) at.z = Start(at, 0), at.r = Start(at, 1);
      if constexpr (kGates != 2) at.n = Start(at, kGates - 1);
    });
    const C* panels[Tile::kPanels];
    const C* rows[Tile::kRows];
#pragma GCC unroll 16
    for (size_t p = 0; p < Tile::kPanels; ++p) {
      panels[p] = static_cast<const C*>(matrix) + geometry.offset(tile.panel + p, K, kGates) +
                  begin * kGates * geometry.width(tile.panel + p);
    }
#pragma GCC unroll 16
    for (size_t r = 0; r < Tile::kRows; ++r) rows[r] = inputs[tile.row + r] + begin;
    if (segment == 0) {
      Multiply<Tile::kRows, Tile::kPanels, kGates>(tile.d, count, rows, panels, tile.width, tile.sums);
      return;
    }
    for (size_t k = 0; k < count; k += segment) {
      Multiply<Tile::kRows, Tile::kPanels, kGates>(tile.d, live, rows, panels, tile.width, tile.sums);
#pragma GCC unroll 16
      for (size_t p = 0; p < Tile::kPanels; ++p) panels[p] += segment * kGates * geometry.width(tile.panel + p);
#pragma GCC unroll 16
      for (size_t r = 0; r < Tile::kRows; ++r) rows[r] += segment;
    }
  }

  template <class Rows>
  HWY_INLINE void Gates(Rows) const {}

  template <class Rows>
  HWY_INLINE void Finish(Rows rows) const {
    rows.ForEach(ONEGRU_AT {
      if constexpr (kGates > 1) hn::StoreU(at.z, at.d, To(at, 0)), hn::StoreU(at.r, at.d, To(at, 1));
      if constexpr (kGates != 2) hn::StoreU(at.n, at.d, To(at, kGates - 1));
    });
  }

  template <class At>
  HWY_INLINE C* To(const At& at, size_t gate) const {
    return gates[gate].to + index[at.row] * stride + at.panel * geometry.lanes;
  }
  template <class At>
  HWY_INLINE auto Start(const At& at, size_t gate) const {
    const Gate& g = gates[gate];
    return hn::LoadU(at.d, g.bias == nullptr ? To(at, gate) : g.bias + at.panel * g.bias_stride);
  }
};

// The bytes of the first-level cache for a sweep's panels, which limit the inputs of a part. Sums are stored unchanged
// between two parts, so each is still one sum in the order of k. ForPanelPairs needs twice these bytes.
inline constexpr size_t kBytesOfPanels = 20 * 1024;

template <class C, size_t kGates>
HWY_NOINLINE void Product(Gemm<C, kGates> op, size_t rows) {
  const size_t bytes_of_input = kGates * TilePanelsOfSweep(kGates) * op.geometry.lanes * sizeof(C);
  size_t most = rows <= kMaxRowsOfOneTile ? HWY_MAX(op.K, 1) : kBytesOfPanels / bytes_of_input;
  if (op.segment != 0) most = HWY_MAX(most / op.segment, 1) * op.segment;
  do {
    op.count = HWY_MIN(most, op.K - op.begin);
    ForTiles(hn::ScalableTag<C>(), op.geometry, rows, 0, op.geometry.panels(), false, op);
    for (auto& gate : op.gates) gate.bias = nullptr;
    op.begin += op.count;
  } while (op.begin < op.K);
}

// Returns the geometry of a packed matrix, whose columns are padded to full vectors.
HWY_INLINE Geometry WholePanels(size_t units, size_t lanes) { return {(units + lanes - 1) / lanes * lanes, lanes}; }

template <class C>
size_t PackedColumns(size_t K, size_t N) {
  return K * WholePanels(N, hn::MaxLanes(hn::ScalableTag<C>())).units * sizeof(C);
}

template <class C>
void PackColumns(const void* matrix, size_t H, size_t N, const size_t* gates, size_t count, void* packed) {
  const size_t lanes = hn::MaxLanes(hn::ScalableTag<C>()), padded = WholePanels(H, lanes).units;
  C* to = static_cast<C*>(packed);
  for (size_t begin = 0; begin < N; begin += lanes) {
    const size_t width = HWY_MIN(lanes, N - begin);
    for (size_t g = 0; g < count; ++g) {
      const C* from = static_cast<const C*>(matrix) + gates[g] * H * N + begin;
      for (size_t k = 0; k < padded; ++k, from += N, to += lanes) {
        const size_t some = k < H ? width : 0;
        for (size_t i = 0; i < lanes; ++i) to[i] = i < some ? from[i] : C{0};
      }
    }
  }
}

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
