// Runs a work item: for each block of rows, for each chunk of steps, project X; for each step, compute the tiles and,
// with other threads, wait at a barrier. Lead has the loop over blocks. Advance prepares a chunk when it is due, and
// runs one step by Step.

#include <algorithm>
#include <chrono>
#include <new>
#include <type_traits>

#include "hwy/highway.h"
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

// C: the compute type. S: the type of the packed matrices.
template <class C, class S>
class Sequence {
 public:
  Sequence(const WorkItem& item, ScratchOwner owner, unsigned char* own) : s_(item, owner, own) {}

  // Runs all rows of the item, as its leader.
  void Lead() {
    for (size_t begin = s_.item.from.begin; !s_.IsStopped() && Begin(begin); begin += s_.count) {
      while (Advance()) {
      }
      if (s_.shared) epoch_->End();
      if (s_.step != s_.steps || !End()) return;
    }
  }

  // Begins the rows from `begin` on. Call Advance until it returns false, then End.
  bool Begin(size_t begin) {
    if (!s_.SelectRows(begin)) return false;
    if (!s_.Open()) return false;
    s_.step = 0;
    if (begin == s_.item.from.begin && s_.item.from.states != nullptr) {
      s_.step = s_.item.from.step;
      s_.LoadStates(s_.step, static_cast<const C*>(s_.item.from.states));
    } else {
      s_.LoadInitialState();
    }
    s_.Close();
    s_.committed_steps = s_.step;
    Restart();
    return s_.item.crew == nullptr || s_.steps == 0 || Regroup(s_.item.expected_helpers, s_.item.wait_budget);
  }

  // Runs the steps of an epoch, as a member.
  void Join(Epoch& epoch, size_t member) {
    s_.SelectRows(epoch.begin);
    epoch_ = &epoch;
    member_ = member;
    s_.UseScratchOf(epoch, member);
    s_.step = epoch.step;
    Restart();
    while (Advance()) {
    }
  }

  // Runs one step. Returns false if no step is left, another thread continues, or the call was cancelled.
  bool Advance() {
    if (s_.step == s_.steps) return false;
    if (s_.item.crew != nullptr && s_.IsLeader()) {
      const size_t here = s_.item.crew->waiting();
      if (s_.shared && EpochEnds()) {
        if (!Regroup(here + epoch_->members - 1)) return false;
      } else if (!s_.shared && here != 0 && s_.item.crew->HasMemory()) {
        if (!Regroup(here)) return false;
      }
    } else if (s_.shared && EpochEnds()) {
      return false;
    }
    if (s_.input_projection == InputProjection::kPerStep) {
      if (s_.step % kStepsPerPoll == 0 && !s_.PollCancel(kStepsPerPoll)) return false;
      PrepareStep(s_);
    } else if (s_.step == s_.chunk_end) {
      if (s_.IsStopped()) return false;
      if (!s_.Commit()) return false;
      PrepareNext(s_);
    }
    if (s_.active > 0 && s_.Length(s_.active - 1) <= s_.step) {
      do --s_.active;
      while (s_.active > 0 && s_.Length(s_.active - 1) <= s_.step);
      ChooseYWriter();
    }
    // Without the leader and the late member.
    if (!Step()) return s_.IsLeader() && Regroup(epoch_->members - 2);
    EndStep(s_);
    return true;
  }

  bool End() {
    if (!s_.Open()) return false;
    s_.WriteY();
    s_.Finish();
    const bool done = s_.begin + s_.count == s_.item.rows;
    if (s_.owner == ScratchOwner::kHelper) s_.item.claim->Commit({s_.begin + s_.count, 0, nullptr});
    s_.Close(done);
    if (done && s_.item.crew != nullptr) s_.item.crew->Close();
    return true;
  }

  void ReleaseAmx() { s_.ReleaseAmx(); }
  const WorkItem& item() const { return s_.item; }

 private:
  // A step of one row and one panel is too short to poll for cancellation each time.
  static constexpr size_t kStepsPerPoll = 1024;

  bool EpochEnds() const { return epoch_->end_step.load(std::memory_order_relaxed) == s_.step; }

  // --- which threads compute which units

  // Continues with all threads that are waiting, if any. Waits for `expected_helpers` threads, for at most
  // `wait_budget`. Returns false if the caller has reclaimed the item.
  bool Regroup(size_t expected_helpers, std::chrono::nanoseconds wait_budget = kGatherTimeout) {
    Crew& crew = *s_.item.crew;
    if (!s_.Commit()) return false;
    if (s_.shared) epoch_->End();
    for (SpinDeadline waiting(wait_budget); crew.waiting() < expected_helpers && waiting.Wait();) {
    }
    Epoch* const next = crew.FormEpoch();
    if (next != nullptr || s_.shared) {
      s_.MoveStates(s_.step, [&] { next == nullptr ? s_.UseOwnScratch() : s_.UseScratchOf(*next, 0); });
      epoch_ = next;
      Restart();
    }
    if (next != nullptr) {
      next->begin = s_.begin;
      next->step = s_.step;
      size_t step = s_.step;
      const size_t most = s_.MaxXRowsOfChunk();
      s_.GatherInputs(step, most, 0, true);
      if (s_.IsPipelined()) s_.GatherInputs(step, most, 1, true);
      began_ = std::chrono::steady_clock::now();
      meetings_ = 0;
      crew.Start();
    }
    s_.Close();
    return true;
  }

  // Waits at the barrier. Returns false to a member if the epoch is over, and to the leader if a member is late.
  bool ArriveAndWait() {
    if (!s_.shared) return true;
    if (!s_.IsLeader()) return epoch_->ArriveAndWait(member_);
    ++meetings_;
    return epoch_->ArriveAndWaitAsLeader([this] { return MaxSpin(); });
  }

  // A member is late if it takes twice as long as the mean step so far.
  std::chrono::nanoseconds MaxSpin() const {
    const double each_row = 6.0 * static_cast<double>(s_.spec.H) / static_cast<double>(epoch_->members);
    double flops = each_row * static_cast<double>(s_.spec.H * s_.active);
    if (s_.is_first_of_chunk) flops += each_row * static_cast<double>(s_.spec.I * HWY_MAX(s_.x_count, 2 * kAheadRows));
    const auto slow = kMinSpin + std::chrono::nanoseconds(static_cast<std::int64_t>(flops / kSlowGigaflops));
    if (s_.is_first_of_chunk || meetings_ < kMeetingsToKnow) return slow;
    const auto each = (std::chrono::steady_clock::now() - began_) / meetings_;
    return std::min<std::chrono::nanoseconds>(slow, kMinSpin + 2 * each);
  }

  static constexpr std::chrono::nanoseconds kMinSpin{4000};
  static constexpr double kSlowGigaflops = 15;  // of one thread that waits for memory
  static constexpr int kMeetingsToKnow = 16;

  void Restart() {
    s_.active = s_.count;
    ChooseYWriter();
    StartChunks(s_, s_.shared ? epoch_->members : 1);
  }

  // Reads the inputs of the next chunk for all members, as the leader, before the barrier at the end of this chunk.
  bool GatherInputsOfNextChunk() {
    if (!s_.IsLeader() || s_.step + 1 != s_.chunk_end) return true;
    if (s_.item.crew->waiting() != 0 && s_.item.crew->HasMemory()) {
      epoch_->end_step.store(s_.chunk_end, std::memory_order_relaxed);
      return true;
    }
    size_t step = s_.chunk_end;
    if (s_.IsPipelined()) step = HWY_MIN(step + kAheadRows, s_.steps);
    if (step == s_.steps) return true;
    const size_t most = s_.MaxXRowsOfChunk();
    if (!s_.Open()) return false;
    // s_.chunk is already the next chunk; a pipelined projection needs the chunk after it.
    s_.GatherInputs(step, most, s_.IsPipelined() ? s_.chunk + 1 : s_.chunk, true);
    s_.Close();
    return true;
  }

  // With many rows, the results of a tile are far apart in Y, and writing whole rows after the step is up to 1.06 times
  // as fast. Rows of at most a cache line are written by tiles. Flushed states are written after they are flushed.
  void ChooseYWriter() {
    const bool is_wanted = s_.call.Y.data != nullptr && s_.IsLeader();
    s_.y_by_tile =
        is_wanted && !s_.spec.flush_subnormals && (s_.active <= kMaxRowsOfOneTile || s_.spec.H * sizeof(C) <= 64);
    s_.y_by_row = is_wanted && (s_.shared || !s_.y_by_tile);
  }

  // Computes a step. Returns false if a member is late; the states before the step are then unchanged.
  bool Step() {
    if constexpr (kCanPipeline<S>) {
      if (s_.IsPipelined()) return StepWith<true>();
    }
    return StepWith<false>();
  }

  template <bool kWithPipelined>
  HWY_INLINE bool StepWith() {
    if (s_.active > 1) s_.LocateRowsOfY();
    if (s_.spec.linear_before_reset) {
      StepResetAfter<kWithPipelined>(s_);
    } else {
      GatesResetBefore<kWithPipelined>(s_);
      if (HWY_UNLIKELY(s_.shared) && !ArriveAndWait()) return false;
      // Now r∘h is complete.
      StateResetBefore<kWithPipelined>(s_);
    }
    if (HWY_UNLIKELY(s_.spec.flush_subnormals)) FlushStates(s_);
    if (HWY_UNLIKELY(s_.shared) && (!GatherInputsOfNextChunk() || !ArriveAndWait())) return false;
    // Now the new state is complete.
    if (HWY_UNLIKELY(s_.y_by_row)) WriteUnits(s_);
    return true;
  }

  ItemState<C, S> s_;
  Epoch* epoch_ = nullptr;
  size_t member_ = 0;
  std::chrono::steady_clock::time_point began_{};  // the start of the epoch
  int meetings_ = 0;                               // barriers of the epoch
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
  const ScratchOwner owner = item.claim == nullptr ? ScratchOwner::kCaller : ScratchOwner::kHelper;
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
