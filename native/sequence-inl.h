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
  using Base::call_, Base::share_, Base::spec_, Base::geometry_, Base::member_, Base::padded_;
  using Base::first_, Base::last_, Base::native_, Base::steps_, Base::count_;
  using Base::kLanes;
  using Base::State, Base::Length, Base::TimeOf, Base::Row;
  using Base::xp_, Base::rh_, Base::z_, Base::x_rows_, Base::h_rows_, Base::x_block_;
  using typename Base::D;

 public:
  using Base::GoOn, Base::IsLong;

  Sequence(const Share& share, size_t member)
      : Base(share, member),
        weights_(share.packed->direction(share.d)),
        f_(spec_.f[share.d]),
        g_(spec_.g[share.d]),
        default_(f_.function == Function::kSigmoid && g_.function == Function::kTanh &&
                 spec_.clip == std::numeric_limits<double>::infinity()) {}

  void Run() {
    for (size_t begin = 0; !Stopped() && Begin(begin); begin += count_) {
      while (Advance()) {
      }
      End();
    }
  }

  // The rows from `begin` on are taken through time by Begin, Advance until it says no, End.
  bool Begin(size_t begin) {
    if (!this->Take(begin)) return false;
    this->LoadInitialState();
    active_ = count_;
    few_ = count_ == 1 && share_.members == 1 && geometry_.panels() <= kFewPanels;
    step_ = projected_ = 0;
    // Every member must say the same, as the products with x of all share one buffer: their rows lie one behind
    // the other, or panel by panel.
    const size_t part_of_R = padded_ / share_.members * 3 * spec_.H * sizeof(S);
    ahead_of_ = kCanProjectAhead && count_ == 1 && steps_ >= kLeastStepsAhead && part_of_R >= kLeastBytesAhead &&
                part_of_R < kLargeMatrix;
    at_once_ = false;
    by_step_ = few_ && geometry_.panels() == 1 && spec_.D == 1 && spec_.I <= kMostInputsByStep && steps_ > 1;
    xp_row_ = ahead_of_ ? 3 * kLanes : 3 * padded_;
    xp_panel_ = ahead_of_ ? kAheadRows * 3 * kLanes : 3 * kLanes;
    Meet();
    return true;
  }

  // One step; false if there was none left, or the call is to stop.
  bool Advance() {
    if (step_ == steps_ || (share_.members > 1 && Stopped())) return false;
    if (by_step_) {
      if (step_ % kStepsPerLook == 0 && !GoOn(kStepsPerLook)) return false;
      PrepareStep();
    } else if (step_ == projected_) {
      if (Stopped()) return false;
      ahead_of_ ? PrepareAhead() : Prepare();
    }
    while (active_ > 0 && Length(active_ - 1) <= step_) --active_;
    Step();
    xp_step_ += active_ * xp_row_;
    ++step_;
    return true;
  }

  void End() {
    this->Finish();
    taken_ += step_;
    step_ = 0;
    Meet();
  }

 private:
  // A step of one row and one panel is too short to look at the watch each time.
  static constexpr size_t kStepsPerLook = 1024;

  // Whether to leave a stopped call. Members leave together, as one that is gone would be waited for: the first
  // of them names the step before the meeting that ends it, and all know it after this meeting.
  bool Stopped() const {
    if (HWY_LIKELY(call_.watch == nullptr)) return false;
    if (share_.members == 1) return call_.watch->stopped();
    return share_.last_step->load(std::memory_order_relaxed) <= taken_ + step_;
  }
  void NameLastStep() {
    if (call_.watch == nullptr || GoOn(active_ * (last_ - first_))) return;
    if (share_.last_step->load(std::memory_order_relaxed) != SIZE_MAX) return;
    share_.last_step->store(taken_ + step_ + 1, std::memory_order_relaxed);
  }

  void Meet() {
    if (share_.members > 1) share_.barrier->Wait(member_);
  }

  // --- the products with x: xp = x·Wᵀ + biases

  // For as many steps as fit the buffer. A single one needs each panel of W just before that of R: there, the step
  // projects as it goes.
  void Prepare() {
    size_t rows = 0, running = active_;
    while (projected_ < steps_) {
      while (running > 0 && Length(running - 1) <= projected_) --running;
      if (rows != 0 && rows + running > share_.steps_at_once) break;
      for (size_t slot = 0; slot < running; ++slot)
        x_rows_[rows + slot] = this->Input(rows + slot, projected_, slot);
      rows += running;
      ++projected_;
    }
    xp_step_ = xp_to_ = xp_;
    at_once_ = projected_ == step_ + 1;
    x_count_ = rows;
    if (GoOn(rows * (last_ - first_)) && !at_once_)
      ForTiles(D(), geometry_, rows, first_, last_, false, ProjectTile{this});
  }

  // For this step alone, of one row and one panel: the CPU does it while the step before waits for its chains of
  // operations. It has no such time to spare where there are more panels, or two directions in turns.
  void PrepareStep() {
    x_rows_[0] = this->Input(0, step_, 0);
    xp_step_ = xp_to_ = xp_;
    ForFew(D(), geometry_, ProjectTile{this});
  }

  // For the next chunk of steps: most of it, if not the first, is done already.
  void PrepareAhead() {
    const D d;
    const size_t whole = HWY_MIN(last_, geometry_.full_panels());
    if (step_ == 0) {
      ProjectChunk(0, xp_, first_);
      xp_step_ = xp_;
    } else {
      ahead_.Finish(d, [this] { return this->GoOn(kAheadRows); });
      xp_step_ = xp_ahead_;
    }
    projected_ = HWY_MIN(step_ + kAheadRows, steps_);
    if (projected_ == steps_) return;
    xp_ahead_ = xp_step_ == xp_ ? xp_ + kAheadRows * 3 * padded_ : xp_;
    ProjectChunk(projected_, xp_ahead_, whole);
    const size_t rows = HWY_MIN(kAheadRows, steps_ - projected_);
    for (size_t r = 0; r < kAheadRows; ++r) {
      const C* const x = r < rows ? x_rows_[r] : nullptr;
      C* const to = x_block_ + r;
      for (size_t k = 0; k < spec_.I; ++k) to[k * kAheadRows] = x == nullptr ? C{0} : x[k];
    }
    ahead_.Start(static_cast<const S*>(weights_.W), spec_.I, spec_.H, geometry_, first_, whole, x_block_,
                 static_cast<const C*>(weights_.bx), xp_ahead_);
  }

  // The panels from `first` on of a chunk, to `to`.
  void ProjectChunk(size_t step, C* to, size_t first) {
    const size_t rows = HWY_MIN(kAheadRows, steps_ - step);
    for (size_t r = 0; r < rows; ++r) x_rows_[r] = this->Input(r, step + r, 0);
    x_count_ = 0;
    xp_to_ = to;
    if (GoOn(rows * (last_ - first_))) ForTiles(D(), geometry_, rows, first, last_, false, ProjectTile{this});
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
      self->template AddProduct<3>(d, self->weights_.W, self->spec_.I, self->x_rows_ + row, panel, width, sums);
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

  // Asks for rows of X that the next tile needs: their numbers are used one at a time, too late to wait for each.
  HWY_INLINE void PrefetchRows(size_t row, size_t count) const {
    if (row + count > x_count_) return;
    for (size_t r = row; r < row + count; ++r) {
      const char* const x = reinterpret_cast<const char*>(x_rows_[r]);
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
    if constexpr (kBesideAhead && kRows == 1 && kSums <= 3 && std::is_same_v<Width, Whole<D>>) {
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

  void Step() {
    for (size_t slot = 0; slot < active_; ++slot) h_rows_[slot] = State(step_, slot);
    if constexpr (kCanProjectAhead) {
      if (ahead_of_) return StepWith<true>();
    }
    StepWith<false>();
  }

  template <bool kBesideAhead>
  HWY_INLINE void StepWith() {
    if constexpr (kAfter) {
      Tiles<kBesideAhead>(AfterTile<Sequence, kBesideAhead>{this});
    } else {
      Tiles<kBesideAhead>(GatesTile<Sequence, kBesideAhead>{this});
      Meet();  // all of r∘h is there
      for (size_t slot = 0; slot < active_; ++slot) h_rows_[slot] = rh_ + slot * padded_;
      Tiles<kBesideAhead>(CandidateTile<Sequence, kBesideAhead>{this});
    }
    if (share_.members > 1 && member_ == 0) NameLastStep();
    Meet();  // all of the new state is there
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
    if (HWY_LIKELY(call_.attention.data == nullptr)) return z;
    const char* const from = call_.attention.at(TimeOf(slot, step_), 0, Row(slot));
    C a;
    if (native_) {
      std::memcpy(&a, from, sizeof(a));
    } else {
      Base::Widen(spec_.type, from, 1, &a);
    }
    return hn::Mul(hn::Set(d, C{1} - a), z);
  }

  // h = (1 - z)∘n + z∘h, to the next state and to Y.
  template <class D, class V>
  HWY_INLINE void Blend(D d, V z, V n, size_t slot, size_t panel, size_t width) const {
    const size_t unit = panel * kLanes;
    const V h = hn::Load(d, State(step_, slot) + unit);
    const V next = hn::MulAdd(hn::Sub(hn::Set(d, C{1}), z), n, hn::Mul(z, h));  // n comes last
    C* const state = State(step_ + 1, slot) + unit;
    hn::Store(next, d, state);
    if (call_.Y.data == nullptr) return;
    char* const y = call_.Y.at(TimeOf(slot, step_), share_.d, Row(slot));
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
  size_t x_count_ = 0;                // how many rows of X are projected together
  size_t step_ = 0;
  size_t taken_ = 0;      // the steps of rows that went through time before
  size_t active_ = 0;     // the rows that have this step
  size_t projected_ = 0;  // xp is there up to this step
  bool at_once_ = false;  // or is computed with the step
  const C* xp_step_ = nullptr;
};

template <class C, class S, bool kAfter>
void RunShare(const Share& share, size_t member) {
  Sequence<C, S, kAfter>(share, member).Run();
}

template <class C, class S, bool kAfter>
void RunPair(const Share& first, const Share& second) {
  Sequence<C, S, kAfter> a(first, 0), b(second, 0);
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
  return {hn::MaxLanes(hn::ScalableTag<C>()), &RunShare<C, S, kAfter>, &RunPair<C, S, kAfter>, &ActivateAll<C>};
}

}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
