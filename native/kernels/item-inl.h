// A thread's state of a work item: its rows, inputs and outputs, with the weights and activations of a step.

#include <cstddef>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "native/float_mode.h"
#include "native/kernels/activations-inl.h"
#include "native/kernels/pipelined_projection-inl.h"
#include "native/kernels/products/amx.h"
#include "native/kernels/handover-inl.h"
#include "native/kernels/input_pipeline-inl.h"
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

// Whether z and r are within 0…1 and n is within ±1. Then every state is within ±1, because h lies between n and the
// previous state.
inline bool AreWithinUnit(Function f, Function g) {
  const auto is_in_0_1 = [](Function x) { return x == Function::kSigmoid || x == Function::kHardSigmoid; };
  return is_in_0_1(f) && (is_in_0_1(g) || g == Function::kTanh || g == Function::kSoftsign);
}

// With at least this many rows, and this many rows times inputs, AMX is faster than VNNI (measured on Sapphire Rapids
// and newer).
inline constexpr size_t kMinRowsOfAmx = 4, kMinRowsTimesInputsOfAmx = 320;
// In bfloat16, AMX is faster than multiply-adds for any rows with more inputs (measured on an Intel Xeon: 1.07 times
// for one row and 64 units, 1.7 to 2.2 times for more).
inline constexpr size_t kMaxInputsWithoutAmx = 8;

// The sums that AMX has computed, in int32 or, of bfloat16, in float32, for the rows and panels from `row` and `panel`
// on, each row as [panel][gate][lane]; `from` is null if the tile must compute its own.
struct AmxSums {
  const std::int32_t* from;
  size_t row, panel;
  size_t pitch;  // from a plane of a row to the next
};

// The operands of a product: converted rows of inputs (int8-inl.h, bfloat16-inl.h) and a packed matrix.
struct ConvertedProduct {
  const void* matrix;
  size_t K;
  const unsigned char* inputs;
};

// Asks the token of a call whether to stop, on the thread that made the call.
class Cancellation {
 public:
  Cancellation(CancellationToken* call_token, const Spec& layer, size_t lanes)
      : token_(call_token), work_per_poll_(WorkPerPoll(layer, lanes)), float_mode_(FloatModeOf(layer)) {}

  bool IsStopped() const { return HWY_UNLIKELY(token_ != nullptr) && token_->stopped(); }

  // Called before `rows` rows of a panel take a step or are projected. Returns false if the call was cancelled, and
  // that work may be skipped.
  HWY_INLINE bool PollCancel(size_t rows) {
    work_until_poll_ -= static_cast<std::int64_t>(rows);
    return HWY_LIKELY(work_until_poll_ > 0) || Poll();
  }

  // Whether PollCancel must be called between this many rows of a panel.
  HWY_INLINE bool IsLong(size_t rows) const { return static_cast<std::int64_t>(rows) > work_per_poll_; }

 private:
  // A row of a panel takes 3·lanes products with I or H elements.
  std::int64_t WorkPerPoll(const Spec& layer, size_t lanes) const {
    if (token_ == nullptr) return std::numeric_limits<std::int64_t>::max();
    const size_t row = HWY_MAX(layer.I, layer.H) * 3 * lanes;
    return HWY_MAX(token_->work() / static_cast<std::int64_t>(row), 1);
  }

  HWY_NOINLINE bool Poll() {
    amx::Release();                   // a signal handler may want the tiles
    SetFloatMode(kDefaultFloatMode);  // for the code that the token may run
    token_->Ask();
    SetFloatMode(float_mode_);  // a signal handler may have changed it
    work_until_poll_ = token_->stopped() ? 0 : work_per_poll_;
    return !token_->stopped();
  }

  CancellationToken* const token_;
  const std::int64_t work_per_poll_;  // rows of a panel between two polls
  std::int64_t work_until_poll_ = work_per_poll_;
  const std::uint32_t float_mode_;
};

// The state that the gates of a step need, for matrices of any type. C: the compute type.
template <class C>
struct StepState : RowView<C>, Cancellation {
  // own_scratch: this thread's scratch. The rest of a member's scratch belongs to its epoch.
  StepState(const WorkItem& item, ScratchOwner owner, unsigned char* own_scratch)
      : StepState(item, owner, own_scratch, PlanOf(item, owner)) {}

  // Switches to this thread's own scratch.
  void UseOwnScratch() { UseOwnScratch(PlanOf(this->item, this->owner)); }

  // Switches to the scratch of an epoch, as one of its members.
  void UseScratchOf(const Epoch& epoch, size_t member) {
    this->SelectPanels(member, epoch.members);
    UseScratch(epoch.scratch, PlanOf(this->item, ScratchOwner::kEpoch), kStateBuffersOfEpoch);
  }

  RowsOfY<C> y;
  Handover<C> handover;
  InputPipeline<C> in;
  const PackedDirection weights;
  const Activation f, g;
  const bool is_default;        // Sigmoid, Tanh and no clip
  bool is_single_tile = false;  // one row, few panels
  // No state is beyond 1.
  const bool is_bounded =
      this->call.initial_h.data == nullptr && !this->spec.attention && AreWithinUnit(f.function, g.function);
  const C** const h_rows;            // the rows of h, or of r∘h, that are multiplied
  unsigned char* const h_converted;  // these rows, converted
  std::int32_t* const sums;          // sums of AMX
  // The sums of a tile whose epilogue is out of line, and of int8 those between two groups of weights.
  HWY_ALIGN C tile_sums[kMaxSums * kLanesOf<C>];

 private:
  StepState(const WorkItem& item, ScratchOwner owner, unsigned char* own_scratch, const ScratchPlan& plan)
      : RowView<C>(item, owner),
        Cancellation(owner == ScratchOwner::kCaller ? item.call->token : nullptr, this->spec, kLanesOf<C>),
        handover(*this),
        in(*this, own_scratch, plan),
        weights(item.packed->direction(item.d)),
        f(this->spec.f[item.d]),
        g(this->spec.g[item.d]),
        is_default(f.function == Function::kSigmoid && g.function == Function::kTanh &&
                   this->spec.clip == std::numeric_limits<double>::infinity()),
        h_rows(reinterpret_cast<const C**>(own_scratch + plan.h_rows)),
        h_converted(own_scratch + plan.h_converted),
        sums(reinterpret_cast<std::int32_t*>(own_scratch + plan.sums)),
        own_scratch_(own_scratch) {
    y.buffer = reinterpret_cast<char*>(own_scratch + plan.y);
    handover.states = reinterpret_cast<C*>(own_scratch + plan.states);
    UseOwnScratch(plan);
  }

  static ScratchPlan PlanOf(const WorkItem& item, ScratchOwner owner) {
    return {owner, *item.packed, sizeof(C), item.rows_at_once, item.x_rows_at_once};
  }

  void UseOwnScratch(const ScratchPlan& plan) {
    this->SelectPanels(0, 1);
    if (this->IsLeader()) UseScratch(own_scratch_, plan, kStateBuffers);
  }

  // Keeps the states in `buffers` buffers, and the inputs, at these places.
  void UseScratch(unsigned char* base, const ScratchPlan& plan, size_t buffers) {
    const auto at = [&](size_t place) { return reinterpret_cast<C*>(base + place); };
    this->h_mask = buffers - 1;
    for (size_t i = 0; i < kStateBuffersOfEpoch; ++i)
      this->h[i] = at(plan.h) + i % buffers * this->item.rows_at_once * this->padded;
    this->rh = at(plan.rh), this->z = at(plan.z);
    in.xp = at(plan.xp), in.attention = at(plan.attention), in.x = at(plan.x);
  }

  unsigned char* const own_scratch_;
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

  PipelinedProjection<C, S> pipelined;
  bool used_amx = false;  // this thread may have configured tiles
  const bool may_use_amx = kHasAmx<S> && MayUseAmx(this->item.packed->target(), kIsRounded<S>) &&
                           this->spec.group == 0 && AmxCanMultiply(this->geometry, kIsRounded<S>);
  AmxSums amx_sums{};
};

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
