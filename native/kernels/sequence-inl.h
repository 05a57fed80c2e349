// One work item of a call: rows of one direction from their first step to their last, by one thread or by a crew.

#include <algorithm>
#include <chrono>

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
namespace hn = hwy::HWY_NAMESPACE;

// C: the type that is computed in. S: the type that matrices are stored in. kAfter: reset after.
template <class C, class S, bool kAfter>
class Sequence : StepOfRows<C, S> {
  using Base = StepOfRows<C, S>;
  using Base::call_, Base::item_, Base::spec_, Base::owner_, Base::shared_, Base::begin_, Base::count_;
  using Base::GoOn, Base::Open, Base::Close, Base::HandOver, Base::leads, Base::Length, Base::PlaceOf, Base::TakeInputs;
  using Base::projecting_, Base::projected_, Base::chunk_, Base::x_count_, Base::is_first_of_chunk_;
  using Base::steps_, Base::step_, Base::active_, Base::written_;

 public:
  Sequence(const WorkItem& item, ScratchOwner owner, unsigned char* own) : Base(item, owner, own) {}

  // All rows of the item.
  void Lead() {
    for (size_t begin = item_.from.begin; !this->IsStopped() && Begin(begin); begin += count_) {
      while (Advance()) {
      }
      if (shared_) epoch_->End();
      if (step_ != steps_ || !End()) return;
    }
  }

  // The rows from `begin` on: Begin, Advance until it returns false, End.
  bool Begin(size_t begin) {
    if (!this->Take(begin)) return false;
    if (!Open()) return false;
    step_ = 0;
    if (begin == item_.from.begin && item_.from.states != nullptr) {
      step_ = item_.from.step;
      this->LoadStates(step_, static_cast<const C*>(item_.from.states));
    } else {
      this->LoadInitialState();
    }
    Close();
    written_ = step_;
    StartChunks();
    return item_.crew == nullptr || steps_ == 0 || Regroup(item_.ready);
  }

  // The steps of an epoch.
  void Join(Epoch& epoch, size_t member) {
    this->Take(epoch.begin);
    epoch_ = &epoch;
    member_ = member;
    this->UseScratchOf(epoch, member);
    step_ = epoch.step;
    StartChunks();
    while (Advance()) {
    }
  }

  // Takes one step; false if none is left, others continue, or the call is to stop.
  bool Advance() {
    if (step_ == steps_) return false;
    if (item_.crew != nullptr && leads()) {
      const size_t here = item_.crew->here();
      if (shared_ && EpochEnds()) {
        if (!Regroup(here + epoch_->members - 1)) return false;
      } else if (!shared_ && here != 0 && item_.crew->HasMemory()) {
        if (!Regroup(here)) return false;
      }
    } else if (shared_ && EpochEnds()) {
      return false;
    }
    if (projecting_ == Projecting::kByStep) {
      if (step_ % kStepsPerLook == 0 && !GoOn(kStepsPerLook)) return false;
      this->PrepareStep();
    } else if (step_ == projected_) {
      if (this->IsStopped()) return false;
      if (!HandOver()) return false;
      this->PrepareNext();
    }
    while (active_ > 0 && Length(active_ - 1) <= step_) --active_;
    if (!Step()) return leads() && Regroup(epoch_->members - 2);
    this->EndStep();
    return true;
  }

  bool End() {
    if (!Open()) return false;
    this->WriteY();
    this->Finish();
    const bool done = begin_ + count_ == item_.rows;
    if (owner_ == ScratchOwner::kHelper) item_.claim->HandOver({begin_ + count_, 0, nullptr});
    Close(done);
    if (done && item_.crew != nullptr) item_.crew->Close();
    return true;
  }

 private:
  // A step of one row and one panel is too short to check for cancellation each time.
  static constexpr size_t kStepsPerLook = 1024;

  bool EpochEnds() const { return epoch_->end_step.load(std::memory_order_relaxed) == step_; }

  // --- who does the units

  // Continues with all who are here, perhaps alone. `ready`: how many to wait for, briefly. False if the caller has
  // taken the item back.
  bool Regroup(size_t ready) {
    Crew& crew = *item_.crew;
    if (!HandOver()) return false;
    if (shared_) epoch_->End();
    for (Patience patience(kMomentForReady); crew.here() < ready && patience.Wait();) {
    }
    Epoch* const next = crew.Gather();
    if (next != nullptr || shared_) {
      this->MoveStates(step_, [&] { next == nullptr ? this->UseOwnScratch() : this->UseScratchOf(*next, 0); });
      epoch_ = next;
      StartChunks();
    }
    if (next != nullptr) {
      next->begin = begin_;
      next->step = step_;
      size_t step = step_;
      const size_t most = this->MostOfChunk();
      TakeInputs(step, most, PlaceOf(0, most), true);
      if (this->IsAhead()) TakeInputs(step, most, PlaceOf(1, most), true);
      began_ = std::chrono::steady_clock::now();
      meetings_ = 0;
      crew.Start();
    }
    Close();
    return true;
  }

  // As a member: false if the epoch is over. As the leader: false if somebody is late.
  bool Meet() {
    if (!shared_) return true;
    if (!leads()) return epoch_->Meet(member_);
    ++meetings_;
    return epoch_->MeetAsLeader([this] { return MostPatience(); });
  }

  // A member that takes twice as long as steps have taken so far is late.
  std::chrono::nanoseconds MostPatience() const {
    const double each_row = 6.0 * static_cast<double>(spec_.H) / static_cast<double>(epoch_->members);
    double flops = each_row * static_cast<double>(spec_.H * active_);
    if (is_first_of_chunk_) flops += each_row * static_cast<double>(spec_.I * HWY_MAX(x_count_, 2 * kAheadRows));
    const auto slow = kLeastPatience + std::chrono::nanoseconds(static_cast<std::int64_t>(flops / kSlowGigaflops));
    if (is_first_of_chunk_ || meetings_ < kMeetingsToKnow) return slow;
    const auto each = (std::chrono::steady_clock::now() - began_) / meetings_;
    return std::min<std::chrono::nanoseconds>(slow, kLeastPatience + 2 * each);
  }

  static constexpr std::chrono::nanoseconds kMomentForReady{2000};
  static constexpr std::chrono::nanoseconds kLeastPatience{4000};
  static constexpr double kSlowGigaflops = 15;  // of one thread that waits for memory
  static constexpr int kMeetingsToKnow = 16;

  void StartChunks() {
    active_ = count_;
    Base::StartChunks(shared_ ? epoch_->members : 1);
  }

  // The leader reads the inputs of the next chunk for all members, before the barrier at the end of this one.
  bool TakeInputsOfNext() {
    if (!leads() || step_ + 1 != projected_) return true;
    if (item_.crew->here() != 0 && item_.crew->HasMemory()) {
      epoch_->end_step.store(projected_, std::memory_order_relaxed);
      return true;
    }
    size_t step = projected_;
    if (this->IsAhead()) step = HWY_MIN(step + kAheadRows, steps_);
    if (step == steps_) return true;
    const size_t most = this->MostOfChunk();
    if (!Open()) return false;
    // chunk_ is already the next one; if it is multiplied ahead, the one after it is due.
    TakeInputs(step, most, PlaceOf(this->IsAhead() ? chunk_ + 1 : chunk_, most), true);
    Close();
    return true;
  }

  // False if a member is late; the states before the step are unchanged.
  bool Step() {
    if constexpr (kCanProjectAhead) {
      if (this->IsAhead()) return StepWith<true>();
    }
    return StepWith<false>();
  }

  template <bool kBesideAhead>
  HWY_INLINE bool StepWith() {
    if constexpr (kAfter) {
      this->template StepResetAfter<kBesideAhead>();
    } else {
      this->template GatesResetBefore<kBesideAhead>();
      if (HWY_UNLIKELY(shared_) && !Meet()) return false;  // r∘h is complete
      this->template StateResetBefore<kBesideAhead>();
    }
    if (HWY_LIKELY(!shared_)) return true;
    if (!TakeInputsOfNext() || !Meet()) return false;  // the new state is complete
    if (leads()) this->WriteOthersUnits();
    return true;
  }

  Epoch* epoch_ = nullptr;
  size_t member_ = 0;
  std::chrono::steady_clock::time_point began_{};  // the epoch
  int meetings_ = 0;                               // in it
};

template <class C, class S, bool kAfter>
void LeadItem(const WorkItem& item) {
  const ScratchOwner owner = item.claim == nullptr ? ScratchOwner::kCaller : ScratchOwner::kHelper;
  Sequence<C, S, kAfter>(item, owner, item.scratch).Lead();
}

template <class C, class S, bool kAfter>
void JoinItem(const WorkItem& item, Epoch& epoch, size_t member, unsigned char* scratch) {
  Sequence<C, S, kAfter>(item, ScratchOwner::kMember, scratch).Join(epoch, member);
}

template <class C, class S, bool kAfter>
void RunPair(const WorkItem& first, const WorkItem& second) {
  Sequence<C, S, kAfter> a(first, ScratchOwner::kCaller, first.scratch),
      b(second, ScratchOwner::kCaller, second.scratch);
  a.Begin(0);
  b.Begin(0);
  while (int{a.Advance()} | int{b.Advance()}) {  // both, always
  }
  a.End();
  b.End();
}

template <class C>
void ActivateAll(const Activation& activation, size_t count, const void* x, void* y) {
  const hn::ScalableTag<C> d;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::StoreU(Activate(d, activation, hn::LoadU(d, static_cast<const C*>(x) + i)), d, static_cast<C*>(y) + i);
  }
}

template <class C, class S, bool kAfter>
constexpr Kernel MakeKernel() {
  return {hn::MaxLanes(hn::ScalableTag<C>()), &LeadItem<C, S, kAfter>, &JoinItem<C, S, kAfter>, &RunPair<C, S, kAfter>,
          &ActivateAll<C>};
}

}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
