// Calls of few steps: the forward pass on row-major weights. Included once for each SIMD target.
//
// The equations are those of step-inl.h. The order of sums differs from that with packed weights, and between targets,
// and so may the last bits: see row_major_products-inl.h. Threads share rows of matrices and of the batch, no sums.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "hwy/highway.h"
#include "native/few_steps.h"
#include "native/kernels/activations-inl.h"
#include "native/kernels/few_steps/row_major_products-inl.h"
#include "native/threads/tasks.h"

#if defined(ONEGRU_NATIVE_KERNELS_FEW_STEPS_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_FEW_STEPS_FORWARD_INL_H_
#undef ONEGRU_NATIVE_KERNELS_FEW_STEPS_FORWARD_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_FEW_STEPS_FORWARD_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {
namespace hn = hwy::HWY_NAMESPACE;

// The minimum FLOPs that are worth sharing, and the FLOPs that take as long as reading a byte of weights.
inline constexpr double kFlopsToShare = 3.0e6;
inline constexpr double kFlopsOfByte = 4.0;
inline constexpr size_t kUnitsToShare = 8192;  // the minimum units of gates and states that are worth sharing

// Returns the number of threads that share the products of some weights with some rows.
template <class C>
size_t ThreadsForProducts(size_t weights, size_t rows, size_t threads, double least = kFlopsToShare) {
  const double flops = 2.0 * static_cast<double>(rows), bytes = kFlopsOfByte * sizeof(C);
  return static_cast<double>(weights) * HWY_MAX(flops, bytes) < least ? 1 : threads;
}

// Returns the number of threads that may share a call.
template <class C>
size_t ThreadsForSteps(const FewSteps& s) {
  if (s.threads <= 1) return 1;
  const size_t for_x = ThreadsForProducts<C>(3 * s.H * s.I, s.T * s.B, 2);
  return for_x == 1 && ThreadsForProducts<C>(3 * s.H * s.H, s.B, 2) == 1 ? 1 : HWY_MIN(s.threads, UncontendedThreads());
}

template <class C>
class FewStepsOfRows {
 public:
  explicit FewStepsOfRows(const FewSteps& s)
      : s_(s),
        W_(static_cast<const C*>(s.W)),
        R_(static_cast<const C*>(s.R)),
        lanes_(hn::Lanes(d_)),
        stride_x_((s.I + lanes_ - 1) / lanes_ * lanes_),
        stride_h_((s.H + lanes_ - 1) / lanes_ * lanes_),
        stride_s_((3 * s.H + lanes_ - 1) / lanes_ * lanes_ + lanes_),
        threads_(ThreadsForSteps<C>(s)),
        lanes_size_(HWY_MAX(s.I * LanesOf(s.T * s.B), s.H * LanesOf(s.B))),
        memory_(s.T * s.B * (stride_x_ + stride_s_) + s.B * (2 * stride_h_ + stride_s_) + 2 * stride_s_ + lanes_size_) {
    C* next = memory_.get();
    const auto take = [&](size_t count) {
      next += count;
      return next - count;
    };
    x_ = take(s.T * s.B * stride_x_);
    x_products_ = take(s.T * s.B * stride_s_);
    h_ = take(s.B * stride_h_);
    rh_ = take(s.B * stride_h_);
    h_products_ = take(s.B * stride_s_);
    bx_ = take(stride_s_);
    bh_ = take(stride_s_);
    rows_in_lanes_ = take(lanes_size_);
    TakeBias(s.Wb, bx_);
    TakeBias(s.Rb, bh_);
  }

  void Run() {
    const size_t H = s_.H, B = s_.B, bytes = H * sizeof(C);
    const size_t rows_times_h = s_.linear_before_reset ? 3 * H : 2 * H;
    Prepare(s_.T * B, s_.I, x_, stride_x_, [&](size_t n) {
      const size_t t = TimeOf(n / B), b = n % B, count = Runs(t, b) ? s_.I : 0;
      C* const row = x_ + n * stride_x_;
      std::memcpy(row, s_.X.at(t, 0, b), count * sizeof(C));
      std::fill_n(row + count, stride_x_ - count, C{0});
    });
    Products(W_, s_.I, 0, 3 * H, s_.T * B, x_, stride_x_, x_products_);
    for (size_t i = 0; i < s_.T; ++i) {
      const size_t t = TimeOf(i);
      x_products_of_step_ = x_products_ + i * B * stride_s_;
      Prepare(B, H, h_, stride_h_, [&](size_t b) {
        if (i == 0) ResetState(b, true);
        if (s_.resets != nullptr && s_.resets[t * B + b] && Runs(t, b)) ResetState(b, s_.resets_to_initial);
      });
      Products(R_, H, 0, rows_times_h, B, h_, stride_h_, h_products_);
      if (!s_.linear_before_reset) {
        Prepare(B, H, rh_, stride_h_, [&](size_t b) { MultiplyStateByR(b); });
        Products(R_, H, rows_times_h, 3 * H, B, rh_, stride_h_, h_products_);
      }
      ForBlocks(B, H, [&](size_t b) {
        char *const y = s_.Y.at(t, 0, b), *const h = reinterpret_cast<char*>(h_ + b * stride_h_);
        if (Runs(t, b)) {
          Step(t, b);
          std::memcpy(y, h, bytes);
          if (s_.gates.data != nullptr) std::memcpy(s_.gates.at(t, 0, b) + kFewStepsState * bytes, h, bytes);
        } else {
          std::memset(y, 0, bytes);
          if (s_.gates.data != nullptr) std::memset(s_.gates.at(t, 0, b) + kFewStepsState * bytes, 0, bytes);
        }
        if (i + 1 != s_.T) return;
        if (s_.lengths != nullptr && s_.lengths[b] == 0) {
          std::memset(s_.Y_h.at(0, 0, b), 0, bytes);
        } else {
          std::memcpy(s_.Y_h.at(0, 0, b), h, bytes);
        }
      });
    }
  }

 private:
  // The rows of a matrix that are multiplied by all rows of the batch before the next ones are read.
  static constexpr size_t kUnitsAtOnce = 12;
  // The rows of a thread's task, a multiple of kUnitsAtOnce.
  static constexpr size_t kUnitsOfTask = 4 * kUnitsAtOnce;

  void TakeBias(const void* bias, C* to) const {
    const size_t count = bias == nullptr ? 0 : 3 * s_.H;
    if (count != 0) std::memcpy(to, bias, count * sizeof(C));
    std::fill_n(to + count, stride_s_ - count, C{0});
  }

  size_t RowsOfBlock() const { return kVectorsOfTile * lanes_; }

  // Calls f(row) for all rows, in blocks. `width`: the number of elements of each row.
  template <class F>
  void ForBlocks(size_t rows, size_t width, F&& f) const {
    const size_t block = HWY_MAX(RowsOfBlock() / 2, 1);
    ParallelFor((rows + block - 1) / block, rows * width < kUnitsToShare ? 1 : threads_, [&](size_t task) {
      for (size_t r = task * block; r < std::min((task + 1) * block, rows); ++r) f(r);
    });
  }

  // Calls f(row) for all rows. Then copies the rows x to lanes, if there are enough of them.
  template <class F>
  void Prepare(size_t rows, size_t K, const C* x, size_t stride, F&& f) const {
    const size_t block = RowsOfBlock();
    ParallelFor((rows + block - 1) / block, rows * K < kUnitsToShare ? 1 : threads_, [&](size_t task) {
      const size_t first = task * block, count = std::min(rows - first, block);
      for (size_t r = first; r < first + count; ++r) f(r);
      if (rows >= lanes_) RowsToLanes(x + first * stride, stride, count, K, rows_in_lanes_ + first * K);
    });
  }

  // Returns the elements per column of some rows in lanes; 0 if there are too few rows.
  size_t LanesOf(size_t rows) const { return rows < lanes_ ? 0 : VectorsOf<C>(rows) * lanes_; }

  // Multiplies rows first…last of a matrix [3H, K] by some rows, which Prepare has prepared.
  void Products(const C* M, size_t K, size_t first, size_t last, size_t rows, const C* x, size_t stride_x,
                C* to) const {
    const C* const end = M + 3 * s_.H * K;
    const bool lanes_are_rows = rows >= lanes_;
    const size_t threads = ThreadsForProducts<C>((last - first) * K, rows, threads_);
    ParallelFor((last - first + kUnitsOfTask - 1) / kUnitsOfTask, threads, [&](size_t task) {
      const size_t begin = first + task * kUnitsOfTask, stop = std::min(begin + kUnitsOfTask, last);
      if (lanes_are_rows) return MultiplyLanesOfRows(M, K, begin, stop, rows, rows_in_lanes_, to, stride_s_);
      for (size_t m = begin; m < stop; m += kUnitsAtOnce) {
        ForRows(rows, [&]<size_t kRows>(size_t r) {
          Multiply<kRows>(M, end, K, m, std::min(m + kUnitsAtOnce, stop), x + r * stride_x, stride_x,
                          to + r * stride_s_, stride_s_);
        });
      }
    });
  }

  size_t TimeOf(size_t i) const { return s_.reverse ? s_.T - 1 - i : i; }
  bool Runs(size_t t, size_t b) const { return s_.lengths == nullptr || static_cast<std::int64_t>(t) < s_.lengths[b]; }

  // Sets a row's state to the initial state, or to zeros.
  void ResetState(size_t b, bool is_initial) const {
    C* const h = h_ + b * stride_h_;
    std::fill_n(h, stride_h_, C{0});
    if (is_initial && s_.initial_h.data != nullptr) std::memcpy(h, s_.initial_h.at(0, 0, b), s_.H * sizeof(C));
  }

  using D = hn::ScalableTag<C>;
  using V = hn::Vec<D>;

  V F(V x) const { return Activate(d_, s_.f, Clip(d_, x, hn::Set(d_, static_cast<C>(s_.clip)))); }
  V G(V x) const { return Activate(d_, s_.g, Clip(d_, x, hn::Set(d_, static_cast<C>(s_.clip)))); }

  // Returns a gate's argument: its products and both biases.
  V Sum(size_t r, FewStepsGate gate, size_t j) const {
    const size_t at = gate * s_.H + j;
    const V products = hn::Add(hn::LoadU(d_, x_products_of_step_ + r * stride_s_ + at),
                               hn::LoadU(d_, h_products_ + r * stride_s_ + at));
    return hn::Add(products, hn::Add(hn::LoadU(d_, bx_ + at), hn::LoadU(d_, bh_ + at)));
  }

  // Computes r∘h, which n's product needs with reset before. The elements after H must be zeros.
  void MultiplyStateByR(size_t r) {
    for (size_t j = 0; j < s_.H; j += lanes_) {
      const V rh = hn::Mul(F(Sum(r, kFewStepsR, j)), hn::LoadU(d_, h_ + r * stride_h_ + j));
      hn::StoreU(hn::IfThenElseZero(hn::FirstN(d_, s_.H - j), rh), d_, rh_ + r * stride_h_ + j);
    }
  }

  void Step(size_t t, size_t b) {
    const size_t H = s_.H;
    C* const h = h_ + b * stride_h_;
    const C* const nx = x_products_of_step_ + b * stride_s_ + kFewStepsN * H;
    const C* const nh = h_products_ + b * stride_s_ + kFewStepsN * H;
    V factor = hn::Set(d_, C{1}), offset = hn::Zero(d_);  // z becomes factor·z + offset
    bool is_infinite = false;                             // an infinite score of DIEN, for which the sum would be NaN
    C a{};
    if (s_.attention.data != nullptr) {
      std::memcpy(&a, s_.attention.at(t, 0, b), sizeof(C));
      factor = hn::Set(d_, s_.has_dien_attention ? a : C{1} - a);
      if (s_.has_dien_attention) offset = hn::Set(d_, C{1} - a);
      is_infinite = s_.has_dien_attention && std::isinf(a);
    }
    C* const gates = s_.gates.data == nullptr ? nullptr : reinterpret_cast<C*>(s_.gates.at(t, 0, b));
    for (size_t j = 0; j < H; j += lanes_) {
      const V before = hn::LoadU(d_, h + j);
      const V x = hn::Add(hn::LoadU(d_, nx + j), hn::LoadU(d_, bx_ + kFewStepsN * H + j));
      const V q = hn::Add(hn::LoadU(d_, nh + j), hn::LoadU(d_, bh_ + kFewStepsN * H + j));
      const V of_r = Sum(b, kFewStepsR, j), of_z = Sum(b, kFewStepsZ, j);
      const V of_n = s_.linear_before_reset ? MultiplyAdd(F(of_r), q, x) : hn::Add(x, q);
      if (gates != nullptr) {
        const V saved[] = {of_r, of_z, of_n, q};  // in the order of FewStepsGate
        for (size_t i = 0; i < kFewStepsState; ++i) StorePart(saved[i], d_, gates + i * H + j, H - j);
      }
      const V n = G(of_n);
      V z = MultiplyAdd(factor, F(of_z), offset);
      if (HWY_UNLIKELY(is_infinite)) z = NegMultiplyAdd(factor, hn::Sub(hn::Set(d_, C{1}), F(of_z)), hn::Set(d_, C{1}));
      const V state = MultiplyAdd(z, hn::Sub(before, n), n);
      hn::StoreU(hn::IfThenElseZero(hn::FirstN(d_, H - j), state), d_, h + j);
    }
  }

  const FewSteps& s_;
  const D d_;
  const C *W_, *R_;
  size_t lanes_, stride_x_, stride_h_, stride_s_, threads_, lanes_size_;
  ScratchMemory<C> memory_;
  C *x_, *h_, *rh_, *x_products_, *h_products_, *bx_, *bh_, *rows_in_lanes_;
  const C* x_products_of_step_ = nullptr;
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
