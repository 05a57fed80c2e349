// Tiles: products of several rows with several panels, whose sums fit into registers.

#include <type_traits>

#include "hwy/highway.h"
#include "native/kernels/products/multiply-inl.h"

#if defined(ONEGRU_NATIVE_KERNELS_PRODUCTS_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_PRODUCTS_TILE_INL_H_
#undef ONEGRU_NATIVE_KERNELS_PRODUCTS_TILE_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_PRODUCTS_TILE_INL_H_
#endif

// The head of a lambda that is a loop's body, and must be inlined.
#undef ONEGRU_AT
#define ONEGRU_AT [&](auto at) HWY_ATTR __attribute__((always_inline))

// GCC must not copy a function for arguments that are often the same constants: compiling the copies takes long.
#undef ONEGRU_NO_CLONES
#if HWY_COMPILER_GCC_ACTUAL
#define ONEGRU_NO_CLONES __attribute__((noclone))
#else
#define ONEGRU_NO_CLONES
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {
namespace hn = hwy::HWY_NAMESPACE;

// A tile of kRows_ rows x kPanels_ panels, with a sum for each of kGates_ gates.
template <size_t kRows_, size_t kPanels_, size_t kGates_, class D, class Width>
struct Tile {
  static constexpr size_t kRows = kRows_, kPanels = kPanels_, kGates = kGates_;
  using V = hn::Vec<D>;

  // The sums of one row of one panel. With one gate, z, r and n are the same vector; with two gates, r and n are.
  struct At {
    static constexpr bool kIsOfOneRow = kRows_ == 1;
    V &z, &r, &n;
    D d;
    size_t row, panel;
    size_t width;  // units
  };

  HWY_INLINE Tile(D tag, size_t first_row, size_t first_panel, Width last_width)
      : d(tag), row(first_row), panel(first_panel), width(last_width) {}

  // Calls f(At) for the rows [kFrom, kTo) of the tile.
  template <size_t kFrom = 0, size_t kTo = kRows, class F>
  HWY_INLINE void ForEach(const F& f) {
#pragma GCC unroll 16
    for (size_t i = kFrom * kPanels; i < kTo * kPanels; ++i) {
      const size_t r = i / kPanels, p = i % kPanels;
      V* const gates = &sums[r][p * kGates];
      f(At{gates[0], gates[kGates > 1 ? 1 : 0], gates[kGates - 1], d, row + r, panel + p,
           p + 1 < kPanels ? size_t{FullWidth<D>::value} : size_t{width}});
    }
  }

  const D d;
  const size_t row, panel;  // the first of each
  const Width width;        // the units of the last panel; those before it are full
  V sums[kRows][kPanels * kGates];
};

// The rows [kFrom, kTo) of a tile.
template <class Tile, size_t kFrom, size_t kTo>
struct PartOfTile {
  Tile& tile;

  template <class F>
  HWY_INLINE void ForEach(const F& f) const {
    tile.template ForEach<kFrom, kTo>(f);
  }
};

// Whether tiles are sized for 32 registers, which AVX-512 has. ONEGRU_LARGE_TILES selects them on other targets, so
// that they can be tested without such a CPU.
#if defined(ONEGRU_LARGE_TILES)
inline constexpr bool kLargeTiles = true;
#else
inline constexpr bool kLargeTiles = HWY_TARGET == HWY_AVX3;
#endif

// The maximum number of sums in a tile.
inline constexpr size_t kMaxSums = kLargeTiles ? 24 : 12;

// Whether there are few tile shapes: on targets for CPUs from before 2008, and where the code must be small.
#undef ONEGRU_FEW_TILE_SHAPES
#if defined(ONEGRU_SMALL) || (!defined(ONEGRU_LARGE_TILES) && (HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_SSE2))
#define ONEGRU_FEW_TILE_SHAPES 1
inline constexpr bool kFewTileShapes = true;
#else
inline constexpr bool kFewTileShapes = false;
#endif

// Whether tiles are sized for 16 registers: on all other targets. 64-bit Arm has 32, but larger tiles were not
// measured.
inline constexpr bool kMediumTiles = !kLargeTiles && !kFewTileShapes;

// With up to this many rows, all rows form one tile. It is divided by kSumsPerGate of an Op.
inline constexpr size_t kMaxRowsOfOneTile = kLargeTiles ? 8 : kMediumTiles ? 4 : 2;

// A sweep computes one or a few panels for all rows, tile by tile. It is used if the rows exceed one tile, and for the
// last panel of two or more rows if that panel is narrower than a vector. These functions return an upper limit for the
// rows of a tile, and its panels. The limit also applies to panels that are left over, and to AMX, which sweep a single
// panel. SweepRows reduces the rows to fit kMaxSums, and divides them by kSumsPerGate, rounded down. Two multiply-adds
// begin in a cycle and each takes four, so at least eight sums must be in flight. On AVX2, twelve leave room for
// weights in 16 registers, and six rows of two vectors read fewer weights than four of three.
constexpr size_t MaxTileRowsOfSweep(size_t gates) { return kMediumTiles && gates < 3 ? 6 : kMaxRowsOfOneTile; }
constexpr size_t TilePanelsOfSweep(size_t gates) { return gates > 1 ? 1 : 2; }

// Returns the number of rows of the next tile, usually kMax. If the last tile would have at most half of kMax rows, the
// last two or three share their rows equally: small tiles are bound by the latency of multiply-adds.
template <size_t kMax>
constexpr size_t RowsOfNext(size_t left) {
  const size_t rows_of_last = left % kMax;
  if (left <= kMax) return left;
  if (rows_of_last == 0 || rows_of_last > kMax / 2 || left > 3 * kMax) return kMax;
  return left < 2 * kMax ? (left + 1) / 2 : (left + 2) / 3;
}

// Returns the fewest rows of a tile in sweeps of at least `rows` rows.
template <size_t kMax>
constexpr size_t FewestRowsOfNext(size_t rows) {
  size_t fewest = kMax;
  for (size_t end = rows + 4 * kMax; rows < end; ++rows) {
    for (size_t left = rows; left > 0; left -= RowsOfNext<kMax>(left)) fewest = HWY_MIN(fewest, RowsOfNext<kMax>(left));
  }
  return fewest;
}

// Returns the number of adjacent panels in a tile that has all rows: enough sums to hide the latency of a multiply-add,
// but no more than there are registers. rows_of_sums: the rows times kSumsPerGate of the Op. All storage types and the
// gradients use it.
//
// Measured on AVX-512, for one row. With 3 gates, 2 panels are up to 1.3 times as fast as 1 where two multiply-adds
// begin in a cycle (Zen 5). 4 cost 15 % more than 1 at H = 64 (Zen 4). With 2 gates, 4 panels are 2 to 5 % slower in
// single steps, and 1.1 times as fast over time only at H = 64. Prefetching the weights of input k + 16 is 2 to 10 %
// slower, from caches and from memory.
constexpr size_t PanelsOfOneTile(size_t gates, size_t rows_of_sums) {
  if (kLargeTiles) {
    if (gates == 3) return rows_of_sums <= 3 ? 2 : 1;
    if (gates == 2) return rows_of_sums <= 6 ? 2 : 1;
    return rows_of_sums <= 3 ? 4 : 2;
  }
  if (rows_of_sums == 1) return gates == 1 ? 8 : 4;
  if (gates == 3) return rows_of_sums == 2 ? 2 : 1;
  if (gates == 2) return rows_of_sums <= 3 ? 2 : 1;
  return rows_of_sums <= 3 ? 4 : 2;
}

// Calls f with `rows` as a compile-time constant. It must be from kMin to kMax: fewer would become kMin.
template <size_t kMin, size_t kMax, class F>
HWY_INLINE void WithRows(size_t rows, F&& f) {
  if constexpr (kMin < kMax) {
    if (rows > kMin) return WithRows<kMin + 1, kMax>(rows, f);
  }
  f(std::integral_constant<size_t, kMin>());
}

// An Op is one fused operation on tiles. It has these members:
//
//   kGates              vectors of channels for each panel
//   kSumsPerGate        sums of a row for each of these vectors
//   kRowsForPanelPairs  see RowsForPanelPairs
//   kOutlineEpilogue    whether the epilogue is most of its code
//   s                   the state, with IsLong, PollCancel and, if kOutlineEpilogue, tile_sums
//   Sum(tile)           computes the matrix product
//   Stages()            whose Gates(part) and Finish(part) are the epilogue
//   Begin(d, rows, panel, width)  optional; runs before the tiles of each panel if the rows do not fit in one tile
//   Product()                     optional; returns the operands for AMX
//
// Each loop of a stage does one operation for all vectors before the next operation: an activation is a long dependency
// chain, and the CPU overlaps two chains only if they are close together.

// Runs the epilogue for up to four rows at a time, because more would not leave enough registers.
template <size_t kFrom, class Op, class Tile>
HWY_INLINE void RunEpilogue(const Op& op, Tile& tile) {
  if constexpr (kFrom < Tile::kRows) {
    constexpr size_t kParts = (Tile::kRows + 3) / 4, kEach = (Tile::kRows + kParts - 1) / kParts;
    constexpr size_t kTo = HWY_MIN(kFrom + kEach, Tile::kRows);
    const PartOfTile<Tile, kFrom, kTo> part{tile};
    op.Stages().Gates(part);
    op.Stages().Finish(part);
    RunEpilogue<kTo>(op, tile);
  }
}

template <size_t kRows, size_t kPanels, class Op, class D, class Width>
HWY_INLINE void ComputeTile(const Op& op, D d, size_t row, size_t panel, Width width) {
  Tile<kRows, kPanels, Op::kGates, D, Width> tile(d, row, panel, width);
  op.Sum(tile);
  RunEpilogue<0>(op, tile);
}

// The epilogue of kRows rows of a panel whose sums were stored, `stride` vectors per row. Most of the code of a step is
// here, so all tile shapes and all types of matrices share it.
template <size_t kRows, class Stages, class D>
HWY_NOINLINE void RunStoredPart(Stages stages, D d, const hn::TFromD<D>* sums, size_t stride, size_t row, size_t panel,
                                size_t width) {
  constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<hn::TFromD<D>>());
  Tile<kRows, 1, Stages::kGates, D, size_t> tile(d, row, panel, width);
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t g = 0; g < Stages::kGates; ++g) {
      tile.sums[r][g] = hn::Load(d, sums + (r * stride + g) * kLanes);
    }
  }
  const PartOfTile<decltype(tile), 0, kRows> part{tile};
  stages.Gates(part);
  stages.Finish(part);
}

// The epilogue of a whole tile: two to four rows of a panel at a time, with vectors that may be shorter than the sums.
template <size_t kFrom, size_t kPanel, class Tile, class Stages, class D>
HWY_INLINE void RunStoredEpilogue(Stages stages, D d, const Tile& tile, const hn::TFromD<D>* sums) {
  constexpr size_t kParts = (Tile::kRows + 3) / 4, kEach = (Tile::kRows + kParts - 1) / kParts;
  constexpr size_t kRows = HWY_MIN(kEach, Tile::kRows - kFrom), kStride = Tile::kPanels * Tile::kGates;
  constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<hn::TFromD<D>>());
  constexpr bool kIsLast = kPanel + 1 == Tile::kPanels;
  static_assert(kRows >= 2);
  RunStoredPart<kRows>(stages, d, sums + (kFrom * kStride + kPanel * Tile::kGates) * kLanes, kStride, tile.row + kFrom,
                       tile.panel + kPanel, kIsLast ? size_t{tile.width} : kLanes);
  if constexpr (!kIsLast) {
    RunStoredEpilogue<kFrom, kPanel + 1>(stages, d, tile, sums);
  } else if constexpr (kFrom + kRows < Tile::kRows) {
    RunStoredEpilogue<kFrom + kRows, 0>(stages, d, tile, sums);
  }
}

template <size_t kRows, size_t kPanels, class Op, class D, class Width>
HWY_NOINLINE ONEGRU_NO_CLONES void OutOfLineTile(Op op, D d, size_t row, size_t panel, Width width) {
  if constexpr (Op::kOutlineEpilogue && kRows > 1) {
    constexpr size_t kVectors = kPanels * Op::kGates, kLanes = hn::MaxLanes(D());
    static_assert(kRows * kVectors <= kMaxSums);
    constexpr bool kMayBeHalf = kPanels == 1 && kLanes * sizeof(hn::TFromD<D>) >= 64;
    const bool is_half = kMayBeHalf && width <= kLanes / 2;
    Tile<kRows, kPanels, Op::kGates, D, Width> tile(d, row, panel, width);
    op.Sum(tile);
    // With two rows, a call and stored sums would be too large a part of a short step. This does not hold for a panel
    // of at most half a vector, because the divisions of the activations would take whole vectors, which costs more.
    if (kRows == 2 && !is_half) return RunEpilogue<0>(op, tile);
    hn::TFromD<D>* const sums = op.s.tile_sums;
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (size_t v = 0; v < kVectors; ++v) hn::Store(tile.sums[r][v], d, sums + (r * kVectors + v) * kLanes);
    }
    if constexpr (kMayBeHalf) {
      if (is_half) return RunStoredEpilogue<0, 0>(op.Stages(), hn::Half<D>(), tile, sums);
    }
    if constexpr (kRows > 2) RunStoredEpilogue<0, 0>(op.Stages(), d, tile, sums);
  } else {
    ComputeTile<kRows, kPanels>(op, d, row, panel, width);
  }
}

// Computes a tile by a function call, because a tile takes long enough for one and several places need it. The width of
// a single panel is a variable, so that full and narrow panels share a function. That is as fast, because a tile of
// several rows is bound by its multiply-adds.
template <size_t kRows, size_t kPanels, class Op, class D, class Width>
HWY_INLINE void ComputeTileOutOfLine(const Op& op, D d, size_t row, size_t panel, Width width) {
  OutOfLineTile<kRows, kPanels, Op, D, std::conditional_t<kPanels == 1, size_t, Width>>(op, d, row, panel, width);
}

// Computes a single row of a panel that may be narrow.
template <class Op, class D>
HWY_NOINLINE ONEGRU_NO_CLONES void ComputeRow(Op op, D d, size_t panel, size_t width) {
  ComputeTile<1, 1>(op, d, 0, panel, width);
}

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
