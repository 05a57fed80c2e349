// The inputs of the next steps: which rows of X form a chunk, when they are projected, and where xp lies.

#include "hwy/highway.h"
#include "native/kernels/pipelined_projection-inl.h"
#include "native/kernels/products/int8-inl.h"
#include "native/kernels/rows-inl.h"
#include "native/kernels/products/sweep-inl.h"

#if defined(ONEGRU_NATIVE_KERNELS_INPUT_PIPELINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_INPUT_PIPELINE_INL_H_
#undef ONEGRU_NATIVE_KERNELS_INPUT_PIPELINE_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_INPUT_PIPELINE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {

// When the input projection x·Wᵀ is computed.
enum class InputProjection {
  kChunked,        // for a chunk of steps, before the first of them
  kFusedPerTile,   // in the step, before the product of each tile with R, so that a panel of W is read just before R's
  kFusedPerPanel,  // the same for more rows than a tile has: all rows of a panel before its tiles
  kPerStep,        // before each step: for one row, one panel and few inputs
  kPipelined,      // for kPipelinedSteps steps, during the products with h in the previous chunk: for one row
};

// Whether the input projection may be pipelined: its tile of rows needs 24 registers, the panel of R four more.
template <class S>
inline constexpr bool kCanPipeline = kLargeTiles && !kConvertsInputs<S>;

// The chunk that is in progress, and the memory of its inputs and of its xp.
template <class C>
struct InputPipeline {
  // own_scratch: this thread's scratch.
  InputPipeline(const RowView<C>& view, unsigned char* own_scratch, const ScratchPlan& plan)
      : copies(view.owner == ScratchOwner::kClaimer || !view.io_is_compute_type),
        x_rows(reinterpret_cast<const C**>(own_scratch + plan.x_rows)),
        x_transposed(reinterpret_cast<C*>(own_scratch + plan.x_transposed)),
        x_converted(own_scratch + plan.x_converted) {}

  // Starts chunks at the current step, and chooses the kind of projection. is_single_tile: the rows are for
  // ForSingleTile.
  template <class S>
  void Start(const RowView<C>& view, bool is_single_tile) {
    const size_t panels = view.geometry.panels();
    // Each member must make the same decision, because all members share xp, and its layout depends on this decision.
    const size_t part_of_R = view.padded / view.members * 3 * view.spec.H * sizeof(S);
    const bool pipelined = kCanPipeline<S> && view.count == 1 && view.steps - view.step >= kMinStepsToPipeline &&
                           part_of_R >= kMinBytesToPipeline && part_of_R < kLargeMatrix;
    const bool is_by_step = is_single_tile && view.owner == ScratchOwner::kCaller && panels == 1 && view.spec.D == 1 &&
                            view.spec.I <= kMaxInputsByStep && view.steps > 1;
    mode = is_by_step ? InputProjection::kPerStep : pipelined ? InputProjection::kPipelined : InputProjection::kChunked;
    most_rows = pipelined ? kPipelinedSteps : view.item.x_rows_at_once;
    ONEGRU_ASSERT(!pipelined || kPipelinedScoreChunks * kPipelinedSteps <= 2 * view.item.x_rows_at_once);
    xp_row = pipelined ? 3 * kLanesOf<C> : 3 * view.padded;
    xp_panel = pipelined ? kPipelinedSteps * 3 * kLanesOf<C> : 3 * kLanesOf<C>;
    chunk = 0;
    chunk_end = view.step;
    is_first_of_chunk = true;
  }

  bool IsPipelined() const { return mode == InputProjection::kPipelined; }

  // Finds the rows of X for a chunk of steps from `step` on, at most most_rows. Copies or converts them and the
  // attention scores if necessary. Advances `step` to the end of the chunk, and returns the number of rows.
  // reads: false if the leader has already copied them to the epoch's scratch. Then only their addresses are set.
  size_t Gather(const RowView<C>& view, size_t& step, size_t number, bool reads) {
    const Call& call = view.call;
    const size_t place = Place(view, number), scores = ScorePlace(view, number);
    size_t gathered = 0, running = view.count;
    if (!copies && !view.IsShared() && call.lengths == nullptr && view.item.order == nullptr && !view.spec.attention) {
      for (; step < view.steps && (gathered == 0 || gathered + running <= most_rows); ++step) {
        const char* from = call.X.at(view.TimeOf(0, step), 0, view.Row(0));
        for (size_t slot = 0; slot < running;
             ++slot, from += call.X.row_stride * static_cast<std::ptrdiff_t>(view.item.stride))
          x_rows[place + gathered++] = reinterpret_cast<const C*>(from);
      }
      return gathered;
    }
    for (; step < view.steps; ++step) {
      while (view.Length(running - 1) <= step) --running;
      if (gathered != 0 && gathered + running > most_rows) break;
      for (size_t slot = 0; slot < running; ++slot, ++gathered) {
        if (reads) {
          GatherRow(view, step, slot, place + gathered, scores + gathered);
        } else {
          x_rows[place + gathered] = x + (place + gathered) * view.spec.I;
        }
      }
    }
    return gathered;
  }

  // Finds, copies or converts a row of X and its attention score.
  void GatherRow(const RowView<C>& view, size_t step, size_t slot, size_t place, size_t place_of_score) {
    const size_t t = view.TimeOf(slot, step), row = view.Row(slot);
    const char* const source = view.call.X.at(t, 0, row);
    C* const copy = x + place * view.spec.I;
    const bool is_copy = view.IsShared() || copies;
    x_rows[place] = is_copy ? copy : reinterpret_cast<const C*>(source);
    if (is_copy) view.Read(source, view.spec.I, copy);
    if (view.spec.attention) view.Read(view.call.attention.at(t, 0, row), 1, attention + place_of_score);
  }

  // The first place of a chunk's rows of X in x_rows and x, which hold two chunks in turn.
  size_t Place(const RowView<C>& view, size_t number) const {
    return view.IsShared() || IsPipelined() ? number % 2 * most_rows : 0;
  }

  // The first place of a chunk's attention scores. With a pipelined projection, the X of a chunk is no longer needed
  // when its steps begin, and is overwritten while other members may still read the scores.
  size_t ScorePlace(const RowView<C>& view, size_t number) const {
    return IsPipelined() ? number % kPipelinedScoreChunks * most_rows : Place(view, number);
  }

  // Moves on by a step of this many rows.
  HWY_INLINE void PassStep(size_t rows) {
    xp_step += rows * xp_row;
    attention_step += rows;
    is_first_of_chunk = false;
  }

  InputProjection mode = InputProjection::kChunked;
  size_t most_rows = 0;              // of a chunk
  size_t chunk = 0;                  // the number of prepared chunks
  size_t chunk_end = 0;              // the step at which the next chunk begins
  bool is_first_of_chunk = true;     // of the current step
  const bool copies;                 // whether inputs are copied to scratch
  size_t x_count = 0;                // rows of X that are multiplied together
  const C** x_from = nullptr;        // these rows
  const C** const x_rows;            // all rows of X
  C* x;                              // copies of rows of X
  C* const x_transposed;             // rows of X for the pipelined projection [k][row]
  unsigned char* const x_converted;  // converted rows of X
  C* xp;                             // x·Wᵀ and biases [row][panel][z, r, n][lanes]
  size_t xp_row = 0, xp_panel = 0;   // distances of rows and panels of xp
  C* xp_to = nullptr;                // the destination of a tile
  const C* xp_step = nullptr;        // xp of this step
  C* xp_next = nullptr;              // xp of the next chunk
  C* attention;                      // of rows of X
  const C* attention_step = nullptr;
};

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
