// The epochs of a crew: which threads split the units of the current steps, and how they wait for each other.

#include <algorithm>
#include <chrono>

#include "hwy/highway.h"
#include "native/kernels/item-inl.h"
#include "native/kernels/projection-inl.h"

#if defined(ONEGRU_NATIVE_KERNELS_CREW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_CREW_INL_H_
#undef ONEGRU_NATIVE_KERNELS_CREW_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_CREW_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {

// A thread's membership in its current epoch, if it is in one. The leader is member 0. `s` is the thread's state.
template <class C, class S>
class Membership {
 public:
  // Enters an epoch, as a member.
  void Join(ItemState<C, S>& s, Epoch& epoch, size_t member) {
    epoch_ = &epoch;
    member_ = member;
    s.UseScratchOf(epoch, member);
    s.step = epoch.step;
    StartChunks(s);
  }

  // Called before each step. The leader lets waiting threads join. Returns false if this thread must not continue.
  HWY_INLINE bool Admit(ItemState<C, S>& s) {
    if (s.item.crew != nullptr && s.IsLeader()) {
      const size_t here = s.item.crew->waiting();
      if (s.IsShared() && EpochEnds(s)) return Regroup(s, here + s.members - 1);
      return s.IsShared() || here == 0 || !s.item.crew->HasMemory() || Regroup(s, here);
    }
    return !s.IsShared() || !EpochEnds(s);
  }

  // Continues with all threads that are waiting, if any. Waits for `expected_helpers` threads, for at most
  // `wait_budget`. Returns false if the caller has reclaimed the item.
  bool Regroup(ItemState<C, S>& s, size_t expected_helpers, std::chrono::nanoseconds wait_budget = kGatherTimeout) {
    Crew& crew = *s.item.crew;
    if (!s.handover.OpenWindowAndCommit(s, s.y)) return false;
    End(s);
    for (SpinDeadline waiting(wait_budget); crew.waiting() < expected_helpers && waiting.Wait();) {
    }
    Epoch* const next = crew.FormEpoch();
    if (next != nullptr || s.IsShared()) {
      s.MoveStates(s.step, [&] { next == nullptr ? s.UseOwnScratch() : s.UseScratchOf(*next, 0); });
      epoch_ = next;
      StartChunks(s);
    }
    if (next != nullptr) {
      next->begin = s.begin;
      next->step = s.step;
      size_t step = s.step;
      s.in.Gather(s, step, 0, true);
      if (s.in.IsPipelined()) s.in.Gather(s, step, 1, true);
      began_ = std::chrono::steady_clock::now();
      meetings_ = 0;
      crew.Start();
    }
    s.handover.CloseWindow();
    return true;
  }

  // Waits at the barrier. Returns false to a member if the epoch is over, and to the leader if a member is late.
  bool ArriveAndWait(const ItemState<C, S>& s) {
    if (!s.IsShared()) return true;
    if (!s.IsLeader()) return epoch_->ArriveAndWait(member_);
    ++meetings_;
    return epoch_->ArriveAndWaitAsLeader([&] { return MaxWaitForMember(s); });
  }

  // Reads the inputs of the next chunk for all members, as the leader, before the barrier at the end of this chunk.
  bool GatherInputsOfNextChunk(ItemState<C, S>& s) {
    if (!s.IsLeader() || s.step + 1 != s.in.chunk_end) return true;
    if (s.item.crew->waiting() != 0 && s.item.crew->HasMemory()) {
      epoch_->end_step.store(s.in.chunk_end, std::memory_order_relaxed);
      return true;
    }
    size_t step = s.in.chunk_end;
    if (s.in.IsPipelined()) step = HWY_MIN(step + kPipelinedSteps, s.steps);
    if (step == s.steps) return true;
    if (!s.handover.OpenWindow()) return false;
    // in.chunk is already the next chunk; a pipelined projection needs the chunk after it.
    s.in.Gather(s, step, s.in.IsPipelined() ? s.in.chunk + 1 : s.in.chunk, true);
    s.handover.CloseWindow();
    return true;
  }

  void End(const ItemState<C, S>& s) {
    if (s.IsShared()) epoch_->End();
  }

 private:
  bool EpochEnds(const ItemState<C, S>& s) const { return epoch_->end_step.load(std::memory_order_relaxed) == s.step; }

  // Returns how long to wait before a member is late: twice the mean time from barrier to barrier, but no longer than a
  // slow thread takes for the step. Before this mean is known, and in the first step of a chunk, which takes longer
  // than the others, it returns the time of a slow thread.
  std::chrono::nanoseconds MaxWaitForMember(const ItemState<C, S>& s) const {
    const double each_row = 6.0 * static_cast<double>(s.spec.H) / static_cast<double>(s.members);
    double flops = each_row * static_cast<double>(s.spec.H * s.active);
    if (s.in.is_first_of_chunk)
      flops += each_row * static_cast<double>(s.spec.I * HWY_MAX(s.in.x_count, 2 * kPipelinedSteps));
    const auto slow = kMinWaitForMember + std::chrono::nanoseconds(static_cast<std::int64_t>(flops / kSlowGigaflops));
    if (s.in.is_first_of_chunk || meetings_ < kMeetingsToKnow) return slow;
    const auto each = (std::chrono::steady_clock::now() - began_) / meetings_;
    return std::min<std::chrono::nanoseconds>(slow, kMinWaitForMember + 2 * each);
  }

  static constexpr std::chrono::nanoseconds kMinWaitForMember{4000};
  static constexpr double kSlowGigaflops = 15;  // of one thread that waits for memory
  static constexpr int kMeetingsToKnow = 16;

  Epoch* epoch_ = nullptr;
  size_t member_ = 0;
  std::chrono::steady_clock::time_point began_{};  // the start of the epoch
  int meetings_ = 0;                               // barriers of the epoch
};

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
