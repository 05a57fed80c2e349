// The input projection: xp = x·Wᵀ + biases.

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "native/kernels/pipelined_projection-inl.h"
#include "native/kernels/products/int8-inl.h"
#include "native/kernels/item-inl.h"
#include "native/kernels/products/multiply-inl.h"
#include "native/kernels/products/tile_sums-inl.h"
#include "native/kernels/products/sweep-inl.h"

#if defined(ONEGRU_NATIVE_KERNELS_PROJECTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_PROJECTION_INL_H_
#undef ONEGRU_NATIVE_KERNELS_PROJECTION_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_PROJECTION_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {
namespace hn = hwy::HWY_NAMESPACE;

// Starts chunks at the current step, with all selected rows, after a change of rows or of scratch.
template <class C, class S>
void StartChunks(ItemState<C, S>& s) {
  s.active = s.count;
  s.is_single_tile = s.count == 1 && !s.IsShared() && s.geometry.panels() <= kMaxPanelsOfSingleTile;
  s.in.template Start<S>(s, s.is_single_tile);
  s.pipelined.DiscardRemainingWork();
  s.y.ChooseWriter(s);
  s.y.place = 0;
}

// Prefetches the rows of X of the next tile, because the hardware prefetcher would be too late.
template <class C, class S, class Tile>
HWY_INLINE void PrefetchRowsAfter(const ItemState<C, S>& s, const Tile& tile) {
  const size_t begin = tile.row + Tile::kRows, end = begin + Tile::kRows;
  if (Tile::kRows < 4 || tile.panel != s.first || end > s.in.x_count) return;
  for (size_t r = begin; r < end; ++r) {
    const char* const x = reinterpret_cast<const char*>(s.in.x_from[r]);
    for (size_t byte = 0; byte < s.spec.I * sizeof(C); byte += 64) hwy::Prefetch(x + byte);
  }
}

template <class C, class S>
struct ProjectOp {
  static constexpr size_t kGates = 3, kSumsPerGate = kSumsPerGateOf<S>;
  static constexpr size_t kRowsForPanelPairs = RowsForPanelPairs<S>(kGates);
  static constexpr bool kOutlineEpilogue = false;
  ItemState<C, S>& s;

  const ProjectOp& Stages() const { return *this; }
  ConvertedProduct Product() const
    requires kHasAmx<S>
  {
    return {s.weights.W, s.spec.I, s.in.x_converted};
  }

  template <class Tile>
  HWY_INLINE void Sum(Tile& tile) const {
    const auto start = [&]() HWY_ATTR {
      tile.ForEach(ONEGRU_AT {
        const C* const bias = static_cast<const C*>(s.weights.bx) + at.panel * 3 * kLanesOf<C>;
        at.z = hn::LoadU(at.d, bias);
        at.r = hn::LoadU(at.d, bias + kLanesOf<C>);
        at.n = hn::LoadU(at.d, bias + 2 * kLanesOf<C>);
      });
    };
    if constexpr (kConvertsInputs<S>) {
      AddConverted(s, s.weights.W, s.weights.of_W, s.spec.I, s.in.x_converted, tile, start);
    } else {
      start();
      PrefetchRowsAfter(s, tile);
      AddProduct(s, s.weights.W, s.spec.I, s.in.x_from, tile);
    }
  }

  template <class Part>
  HWY_INLINE void Gates(Part) const {}

  template <class Part>
  HWY_INLINE void Finish(Part part) const {
    part.ForEach(ONEGRU_AT {
      C* const to = s.in.xp_to + at.row * s.in.xp_row + at.panel * s.in.xp_panel;
      hn::StoreU(at.z, at.d, to);
      hn::StoreU(at.r, at.d, to + kLanesOf<C>);
      hn::StoreU(at.n, at.d, to + 2 * kLanesOf<C>);
    });
  }
};

// Projects a narrow panel with its three gates next to each other in one or two vectors.
template <class C, class S, size_t kVectors>
struct JointOp {
  static constexpr size_t kGates = kVectors, kSumsPerGate = 1;  // one or two vectors hold all three gates
  static constexpr bool kOutlineEpilogue = false;
  ItemState<C, S>& s;
  const C* bias;

  const JointOp& Stages() const { return *this; }

  template <class Tile>
  HWY_INLINE void Sum(Tile& tile) const {
#pragma GCC unroll 16
    for (auto& row : tile.sums) {
#pragma GCC unroll 2
      for (size_t v = 0; v < kVectors; ++v) row[v] = hn::LoadU(tile.d, bias + v * kLanesOf<C>);
    }
    PrefetchRowsAfter(s, tile);
    const S* const weights = static_cast<const S*>(s.weights.W) + s.geometry.offset(tile.panel, s.spec.I, 3);
    MultiplyJoint(tile.d, s.spec.I, s.in.x_from + tile.row, weights, tile.width, tile.sums);
  }

  template <class Part>
  HWY_INLINE void Gates(Part) const {}

  template <class Part>
  HWY_INLINE void Finish(Part part) const {
    C gates[(kVectors + 1) * kLanesOf<C>] = {};
    part.ForEach(ONEGRU_AT {
      hn::StoreU(at.z, at.d, gates);
      if (kVectors == 2) hn::StoreU(at.r, at.d, gates + kLanesOf<C>);
      C* const to = s.in.xp_to + at.row * s.in.xp_row + at.panel * s.in.xp_panel;
      for (size_t g = 0; g < 3; ++g) hn::StoreU(hn::LoadU(at.d, gates + g * at.width), at.d, to + g * kLanesOf<C>);
    });
  }
};

// The most rows of a tile of ProjectJoint.
inline constexpr size_t kMaxRowsOfJointTile = kLargeTiles ? 8 : kMediumTiles ? 6 : 2;

template <size_t kVectors, class C, class S>
void ProjectJoint(ItemState<C, S>& s, size_t rows) {
  const size_t panel = s.last - 1, width = s.geometry.width(panel);
  C bias[kVectors * kLanesOf<C>] = {};
  for (size_t i = 0; i < 3 * width; ++i) {
    bias[i] = static_cast<const C*>(s.weights.bx)[panel * 3 * kLanesOf<C> + i / width * kLanesOf<C> + i % width];
  }
  // There are only three tile shapes, so the last tile may compute some rows twice.
  constexpr size_t kMost = kMaxRowsOfJointTile, kSome = HWY_MIN(4, kMost);
  static_assert(kMost * kVectors <= kMaxSums);
  for (size_t row = 0, count; row < rows; row += count) {
    const size_t left = rows - row;
    count = left > kSome && rows >= kMost ? kMost : left > 2 && rows >= kSome ? kSome : 2;
    const size_t begin = HWY_MIN(row, rows - count);
    const auto tile = [&](auto n) HWY_ATTR {
      ComputeTileOutOfLine<n, 1>(JointOp<C, S, kVectors>{s, bias}, hn::ScalableTag<C>(), begin, panel, width);
    };
    if (count == kMost) {
      tile(std::integral_constant<size_t, kMost>());
    } else if (count == kSome) {
      tile(std::integral_constant<size_t, kSome>());
    } else {
      tile(std::integral_constant<size_t, 2>());
    }
  }
}

// Whether ProjectJoint computes the last panel: its gates fill at most two vectors, and it has enough inputs. A single
// row is latency-bound, so it gains nothing.
template <class C, class S>
bool IsJoint(const ItemState<C, S>& s, size_t rows) {
  const size_t full = s.geometry.full_panels();
  return !kConvertsInputs<S> && rows > 1 && s.last > full && 3 * s.geometry.width(full) <= 2 * kLanesOf<C> &&
         s.spec.I > kMaxInputsByStep;
}

// Projects rows of X, for this member's panels from `first` on.
template <class C, class S>
void Project(ItemState<C, S>& s, size_t rows, size_t first) {
  const bool joint = IsJoint(s, rows);
  ForTiles(hn::ScalableTag<C>(), s.geometry, rows, first, joint ? s.geometry.full_panels() : s.last, false,
           ProjectOp<C, S>{s});
  if constexpr (!kConvertsInputs<S>) {
    if (!joint) return;
    if (3 * s.geometry.width(s.last - 1) <= kLanesOf<C>) {
      ProjectJoint<1>(s, rows);
    } else {
      ProjectJoint<2>(s, rows);
    }
  }
}

// Projects a chunk to `to`, for the panels from `first` on.
template <class C, class S>
void ProjectChunk(ItemState<C, S>& s, size_t place, size_t rows, C* to, size_t first) {
  s.in.x_from = s.in.x_rows + place;
  s.in.x_count = 0;  // PrefetchRowsAfter does nothing
  s.in.xp_to = to;
  if (s.PollCancel(rows * (s.last - s.first))) Project(s, rows, first);
}

// Converts the K elements of x to row `index` of `converted`. is_state, is_bounded: see QuantizeRow.
template <class S, class C>
HWY_INLINE void ConvertRow([[maybe_unused]] const Spec& spec, const C* x, size_t K, [[maybe_unused]] bool is_state,
                           [[maybe_unused]] bool is_bounded, unsigned char* converted, size_t index) {
  if constexpr (kIsInt8<S>) {
    QuantizeRow<kPlanesOf<S>>(x, K, is_state, is_bounded, IsSplit(spec, K),
                              converted + index * QuantizedRow(kPlanesOf<S>, K));
  } else {
    RoundRow<S>(x, K, converted + index * RoundedRow(K));
  }
}

// Converts rows of X, if the products need that.
template <class C, class S>
HWY_INLINE void ConvertInputs(ItemState<C, S>& s, size_t rows) {
  if constexpr (kConvertsInputs<S>) {
    for (size_t r = 0; r < rows; ++r)
      ConvertRow<S>(s.spec, s.in.x_from[r], s.spec.I, false, false, s.in.x_converted, r);
  }
}

// Prepares a chunk of as many steps as fit into xp.
template <class C, class S>
HWY_INLINE void PrepareChunk(ItemState<C, S>& s) {
  InputPipeline<C>& in = s.in;
  in.x_count = in.Gather(s, in.chunk_end, in.chunk, !s.IsShared());
  s.handover.CloseWindow();
  in.x_from = in.x_rows + in.Place(s, in.chunk);
  in.attention_step = in.attention + in.ScorePlace(s, in.chunk);
  in.xp_step = in.xp_to = in.xp;
  ConvertInputs(s, in.x_count);
  const bool is_fused = in.chunk_end == s.step + 1 && !s.UsesAmx(in.x_count, s.spec.I) &&
                        !s.UsesAmx(in.x_count, s.spec.H) &&
                        !(IsJoint(s, in.x_count) && s.first == s.geometry.full_panels());
  const bool is_one_tile = in.x_count <= kMaxRowsOfOneTile / kSumsPerGateOf<S>;
  in.mode = !is_fused     ? InputProjection::kChunked
            : is_one_tile ? InputProjection::kFusedPerTile
                          : InputProjection::kFusedPerPanel;
  if (s.PollCancel(in.x_count * (s.last - s.first)) && !is_fused) Project(s, in.x_count, s.first);
}

// Prepares a chunk of a pipelined projection. Except for the first chunk, most of it is already complete.
template <class C, class S>
void PreparePipelinedChunk(ItemState<C, S>& s) {
  InputPipeline<C>& in = s.in;
  const size_t full_end = HWY_MIN(s.last, s.geometry.full_panels());
  const size_t place = in.Place(s, in.chunk), next = in.Place(s, in.chunk + 1);
  const bool first = in.chunk == 0;
  size_t end = s.step;
  size_t rows = first ? in.Gather(s, end, in.chunk, !s.IsShared()) : 0;
  in.chunk_end = end = HWY_MIN(s.step + kPipelinedSteps, s.steps);
  const size_t next_rows = in.Gather(s, end, in.chunk + 1, !s.IsShared());
  s.handover.CloseWindow();
  in.attention_step = in.attention + in.ScorePlace(s, in.chunk);
  if (first) {
    in.xp_step = in.xp;
    ProjectChunk(s, place, rows, in.xp, s.first);
  } else {
    s.pipelined.Finish(hn::ScalableTag<C>(), [&] { return s.PollCancel(kPipelinedSteps); });
    in.xp_step = in.xp_next;
  }
  if (next_rows == 0) return;
  in.xp_next = in.xp_step == in.xp ? in.xp + kPipelinedSteps * 3 * s.padded : in.xp;
  ProjectChunk(s, next, next_rows, in.xp_next, full_end);
  for (size_t r = 0; r < kPipelinedSteps; ++r) {
    const C* const x = r < next_rows ? in.x_rows[next + r] : nullptr;
    C* const to = in.x_transposed + r;
    for (size_t k = 0; k < s.spec.I; ++k) to[k * kPipelinedSteps] = x == nullptr ? C{0} : x[k];
  }
  s.pipelined.Start(static_cast<const S*>(s.weights.W), s.spec.I, s.spec.H, s.geometry, s.first, full_end,
                    in.x_transposed, static_cast<const C*>(s.weights.bx), in.xp_next);
}

// Prepares the next chunk of steps.
template <class C, class S>
HWY_INLINE void PrepareNext(ItemState<C, S>& s) {
  s.in.is_first_of_chunk = true;
  if constexpr (kCanPipeline<S>) {
    s.in.IsPipelined() ? PreparePipelinedChunk(s) : PrepareChunk(s);
  } else {
    PrepareChunk(s);
  }
  ++s.in.chunk;
}

// Projects a single step of one row and one panel, during the latency of the previous step. With more panels, or with
// interleaved directions, there is no such idle time.
template <class C, class S>
void PrepareStep(ItemState<C, S>& s) {
  InputPipeline<C>& in = s.in;
  in.GatherRow(s, s.step, 0, 0, 0);
  in.x_from = in.x_rows;
  in.attention_step = in.attention;
  in.xp_step = in.xp_to = in.xp;
  ConvertInputs(s, 1);
  ForSingleTile(hn::ScalableTag<C>(), s.geometry, ProjectOp<C, S>{s});
}

// Projects a tile within the step (kFusedPerTile). It is out of line, because a step has no spare registers. A
// projection has three gates, so it runs panel by panel if all sums of the tile would not fit into registers.
template <class C, class S, class Tile>
HWY_INLINE void ProjectTile(ItemState<C, S>& s, const Tile& tile) {
  constexpr size_t kRows = Tile::kRows, kPanels = Tile::kPanels;
  if constexpr (kRows <= HWY_MAX(kMaxRowsOfOneTile / kSumsPerGateOf<S>, 1)) {
    if (s.in.mode != InputProjection::kFusedPerTile) return;
    const ProjectOp<C, S> op{s};
    if constexpr (kRows == 1 || kRows * kPanels * 3 * kSumsPerGateOf<S> <= kMaxSums) {
      ComputeTileOutOfLine<kRows, kPanels>(op, tile.d, tile.row, tile.panel, tile.width);
    } else {
      const FullWidth<std::remove_const_t<decltype(tile.d)>> full_width;
      for (size_t p = 0; p + 1 < kPanels; ++p)
        ComputeTileOutOfLine<kRows, 1>(op, tile.d, tile.row, tile.panel + p, full_width);
      ComputeTileOutOfLine<kRows, 1>(op, tile.d, tile.row, tile.panel + kPanels - 1, tile.width);
    }
  }
}

// Projects all rows of a panel within the step (kFusedPerPanel).
template <class D, class Width, class C, class S>
HWY_NOINLINE void ProjectPanel(ItemState<C, S>& s, D d, size_t rows, size_t panel, Width width) {
  SweepRows<1>(ProjectOp<C, S>{s}, d, rows, panel, width);
}

// Loads the projection of a gate for this step.
template <class C, class At>
HWY_INLINE auto Xp(const StepState<C>& s, const At& at, size_t gate) {
  return hn::LoadU(at.d, s.in.xp_step + at.row * s.in.xp_row + at.panel * s.in.xp_panel + gate * kLanesOf<C>);
}

// Prepares the rows of h, or of r∘h, for the products with R.
template <class C, class S>
HWY_INLINE void PrepareStates(ItemState<C, S>& s, C* states) {
  for (size_t slot = 0; slot < s.active; ++slot) {
    C* const row = states + slot * s.padded;
    if constexpr (kConvertsInputs<S>) {
      ConvertRow<S>(s.spec, row, s.spec.H, true, s.is_bounded, s.h_converted, slot);
    } else {
      s.h_rows[slot] = row;
    }
  }
}

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
