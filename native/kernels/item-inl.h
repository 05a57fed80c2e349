// A thread's state of a work item.

#include <cstddef>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "native/kernels/activations-inl.h"
#include "native/kernels/ahead-inl.h"
#include "native/kernels/amx.h"
#include "native/kernels/int8-inl.h"
#include "native/kernels/rows-inl.h"
#include "native/targets/targets.h"

#if defined(ONEGRU_NATIVE_KERNELS_ITEM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_ITEM_INL_H_
#undef ONEGRU_NATIVE_KERNELS_ITEM_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_ITEM_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {
namespace hn = hwy::HWY_NAMESPACE;

// When the input projection x·Wᵀ is computed.
enum class InputProjection {
  kChunked,        // for a chunk of steps, before the first of them
  kFusedPerTile,   // in the step, before the product of each tile with R, so that a panel of W is read just before R's
  kFusedPerPanel,  // the same for more rows than a tile has: all rows of a panel before its tiles
  kPerStep,        // before each step: for one row, one panel and few inputs
  kPipelined,      // for kAheadRows steps, during the products with h of the chunk before: for one row
};

// Whether z and r are within 0…1 and n is within ±1. Then every state is within ±1, because h lies between n and the
// previous state.
inline bool AreWithinUnit(Function f, Function g) {
  const auto is_share = [](Function x) { return x == Function::kSigmoid || x == Function::kHardSigmoid; };
  return is_share(f) && (is_share(g) || g == Function::kTanh || g == Function::kSoftsign);
}

// Whether the input projection may be pipelined.
template <class S>
inline constexpr bool kCanPipeline = kCanProjectAhead && !kConvertsInputs<S>;

// With at least this many rows, and this many rows times inputs, AMX is faster than VNNI (measured on Sapphire Rapids
// and newer).
inline constexpr size_t kMinRowsOfAmx = 4, kMinRowsTimesInputsOfAmx = 320;
// In bfloat16, AMX is faster than multiply-adds for any rows with more inputs (measured on an Intel Xeon: 1.07 times
// for one row and 64 units, 1.7 to 2.2 times for more).
inline constexpr size_t kMaxInputsWithoutAmx = 8;

// The sums that AMX has computed, in int32 or, of bfloat16, in float32, for the rows and panels from `row` and `panel`
// on, each row as [panel][gate][lane]; `from` is null if the tile must compute its own.
struct Summed {
  const std::int32_t* from;
  size_t row, panel;
  size_t pitch;  // from a plane of a row to the next
};

// A product of converted rows of inputs, see int8-inl.h and bfloat16-inl.h, with a packed matrix.
struct ConvertedProduct {
  const void* matrix;
  size_t K;
  const unsigned char* rows;
};

// The state that the gates of a step need, for matrices of any type. C: the compute type.
template <class C>
struct StepState : ActiveRows<C> {
  StepState(const WorkItem& item, ScratchOwner owner, unsigned char* own)
      : ActiveRows<C>(item, owner, own),
        weights(item.packed->direction(item.d)),
        f(this->spec.f[item.d]),
        g(this->spec.g[item.d]),
        is_default(f.function == Function::kSigmoid && g.function == Function::kTanh &&
                   this->spec.clip == std::numeric_limits<double>::infinity()) {}

  bool IsPipelined() const { return input_projection == InputProjection::kPipelined; }
  // The most rows of a chunk.
  size_t MaxXRowsOfChunk() const { return IsPipelined() ? kAheadRows : this->item.x_rows_at_once; }

  const PackedDirection weights;
  const Activation f, g;
  const bool is_default;  // Sigmoid, Tanh and no clip
  InputProjection input_projection = InputProjection::kChunked;
  bool is_few = false;            // one row, few panels
  size_t x_count = 0;             // rows of X that are multiplied together
  size_t chunk = 0;               // the number of prepared chunks
  bool is_first_of_chunk = true;  // of the current step
  size_t chunk_end = 0;           // the step at which the next chunk begins
  const C* attention_step = nullptr;
  // No state is beyond 1.
  const bool is_bounded =
      this->call.initial_h.data == nullptr && !this->spec.attention && AreWithinUnit(f.function, g.function);
  size_t xp_row = 0, xp_panel = 0;  // distances of rows and panels of xp
  C* xp_to = nullptr;               // the destination of a tile
  const C* xp_step = nullptr;       // xp of this step
  C* xp_ahead = nullptr;            // xp of the next chunk
  const C** x_from = nullptr;       // the rows of X that are multiplied
  // The sums of a tile whose epilogue is out of line, and of int8 those between two groups of weights.
  HWY_ALIGN C tile_sums[kMaxSums * kLanesOf<C>];
};

// S: the type that matrices are stored in.
template <class C, class S>
struct ItemState : StepState<C> {
  using Stored = S;
  using StepState<C>::StepState;

  // Whether AMX computes the products of `rows` rows with a matrix of K inputs.
  bool UsesAmx(size_t rows, size_t K) {
    const bool is_faster = kIsRounded<S>
                               ? K > kMaxInputsWithoutAmx
                               : rows >= kMinRowsOfAmx && K > amx::kInputs / 4 && rows * K >= kMinRowsTimesInputsOfAmx;
    const bool uses = kHasAmx<S> && may_use_amx && is_faster;
    used_amx |= uses;
    return uses;
  }
  // Called at the end. A thread without tiles does not call amx::Release: in a library that was loaded at run time, its
  // first access to a thread-local variable would allocate memory.
  void ReleaseAmx() {
    if (used_amx) amx::Release();
  }

  Ahead<C, S> ahead;
  bool used_amx = false;  // this thread may have configured tiles
  const bool may_use_amx = kHasAmx<S> && MayUseAmx(this->item.packed->target(), kIsRounded<S>) &&
                           this->spec.group == 0 && AmxCanMultiply(this->geometry, kIsRounded<S>);
  Summed summed{};
};

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
