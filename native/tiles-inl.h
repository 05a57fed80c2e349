// What a step computes, a tile of rows and panels at a time; the equations are in sequence-inl.h.
//
// Sum does the products, FinishGates z, r and what n starts from, FinishState n and h. They are functions of
// Sequence, which holds all they read and write.

#include "hwy/highway.h"

#if defined(ONEGRU_NATIVE_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_TILES_INL_H_
#undef ONEGRU_NATIVE_TILES_INL_H_
#else
#define ONEGRU_NATIVE_TILES_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Reset after: all three gates at once.
template <class Sequence, bool kBesideAhead>
struct AfterTile {
  using C = typename Sequence::Number;
  static constexpr size_t kGates = 3;
  static constexpr size_t kLanes = Sequence::kLanes;
  Sequence* self;

  template <size_t kRows, size_t kSums, class D, class Width, class V>
  HWY_INLINE void Sum(D d, size_t row, size_t panel, Width width, V (&sums)[kRows][kSums]) const {
    constexpr size_t kPanels = kSums / kGates;
    if (self->at_once_) self->template ProjectOne<kRows, kPanels>(d, row, panel, width);
    const C* const bn = static_cast<const C*>(self->weights_.bn) + panel * kLanes;
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      const C* const xp = self->Projected(row + r, panel, self->xp_step_);
#pragma GCC unroll 16
      for (size_t p = 0; p < kPanels; ++p) {
        sums[r][3 * p] = hn::LoadU(d, xp + p * self->xp_panel_);
        sums[r][3 * p + 1] = hn::LoadU(d, xp + p * self->xp_panel_ + kLanes);
        sums[r][3 * p + 2] = hn::LoadU(d, bn + p * kLanes);
      }
    }
    self->template AddRecurrent<kBesideAhead, 3>(d, self->weights_.R, row, panel, width, sums);
  }

  template <size_t kFrom, size_t kTo, size_t kRows, size_t kSums, class D, class Width, class V>
  HWY_INLINE void FinishGates(D d, size_t row, size_t panel, Width, V (&sums)[kRows][kSums]) const {
    constexpr size_t kPanels = kSums / kGates;
#pragma GCC unroll 16
    for (size_t i = kFrom * kPanels; i < kTo * kPanels; ++i) {
      const size_t rr = i / kPanels, p = i % kPanels;
      V& r = sums[rr][3 * p + 1];
      r = self->F(d, r);
    }
#pragma GCC unroll 16
    for (size_t i = kFrom * kPanels; i < kTo * kPanels; ++i) {
      const size_t rr = i / kPanels, p = i % kPanels;
      const C* const xp = self->Projected(row + rr, panel + p, self->xp_step_);
      V& n = sums[rr][3 * p + 2];
      n = hn::MulAdd(sums[rr][3 * p + 1], n, hn::LoadU(d, xp + 2 * kLanes));
    }
#pragma GCC unroll 16
    for (size_t i = kFrom * kPanels; i < kTo * kPanels; ++i) {
      const size_t rr = i / kPanels, p = i % kPanels;
      V& z = sums[rr][3 * p];
      z = self->Attend(d, self->F(d, z), row + rr);
    }
  }

  template <size_t kFrom, size_t kTo, size_t kRows, size_t kSums, class D, class Width, class V>
  HWY_INLINE void FinishState(D d, size_t row, size_t panel, Width width, V (&sums)[kRows][kSums]) const {
    constexpr size_t kPanels = kSums / kGates;
#pragma GCC unroll 16
    for (size_t i = kFrom * kPanels; i < kTo * kPanels; ++i) {
      const size_t rr = i / kPanels, p = i % kPanels;
      V& n = sums[rr][3 * p + 2];
      n = self->G(d, n);
    }
#pragma GCC unroll 16
    for (size_t i = kFrom * kPanels; i < kTo * kPanels; ++i) {
      const size_t rr = i / kPanels, p = i % kPanels;
      self->Blend(d, sums[rr][3 * p], sums[rr][3 * p + 2], row + rr, panel + p,
                  p + 1 < kPanels ? kLanes : size_t{width});
    }
  }
};

// Reset before, first half: z is kept, r∘h is published.
template <class Sequence, bool kBesideAhead>
struct GatesTile {
  using C = typename Sequence::Number;
  static constexpr size_t kGates = 2;
  static constexpr size_t kLanes = Sequence::kLanes;
  Sequence* self;

  template <size_t kRows, size_t kSums, class D, class Width, class V>
  HWY_INLINE void Sum(D d, size_t row, size_t panel, Width width, V (&sums)[kRows][kSums]) const {
    constexpr size_t kPanels = kSums / kGates;
    if (self->at_once_) self->template ProjectOne<kRows, kPanels>(d, row, panel, width);
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      const C* const xp = self->Projected(row + r, panel, self->xp_step_);
#pragma GCC unroll 16
      for (size_t p = 0; p < kPanels; ++p) {
        sums[r][2 * p] = hn::LoadU(d, xp + p * self->xp_panel_);
        sums[r][2 * p + 1] = hn::LoadU(d, xp + p * self->xp_panel_ + kLanes);
      }
    }
    self->template AddRecurrent<kBesideAhead, 2>(d, self->weights_.R, row, panel, width, sums);
  }

  template <size_t kFrom, size_t kTo, size_t kRows, size_t kSums, class D, class Width, class V>
  HWY_INLINE void FinishGates(D d, size_t row, size_t panel, Width, V (&sums)[kRows][kSums]) const {
    constexpr size_t kPanels = kSums / kGates;
#pragma GCC unroll 16
    for (size_t i = kFrom * kPanels; i < kTo * kPanels; ++i) {
      const size_t rr = i / kPanels, p = i % kPanels;
      V& r = sums[rr][2 * p + 1];
      r = self->F(d, r);
    }
#pragma GCC unroll 16
    for (size_t i = kFrom * kPanels; i < kTo * kPanels; ++i) {
      const size_t rr = i / kPanels, p = i % kPanels;
      const size_t unit = (panel + p) * kLanes;
      const V h = hn::Load(d, self->State(self->step_, row + rr) + unit);
      hn::Store(hn::Mul(sums[rr][2 * p + 1], h), d, self->rh_ + (row + rr) * self->padded_ + unit);
    }
#pragma GCC unroll 16
    for (size_t i = kFrom * kPanels; i < kTo * kPanels; ++i) {
      const size_t rr = i / kPanels, p = i % kPanels;
      V& z = sums[rr][2 * p];
      z = self->Attend(d, self->F(d, z), row + rr);
    }
  }

  template <size_t kFrom, size_t kTo, size_t kRows, size_t kSums, class D, class Width, class V>
  HWY_INLINE void FinishState(D d, size_t row, size_t panel, Width, V (&sums)[kRows][kSums]) const {
    constexpr size_t kPanels = kSums / kGates;
#pragma GCC unroll 16
    for (size_t i = kFrom * kPanels; i < kTo * kPanels; ++i) {
      const size_t rr = i / kPanels, p = i % kPanels;
      hn::Store(sums[rr][2 * p], d, self->z_ + (row + rr) * self->padded_ + (panel + p) * kLanes);
    }
  }
};

// Reset before, second half.
template <class Sequence, bool kBesideAhead>
struct CandidateTile {
  using C = typename Sequence::Number;
  static constexpr size_t kGates = 1;
  static constexpr size_t kLanes = Sequence::kLanes;
  Sequence* self;

  template <size_t kRows, size_t kSums, class D, class Width, class V>
  HWY_INLINE void Sum(D d, size_t row, size_t panel, Width width, V (&sums)[kRows][kSums]) const {
    constexpr size_t kPanels = kSums / kGates;
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      const C* const xp = self->Projected(row + r, panel, self->xp_step_);
#pragma GCC unroll 16
      for (size_t p = 0; p < kPanels; ++p) {
        sums[r][p] = hn::LoadU(d, xp + p * self->xp_panel_ + 2 * kLanes);
      }
    }
    self->template AddRecurrent<kBesideAhead, 1>(d, self->weights_.N, row, panel, width, sums);
  }

  template <size_t kFrom, size_t kTo, size_t kRows, size_t kSums, class D, class Width, class V>
  HWY_INLINE void FinishGates(D d, size_t row, size_t panel, Width, V (&sums)[kRows][kSums]) const {
    constexpr size_t kPanels = kSums / kGates;
#pragma GCC unroll 16
    for (size_t i = kFrom * kPanels; i < kTo * kPanels; ++i) {
      const size_t rr = i / kPanels, p = i % kPanels;
      V& n = sums[rr][p];
      n = self->G(d, n);
    }
  }

  template <size_t kFrom, size_t kTo, size_t kRows, size_t kSums, class D, class Width, class V>
  HWY_INLINE void FinishState(D d, size_t row, size_t panel, Width width, V (&sums)[kRows][kSums]) const {
    constexpr size_t kPanels = kSums / kGates;
#pragma GCC unroll 16
    for (size_t i = kFrom * kPanels; i < kTo * kPanels; ++i) {
      const size_t rr = i / kPanels, p = i % kPanels;
      const V z = hn::Load(d, self->z_ + (row + rr) * self->padded_ + (panel + p) * kLanes);
      self->Blend(d, z, sums[rr][p], row + rr, panel + p, p + 1 < kPanels ? kLanes : size_t{width});
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
