// The rows of a work item: where they are in memory, their inputs and outputs.
//
// C: the type that is computed in.

#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "native/float_mode.h"
#include "native/kernel.h"

#if defined(ONEGRU_NATIVE_KERNELS_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_ROWS_INL_H_
#undef ONEGRU_NATIVE_KERNELS_ROWS_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_ROWS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class C>
class ActiveRows {
 public:
  // Called before `rows` rows of a panel take a step, or before X of as many is multiplied: false if the call is to
  // stop. That work may be skipped then.
  HWY_INLINE bool GoOn(size_t rows) {
    until_look_ -= static_cast<std::int64_t>(rows);
    return HWY_LIKELY(until_look_ > 0) || Look();
  }

  // Whether this many rows of a panel take so long that GoOn must be called between them.
  HWY_INLINE bool IsLong(size_t rows) const { return static_cast<std::int64_t>(rows) > per_look_; }

 protected:
  using D = hn::ScalableTag<C>;
  static constexpr size_t kLanes = hn::MaxLanes(D());

  // own: this thread's scratch. A member of an epoch has nothing else of its own.
  ActiveRows(const WorkItem& item, ScratchOwner owner, unsigned char* own)
      : item_(item),
        call_(*item.call),
        spec_(item.packed->spec()),
        geometry_(item.packed->geometry()),
        padded_(geometry_.padded()),
        reversed_(spec_.reversed[item.d]),
        io_is_compute_type_(SizeOf(spec_.type) == sizeof(C)),
        owner_(owner),
        token_(owner == ScratchOwner::kCaller ? call_.token : nullptr),
        per_look_(WorkPerLook()),
        until_look_(per_look_),
        own_(own) {
    const ScratchPlan plan = PlanOf(owner);
    x_rows_ = reinterpret_cast<const C**>(own + plan.x_rows);
    h_rows_ = reinterpret_cast<const C**>(own + plan.h_rows);
    x_block_ = reinterpret_cast<C*>(own + plan.x_block);
    if (owner == ScratchOwner::kHelper) {
      y_ = reinterpret_cast<char*>(own + plan.y);
      states_ = reinterpret_cast<C*>(own + plan.states);
    }
    UseOwnScratch(plan);
  }

  ScratchPlan PlanOf(ScratchOwner owner) const {
    return {owner, *item_.packed, sizeof(C), item_.rows_at_once, item_.steps_at_once};
  }

  // Works alone.
  void UseOwnScratch() { UseOwnScratch(PlanOf(owner_)); }
  void UseOwnScratch(const ScratchPlan& plan) {
    first_ = 0;
    last_ = geometry_.panels();
    copies_ = owner_ == ScratchOwner::kHelper || !io_is_compute_type_;
    shared_ = false;
    if (owner_ != ScratchOwner::kMember) UseScratch(own_, plan, 2);
  }

  // Works as one of an epoch's members.
  void UseScratchOf(const Epoch& epoch, size_t member) {
    first_ = geometry_.panels() * member / epoch.members;
    last_ = geometry_.panels() * (member + 1) / epoch.members;
    shared_ = true;
    UseScratch(epoch.scratch, PlanOf(ScratchOwner::kEpoch), 4);
  }

  // Takes the rows from `begin` on, as many as are processed together. The longest come first, so the active ones are
  // always the first slots. False if there are none.
  bool Take(size_t begin) {
    begin_ = begin;
    count_ = begin < item_.rows ? HWY_MIN(item_.rows_at_once, item_.rows - begin) : 0;
    steps_ = count_ == 0 ? 0 : Length(0);
    return count_ != 0;
  }

  size_t Row(size_t slot) const {
    const size_t index = item_.row + (begin_ + slot) * item_.stride;
    return item_.order == nullptr ? index : static_cast<size_t>(item_.order[index]);
  }
  // Where the state of a slot comes from and goes to.
  size_t StateRow(size_t slot) const {
    const size_t row = Row(slot);
    return call_.state_rows == nullptr ? row : static_cast<size_t>(call_.state_rows[row]);
  }
  size_t Length(size_t slot) const {
    return call_.lengths == nullptr ? call_.T : static_cast<size_t>(call_.lengths[Row(slot)]);
  }
  size_t TimeOf(size_t slot, size_t step) const { return reversed_ ? Length(slot) - 1 - step : step; }
  C* State(size_t step, size_t slot) const { return h_[step & h_mask_] + slot * padded_; }
  // The last state of a slot, when `step` begins.
  C* LastState(size_t step, size_t slot) const { return State(HWY_MIN(step, Length(slot)), slot); }

  bool IsStopped() const { return HWY_UNLIKELY(token_ != nullptr) && token_->stopped(); }

  static C FromBits(ElementType type, std::uint16_t bits) {
    return static_cast<C>(type == ElementType::kFloat16 ? FromFloat16Bits(bits) : FromBFloat16Bits(bits));
  }

  static void Widen(ElementType type, const char* from, size_t count, C* to) {
    for (size_t i = 0; i < count; ++i) {
      std::uint16_t bits;
      std::memcpy(&bits, from + 2 * i, 2);
      to[i] = FromBits(type, bits);
    }
  }

  void Narrow(const C* from, size_t count, char* to) const {
    for (size_t i = 0; i < count; ++i) {
      const float value = static_cast<float>(from[i]);
      const std::uint16_t bits = spec_.type == ElementType::kFloat16 ? Float16Bits(value) : BFloat16Bits(value);
      std::memcpy(to + 2 * i, &bits, 2);
    }
  }

  // Computed numbers, converted to the layer's type.
  void Write(const C* from, size_t count, char* to) const {
    if (io_is_compute_type_) {
      std::memcpy(to, from, count * sizeof(C));
    } else {
      Narrow(from, count, to);
    }
  }

  // Where the rows of X of a chunk of steps lie in x_rows_, x_ and attention_; chunks take turns.
  size_t PlaceOf(size_t chunk, size_t each) const { return shared_ || each == kAheadRows ? (chunk & 1) * each : 0; }

  // Finds the rows of X for the steps from `step` on, at most `most`, and counts them; `step` is then the step after
  // them. Copies or converts them if need be; attention too.
  size_t TakeInputs(size_t& step, size_t most, size_t place, bool copies) {
    size_t rows = 0, running = count_;
    if (!copies_ && !shared_ && call_.lengths == nullptr && item_.order == nullptr && !spec_.attention) {
      for (; step < steps_ && (rows == 0 || rows + running <= most); ++step) {
        const char* x = call_.X.at(TimeOf(0, step), 0, Row(0));
        for (size_t slot = 0; slot < running; ++slot, x += call_.X.row * static_cast<std::ptrdiff_t>(item_.stride))
          x_rows_[place + rows++] = reinterpret_cast<const C*>(x);
      }
      return rows;
    }
    for (; step < steps_; ++step) {
      while (Length(running - 1) <= step) --running;
      if (rows != 0 && rows + running > most) break;
      for (size_t slot = 0; slot < running; ++slot, ++rows) TakeInput(step, slot, place + rows, copies);
    }
    return rows;
  }

  void TakeInput(size_t step, size_t slot, size_t place, bool copies) {
    const size_t t = TimeOf(slot, step);
    C* const copy = x_ + place * spec_.I;
    const char* const x = copies || !shared_ ? call_.X.at(t, 0, Row(slot)) : nullptr;
    x_rows_[place] = shared_ || copies_ ? copy : reinterpret_cast<const C*>(x);
    if (!copies) return;
    if (shared_ || copies_) Read(x, spec_.I, copy);
    if (spec_.attention) Read(call_.attention.at(t, 0, Row(slot)), 1, attention_ + place);
  }

  // Elements of the layer's type, converted to C.
  void Read(const char* from, size_t count, C* to) const {
    if (io_is_compute_type_) {
      std::memcpy(to, from, count * sizeof(C));
    } else {
      Widen(spec_.type, from, count, to);
    }
  }

  void LoadInitialState() {
    const bool given = call_.initial_h.data != nullptr;
    for (size_t slot = 0; slot < count_; ++slot) {
      C* const h = State(0, slot);
      const size_t zeros = given ? spec_.H : 0;
      std::memset(h + zeros, 0, (padded_ - zeros) * sizeof(C));
      if (!given) continue;
      const char* const from = call_.initial_h.at(0, item_.d, StateRow(slot));
      if (call_.wide_state) {
        std::memcpy(h, from, spec_.H * sizeof(C));
      } else {
        Read(from, spec_.H, h);
      }
    }
  }

  // Copies the states of all rows before `step`, out and back.
  void SaveStates(size_t step, C* to) const {
    for (size_t slot = 0; slot < count_; ++slot) {
      std::memcpy(to + slot * padded_, LastState(step, slot), padded_ * sizeof(C));
    }
  }
  void LoadStates(size_t step, const C* from) {
    for (size_t slot = 0; slot < count_; ++slot) {
      std::memcpy(LastState(step, slot), from + slot * padded_, padded_ * sizeof(C));
    }
  }

  // Moves the states to an epoch's scratch, or back to our own.
  template <class Change>
  void MoveStates(size_t step, Change&& change) {
    C* const from[] = {h_[0], h_[1], h_[2], h_[3]};
    const size_t mask = h_mask_;
    change();
    for (size_t slot = 0; slot < count_; ++slot) {
      const size_t last = HWY_MIN(step, Length(slot));
      const C* const h = from[last & mask] + slot * padded_;
      if (h != State(last, slot)) std::memcpy(State(last, slot), h, padded_ * sizeof(C));
    }
  }

  // The last states, and zeros past each row's end.
  void Finish() {
    const size_t size = SizeOf(spec_.type);
    for (size_t slot = 0; slot < count_; ++slot) {
      const size_t length = Length(slot);
      if (call_.Y_h.data != nullptr) {
        char* const to = call_.Y_h.at(0, item_.d, StateRow(slot));
        if (length == 0) {
          std::memset(to, 0, spec_.H * (call_.wide_state ? sizeof(C) : size));
        } else if (call_.wide_state) {
          std::memcpy(to, State(length, slot), spec_.H * sizeof(C));
        } else {
          Write(State(length, slot), spec_.H, to);
        }
      }
      if (call_.Y.data == nullptr) continue;
      for (size_t t = length; t < call_.T && GoOn(1); ++t) {
        std::memset(call_.Y.at(t, item_.d, Row(slot)), 0, spec_.H * size);
      }
    }
  }

  // --- what a helper does in windows (team.h); for others there are none

  bool leads() const { return owner_ != ScratchOwner::kMember; }

  bool Open() { return owner_ != ScratchOwner::kHelper || item_.claim->Open(); }
  void Close(bool done = false) {
    if (owner_ == ScratchOwner::kHelper) item_.claim->Close(done);
  }

  // Hands over all before this step. The window stays open, for the inputs of the next chunk.
  bool HandOver() {
    if (owner_ != ScratchOwner::kHelper) return true;
    if (!Open()) return false;
    WriteY();
    if (step_ != 0) SaveStates(step_, states_);
    item_.claim->HandOver({begin_, step_, step_ == 0 ? nullptr : states_});
    return true;
  }

  // Copies the rows of Y up to this step to the caller's.
  void WriteY() {
    if (owner_ != ScratchOwner::kHelper || call_.Y.data == nullptr) return;
    const size_t size = spec_.H * SizeOf(spec_.type);
    const char* from = y_;
    size_t running = count_;
    for (; written_ < step_; ++written_) {
      while (Length(running - 1) <= written_) --running;
      for (size_t slot = 0; slot < running; ++slot, from += size)
        std::memcpy(call_.Y.at(TimeOf(slot, written_), item_.d, Row(slot)), from, size);
    }
    y_step_ = 0;
  }

  // Where a row of Y goes in this step.
  HWY_INLINE char* PlaceOfY(size_t slot) const {
    if (HWY_LIKELY(owner_ != ScratchOwner::kHelper)) return call_.Y.at(TimeOf(slot, step_), item_.d, Row(slot));
    return y_ + (y_step_ + slot) * spec_.H * SizeOf(spec_.type);
  }

  const WorkItem& item_;
  const Call& call_;
  const Spec& spec_;
  const Geometry geometry_;
  const size_t padded_;
  const bool reversed_;
  const bool io_is_compute_type_;  // X, h and Y are of the type that is computed in
  const ScratchOwner owner_;
  CancellationToken* const token_;  // the call's, on the thread that made it
  const std::int64_t per_look_;     // rows of a panel between two checks of it
  std::int64_t until_look_;         // until the next check
  size_t first_ = 0, last_ = 0;     // this member's panels
  bool shared_ = false;             // scratch, with other members
  bool copies_ = false;             // inputs are not used where they lie
  size_t begin_ = 0, count_ = 0;    // the rows being processed
  size_t steps_ = 0;                // of the longest of them
  size_t step_ = 0;                 // the next
  size_t active_ = 0;               // the rows that have this step
  size_t written_ = 0;              // a helper has handed over its rows of Y up to this step
  size_t y_step_ = 0;               // and those of this one are kept here
  C* h_[4];                         // the states [slot][padded], buffers in rotation
  size_t h_mask_ = 1;
  C* rh_;         // r∘h [slot][padded], reset before
  C* z_;          // z [slot][padded], reset before
  C* xp_;         // x·Wᵀ and biases [row][panel][z, r, n][lanes]
  C* attention_;  // of rows of X
  C* x_;          // copies of rows of X
  C* x_block_;    // rows of X done ahead [k][row]
  const C** x_rows_;
  const C** h_rows_;
  char* y_ = nullptr;    // rows of Y to hand over
  C* states_ = nullptr;  // states to hand over

 private:
  // A row of a panel takes 3·lanes products with I or with H numbers.
  std::int64_t WorkPerLook() const {
    if (token_ == nullptr) return std::numeric_limits<std::int64_t>::max();
    const size_t row = HWY_MAX(spec_.I, spec_.H) * 3 * kLanes;
    return HWY_MAX(token_->work() / static_cast<std::int64_t>(row), 1);
  }

  HWY_NOINLINE bool Look() {
    token_->Ask();
    SetFloatMode(kDefaultFloatMode);  // a signal handler may have changed it
    until_look_ = token_->stopped() ? 0 : per_look_;
    return !token_->stopped();
  }

  void UseScratch(unsigned char* base, const ScratchPlan& plan, size_t buffers) {
    h_mask_ = buffers - 1;
    for (size_t i = 0; i < 4; ++i) {
      h_[i] = reinterpret_cast<C*>(base + plan.h) + (i & h_mask_) * item_.rows_at_once * padded_;
    }
    rh_ = reinterpret_cast<C*>(base + plan.rh);
    z_ = reinterpret_cast<C*>(base + plan.z);
    xp_ = reinterpret_cast<C*>(base + plan.xp);
    attention_ = reinterpret_cast<C*>(base + plan.attention);
    x_ = reinterpret_cast<C*>(base + plan.x);
  }

  unsigned char* const own_;
};

}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
