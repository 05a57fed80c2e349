// One share of a call: rows of one direction from their first step to their last.
//
// C: the type that is computed in. S: the type that matrices are stored in. kAfter: reset after.
//
//   z = f(clip(x·Wzᵀ + h·Rzᵀ + Wbz + Rbz))
//   r = f(clip(x·Wrᵀ + h·Rrᵀ + Wbr + Rbr))
//   n = g(clip(x·Whᵀ + (r∘h)·Rhᵀ + Wbh + Rbh))       reset before
//   n = g(clip(x·Whᵀ + r∘(h·Rhᵀ + Rbh) + Wbh))       reset after
//   z = (1 - a)·z                                     with attention
//   h = (1 - z)∘n + z∘h

#include <algorithm>
#include <chrono>
#include <limits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "native/activations-inl.h"
#include "native/ahead-inl.h"
#include "native/product-inl.h"
#include "native/rows-inl.h"
#include "native/tiles-inl.h"

#if defined(ONEGRU_NATIVE_SEQUENCE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_SEQUENCE_INL_H_
#undef ONEGRU_NATIVE_SEQUENCE_INL_H_
#else
#define ONEGRU_NATIVE_SEQUENCE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class C, class S, bool kAfter>
class Sequence : RowsUnderWay<C> {
  template <class, bool>
  friend struct AfterTile;
  template <class, bool>
  friend struct GatesTile;
  template <class, bool>
  friend struct CandidateTile;
  using Number = C;
  using Base = RowsUnderWay<C>;
  using Base::call_, Base::share_, Base::spec_, Base::geometry_, Base::padded_, Base::holder_;
  using Base::first_, Base::last_, Base::native_, Base::shared_, Base::steps_, Base::count_, Base::begin_;
  using Base::kLanes;
  using Base::State, Base::Length, Base::TimeOf, Base::Row, Base::PlaceOf, Base::TakeInputs;
  using Base::xp_, Base::rh_, Base::z_, Base::x_rows_, Base::h_rows_, Base::x_block_, Base::attention_, Base::y_;
  using typename Base::D;

 public:
  using Base::GoOn, Base::IsLong;

  Sequence(const Share& share, Holder holder, unsigned char* own)
      : Base(share, holder, own),
        weights_(share.packed->direction(share.d)),
        f_(spec_.f[share.d]),
        g_(spec_.g[share.d]),
        default_(f_.function == Function::kSigmoid && g_.function == Function::kTanh &&
                 spec_.clip == std::numeric_limits<double>::infinity()) {}

  // All rows of the share.
  void Lead() {
    for (size_t begin = share_.from.begin; !this->IsStopped() && Begin(begin); begin += count_) {
      while (Advance()) {
      }
      if (shared_) epoch_->End();
      if (step_ != steps_ || !End()) return;
    }
  }

  // The rows from `begin` on are taken through time by Begin, Advance until it says no, End.
  bool Begin(size_t begin) {
    if (!this->Take(begin)) return false;
    if (!Open()) return false;
    step_ = 0;
    if (begin == share_.from.begin && share_.from.states != nullptr) {
      step_ = share_.from.step;
      this->LoadStates(step_, static_cast<const C*>(share_.from.states));
    } else {
      this->LoadInitialState();
    }
    Close();
    written_ = step_;
    active_ = count_;
    StartChunks();
    return share_.crew == nullptr || steps_ == 0 || Regroup(share_.ready);
  }

  // The steps of an epoch.
  void Join(const Epoch& epoch, size_t member) {
    this->Take(epoch.begin);
    epoch_ = const_cast<Epoch*>(&epoch);
    member_ = member;
    this->UseScratchOf(epoch, member);
    step_ = epoch.step;
    active_ = count_;
    StartChunks();
    while (Advance()) {
    }
  }

  // One step, or what comes before it; false if there was none left, it is for others to do, or the call is to
  // stop.
  bool Advance() {
    if (step_ == steps_) return false;
    if (share_.crew != nullptr && leads()) {
      const size_t here = share_.crew->here();
      if (shared_ && EpochEnds()) {
        if (!Regroup(here + epoch_->members - 1)) return false;
      } else if (!shared_ && here != 0 && share_.crew->HasMemory()) {
        if (!Regroup(here)) return false;
      }
    } else if (shared_ && EpochEnds()) {
      return false;
    }
    if (by_step_) {
      if (step_ % kStepsPerLook == 0 && !GoOn(kStepsPerLook)) return false;
      PrepareStep();
    } else if (step_ == projected_) {
      if (this->IsStopped()) return false;
      if (!HandOver(step_)) return false;
      is_first_of_chunk_ = true;
      ahead_of_ ? PrepareAhead() : Prepare();
      ++chunk_;
    }
    while (active_ > 0 && Length(active_ - 1) <= step_) --active_;
    if (!Step()) return leads() && Regroup(epoch_->members - 2);
    xp_step_ += active_ * xp_row_;
    attention_step_ += active_;
    y_step_ += active_;
    is_first_of_chunk_ = false;
    ++step_;
    return true;
  }

  bool End() {
    if (!Open()) return false;
    WriteY(step_);
    this->Finish();
    const bool done = begin_ + count_ == share_.rows;
    if (holder_ == Holder::kHelper) share_.claim->HandOver({begin_ + count_, 0, nullptr});
    Close(done);
    if (done && share_.crew != nullptr) share_.crew->Close();
    return true;
  }

 private:
  // A step of one row and one panel is too short to look at the watch each time.
  static constexpr size_t kStepsPerLook = 1024;

  bool EpochEnds() const { return epoch_->end_step.load(std::memory_order_relaxed) == step_; }
  bool leads() const { return holder_ != Holder::kMember; }

  // --- what a helper does in windows

  bool Open() { return holder_ != Holder::kHelper || share_.claim->Open(); }
  void Close(bool done = false) {
    if (holder_ == Holder::kHelper) share_.claim->Close(done);
  }

  // Hands over all before this step. The window stays open, for the inputs of the next chunk.
  bool HandOver(size_t step) {
    if (holder_ != Holder::kHelper) return true;
    if (!Open()) return false;
    WriteY(step);
    if (step != 0) this->SaveStates(step, this->states_);
    share_.claim->HandOver({begin_, step, step == 0 ? nullptr : this->states_});
    return true;
  }

  // The rows of Y up to this step, from where they were kept.
  void WriteY(size_t step) {
    if (holder_ != Holder::kHelper || call_.Y.data == nullptr) return;
    const size_t size = spec_.H * SizeOf(spec_.type);
    const char* from = y_;
    size_t running = count_;
    for (; written_ < step; ++written_) {
      while (Length(running - 1) <= written_) --running;
      for (size_t slot = 0; slot < running; ++slot, from += size)
        std::memcpy(call_.Y.at(TimeOf(slot, written_), share_.d, Row(slot)), from, size);
    }
    y_step_ = 0;
  }

  // Where a row of Y goes in this step.
  HWY_INLINE char* PlaceOfY(size_t slot) const {
    if (HWY_LIKELY(holder_ != Holder::kHelper)) return call_.Y.at(TimeOf(slot, step_), share_.d, Row(slot));
    return y_ + (y_step_ + slot) * spec_.H * SizeOf(spec_.type);
  }

  // --- who does the units

  // Goes on with all who are there, perhaps alone. `ready`: how many are worth a moment's wait. False if the
  // caller has taken the share back.
  bool Regroup(size_t ready) {
    Crew& crew = *share_.crew;
    if (!HandOver(step_)) return false;
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
      const size_t most = ahead_of_ ? kAheadRows : share_.steps_at_once;
      TakeInputs(step, most, PlaceOf(0, most), true);
      if (ahead_of_) TakeInputs(step, most, PlaceOf(1, most), true);
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

  // Who takes twice as long as it has taken so far is late.
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
  static constexpr double kSlowGigaflops = 15;  // FLOPs a ns of one thread that has to wait for memory
  static constexpr int kMeetingsToKnow = 16;

  // --- the products with x: xp = x·Wᵀ + biases

  // From this step on.
  void StartChunks() {
    chunk_ = 0;
    is_first_of_chunk_ = true;
    projected_ = step_;
    ahead_.Drop();
    y_step_ = 0;
    few_ = count_ == 1 && !shared_ && geometry_.panels() <= kFewPanels;
    // Every member must say the same, as the products with x of all share one buffer: their rows lie one behind
    // the other, or panel by panel.
    const size_t members = shared_ ? epoch_->members : 1;
    const size_t part_of_R = padded_ / members * 3 * spec_.H * sizeof(S);
    ahead_of_ = kCanProjectAhead && count_ == 1 && steps_ - step_ >= kLeastStepsAhead &&
                part_of_R >= kLeastBytesAhead && part_of_R < kLargeMatrix;
    at_once_ = false;
    by_step_ = few_ && holder_ == Holder::kCaller && geometry_.panels() == 1 && spec_.D == 1 &&
               spec_.I <= kMostInputsByStep && steps_ > 1;
    xp_row_ = ahead_of_ ? 3 * kLanes : 3 * padded_;
    xp_panel_ = ahead_of_ ? kAheadRows * 3 * kLanes : 3 * kLanes;
  }

  // For as many steps as fit the buffer. A single one needs each panel of W just before that of R: there, the step
  // projects as it goes.
  void Prepare() {
    const size_t place = PlaceOf(chunk_, share_.steps_at_once);
    x_count_ = TakeInputs(projected_, share_.steps_at_once, place, !shared_);
    Close();
    x_from_ = x_rows_ + place;
    attention_step_ = attention_ + place;
    xp_step_ = xp_to_ = xp_;
    at_once_ = projected_ == step_ + 1 && !(IsJoint(x_count_) && first_ == geometry_.full_panels());
    if (GoOn(x_count_ * (last_ - first_)) && !at_once_) Project(x_count_, first_);
  }

  // For this step alone, of one row and one panel: the CPU does it while the step before waits for its chains of
  // operations. It has no such time to spare where there are more panels, or two directions in turns.
  void PrepareStep() {
    this->TakeInput(step_, 0, 0, true);
    x_from_ = x_rows_;
    attention_step_ = attention_;
    xp_step_ = xp_to_ = xp_;
    ForFew(D(), geometry_, ProjectTile{this});
  }

  // For the next chunk of steps: most of it, if not the first, is done already.
  void PrepareAhead() {
    const D d;
    const size_t whole = HWY_MIN(last_, geometry_.full_panels());
    const size_t place = PlaceOf(chunk_, kAheadRows), next = PlaceOf(chunk_ + 1, kAheadRows);
    const bool first = chunk_ == 0;
    size_t end = step_;
    size_t rows = first ? TakeInputs(end, kAheadRows, place, !shared_) : 0;
    projected_ = end = HWY_MIN(step_ + kAheadRows, steps_);
    const size_t next_rows = TakeInputs(end, kAheadRows, next, !shared_);
    Close();
    attention_step_ = attention_ + place;
    if (first) {
      xp_step_ = xp_;
      ProjectChunk(place, rows, xp_, first_);
    } else {
      ahead_.Finish(d, [this] { return this->GoOn(kAheadRows); });
      xp_step_ = xp_ahead_;
    }
    if (next_rows == 0) return;
    xp_ahead_ = xp_step_ == xp_ ? xp_ + kAheadRows * 3 * padded_ : xp_;
    ProjectChunk(next, next_rows, xp_ahead_, whole);
    for (size_t r = 0; r < kAheadRows; ++r) {
      const C* const x = r < next_rows ? x_rows_[next + r] : nullptr;
      C* const to = x_block_ + r;
      for (size_t k = 0; k < spec_.I; ++k) to[k * kAheadRows] = x == nullptr ? C{0} : x[k];
    }
    ahead_.Start(static_cast<const S*>(weights_.W), spec_.I, spec_.H, geometry_, first_, whole, x_block_,
                 static_cast<const C*>(weights_.bx), xp_ahead_);
  }

  // The panels from `first` on of a chunk, to `to`.
  void ProjectChunk(size_t place, size_t rows, C* to, size_t first) {
    x_from_ = x_rows_ + place;
    x_count_ = 0;
    xp_to_ = to;
    if (GoOn(rows * (last_ - first_))) Project(rows, first);
  }

  // Whether the gates of our last panel are taken side by side: it is so narrow that they are two vectors then,
  // and has so many inputs that it pays. A single row waits for its chain of operations either way.
  bool IsJoint(size_t rows) const {
    const size_t full = geometry_.full_panels();
    return rows > 1 && last_ > full && 3 * geometry_.width(full) <= 2 * kLanes && spec_.I > kMostInputsByStep;
  }

  // Rows of X, our panels from `first` on.
  void Project(size_t rows, size_t first) {
    const bool joint = IsJoint(rows);
    ForTiles(D(), geometry_, rows, first, joint ? geometry_.full_panels() : last_, false, ProjectTile{this});
    if (!joint) return;
    if (3 * geometry_.width(last_ - 1) <= kLanes) {
      ProjectJoint<1>(rows);
    } else {
      ProjectJoint<2>(rows);
    }
  }

  template <size_t kVectors>
  void ProjectJoint(size_t rows) {
    const size_t panel = last_ - 1, width = geometry_.width(panel);
    C bias[kVectors * kLanes] = {};
    for (size_t i = 0; i < 3 * width; ++i) {
      bias[i] = static_cast<const C*>(weights_.bx)[panel * 3 * kLanes + i / width * kLanes + i % width];
    }
    JointTile<kVectors> tile{this, bias};
    SweepRows<1>(tile, D(), rows, panel, width);
  }

  // The leader takes the inputs of the next chunk for all members, before they meet at the end of this one.
  bool TakeInputsOfNext() {
    if (!leads() || step_ + 1 != projected_) return true;
    if (share_.crew->here() != 0 && share_.crew->HasMemory()) {
      epoch_->end_step.store(projected_, std::memory_order_relaxed);
      return true;
    }
    size_t step = projected_;
    if (ahead_of_) step = HWY_MIN(step + kAheadRows, steps_);
    if (step == steps_) return true;
    const size_t most = ahead_of_ ? kAheadRows : share_.steps_at_once;
    if (!Open()) return false;
    // chunk_ is the next one already; with work ahead, the one after it is due.
    TakeInputs(step, most, PlaceOf(ahead_of_ ? chunk_ + 1 : chunk_, most), true);
    Close();
    return true;
  }

  struct ProjectTile {
    static constexpr size_t kGates = 3;
    Sequence* self;

    template <size_t kRows, size_t kSums, class D, class Width, class V>
    HWY_INLINE void Sum(D d, size_t row, size_t panel, Width width, V (&sums)[kRows][kSums]) const {
      const C* const bias = static_cast<const C*>(self->weights_.bx) + panel * 3 * kLanes;
#pragma GCC unroll 16
      for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
        for (size_t v = 0; v < kSums; ++v) sums[r][v] = hn::LoadU(d, bias + v * kLanes);
      }
      if constexpr (kRows >= 4) {
        if (panel == self->first_) self->PrefetchRows(row + kRows, kRows);
      }
      self->template AddProduct<3>(d, self->weights_.W, self->spec_.I, self->x_from_ + row, panel, width, sums);
    }

    template <size_t kFrom, size_t kTo, size_t kRows, size_t kSums, class D, class Width, class V>
    HWY_INLINE void FinishGates(D, size_t, size_t, Width, V (&)[kRows][kSums]) const {}

    template <size_t kFrom, size_t kTo, size_t kRows, size_t kSums, class D, class Width, class V>
    HWY_INLINE void FinishState(D d, size_t row, size_t panel, Width, const V (&sums)[kRows][kSums]) const {
#pragma GCC unroll 16
      for (size_t r = kFrom; r < kTo; ++r) {
        C* const to = self->Projected(row + r, panel, self->xp_to_);
#pragma GCC unroll 16
        for (size_t v = 0; v < kSums; ++v)
          hn::StoreU(sums[r][v], d, to + v / 3 * self->xp_panel_ + v % 3 * kLanes);
      }
    }
  };

  // A narrow panel, its gates side by side.
  template <size_t kVectors>
  struct JointTile {
    static constexpr size_t kGates = kVectors;
    Sequence* self;
    const C* bias;

    template <size_t kRows, size_t kSums, class D, class V>
    HWY_INLINE void Sum(D d, size_t row, size_t panel, size_t width, V (&sums)[kRows][kSums]) const {
#pragma GCC unroll 16
      for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (size_t v = 0; v < kSums; ++v) sums[r][v] = hn::LoadU(d, bias + v * kLanes);
      }
      if constexpr (kRows >= 4) {
        if (panel == self->first_) self->PrefetchRows(row + kRows, kRows);
      }
      const S* const weights =
          static_cast<const S*>(self->weights_.W) + self->geometry_.offset(panel, self->spec_.I, 3);
      MultiplyJoint(d, self->spec_.I, self->x_from_ + row, weights, width, sums);
    }

    template <size_t kFrom, size_t kTo, size_t kRows, size_t kSums, class D, class V>
    HWY_INLINE void FinishGates(D, size_t, size_t, size_t, V (&)[kRows][kSums]) const {}

    template <size_t kFrom, size_t kTo, size_t kRows, size_t kSums, class D, class V>
    HWY_INLINE void FinishState(D d, size_t row, size_t panel, size_t width, const V (&sums)[kRows][kSums]) const {
      C kept[(kSums + 1) * kLanes] = {};
      for (size_t r = kFrom; r < kTo; ++r) {
#pragma GCC unroll 2
        for (size_t v = 0; v < kSums; ++v) hn::StoreU(sums[r][v], d, kept + v * kLanes);
        C* const to = self->Projected(row + r, panel, self->xp_to_);
        for (size_t g = 0; g < 3; ++g) hn::StoreU(hn::LoadU(d, kept + g * width), d, to + g * kLanes);
      }
    }
  };

  // Asks for rows of X that the next tile needs: their numbers are used one at a time, too late to wait for each.
  HWY_INLINE void PrefetchRows(size_t row, size_t count) const {
    if (row + count > x_count_) return;
    for (size_t r = row; r < row + count; ++r) {
      const char* const x = reinterpret_cast<const char*>(x_from_[r]);
      for (size_t byte = 0; byte < spec_.I * sizeof(C); byte += 64) hwy::Prefetch(x + byte);
    }
  }

  // A tile of the above by itself. Not inlined: a step that projects as it goes has no registers to spare.
  template <size_t kRows, size_t kPanels, class D, class Width>
  HWY_NOINLINE void ProjectOne(D d, size_t row, size_t panel, Width width) {
    ProjectTile tile{this};
    Do<kRows, kPanels>(tile, d, row, panel, width);
  }

  // Where the products with x of a row lie, from a panel on.
  template <class P>
  P Projected(size_t row, size_t panel, P from) const {
    return from + row * xp_row_ + panel * xp_panel_;
  }

  // Where the panels of a packed matrix of K inputs begin, from one on.
  template <size_t kGates, size_t kPanels>
  HWY_INLINE void PanelsOf(const void* matrix, size_t K, size_t panel, const S* (&panels)[kPanels]) const {
#pragma GCC unroll 16
    for (size_t p = 0; p < kPanels; ++p) {
      panels[p] = static_cast<const S*>(matrix) + geometry_.offset(panel + p, K, kGates);
    }
  }

  // sums += inputs · a packed matrix of K inputs, from a panel on.
  template <size_t kGates, size_t kRows, size_t kSums, class D, class Width, class V>
  HWY_INLINE void AddProduct(D d, const void* matrix, size_t K, const C* const* inputs, size_t panel, Width width,
                             V (&sums)[kRows][kSums]) const {
    constexpr size_t kPanels = kSums / kGates;
    const S* panels[kPanels];
    PanelsOf<kGates>(matrix, K, panel, panels);
    Multiply<kRows, kPanels, kGates>(d, K, inputs, panels, width, sums);
  }

  // sums += rows of h, or of r∘h · a packed matrix, from a panel on; beside it, what is done ahead.
  template <bool kBesideAhead, size_t kGates, size_t kRows, size_t kSums, class D, class Width, class V>
  HWY_INLINE void AddRecurrent(D d, const void* matrix, size_t row, size_t panel, Width width,
                               V (&sums)[kRows][kSums]) {
    if constexpr (kBesideAhead && kRows == 1 && kSums <= 4 && std::is_same_v<Width, Whole<D>>) {
      if (ahead_.waiting()) {
        constexpr size_t kPanels = kSums / kGates;
        const S* panels[kPanels];
        PanelsOf<kGates>(matrix, spec_.H, panel, panels);
        return ahead_.template MultiplyBoth<kPanels, kGates>(d, spec_.H, h_rows_[row], panels, sums);
      }
    }
    AddProduct<kGates>(d, matrix, spec_.H, h_rows_ + row, panel, width, sums);
  }

  // --- a step

  // False if not all members have done it; the states with which it began are as they were.
  bool Step() {
    for (size_t slot = 0; slot < active_; ++slot) h_rows_[slot] = State(step_, slot);
    if constexpr (kCanProjectAhead) {
      if (ahead_of_) return StepWith<true>();
    }
    return StepWith<false>();
  }

  template <bool kBesideAhead>
  HWY_INLINE bool StepWith() {
    if constexpr (kAfter) {
      Tiles<kBesideAhead>(AfterTile<Sequence, kBesideAhead>{this});
    } else {
      Tiles<kBesideAhead>(GatesTile<Sequence, kBesideAhead>{this});
      if (HWY_UNLIKELY(shared_) && !Meet()) return false;  // all of r∘h is there
      for (size_t slot = 0; slot < active_; ++slot) h_rows_[slot] = rh_ + slot * padded_;
      Tiles<kBesideAhead>(CandidateTile<Sequence, kBesideAhead>{this});
    }
    if (HWY_LIKELY(!shared_)) return true;
    if (!TakeInputsOfNext() || !Meet()) return false;  // all of the new state is there
    if (leads()) WriteOthersUnits();
    return true;
  }

  // To Y, what other members computed in this step.
  void WriteOthersUnits() const {
    const size_t begin = last_ * kLanes;
    if (call_.Y.data == nullptr || begin >= spec_.H) return;
    for (size_t slot = 0; slot < active_; ++slot) {
      const C* const h = State(step_ + 1, slot) + begin;
      char* const y = PlaceOfY(slot) + begin * SizeOf(spec_.type);
      if (native_) {
        std::memcpy(y, h, (spec_.H - begin) * sizeof(C));
      } else {
        this->Narrow(h, spec_.H - begin, y);
      }
    }
  }

  template <bool kBesideAhead, class Tile>
  HWY_INLINE void Tiles(Tile tile) {
    const bool backwards = ((step_ + call_.turn) & 1) != 0;
    if constexpr (kBesideAhead) {
      ForTiles<kWideAhead[Tile::kGates]>(D(), geometry_, 1, first_, last_, backwards, tile);
    } else if (few_) {
      ForFew(D(), geometry_, tile);
    } else {
      ForTiles(D(), geometry_, active_, first_, last_, backwards, tile);
    }
  }

  template <class D, class V>
  HWY_INLINE V F(D d, V x) const {
    if (HWY_LIKELY(default_)) return Sigmoid(d, x);
    return Activate(d, f_, Clip(d, x, hn::Set(d, static_cast<C>(spec_.clip))));
  }
  template <class D, class V>
  HWY_INLINE V G(D d, V x) const {
    if (HWY_LIKELY(default_)) return Tanh(d, x);
    return Activate(d, g_, Clip(d, x, hn::Set(d, static_cast<C>(spec_.clip))));
  }

  // (1 - a)·z
  template <class D, class V>
  HWY_INLINE V Attend(D d, V z, size_t slot) const {
    if (HWY_LIKELY(!spec_.attention)) return z;
    return hn::Mul(hn::Set(d, C{1} - attention_step_[slot]), z);
  }

  // h = (1 - z)∘n + z∘h, to the next state and to Y.
  template <class D, class V>
  HWY_INLINE void Blend(D d, V z, V n, size_t slot, size_t panel, size_t width) const {
    const size_t unit = panel * kLanes;
    const V h = hn::Load(d, State(step_, slot) + unit);
    const V next = hn::MulAdd(hn::Sub(hn::Set(d, C{1}), z), n, hn::Mul(z, h));  // n comes last
    C* const state = State(step_ + 1, slot) + unit;
    hn::Store(next, d, state);
    if (call_.Y.data == nullptr || holder_ == Holder::kMember) return;
    char* const y = PlaceOfY(slot);
    if (HWY_LIKELY(native_)) {
      C* const to = reinterpret_cast<C*>(y) + unit;
      if (HWY_LIKELY(width == hn::MaxLanes(d))) {
        hn::StoreU(next, d, to);
      } else {
        for (size_t i = 0; i < width; ++i) to[i] = state[i];
      }
    } else {
      this->Narrow(state, width, y + 2 * unit);
    }
  }

  const PackedDirection weights_;
  const Activation f_, g_;
  const bool default_;     // Sigmoid, Tanh and no clip
  bool few_ = false;       // one row, few panels
  bool by_step_ = false;   // and one panel, few inputs: each step does its own products with x
  bool ahead_of_ = false;  // one row, many steps: chunks of products with x are done ahead
  Ahead<C, S> ahead_;
  size_t xp_row_ = 0, xp_panel_ = 0;  // how far rows and panels of products with x lie apart
  C* xp_to_ = nullptr;                // where a tile puts them
  C* xp_ahead_ = nullptr;             // where those of the next chunk are
  const C** x_from_ = nullptr;        // the rows of X that are projected
  size_t x_count_ = 0;                // how many together
  size_t chunk_ = 0;                  // how many chunks of steps were prepared
  bool is_first_of_chunk_ = true;     // this step
  const C* attention_step_ = nullptr;
  Epoch* epoch_ = nullptr;
  size_t member_ = 0;
  std::chrono::steady_clock::time_point began_{};  // the epoch
  int meetings_ = 0;                               // in it
  size_t written_ = 0;                             // a helper's rows of Y are handed over up to this step
  size_t y_step_ = 0;                              // and those of this one are kept here
  size_t step_ = 0;
  size_t active_ = 0;     // the rows that have this step
  size_t projected_ = 0;  // xp is there up to this step
  bool at_once_ = false;  // or is computed with the step
  const C* xp_step_ = nullptr;
};

template <class C, class S, bool kAfter>
void LeadShare(const Share& share) {
  const Holder holder = share.claim == nullptr ? Holder::kCaller : Holder::kHelper;
  Sequence<C, S, kAfter>(share, holder, share.scratch).Lead();
}

template <class C, class S, bool kAfter>
void JoinShare(const Share& share, Epoch& epoch, size_t member, unsigned char* scratch) {
  Sequence<C, S, kAfter>(share, Holder::kMember, scratch).Join(epoch, member);
}

template <class C, class S, bool kAfter>
void RunPair(const Share& first, const Share& second) {
  Sequence<C, S, kAfter> a(first, Holder::kCaller, first.scratch), b(second, Holder::kCaller, second.scratch);
  a.Begin(0);
  b.Begin(0);
  while (a.Advance() | b.Advance()) {
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
  return {hn::MaxLanes(hn::ScalableTag<C>()), &LeadShare<C, S, kAfter>, &JoinShare<C, S, kAfter>,
          &RunPair<C, S, kAfter>, &ActivateAll<C>};
}

}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
