// Runs a work item:
//
//   for each block of rows                       Lead: Begin, then End
//     for each chunk of steps                    Advance, which runs one step
//       project X                                PrepareInputs
//       for each step
//         for each tile: gates, new state        Step
//         barrier

#include <cstddef>
#include <new>
#include <type_traits>

#include "hwy/highway.h"
#include "native/kernels/crew-inl.h"
#include "native/kernels/step-inl.h"

#if defined(ONEGRU_NATIVE_KERNELS_SEQUENCE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_SEQUENCE_INL_H_
#undef ONEGRU_NATIVE_KERNELS_SEQUENCE_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_SEQUENCE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {
namespace hn = hwy::HWY_NAMESPACE;

// A thread's run of an item. C: the compute type. S: the type of the packed matrices.
template <class C, class S>
class Sequence {
 public:
  Sequence(const WorkItem& item, ScratchOwner owner, unsigned char* own_scratch) : s_(item, owner, own_scratch) {}

  // Runs all rows of the item, as its leader.
  void Lead() {
    for (size_t begin = s_.item.from.begin; !s_.IsStopped() && Begin(begin); begin += s_.count) {
      while (Advance()) {
      }
      membership_.End(s_);
      if (s_.step != s_.steps || !End()) return;
    }
  }

  // Runs the steps of an epoch, as a member.
  void Join(Epoch& epoch, size_t member) {
    s_.SelectRows(epoch.begin);
    membership_.Join(s_, epoch, member);
    while (Advance()) {
    }
  }

  // Begins the rows from `begin` on. Call Advance until it returns false, then End.
  bool Begin(size_t begin) {
    if (!s_.SelectRows(begin) || !s_.handover.OpenWindow()) return false;
    s_.step = 0;
    if (begin == s_.item.from.begin && s_.item.from.states != nullptr) {
      s_.step = s_.item.from.step;
      s_.LoadStates(s_.step, static_cast<const C*>(s_.item.from.states));
    } else {
      s_.LoadInitialState();
    }
    s_.handover.CloseWindow();
    s_.handover.committed_steps = s_.step;
    StartChunks(s_);
    return s_.item.crew == nullptr || s_.steps == 0 ||
           membership_.Regroup(s_, s_.item.expected_helpers, s_.item.wait_budget);
  }

  // Runs one step. Returns false if no step is left, another thread continues, or the call was cancelled.
  bool Advance() {
    if (s_.step == s_.steps || !membership_.Admit(s_) || !PrepareInputs()) return false;
    if (s_.HasEndedRow()) {
      do --s_.active;
      while (s_.HasEndedRow());
      s_.y.ChooseWriter(s_);
    }
    // The leader regroups all members except itself and the late one.
    if (!Step()) return s_.IsLeader() && membership_.Regroup(s_, s_.members - 2);
    s_.in.PassStep(s_.active);
    s_.y.place += s_.active;
    ++s_.step;
    return true;
  }

  // Completes the rows. Returns false if the caller has reclaimed the item.
  bool End() {
    if (!s_.handover.OpenWindow()) return false;
    s_.handover.Finish(s_, s_.y, [&] { return s_.PollCancel(1); });
    const bool done = s_.begin + s_.count == s_.item.rows;
    s_.handover.CloseWindow(done);
    if (done && s_.item.crew != nullptr) s_.item.crew->Close();
    return true;
  }

  void ReleaseAmx() { s_.ReleaseAmx(); }
  const WorkItem& item() const { return s_.item; }

 private:
  // A step of one row and one panel is too short to poll for cancellation each time.
  static constexpr size_t kStepsPerPoll = 1024;

  // Projects the inputs of the next chunk if the current chunk has ended. Returns false if this thread must stop.
  HWY_INLINE bool PrepareInputs() {
    if (s_.in.mode == InputProjection::kPerStep) {
      if (s_.step % kStepsPerPoll == 0 && !s_.PollCancel(kStepsPerPoll)) return false;
      PrepareStep(s_);
    } else if (s_.step == s_.in.chunk_end) {
      if (s_.IsStopped() || !s_.handover.OpenWindowAndCommit(s_, s_.y)) return false;
      PrepareNext(s_);
    }
    return true;
  }

  // Computes a step. Returns false if a member is late; the states before the step are then unchanged.
  bool Step() {
    if constexpr (kCanPipeline<S>) {
      if (s_.in.IsPipelined()) return StepWith<true>();
    }
    return StepWith<false>();
  }

  template <bool kWithPipelined>
  HWY_INLINE bool StepWith() {
    if (s_.active > 1) s_.y.Locate(s_);
    C* const h = s_.State(s_.step, 0);
    if (s_.spec.linear_before_reset) {
      Compute<ResetAfterStages, kWithPipelined>(s_, h);
    } else {
      Compute<ResetBeforeGatesStages, kWithPipelined>(s_, h);
      if (HWY_UNLIKELY(s_.IsShared()) && !membership_.ArriveAndWait(s_)) return false;
      // Now r∘h is complete.
      Compute<ResetBeforeStateStages, kWithPipelined>(s_, s_.rh);
    }
    if (HWY_UNLIKELY(s_.spec.flush_subnormals)) FlushStates(s_);
    if (HWY_UNLIKELY(s_.IsShared()) && (!membership_.GatherInputsOfNextChunk(s_) || !membership_.ArriveAndWait(s_)))
      return false;
    // Now the new state is complete.
    if (HWY_UNLIKELY(s_.y.by_row)) s_.y.WriteUnits(s_);
    return true;
  }

  ItemState<C, S> s_;
  Membership<C, S> membership_;
};

// Sets the mode that the kernels compute in, and then the default again.
class KernelFloatMode {
 public:
  explicit KernelFloatMode(const WorkItem& item) : mode_(FloatModeOf(item.packed->spec())) { Set(mode_); }
  ~KernelFloatMode() { Set(kDefaultFloatMode); }
  KernelFloatMode(const KernelFloatMode&) = delete;
  KernelFloatMode& operator=(const KernelFloatMode&) = delete;

 private:
  void Set(std::uint32_t mode) const {
    if (mode_ != kDefaultFloatMode) SetFloatMode(mode);
  }
  const std::uint32_t mode_;
};

template <class C, class S>
void LeadItem(const WorkItem& item) {
  const KernelFloatMode mode(item);
  const ScratchOwner owner = item.claim == nullptr ? ScratchOwner::kCaller : ScratchOwner::kClaimer;
  Sequence<C, S> sequence(item, owner, item.scratch);
  sequence.Lead();
  sequence.ReleaseAmx();
}

template <class C, class S>
void SetUp(const WorkItem& item, void* memory) {
  static_assert(std::is_trivially_destructible_v<Sequence<C, S>> && alignof(Sequence<C, S>) <= kAlignment);
  new (memory) Sequence<C, S>(item, ScratchOwner::kCaller, item.scratch);
}

template <class C, class S>
void RunAgain(void* memory) {
  auto& sequence = *static_cast<Sequence<C, S>*>(memory);
  const KernelFloatMode mode(sequence.item());
  sequence.Lead();
  sequence.ReleaseAmx();
}

template <class C, class S>
void JoinItem(const WorkItem& item, Epoch& epoch, size_t member, unsigned char* scratch) {
  const KernelFloatMode mode(item);
  Sequence<C, S> sequence(item, ScratchOwner::kMember, scratch);
  sequence.Join(epoch, member);
  sequence.ReleaseAmx();
}

template <class C, class S>
void RunPair(const WorkItem& first, const WorkItem& second) {
  const KernelFloatMode mode(first);
  Sequence<C, S> a(first, ScratchOwner::kCaller, first.scratch), b(second, ScratchOwner::kCaller, second.scratch);
  a.Begin(0);
  b.Begin(0);
  while (int{a.Advance()} | int{b.Advance()}) {  // both, always
  }
  a.End();
  b.End();
  a.ReleaseAmx();
  b.ReleaseAmx();
}

template <class C>
void ActivateAll(const Activation& activation, size_t count, const void* x, void* y) {
  const hn::ScalableTag<C> d;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::StoreU(Activate(d, activation, hn::LoadU(d, static_cast<const C*>(x) + i)), d, static_cast<C*>(y) + i);
  }
}

template <class C, class S>
constexpr Kernel MakeKernel() {
  return {hn::MaxLanes(hn::ScalableTag<C>()),
          &LeadItem<C, S>,
          &JoinItem<C, S>,
          sizeof(Sequence<C, S>),
          &SetUp<C, S>,
          &RunAgain<C, S>,
          &RunPair<C, S>,
          &ActivateAll<C>};
}

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
