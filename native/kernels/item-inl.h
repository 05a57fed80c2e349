// All that a thread knows of its work item.

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

// When the products with x are computed.
enum class Projecting {
  kByChunk,  // for a chunk of steps, before the first of them
  kByTile,   // in the step, tile by tile, as each panel of W is best read just before that of R: a chunk of one step
  kByPanel,  // the same of more rows than a tile has: all rows of a panel before its tiles
  kByStep,   // before each step: one row, one panel, few inputs
  kAhead,    // for a chunk of kAheadRows steps, beside the products with h of the chunk before: one row
};

// Whether z and r are within 0…1 and n is within ±1: so is then every state, as h is between n and the state before.
inline bool AreWithinUnit(Function f, Function g) {
  const auto is_share = [](Function x) { return x == Function::kSigmoid || x == Function::kHardSigmoid; };
  return is_share(f) && (is_share(g) || g == Function::kTanh || g == Function::kSoftsign);
}

// Products with x may be computed ahead.
template <class S>
inline constexpr bool kProjectsAhead = kCanProjectAhead && !kIsInt8<S>;

// From so many rows on, and rows times inputs, AMX is faster than VNNI, measured on Sapphire Rapids or newer.
inline constexpr size_t kMinRowsOfAmx = 4, kMinOfAmx = 320;

// Where sums in int8 are that AMX has computed, those of rows and panels from some on, a row as [panel][gate][lane];
// null if the tile has to compute its own.
struct Summed {
  const std::int32_t* from;
  size_t row, panel;
  size_t pitch;  // from a plane of a row to the next
};

// A product in int8: rows of inputs, see int8-inl.h, with a packed matrix.
struct Int8Product {
  const void* matrix;
  size_t K;
  const unsigned char* rows;
};

// What a step's gates need, of whatever type the matrices are. C: the type that is computed in.
template <class C>
struct StepState : ActiveRows<C> {
  StepState(const WorkItem& item, ScratchOwner owner, unsigned char* own)
      : ActiveRows<C>(item, owner, own),
        weights(item.packed->direction(item.d)),
        f(this->spec.f[item.d]),
        g(this->spec.g[item.d]),
        is_default(f.function == Function::kSigmoid && g.function == Function::kTanh &&
                   this->spec.clip == std::numeric_limits<double>::infinity()) {}

  bool IsAhead() const { return projecting == Projecting::kAhead; }
  // The most rows of a chunk.
  size_t MostOfChunk() const { return IsAhead() ? kAheadRows : this->item.steps_at_once; }

  const PackedDirection weights;
  const Activation f, g;
  const bool is_default;  // Sigmoid, Tanh and no clip
  Projecting projecting = Projecting::kByChunk;
  bool is_few = false;            // one row, few panels
  size_t x_count = 0;             // rows of X that are multiplied together
  size_t chunk = 0;               // how many chunks were prepared
  bool is_first_of_chunk = true;  // this step
  size_t projected = 0;           // xp is there up to this step
  const C* attention_step = nullptr;
  // No state is beyond 1.
  const bool is_bounded =
      this->call.initial_h.data == nullptr && !this->spec.attention && AreWithinUnit(f.function, g.function);
  size_t xp_row = 0, xp_panel = 0;  // how far rows and panels of xp lie apart
  C* xp_to = nullptr;               // where a tile puts it
  const C* xp_step = nullptr;       // that of this step
  C* xp_ahead = nullptr;            // that of the next chunk
  const C** x_from = nullptr;       // the rows of X that are multiplied
  // Of a tile whose last stages are apart.
  HWY_ALIGN C tile_sums[kMaxSums * kLanesOf<C>];
};

// S: the type that matrices are stored in.
template <class C, class S>
struct ItemState : StepState<C> {
  using StepState<C>::StepState;

  // Whether AMX computes the products of so many rows with a matrix of K inputs.
  bool UsesAmx(size_t rows, size_t K) {
    const bool uses =
        kHasAmx<S> && may_use_amx && rows >= kMinRowsOfAmx && K > amx::kInputs / 4 && rows * K >= kMinOfAmx;
    has_tiles |= uses;
    return uses;
  }
  // At the end. A thread without tiles is not asked: of a library that was loaded while the program ran, the first
  // question would have the C library allocate what the thread remembers.
  void ReleaseTiles() {
    if (has_tiles) amx::Release();
  }

  Ahead<C, S> ahead;
  bool has_tiles = false;  // this thread may have some
  const bool may_use_amx = kHasAmx<S> && Int8ProductsOf(this->item.packed->target()) == Int8Products::kAmx &&
                           this->spec.group == 0 && AmxCanMultiply(this->geometry);
  Summed summed{};
};

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
