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

#include <cmath>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "native/activations-inl.h"
#include "native/kernel.h"
#include "native/product-inl.h"

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
class Sequence {
  using D = hn::ScalableTag<C>;
  using V = hn::Vec<D>;
  static constexpr size_t kLanes = hn::MaxLanes(D());

 public:
  Sequence(const Share& share, size_t member)
      : share_(share),
        call_(*share.call),
        spec_(share.packed->spec()),
        geometry_(share.packed->geometry()),
        weights_(share.packed->direction(share.d)),
        f_(spec_.f[share.d]),
        g_(spec_.g[share.d]),
        member_(member),
        padded_(geometry_.padded()),
        first_(geometry_.panels() * member / share.members),
        last_(geometry_.panels() * (member + 1) / share.members),
        default_(f_.function == Function::kSigmoid && g_.function == Function::kTanh &&
                 spec_.clip == std::numeric_limits<double>::infinity()),
        reversed_(spec_.reversed[share.d]),
        native_(SizeOf(spec_.type) == sizeof(C)) {
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
    x_converted_ = reinterpret_cast<C*>(own);
  }

  void Run() {
    for (size_t begin = 0; begin < share_.rows; begin += share_.rows_at_once) {
      begin_ = begin;
      count_ = HWY_MIN(share_.rows_at_once, share_.rows - begin);
      RunRows();
    }
  }

 private:
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

  // The rows of this turn, from the first step to the last. The longest come first, so the running ones are
  // always the first `active` slots.
  void RunRows() {
    LoadInitialState();
    size_t steps = count_ == 0 ? 0 : Length(0);
    for (size_t slot = 0; slot < count_; ++slot) steps = HWY_MAX(steps, Length(slot));
    Meet();
    size_t active = count_;
    for (size_t step = 0; step < steps;) {
      // As many steps as fit the projection buffer.
      size_t rows = 0, end = step, running = active;
      while (end < steps) {
        while (running > 0 && Length(running - 1) <= end) --running;
        if (rows != 0 && rows + running > share_.steps_at_once) break;
        for (size_t slot = 0; slot < running; ++slot) x_rows_[rows + slot] = Input(rows + slot, end, slot);
        rows += running;
        ++end;
      }
      // A single step needs each panel of W just before that of R: it projects as it goes.
      const bool at_once = end == step + 1;
      if (!at_once) Project(rows);
      const C* xp = xp_;
      for (; step < end; ++step) {
        while (active > 0 && Length(active - 1) <= step) --active;
        Step(step, active, xp, at_once);
        xp += active * 3 * padded_;
      }
    }
    Finish();
    Meet();
  }

  void Meet() {
    if (share_.members > 1) share_.barrier->Wait(member_);
  }

  // --- what comes in and goes out

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
      const std::uint16_t bits =
          spec_.type == ElementType::kFloat16 ? Float16Bits(value) : BFloat16Bits(value);
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
    for (size_t slot = 0; slot < count_; ++slot) {
      C* const h = State(0, slot);
      for (size_t i = begin; i < last_ * kLanes; ++i) h[i] = C{0};
      if (call_.initial_h.data == nullptr || end <= begin) continue;
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
      for (size_t t = length; t < call_.T; ++t) {
        std::memset(call_.Y.at(t, share_.d, Row(slot)) + begin * size, 0, (end - begin) * size);
      }
    }
  }

  // --- the products with x: xp = x·Wᵀ + biases, for `rows` rows

  void Project(size_t rows) {
    ForTiles<3>(geometry_, rows, first_, last_, false, ProjectTile{this});
  }

  struct ProjectTile {
    Sequence* self;
    template <size_t kRows, size_t kPanels>
    HWY_INLINE void operator()(size_t row, size_t panel, size_t width) const {
      self->template ProjectOne<kRows, kPanels>(row, panel, width);
    }
  };

  template <size_t kRows, size_t kPanels>
  HWY_NOINLINE void ProjectOne(size_t row, size_t panel, size_t width) {
    const D d;
    const C* const bias = static_cast<const C*>(weights_.bx) + panel * 3 * kLanes;
    V sums[kRows][kPanels * 3];
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (size_t v = 0; v < kPanels * 3; ++v) sums[r][v] = hn::LoadU(d, bias + v * kLanes);
    }
    const S* panels[kPanels];
    PanelPointers<3>(static_cast<const S*>(weights_.W), spec_.I, panel, panels);
    Multiply<kRows, kPanels, 3>(d, spec_.I, x_rows_ + row, panels, width, sums);
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      C* const to = xp_ + (row + r) * 3 * padded_ + panel * 3 * kLanes;
#pragma GCC unroll 16
      for (size_t v = 0; v < kPanels * 3; ++v) hn::StoreU(sums[r][v], d, to + v * kLanes);
    }
  }

  template <size_t kGates, size_t kPanels>
  HWY_INLINE void PanelPointers(const S* matrix, size_t K, size_t panel, const S* (&panels)[kPanels]) const {
#pragma GCC unroll 16
    for (size_t p = 0; p < kPanels; ++p) panels[p] = matrix + geometry_.offset(panel + p, K, kGates);
  }

  // --- a step

  // `project`: whether xp is still to be computed.
  void Step(size_t step, size_t active, const C* xp, bool project) {
    step_ = step;
    xp_step_ = xp;
    project_ = project;
    for (size_t slot = 0; slot < active; ++slot) h_rows_[slot] = State(step, slot);
    const bool backwards = ((step + share_.call->turn) & 1) != 0;
    if constexpr (kAfter) {
      ForTiles<3>(geometry_, active, first_, last_, backwards, AfterTile{this});
    } else {
      ForTiles<2>(geometry_, active, first_, last_, backwards, GatesTile{this});
      Meet();  // all of r∘h is there
      for (size_t slot = 0; slot < active; ++slot) h_rows_[slot] = rh_ + slot * padded_;
      ForTiles<1>(geometry_, active, first_, last_, backwards, CandidateTile{this});
    }
    Meet();  // all of the new state is there
  }

  HWY_INLINE V F(D d, V x) const {
    if (HWY_LIKELY(default_)) return Sigmoid(d, x);
    return Activate(d, f_, Clip(d, x, hn::Set(d, static_cast<C>(spec_.clip))));
  }
  HWY_INLINE V G(D d, V x) const {
    if (HWY_LIKELY(default_)) return Tanh(d, x);
    return Activate(d, g_, Clip(d, x, hn::Set(d, static_cast<C>(spec_.clip))));
  }

  // (1 - a)·z
  HWY_INLINE V Attend(D d, V z, size_t slot) const {
    if (HWY_LIKELY(call_.attention.data == nullptr)) return z;
    const char* const from = call_.attention.at(TimeOf(slot, step_), 0, Row(slot));
    C a;
    if (native_) {
      std::memcpy(&a, from, sizeof(a));
    } else {
      Widen(spec_.type, from, 1, &a);
    }
    return hn::Mul(hn::Set(d, C{1} - a), z);
  }

  // h = (1 - z)∘n + z∘h, to the next state and to Y.
  HWY_INLINE void Blend(D d, V z, V n, size_t slot, size_t panel, size_t width) const {
    const size_t unit = panel * kLanes;
    const V h = hn::Load(d, State(step_, slot) + unit);
    const V next = hn::MulAdd(z, h, hn::Mul(hn::Sub(hn::Set(d, C{1}), z), n));
    C* const state = State(step_ + 1, slot) + unit;
    hn::Store(next, d, state);
    if (call_.Y.data == nullptr) return;
    char* const y = call_.Y.at(TimeOf(slot, step_), share_.d, Row(slot));
    if (HWY_LIKELY(native_)) {
      C* const to = reinterpret_cast<C*>(y) + unit;
      if (HWY_LIKELY(width == kLanes)) {
        hn::StoreU(next, d, to);
      } else {
        std::memcpy(to, state, width * sizeof(C));
      }
    } else {
      Narrow(state, width, y + 2 * unit);
    }
  }

  // Reset after: all three gates at once.
  struct AfterTile {
    Sequence* self;
    template <size_t kRows, size_t kPanels>
    HWY_INLINE void operator()(size_t row, size_t panel, size_t width) const {
      if (self->project_) self->template ProjectOne<kRows, kPanels>(row, panel, width);
      self->template AfterOne<kRows, kPanels>(row, panel, width);
    }
  };

  template <size_t kRows, size_t kPanels>
  HWY_INLINE void AfterOne(size_t row, size_t panel, size_t width) {
    const D d;
    const C* const bn = static_cast<const C*>(weights_.bn) + panel * kLanes;
    V sums[kRows][kPanels * 3];
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      const C* const xp = xp_step_ + (row + r) * 3 * padded_ + panel * 3 * kLanes;
#pragma GCC unroll 16
      for (size_t p = 0; p < kPanels; ++p) {
        sums[r][3 * p] = hn::LoadU(d, xp + (3 * p) * kLanes);
        sums[r][3 * p + 1] = hn::LoadU(d, xp + (3 * p + 1) * kLanes);
        sums[r][3 * p + 2] = hn::LoadU(d, bn + p * kLanes);
      }
    }
    const S* panels[kPanels];
    PanelPointers<3>(static_cast<const S*>(weights_.R), spec_.H, panel, panels);
    Multiply<kRows, kPanels, 3>(d, spec_.H, h_rows_ + row, panels, width, sums);
#pragma GCC unroll 16
    for (size_t rr = 0; rr < kRows; ++rr) {
      const C* const xp = xp_step_ + (row + rr) * 3 * padded_ + panel * 3 * kLanes;
#pragma GCC unroll 16
      for (size_t p = 0; p < kPanels; ++p) {
        const V z = Attend(d, F(d, sums[rr][3 * p]), row + rr);
        const V r = F(d, sums[rr][3 * p + 1]);
        const V xn = hn::LoadU(d, xp + (3 * p + 2) * kLanes);
        const V n = G(d, hn::MulAdd(r, sums[rr][3 * p + 2], xn));
        Blend(d, z, n, row + rr, panel + p, width);
      }
    }
  }

  // Reset before, first half: z is kept, r∘h is published.
  struct GatesTile {
    Sequence* self;
    template <size_t kRows, size_t kPanels>
    HWY_INLINE void operator()(size_t row, size_t panel, size_t width) const {
      if (self->project_) self->template ProjectOne<kRows, kPanels>(row, panel, width);
      self->template GatesOne<kRows, kPanels>(row, panel, width);
    }
  };

  template <size_t kRows, size_t kPanels>
  HWY_INLINE void GatesOne(size_t row, size_t panel, size_t width) {
    const D d;
    V sums[kRows][kPanels * 2];
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      const C* const xp = xp_step_ + (row + r) * 3 * padded_ + panel * 3 * kLanes;
#pragma GCC unroll 16
      for (size_t p = 0; p < kPanels; ++p) {
        sums[r][2 * p] = hn::LoadU(d, xp + (3 * p) * kLanes);
        sums[r][2 * p + 1] = hn::LoadU(d, xp + (3 * p + 1) * kLanes);
      }
    }
    const S* panels[kPanels];
    PanelPointers<2>(static_cast<const S*>(weights_.R), spec_.H, panel, panels);
    Multiply<kRows, kPanels, 2>(d, spec_.H, h_rows_ + row, panels, width, sums);
#pragma GCC unroll 16
    for (size_t rr = 0; rr < kRows; ++rr) {
#pragma GCC unroll 16
      for (size_t p = 0; p < kPanels; ++p) {
        const size_t unit = (panel + p) * kLanes;
        const V z = Attend(d, F(d, sums[rr][2 * p]), row + rr);
        const V r = F(d, sums[rr][2 * p + 1]);
        const V h = hn::Load(d, State(step_, row + rr) + unit);
        hn::Store(z, d, z_ + (row + rr) * padded_ + unit);
        hn::Store(hn::Mul(r, h), d, rh_ + (row + rr) * padded_ + unit);
      }
    }
  }

  // Reset before, second half.
  struct CandidateTile {
    Sequence* self;
    template <size_t kRows, size_t kPanels>
    HWY_INLINE void operator()(size_t row, size_t panel, size_t width) const {
      self->template CandidateOne<kRows, kPanels>(row, panel, width);
    }
  };

  template <size_t kRows, size_t kPanels>
  HWY_INLINE void CandidateOne(size_t row, size_t panel, size_t width) {
    const D d;
    V sums[kRows][kPanels];
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      const C* const xp = xp_step_ + (row + r) * 3 * padded_ + panel * 3 * kLanes;
#pragma GCC unroll 16
      for (size_t p = 0; p < kPanels; ++p) sums[r][p] = hn::LoadU(d, xp + (3 * p + 2) * kLanes);
    }
    const S* panels[kPanels];
    PanelPointers<1>(static_cast<const S*>(weights_.N), spec_.H, panel, panels);
    Multiply<kRows, kPanels, 1>(d, spec_.H, h_rows_ + row, panels, width, sums);
#pragma GCC unroll 16
    for (size_t rr = 0; rr < kRows; ++rr) {
#pragma GCC unroll 16
      for (size_t p = 0; p < kPanels; ++p) {
        const V z = hn::Load(d, z_ + (row + rr) * padded_ + (panel + p) * kLanes);
        Blend(d, z, G(d, sums[rr][p]), row + rr, panel + p, width);
      }
    }
  }

  const Share& share_;
  const Call& call_;
  const Spec& spec_;
  const Geometry geometry_;
  const PackedDirection weights_;
  const Activation f_, g_;
  const size_t member_;
  const size_t padded_;
  const size_t first_, last_;  // this member's panels
  const bool default_;         // Sigmoid, Tanh and no clip
  const bool reversed_;
  const bool native_;          // X, h and Y are of the type that is computed in
  size_t begin_ = 0, count_ = 0;  // the rows under way
  size_t step_ = 0;
  bool project_ = false;
  const C* xp_step_ = nullptr;
  C* h_[2];
  C* rh_;
  C* z_;
  C* xp_;
  C* x_converted_;
  const C** x_rows_;
  const C** h_rows_;
};

template <class C, class S, bool kAfter>
void RunShare(const Share& share, size_t member) {
  Sequence<C, S, kAfter>(share, member).Run();
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
  return {hn::MaxLanes(hn::ScalableTag<C>()), &RunShare<C, S, kAfter>, &ActivateAll<C>};
}

}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
