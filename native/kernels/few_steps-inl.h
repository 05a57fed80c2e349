// A few steps of a few rows on row-major weights. Included once for each SIMD target.
//
// The equations are those of step-inl.h. Each product is a sum of products for each lane of a vector, and then over the
// lanes: another order than that of packed weights, and of other targets, so its last bits may differ from theirs.

#include <algorithm>
#include <cstring>
#include <vector>

#include "hwy/highway.h"
#include "native/few_steps.h"
#include "native/kernels/activations-inl.h"

#if defined(ONEGRU_NATIVE_KERNELS_FEW_STEPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_FEW_STEPS_INL_H_
#undef ONEGRU_NATIVE_KERNELS_FEW_STEPS_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_FEW_STEPS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {
namespace hn = hwy::HWY_NAMESPACE;

// How many rows of the batch read a row of weights together: as many sums as there are registers for.
inline constexpr size_t kRowsOfFewSteps = HWY_TARGET <= HWY_AVX3 ? 8 : 4;

// to[r][m] = M[m] · x[r] for rows m of a matrix [rows, K]. x is padded with zeros to whole vectors.
template <size_t kRows, size_t kUnits, class D, class C = hn::TFromD<D>>
HWY_INLINE void MultiplyRows(D d, const C* M, const C* end, size_t K, size_t m, const C* x, size_t stride_x, C* to,
                             size_t stride_to) {
  using V = hn::Vec<D>;
  const size_t N = hn::Lanes(d);
  V sums[kUnits][kRows];
  for (auto& unit : sums) {
    for (V& sum : unit) sum = hn::Zero(d);
  }
  size_t k = 0;
  for (; k + N <= K; k += N) {
    V row[kUnits];
    for (size_t u = 0; u < kUnits; ++u) row[u] = hn::LoadU(d, M + (m + u) * K + k);
    for (size_t r = 0; r < kRows; ++r) {
      const V v = hn::LoadU(d, x + r * stride_x + k);
      for (size_t u = 0; u < kUnits; ++u) sums[u][r] = MultiplyAdd(row[u], v, sums[u][r]);
    }
  }
  if (k < K) {  // what lies behind a row of weights may be anything, but for the last it may be nothing
    const auto mask = hn::FirstN(d, K - k);
    for (size_t u = 0; u < kUnits; ++u) {
      const C* const from = M + (m + u) * K + k;
      V row;
      if (from + N <= end) {
        row = hn::IfThenElseZero(mask, hn::LoadU(d, from));
      } else {
        HWY_ALIGN C last[hn::MaxLanes(D())] = {};
        std::memcpy(last, from, (K - k) * sizeof(C));
        row = hn::Load(d, last);
      }
      for (size_t r = 0; r < kRows; ++r) {
        sums[u][r] = MultiplyAdd(row, hn::LoadU(d, x + r * stride_x + k), sums[u][r]);
      }
    }
  }
  for (size_t u = 0; u < kUnits; ++u) {
    for (size_t r = 0; r < kRows; ++r) to[r * stride_to + m + u] = hn::GetLane(hn::SumOfLanes(d, sums[u][r]));
  }
}

template <size_t kRows, class C>
HWY_NOINLINE void Multiply(const C* M, const C* end, size_t K, size_t first, size_t last, const C* x, size_t stride_x,
                           C* to, size_t stride_to) {
  const hn::ScalableTag<C> d;
  constexpr size_t kUnits = kRows == 1 ? 6 : kRows == 2 ? 4 : 3;
  size_t m = first;
  for (; m + kUnits <= last; m += kUnits) {
    MultiplyRows<kRows, kUnits>(d, M, end, K, m, x, stride_x, to, stride_to);
  }
  for (; m < last; ++m) MultiplyRows<kRows, 1>(d, M, end, K, m, x, stride_x, to, stride_to);
}

template <class C>
class FewStepsOfRows {
 public:
  explicit FewStepsOfRows(const FewSteps& s)
      : s_(s),
        W_(static_cast<const C*>(s.W)),
        R_(static_cast<const C*>(s.R)),
        N_(hn::Lanes(d_)),
        stride_x_((s.I + N_ - 1) / N_ * N_),
        stride_h_((s.H + N_ - 1) / N_ * N_),
        stride_s_(3 * s.H + N_),
        memory_(kRowsOfFewSteps * (stride_x_ + 2 * stride_h_ + 2 * stride_s_) + 2 * stride_s_) {
    C* next = memory_.data();
    const auto take = [&](size_t count) {
      next += count;
      return next - count;
    };
    x_ = take(kRowsOfFewSteps * stride_x_);
    h_ = take(kRowsOfFewSteps * stride_h_);
    rh_ = take(kRowsOfFewSteps * stride_h_);
    by_x_ = take(kRowsOfFewSteps * stride_s_);
    by_h_ = take(kRowsOfFewSteps * stride_s_);
    bx_ = take(stride_s_);
    bh_ = take(stride_s_);
    if (s.Wb != nullptr) std::memcpy(bx_, s.Wb, 3 * s.H * sizeof(C));
    if (s.Rb != nullptr) std::memcpy(bh_, s.Rb, 3 * s.H * sizeof(C));
  }

  void Run() {
    size_t b = 0;
    if constexpr (kRowsOfFewSteps == 8) {
      for (; b + 8 <= s_.B; b += 8) RunRows<8>(b);
    }
    for (; b + 4 <= s_.B; b += 4) RunRows<4>(b);
    for (; b + 2 <= s_.B; b += 2) RunRows<2>(b);
    for (; b < s_.B; ++b) RunRows<1>(b);
  }

 private:
  template <size_t kRows>
  void RunRows(size_t b) {
    const size_t H = s_.H, bytes = H * sizeof(C);
    for (size_t r = 0; r < kRows; ++r) SetBack(b + r, h_ + r * stride_h_, true);
    for (size_t i = 0; i < s_.T; ++i) {
      const size_t t = s_.reverse ? s_.T - 1 - i : i;
      for (size_t r = 0; r < kRows; ++r) {
        std::memcpy(x_ + r * stride_x_, s_.X.at(t, 0, b + r), s_.I * sizeof(C));
        if (s_.resets != nullptr && s_.resets[t * s_.B + b + r] && Runs(t, b + r)) {
          SetBack(b + r, h_ + r * stride_h_, s_.resets_to_initial);
        }
      }
      Multiply<kRows>(W_, W_ + 3 * H * s_.I, s_.I, 0, 3 * H, x_, stride_x_, by_x_, stride_s_);
      const size_t whole = s_.linear_before_reset ? 3 * H : 2 * H;
      Multiply<kRows>(R_, R_ + 3 * H * H, H, 0, whole, h_, stride_h_, by_h_, stride_s_);
      if (!s_.linear_before_reset) {
        for (size_t r = 0; r < kRows; ++r) Reset(r);
        Multiply<kRows>(R_, R_ + 3 * H * H, H, whole, 3 * H, rh_, stride_h_, by_h_, stride_s_);
      }
      for (size_t r = 0; r < kRows; ++r) {
        char* const y = s_.Y.at(t, 0, b + r);
        if (!Runs(t, b + r)) {
          std::memset(y, 0, bytes);
          continue;
        }
        Step(t, b + r, r);
        std::memcpy(y, h_ + r * stride_h_, bytes);
      }
    }
    for (size_t r = 0; r < kRows; ++r) {
      char* const last = s_.Y_h.at(0, 0, b + r);
      if (s_.lengths != nullptr && s_.lengths[b + r] == 0) {
        std::memset(last, 0, bytes);
      } else {
        std::memcpy(last, h_ + r * stride_h_, bytes);
      }
    }
  }

  bool Runs(size_t t, size_t b) const { return s_.lengths == nullptr || static_cast<std::int64_t>(t) < s_.lengths[b]; }

  // The state before the first step, or zeros.
  void SetBack(size_t b, C* h, bool is_initial) const {
    std::fill_n(h, stride_h_, C{0});
    if (is_initial && s_.initial_h.data != nullptr) std::memcpy(h, s_.initial_h.at(0, 0, b), s_.H * sizeof(C));
  }

  using D = hn::ScalableTag<C>;
  using V = hn::Vec<D>;

  V F(V x) const { return Activate(d_, s_.f, Clip(d_, x, hn::Set(d_, static_cast<C>(s_.clip)))); }
  V G(V x) const { return Activate(d_, s_.g, Clip(d_, x, hn::Set(d_, static_cast<C>(s_.clip)))); }

  // A gate's argument: its sums and both biases. gate: 0 for r, 1 for z.
  V Sum(size_t r, size_t gate, size_t j) const {
    const size_t at = gate * s_.H + j;
    const V products = hn::Add(hn::LoadU(d_, by_x_ + r * stride_s_ + at), hn::LoadU(d_, by_h_ + r * stride_s_ + at));
    return hn::Add(products, hn::Add(hn::LoadU(d_, bx_ + at), hn::LoadU(d_, bh_ + at)));
  }

  // r∘h, whose product stands in n with reset before. Nothing may lie behind H but zeros.
  void Reset(size_t r) {
    for (size_t j = 0; j < s_.H; j += N_) {
      const V reset = hn::Mul(F(Sum(r, 0, j)), hn::LoadU(d_, h_ + r * stride_h_ + j));
      hn::StoreU(hn::IfThenElseZero(hn::FirstN(d_, s_.H - j), reset), d_, rh_ + r * stride_h_ + j);
    }
  }

  void Step(size_t t, size_t b, size_t r) {
    const size_t H = s_.H;
    C* const h = h_ + r * stride_h_;
    const C* const nx = by_x_ + r * stride_s_ + 2 * H;
    const C* const nh = by_h_ + r * stride_s_ + 2 * H;
    V share = hn::Set(d_, C{1}), rest = hn::Zero(d_);  // z becomes share·z + rest
    if (s_.attention.data != nullptr) {
      C a;
      std::memcpy(&a, s_.attention.at(t, 0, b), sizeof(C));
      share = hn::Set(d_, s_.of_dien ? a : C{1} - a);
      if (s_.of_dien) rest = hn::Set(d_, C{1} - a);
    }
    for (size_t j = 0; j < H; j += N_) {
      const V before = hn::LoadU(d_, h + j);
      const V x = hn::Add(hn::LoadU(d_, nx + j), hn::LoadU(d_, bx_ + 2 * H + j));
      const V q = hn::Add(hn::LoadU(d_, nh + j), hn::LoadU(d_, bh_ + 2 * H + j));
      const V n = G(s_.linear_before_reset ? MultiplyAdd(F(Sum(r, 0, j)), q, x) : hn::Add(x, q));
      const V z = MultiplyAdd(share, F(Sum(r, 1, j)), rest);
      const V state = MultiplyAdd(z, hn::Sub(before, n), n);
      hn::StoreU(hn::IfThenElseZero(hn::FirstN(d_, H - j), state), d_, h + j);
    }
  }

  const FewSteps& s_;
  const D d_;
  const C *W_, *R_;
  size_t N_, stride_x_, stride_h_, stride_s_;
  std::vector<C> memory_;
  C *x_, *h_, *rh_, *by_x_, *by_h_, *bx_, *bh_;
};

template <class C>
void RunFewSteps(const FewSteps& steps) {
  FewStepsOfRows<C>(steps).Run();
}

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
