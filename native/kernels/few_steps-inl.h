// A few steps of a few rows on row-major weights. Included once for each SIMD target.
//
// The equations are those of step-inl.h. Each product is a sum of products for each lane of a vector, and then over the
// lanes: another order than that of packed weights, and of other targets, so its last bits may differ from theirs.

#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "native/few_steps.h"
#include "native/kernels/activations-inl.h"
#include "native/memory_pool.h"

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

// Zeros for the time of a call, aligned for whole vectors.
template <class C>
class ZeroedMemory {
 public:
  explicit ZeroedMemory(size_t count) : bytes_(AllocatePooled(HWY_MAX(count, 1) * sizeof(C))) {}
  C* get() const { return reinterpret_cast<C*>(bytes_.get()); }

 private:
  PooledBytes bytes_;
};

// How many rows of the batch read a row of weights together: as many sums as there are registers for.
inline constexpr size_t kRowsOfFewSteps = HWY_TARGET <= HWY_AVX3 ? 8 : 4;

// The first `count` numbers of a vector, or all if there are more: no others are read or written.
template <class D, class C = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> LoadPart(D d, const C* from, size_t count) {
  if (count >= hn::Lanes(d)) return hn::LoadU(d, from);
#if HWY_TARGET <= HWY_AVX2
  return hn::MaskedLoad(hn::FirstN(d, count), d, from);
#else
  HWY_ALIGN C part[hn::MaxLanes(D())] = {};
  std::memcpy(part, from, count * sizeof(C));
  return hn::Load(d, part);
#endif
}

template <class D, class C = hn::TFromD<D>>
HWY_INLINE void StorePart(hn::Vec<D> v, D d, C* to, size_t count) {
  if (count >= hn::Lanes(d)) return hn::StoreU(v, d, to);
#if HWY_TARGET <= HWY_AVX2
  hn::BlendedStore(v, hn::FirstN(d, count), d, to);
#else
  HWY_ALIGN C part[hn::MaxLanes(D())];
  hn::Store(v, d, part);
  std::memcpy(to, part, count * sizeof(C));
#endif
}

// The sums over the lanes of some vectors, in the first lanes of one. Each is a tree over neighbours, so it does not
// depend on how many there are.
template <size_t kCount, size_t kWidth, class D, class V = hn::Vec<D>>
HWY_INLINE V SumsOfLanes(D d, const V (&v)[kCount]) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kWidth > 1) {
    V halves[(kCount + 1) / 2];
    for (size_t i = 0; i < (kCount + 1) / 2; ++i) {
      const V low = v[2 * i], high = v[HWY_MIN(2 * i + 1, kCount - 1)];
      halves[i] = hn::Add(hn::ConcatEven(d, high, low), hn::ConcatOdd(d, high, low));
    }
    return SumsOfLanes<(kCount + 1) / 2, kWidth / 2>(d, halves);
  }
#endif
  return v[0];
}

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
  constexpr size_t kLanes = hn::MaxLanes(D()), kAtOnce = HWY_MIN(kRows, kLanes);
  HWY_ALIGN C lanes[kLanes];
  for (size_t u = 0; u < kUnits; ++u) {
    for (size_t first = 0; first < kRows; first += kAtOnce) {
      V some[kAtOnce];
      for (size_t r = 0; r < kAtOnce; ++r) some[r] = sums[u][first + r];
      hn::Store(SumsOfLanes<kAtOnce, kLanes>(d, some), d, lanes);
      for (size_t r = 0; r < kAtOnce; ++r) to[(first + r) * stride_to + m + u] = lanes[r];
    }
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

// f<kRows>(first) for all rows, the most at once first.
template <class F>
void ForRows(size_t rows, F&& f) {
  size_t at = 0;
  if constexpr (kRowsOfFewSteps == 8) {
    for (; at + 8 <= rows; at += 8) f.template operator()<8>(at);
  }
  for (; at + 4 <= rows; at += 4) f.template operator()<4>(at);
  for (; at + 2 <= rows; at += 2) f.template operator()<2>(at);
  for (; at < rows; ++at) f.template operator()<1>(at);
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
        stride_s_((3 * s.H + N_ - 1) / N_ * N_ + N_),
        memory_(s.T * s.B * (stride_x_ + stride_s_) + s.B * (2 * stride_h_ + stride_s_) + 2 * stride_s_) {
    C* next = memory_.get();
    const auto take = [&](size_t count) {
      next += count;
      return next - count;
    };
    x_ = take(s.T * s.B * stride_x_);
    by_x_ = take(s.T * s.B * stride_s_);
    h_ = take(s.B * stride_h_);
    rh_ = take(s.B * stride_h_);
    by_h_ = take(s.B * stride_s_);
    bx_ = take(stride_s_);
    bh_ = take(stride_s_);
    if (s.Wb != nullptr) std::memcpy(bx_, s.Wb, 3 * s.H * sizeof(C));
    if (s.Rb != nullptr) std::memcpy(bh_, s.Rb, 3 * s.H * sizeof(C));
  }

  void Run() {
    const size_t H = s_.H, B = s_.B, bytes = H * sizeof(C);
    const size_t whole = s_.linear_before_reset ? 3 * H : 2 * H;
    for (size_t i = 0; i < s_.T; ++i) {
      for (size_t b = 0; b < B; ++b) {
        if (Runs(TimeOf(i), b)) std::memcpy(x_ + (i * B + b) * stride_x_, s_.X.at(TimeOf(i), 0, b), s_.I * sizeof(C));
      }
    }
    Products(W_, s_.I, 0, 3 * H, s_.T * B, x_, stride_x_, by_x_);
    for (size_t b = 0; b < B; ++b) SetBack(b, true);
    for (size_t i = 0; i < s_.T; ++i) {
      const size_t t = TimeOf(i);
      for (size_t b = 0; b < B; ++b) {
        if (s_.resets != nullptr && s_.resets[t * B + b] && Runs(t, b)) SetBack(b, s_.resets_to_initial);
      }
      by_x_of_step_ = by_x_ + i * B * stride_s_;
      Products(R_, H, 0, whole, B, h_, stride_h_, by_h_);
      if (!s_.linear_before_reset) {
        for (size_t b = 0; b < B; ++b) Reset(b);
        Products(R_, H, whole, 3 * H, B, rh_, stride_h_, by_h_);
      }
      for (size_t b = 0; b < B; ++b) {
        char* const y = s_.Y.at(t, 0, b);
        if (!Runs(t, b)) {
          std::memset(y, 0, bytes);
          continue;
        }
        Step(t, b);
        std::memcpy(y, h_ + b * stride_h_, bytes);
      }
    }
    for (size_t b = 0; b < B; ++b) {
      char* const last = s_.Y_h.at(0, 0, b);
      if (s_.lengths != nullptr && s_.lengths[b] == 0) {
        std::memset(last, 0, bytes);
      } else {
        std::memcpy(last, h_ + b * stride_h_, bytes);
      }
    }
  }

 private:
  // So many rows of a matrix are multiplied by all rows of the batch before the next ones are read.
  static constexpr size_t kUnitsAtOnce = 12;

  // Rows first…last of a matrix [3H, K], by some rows.
  void Products(const C* M, size_t K, size_t first, size_t last, size_t rows, const C* x, size_t stride_x,
                C* to) const {
    const C* const end = M + 3 * s_.H * K;
    for (size_t m = first; m < last; m += kUnitsAtOnce) {
      ForRows(rows, [&]<size_t kRows>(size_t r) {
        Multiply<kRows>(M, end, K, m, std::min(m + kUnitsAtOnce, last), x + r * stride_x, stride_x, to + r * stride_s_,
                        stride_s_);
      });
    }
  }

  size_t TimeOf(size_t i) const { return s_.reverse ? s_.T - 1 - i : i; }
  bool Runs(size_t t, size_t b) const { return s_.lengths == nullptr || static_cast<std::int64_t>(t) < s_.lengths[b]; }

  // The state before the first step, or zeros.
  void SetBack(size_t b, bool is_initial) const {
    C* const h = h_ + b * stride_h_;
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
    const V products =
        hn::Add(hn::LoadU(d_, by_x_of_step_ + r * stride_s_ + at), hn::LoadU(d_, by_h_ + r * stride_s_ + at));
    return hn::Add(products, hn::Add(hn::LoadU(d_, bx_ + at), hn::LoadU(d_, bh_ + at)));
  }

  // r∘h, whose product stands in n with reset before. Nothing may lie behind H but zeros.
  void Reset(size_t r) {
    for (size_t j = 0; j < s_.H; j += N_) {
      const V reset = hn::Mul(F(Sum(r, 0, j)), hn::LoadU(d_, h_ + r * stride_h_ + j));
      hn::StoreU(hn::IfThenElseZero(hn::FirstN(d_, s_.H - j), reset), d_, rh_ + r * stride_h_ + j);
    }
  }

  void Step(size_t t, size_t b) {
    const size_t H = s_.H;
    C* const h = h_ + b * stride_h_;
    const C* const nx = by_x_of_step_ + b * stride_s_ + 2 * H;
    const C* const nh = by_h_ + b * stride_s_ + 2 * H;
    V share = hn::Set(d_, C{1}), rest = hn::Zero(d_);  // z becomes share·z + rest
    if (s_.attention.data != nullptr) {
      C a;
      std::memcpy(&a, s_.attention.at(t, 0, b), sizeof(C));
      share = hn::Set(d_, s_.of_dien ? a : C{1} - a);
      if (s_.of_dien) rest = hn::Set(d_, C{1} - a);
    }
    C* const gates = s_.gates.data == nullptr ? nullptr : reinterpret_cast<C*>(s_.gates.at(t, 0, b));
    for (size_t j = 0; j < H; j += N_) {
      const V before = hn::LoadU(d_, h + j);
      const V x = hn::Add(hn::LoadU(d_, nx + j), hn::LoadU(d_, bx_ + 2 * H + j));
      const V q = hn::Add(hn::LoadU(d_, nh + j), hn::LoadU(d_, bh_ + 2 * H + j));
      const V of_r = Sum(b, 0, j), of_z = Sum(b, 1, j);
      const V of_n = s_.linear_before_reset ? MultiplyAdd(F(of_r), q, x) : hn::Add(x, q);
      if (gates != nullptr) {
        const V saved[] = {of_r, of_z, of_n, q};
        for (size_t i = 0; i < 4; ++i) StorePart(saved[i], d_, gates + i * H + j, H - j);
      }
      const V n = G(of_n);
      const V z = MultiplyAdd(share, F(of_z), rest);
      const V state = MultiplyAdd(z, hn::Sub(before, n), n);
      hn::StoreU(hn::IfThenElseZero(hn::FirstN(d_, H - j), state), d_, h + j);
    }
  }

  const FewSteps& s_;
  const D d_;
  const C *W_, *R_;
  size_t N_, stride_x_, stride_h_, stride_s_;
  ZeroedMemory<C> memory_;
  C *x_, *h_, *rh_, *by_x_, *by_h_, *bx_, *bh_;
  const C* by_x_of_step_ = nullptr;
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
