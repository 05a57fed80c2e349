// The rows of a share on their way through time: where they lie, what comes in and what goes out.
//
// C: the type that is computed in.

#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "native/float_mode.h"
#include "native/kernel.h"

#if defined(ONEGRU_NATIVE_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_ROWS_INL_H_
#undef ONEGRU_NATIVE_ROWS_INL_H_
#else
#define ONEGRU_NATIVE_ROWS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class C>
class RowsUnderWay {
 protected:
  using D = hn::ScalableTag<C>;
  static constexpr size_t kLanes = hn::MaxLanes(D());

  RowsUnderWay(const Share& share, size_t member)
      : share_(share),
        call_(*share.call),
        spec_(share.packed->spec()),
        geometry_(share.packed->geometry()),
        member_(member),
        padded_(geometry_.padded()),
        first_(geometry_.panels() * member / share.members),
        last_(geometry_.panels() * (member + 1) / share.members),
        reversed_(spec_.reversed[share.d]),
        native_(SizeOf(spec_.type) == sizeof(C)),
        per_look_(WorkPerLook()),
        until_look_(per_look_) {
    const ScratchPlan plan(*share.packed, sizeof(C), share.rows_at_once, share.steps_at_once, share.members);
    unsigned char* const base = share.scratch;
    h_[0] = reinterpret_cast<C*>(base + plan.h);
    h_[1] = h_[0] + share.rows_at_once * padded_;
    rh_ = reinterpret_cast<C*>(base + plan.rh);
    z_ = reinterpret_cast<C*>(base + plan.z);
    xp_ = reinterpret_cast<C*>(base + plan.xp);
    unsigned char* own = base + plan.members + member * plan.x_each;
    const auto round = [](size_t n) { return (n + 127) / 128 * 128; };
    x_rows_ = reinterpret_cast<const C**>(own);
    own += round(share.steps_at_once * sizeof(void*));
    h_rows_ = reinterpret_cast<const C**>(own);
    own += round(share.rows_at_once * sizeof(void*));
    x_block_ = reinterpret_cast<C*>(own);
    own += round(kAheadRows * spec_.I * sizeof(C));
    x_converted_ = reinterpret_cast<C*>(own);
  }

  // The rows from `begin` on, as many as go through time together. The longest come first, so those that still run
  // are always the first slots. False if there are none.
  bool Take(size_t begin) {
    begin_ = begin;
    count_ = begin < share_.rows ? HWY_MIN(share_.rows_at_once, share_.rows - begin) : 0;
    steps_ = count_ == 0 ? 0 : Length(0);
    return count_ != 0;
  }

  size_t Row(size_t slot) const {
    const size_t index = share_.row + (begin_ + slot) * share_.stride;
    return share_.order == nullptr ? index : static_cast<size_t>(share_.order[index]);
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
  C* State(size_t step, size_t slot) const { return h_[step & 1] + slot * padded_; }

  // Before `rows` rows of a panel go through a step, and before X of as many is projected: false if the call is to
  // stop. Their work may be left out then; meetings with other members may not.
  HWY_INLINE bool GoOn(size_t rows) {
    until_look_ -= static_cast<std::int64_t>(rows);
    return HWY_LIKELY(until_look_ > 0) || Look();
  }
  // Whether so many rows of a panel take so long that there must be looks between them.
  HWY_INLINE bool IsLong(size_t rows) const { return static_cast<std::int64_t>(rows) > per_look_; }

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

  // The row of X for a slot at a step, converted if need be.
  const C* Input(size_t index, size_t step, size_t slot) {
    const char* const x = call_.X.at(TimeOf(slot, step), 0, Row(slot));
    if (native_) return reinterpret_cast<const C*>(x);
    C* const converted = x_converted_ + index * spec_.I;
    Widen(spec_.type, x, spec_.I, converted);
    return converted;
  }

  // Only this member's units.
  void LoadInitialState() {
    const size_t begin = first_ * kLanes, end = HWY_MIN(last_ * kLanes, spec_.H);
    const bool given = call_.initial_h.data != nullptr && end > begin;
    const size_t zeros = given ? end : begin;
    for (size_t slot = 0; slot < count_; ++slot) {
      C* const h = State(0, slot);
      if (zeros < last_ * kLanes) std::memset(h + zeros, 0, (last_ * kLanes - zeros) * sizeof(C));
      if (!given) continue;
      const char* const from = call_.initial_h.at(0, share_.d, StateRow(slot));
      if (native_ || call_.wide_state) {
        std::memcpy(h + begin, from + begin * sizeof(C), (end - begin) * sizeof(C));
      } else {
        Widen(spec_.type, from + 2 * begin, end - begin, h + begin);
      }
    }
  }

  // The last states, and zeros past each row's end.
  void Finish() {
    const size_t begin = first_ * kLanes, end = HWY_MIN(last_ * kLanes, spec_.H);
    if (end <= begin) return;
    const size_t size = SizeOf(spec_.type);
    for (size_t slot = 0; slot < count_; ++slot) {
      const size_t length = Length(slot);
      if (call_.Y_h.data != nullptr) {
        char* const to = call_.Y_h.at(0, share_.d, StateRow(slot));
        if (length == 0) {
          const size_t each = call_.wide_state ? sizeof(C) : size;
          std::memset(to + begin * each, 0, (end - begin) * each);
        } else if (native_ || call_.wide_state) {
          std::memcpy(to + begin * sizeof(C), State(length, slot) + begin, (end - begin) * sizeof(C));
        } else {
          Narrow(State(length, slot) + begin, end - begin, to + 2 * begin);
        }
      }
      if (call_.Y.data == nullptr) continue;
      for (size_t t = length; t < call_.T && GoOn(1); ++t) {
        std::memset(call_.Y.at(t, share_.d, Row(slot)) + begin * size, 0, (end - begin) * size);
      }
    }
  }

  // A row of a panel takes 3·lanes products with I or with H numbers. Where members wait for each other, a step
  // may take as long as the system lets one of them wait for a CPU: they look more often.
  std::int64_t WorkPerLook() const {
    if (call_.watch == nullptr) return std::numeric_limits<std::int64_t>::max();
    const size_t row = HWY_MAX(spec_.I, spec_.H) * 3 * kLanes * (share_.members > 1 ? 16 : 1);
    return HWY_MAX(call_.watch->work() / static_cast<std::int64_t>(row), 1);
  }

  HWY_NOINLINE bool Look() {
    if (share_.is_callers) {
      call_.watch->Ask();
      SetFloatMode(kDefaultFloatMode);  // whatever a signal's handler has done to it
    }
    const bool stopped = call_.watch->stopped();
    until_look_ = stopped ? 0 : per_look_;
    return !stopped;
  }

  const Share& share_;
  const Call& call_;
  const Spec& spec_;
  const Geometry geometry_;
  const size_t member_;
  const size_t padded_;
  const size_t first_, last_;  // this member's panels
  const bool reversed_;
  const bool native_;             // X, h and Y are of the type that is computed in
  const std::int64_t per_look_;   // rows of a panel between two looks at the watch
  std::int64_t until_look_;       // until the next
  size_t begin_ = 0, count_ = 0;  // the rows under way
  size_t steps_ = 0;              // of the longest of them
  C* h_[2];                       // the states [slot][padded], of even and of odd steps
  C* rh_;                         // r∘h [slot][padded], reset before
  C* z_;                          // z [slot][padded], reset before
  C* xp_;                         // x·Wᵀ and biases [row][panel][z, r, n][lanes]
  C* x_block_;                    // rows of X done ahead [k][row]
  C* x_converted_;
  const C** x_rows_;
  const C** h_rows_;
};

}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
