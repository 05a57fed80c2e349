// Loops over tiles that cover all rows and panels. A sweep computes the same panels for all rows, tile by tile.

#include "hwy/highway.h"
#include "native/kernels/products/bfloat16-inl.h"
#include "native/kernels/products/int8-inl.h"
#include "native/kernels/products/tile-inl.h"

#if defined(ONEGRU_NATIVE_KERNELS_PRODUCTS_SWEEP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_PRODUCTS_SWEEP_INL_H_
#undef ONEGRU_NATIVE_KERNELS_PRODUCTS_SWEEP_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_PRODUCTS_SWEEP_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {
namespace hn = hwy::HWY_NAMESPACE;

template <class Op, class D, class Width>
HWY_INLINE void BeginPanel(const Op& op, D d, size_t rows, size_t panel, Width width) {
  if constexpr (requires { op.Begin(d, rows, panel, width); }) op.Begin(d, rows, panel, width);
}

// Computes kPanels adjacent panels for the rows from `first_row` on, as a sweep.
//
// kMin: a lower bound for the rows of each of its tiles, so that smaller tiles are not compiled. If it is 1 or 2, the
// sweep can have as few rows. If it is larger, the rows must exceed one tile.
template <size_t kMin, size_t kPanels = 1, class Op, class D, class Width>
HWY_INLINE void SweepRows(const Op& op, D d, size_t rows, size_t panel, Width width, size_t first_row = 0) {
  constexpr size_t kFit = kMaxSums / (kPanels * Op::kGates);
  constexpr size_t kMax = HWY_MAX(HWY_MIN(MaxTileRowsOfSweep(Op::kGates), kFit) / Op::kSumsPerGate, 1);
  static_assert(kMin <= FewestRowsOfNext<kMax>(kMin <= 2 ? kMin : kMaxRowsOfOneTile / Op::kSumsPerGate + 1),
                "a tile can have fewer rows than kMin, see RowsOfNext");
  for (size_t p = 0; p + 1 < kPanels; ++p) BeginPanel(op, d, rows, panel + p, FullWidth<D>());
  BeginPanel(op, d, rows, panel + kPanels - 1, width);
  for (size_t row = first_row; row < rows;) {
    const size_t count = RowsOfNext<kMax>(rows - row);
    WithRows<kMin, kMax>(count, [&](auto n) HWY_ATTR {
      if constexpr (n == 1) {
        ComputeTile<1, kPanels>(op, d, row, panel, width);
      } else {
        ComputeTileOutOfLine<n, kPanels>(op, d, row, panel, width);
      }
    });
    row += count;
  }
}

// Computes all rows as one tile, for the panels [first, last) in groups of kGroup. The smaller the groups, the more
// panels stay in the first-level cache from one step to the next. It does not call Begin.
template <size_t kRows, size_t kGroup, class Op, class D, class PollCancel>
HWY_INLINE void ForPanelGroups(const Op& op, D d, size_t first, size_t last, bool backwards, PollCancel&& poll) {
  static_assert(kRows * kGroup * Op::kGates * Op::kSumsPerGate <= kMaxSums, "the sums must fit into registers");
  static_assert(
      kRows <= HWY_MAX(kMaxRowsOfOneTile / Op::kSumsPerGate, 1) || !requires {
        op.Begin(d, kRows, first, FullWidth<D>());
      }, "PrepareChunk chooses kFusedPerPanel for these rows, which needs Begin");
  static_assert(kGroup == 1 || kGroup == 2 || kGroup == 4 || kGroup == 8,
                "the rest is computed by smaller powers of 2");
  const FullWidth<D> full_width;
  const size_t in_groups = (last - first) / kGroup * kGroup;
  const auto compute = [&](auto panels, size_t panel) HWY_ATTR {
    if constexpr (kRows == 1) {
      ComputeTile<1, panels>(op, d, 0, panel, full_width);
    } else {
      ComputeTileOutOfLine<kRows, panels>(op, d, 0, panel, full_width);
    }
  };
  const auto last_panels = [&]() HWY_ATTR {
    size_t panel = first + in_groups;
    if constexpr (kGroup > 4) {
      if (panel + 4 <= last) compute(std::integral_constant<size_t, 4>(), panel), panel += 4;
    }
    if constexpr (kGroup > 2) {
      if (panel + 2 <= last) compute(std::integral_constant<size_t, 2>(), panel), panel += 2;
    }
    if (panel < last) compute(std::integral_constant<size_t, 1>(), panel);
  };
  if (backwards) last_panels();
  for (size_t i = 0; i < in_groups && poll(kGroup); i += kGroup) {
    compute(std::integral_constant<size_t, kGroup>(), first + (backwards ? in_groups - kGroup - i : i));
  }
  if (!backwards) last_panels();
}

// Returns the number of rows that ForPanelPairs computes; 0: none. With three gates, 5 rows would be tiles of 3 and 2
// rows. 2 rows of one panel have too few sums to hide the latency of a multiply-add, so the last 2 rows take two
// panels. With two gates, 7 rows would be tiles of 4 and 3 rows, and 3 rows have six sums. Pairs of bfloat16 gain
// nothing. Products of converted inputs have no pairs. If MaxTileRowsOfSweep changes, measure these rows again.
template <class S>
constexpr size_t RowsForPanelPairs(size_t gates) {
  if (!kMediumTiles || kConvertsInputs<S> || std::is_same_v<S, StoredBFloat16>) return 0;
  return gates == 3 ? 5 : gates == 2 ? 7 : 0;
}

// Computes two panels at a time: the first kFirst rows as a tile per panel, the last kLast as one tile of both. A panel
// that is left over has tiles of kFirst and of kLast rows.
template <size_t kRows, class Op, class D, class PollCancel>
HWY_INLINE void ForPanelPairs(const Op& op, D d, size_t first, size_t last, bool backwards, PollCancel&& poll) {
  static_assert(Op::kSumsPerGate == 1);
  constexpr size_t kLast = kMaxSums / (2 * Op::kGates), kFirst = kRows - kLast;
  const FullWidth<D> full_width;
  for (size_t i = 0, count; i < last - first && poll(2); i += count) {
    count = HWY_MIN(2, last - first - i);
    const size_t panel = backwards ? last - i - count : first + i;
    for (size_t p = panel; p < panel + count; ++p) {
      BeginPanel(op, d, kRows, p, full_width);
      ComputeTileOutOfLine<kFirst, 1>(op, d, 0, p, full_width);
    }
    if (count == 2) {
      ComputeTileOutOfLine<kLast, 2>(op, d, kFirst, panel, full_width);
    } else {
      ComputeTileOutOfLine<kLast, 1>(op, d, kFirst, panel, full_width);
    }
  }
}

// The minimum bytes of a matrix for which prefetching the next panel into the second-level cache is faster.
inline constexpr size_t kLargeForAmx = 1 << 19;

// Computes full panels with AMX: first the sums of some panels and rows, then the tiles of these rows, which load them.
template <class D, class Op, class PollCancel>
HWY_INLINE void ForTilesByAmx(D d, const Geometry& geometry, size_t rows, size_t first, size_t last, bool backwards,
                              PollCancel&& poll, const Op& op) {
  using S = typename std::remove_reference_t<decltype(op.s)>::Stored;
  constexpr size_t kPlanes = Op::kSumsPerGate, kGates = Op::kGates;
  const auto [matrix, K, inputs] = op.Product();
  const size_t stored_K = RoundUpTo(kIsInt8<S> ? kQuad : kInputsPerBlock, K);
  const size_t stride = kIsInt8<S> ? QuantizedRow(kPlanes, K) : RoundedRow(K);
  const auto inputs_of = [&](const unsigned char* row, size_t plane) {
    return kIsInt8<S> ? PlaneOf(row, K, plane) : InputsForAmx(row, K);
  };
  // All tiles have the same number of rows, so the last tile may compute some rows twice.
  const size_t row_tiles = (rows + amx::kRows - 1) / amx::kRows, tile_rows = (rows + row_tiles - 1) / row_tiles;
  const size_t input_tiles = kPlanes == 2 || row_tiles > 1 ? 2 : 1;
  const size_t rows_at_once = kPlanes == 2 ? tile_rows : input_tiles * tile_rows;
  const size_t passes = (rows + rows_at_once - 1) / rows_at_once, panels = amx::kTiles / (input_tiles * kGates);
  const bool is_large = stored_K * geometry.padded() * kGates * sizeof(S) >= kLargeForAmx;
  for (size_t i = 0, count; i < last - first; i += count) {
    count = HWY_MIN(panels, last - first - i);
    if (!poll(count)) return;
    const size_t panel = backwards ? last - i - count : first + i;
    amx::Configure(tile_rows);
    for (size_t row = 0; row < rows; row += rows_at_once) {
      const size_t begin = HWY_MIN(row, rows - tile_rows), end = HWY_MIN(row + rows_at_once, rows);
      const size_t pitch = count * kGates * amx::kChannels;
      const unsigned char* const from = inputs + begin * stride;
      amx::TileProduct product{};
      product.input_stride = stride;
      product.sum_stride = kPlanes * pitch * sizeof(std::int32_t);
      product.weights = static_cast<const std::int8_t*>(matrix) + geometry.offset(panel, stored_K, kGates) * sizeof(S);
      product.panels = count;
      product.panel_stride = geometry.offset(1, stored_K, kGates) * sizeof(S);
      product.gates = kGates;
      product.is_bfloat16 = kIsRounded<S>;
      product.words = stored_K * sizeof(S) / 4;
      if (is_large && passes > 1) {
        // Prefetches a part of the next panels in each pass over these.
        const size_t bytes = HWY_MIN(panels, last - first - i - count) * product.panel_stride;
        const size_t per_pass = (bytes / passes + 63) / 64 * 64, begun = HWY_MIN(row / rows_at_once * per_pass, bytes);
        product.next = (backwards ? product.weights - bytes : product.weights + count * product.panel_stride) + begun;
        product.next_bytes = HWY_MIN(per_pass, bytes - begun);
      }
      // The second tile: the other plane, or the rows after those of the first.
      const size_t second = kPlanes == 2 ? 0 : end - begin - tile_rows;
      product.inputs = kPlanes == 2 || second != 0 ? 2 : 1;
      product.input[0] = inputs_of(from, 0);
      product.input[1] = inputs_of(from + second * stride, kPlanes - 1);
      product.sum[0] = op.s.sums;
      product.sum[1] = op.s.sums + (kPlanes == 2 ? pitch : second * pitch);
      amx::Multiply(product);
      op.s.amx_sums = {op.s.sums, begin, panel, pitch};
      for (size_t p = 0; p < count; ++p) SweepRows<1>(op, d, end, panel + p, FullWidth<D>(), row);
    }
    op.s.amx_sums = {};
  }
}

// Whether half a vector is faster than a whole one. Halves of vectors below 64 bytes are not.
template <class D>
inline constexpr bool kHasFastHalf = hn::MaxLanes(D()) * sizeof(hn::TFromD<D>) >= 64;

// Computes one row of a panel. If kMayBeHalf, a panel of at most half a vector takes half a vector.
template <bool kMayBeHalf, class D, class Op>
HWY_INLINE void ComputeLastPanel(const Op& op, D d, size_t panel, size_t width) {
  if constexpr (kMayBeHalf && kHasFastHalf<D>) {
    if (width <= hn::MaxLanes(D()) / 2) return ComputeRow(op, hn::Half<D>(), panel, width);
  }
  ComputeRow(op, d, panel, width);
}

// Computes tiles for all rows and the panels [first, last), with vectors as short as possible.
//
// If the rows exceed one tile, it sweeps one or a few panels at a time, so that each panel is loaded from memory once.
// Otherwise, it computes adjacent panels together. `backwards` reverses the order of the panels, because the last ones
// of a forward sweep are in the cache. A long sweep stops when op.s.PollCancel returns false. kPanelsForOneRow: the
// number of panels in a tile if it is known that there is only one row; otherwise 0.
template <size_t kPanelsForOneRow = 0, class D, class Op>
HWY_INLINE void ForTiles(D d, const Geometry& geometry, size_t rows, size_t first, size_t last, bool backwards,
                         const Op& op) {
  const size_t full = HWY_MAX(first, HWY_MIN(last, geometry.full_panels()));
  if (rows == 0) return;
  // A lower bound for the rows of a tile, in a sweep of more rows than one tile has.
  constexpr size_t kMinRowsOfSweep = HWY_MAX(MaxTileRowsOfSweep(Op::kGates) / Op::kSumsPerGate / 2, 1);
  // The same in a sweep of two or more rows.
  constexpr size_t kMinRowsOfSeveral = HWY_MIN(2, kMinRowsOfSweep);
  const bool is_long = op.s.IsLong(rows * (last - first));
  const auto poll = [&](size_t panels) HWY_ATTR { return HWY_LIKELY(!is_long) || op.s.PollCancel(rows * panels); };
  const auto narrow = [&]() HWY_ATTR {
    if (hn::MaxLanes(d) == 1 || full == last) return;
    const size_t width = geometry.width(full);
    if constexpr (kPanelsForOneRow != 0) {
      ComputeLastPanel<Op::kGates == 3>(op.WithoutPipelined(), d, full, width);
    } else if (rows == 1) {
      ComputeLastPanel<Op::kGates == 3>(op, d, full, width);
    } else {
      SweepRows<kMinRowsOfSeveral>(op, d, rows, full, width);
    }
  };
  const auto by_amx = [&]() HWY_ATTR {
    if constexpr (requires { op.Product(); }) {
      if (op.s.UsesAmx(rows, op.Product().K)) {
        ForTilesByAmx(d, geometry, rows, first, full, backwards, poll, op);
        return true;
      }
    }
    return false;
  };
  if (backwards) narrow();
  if constexpr (kPanelsForOneRow != 0) {
    ForPanelGroups<1, kPanelsForOneRow>(op, d, first, full, backwards, poll);
  } else if (by_amx()) {
    // done
  } else if (rows <= kMaxRowsOfOneTile / Op::kSumsPerGate) {
    WithRows<1, kMaxRowsOfOneTile / Op::kSumsPerGate>(rows, [&](auto n) HWY_ATTR {
      ForPanelGroups<n, PanelsOfOneTile(Op::kGates, n * Op::kSumsPerGate)>(op, d, first, full, backwards, poll);
    });
  } else if (Op::kRowsForPanelPairs != 0 && rows == Op::kRowsForPanelPairs) {
    if constexpr (Op::kRowsForPanelPairs != 0)
      ForPanelPairs<Op::kRowsForPanelPairs>(op, d, first, full, backwards, poll);
  } else {
    constexpr size_t kMin = kMinRowsOfSweep, kPanels = TilePanelsOfSweep(Op::kGates);
    // Three panels instead of two and one, whose few sums would not hide the latency of multiply-adds.
    constexpr bool kTakesThree = kPanels == 2 && kMediumTiles;
    const bool takes_three = kTakesThree && full - first >= 3 && (full - first) % 2 == 1;
    const size_t in_tiles = (full - first - (takes_three ? 3 : 0)) / kPanels * kPanels;
    const auto single = [&]() HWY_ATTR {
      if constexpr (kTakesThree) {
        if (takes_three) {
          if (poll(3)) SweepRows<kMinRowsOfSeveral, 3>(op, d, rows, first + in_tiles, FullWidth<D>());
          return;
        }
      }
      for (size_t i = first + in_tiles; i < full && poll(1); ++i) SweepRows<kMin>(op, d, rows, i, FullWidth<D>());
    };
    if (backwards && kPanels > 1) single();
    for (size_t i = 0; i < in_tiles && poll(kPanels); i += kPanels) {
      SweepRows<kMin, kPanels>(op, d, rows, first + (backwards ? in_tiles - kPanels - i : i), FullWidth<D>());
    }
    if (!backwards && kPanels > 1) single();
  }
  if (!backwards) narrow();
}

// The most panels for ForSingleTile.
inline constexpr size_t kMaxPanelsOfSingleTile = kMediumTiles ? 4 : 2;
// Up to this many inputs, a single panel's products with x fit into the latency of a step's activations.
inline constexpr size_t kMaxInputsByStep = 20;

// Computes a full panel and one of at most half a vector, stage by stage, so that their dependency chains overlap.
template <class D, class Op>
HWY_INLINE void ComputeOneAndAHalf(const Op& op, D d, size_t width) {
  const hn::Half<D> half_d;
  Tile<1, 1, Op::kGates, D, FullWidth<D>> full(d, 0, 0, FullWidth<D>());
  Tile<1, 1, Op::kGates, hn::Half<D>, size_t> half(half_d, 0, 1, width);
  op.Sum(full);
  op.Sum(half);
  const PartOfTile<decltype(full), 0, 1> first{full};
  const PartOfTile<decltype(half), 0, 1> second{half};
  op.Stages().Gates(first);
  op.Stages().Gates(second);
  op.Stages().Finish(first);
  op.Stages().Finish(second);
}

// ForTiles for one row and few panels.
template <class D, class Op>
HWY_INLINE void ForSingleTile(D d, const Geometry& geometry, const Op& op) {
  const size_t panels = geometry.panels();
  const size_t width = geometry.width(panels - 1);
  if (panels == 1) return ComputeLastPanel<true>(op, d, 0, width);
  if constexpr (kHasFastHalf<D>) {
    if (panels == 2 && width <= hn::MaxLanes(D()) / 2) return ComputeOneAndAHalf(op, d, width);
  }
  if (panels == 2) return ComputeTile<1, 2>(op, d, 0, 0, width);
  if constexpr (kMaxPanelsOfSingleTile > 2) {
    if (panels == 3) return ComputeTile<1, 3>(op, d, 0, 0, width);
    ComputeTile<1, 4>(op, d, 0, 0, width);
  }
}

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
