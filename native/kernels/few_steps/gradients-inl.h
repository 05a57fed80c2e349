// The gradients of few steps, on row-major weights. Weights are read, and their gradients written, without
// packing. Included once for each SIMD target.
//
// With G the gradients with respect to the arguments of r, z and n, and Gq that with respect to q = h·Rhᵀ + Rbh:
//
//   dX = G·W, dW = Gᵀ·X, dh += [Gr Gz Gq]·R, dR = [Gr Gz Gq]ᵀ·h   (reset before: d(r∘h) = Gn·Rh, dRh = Gnᵀ·(r∘h))
//
// Each sum over steps and rows has one order, on one thread. Threads share columns of products with weights, rows of
// the weight gradients, and rows of the batch.

#include <algorithm>
#include <cstring>
#include <vector>

#include "hwy/highway.h"
#include "native/few_steps.h"
#include "native/kernels/training/derivatives-inl.h"
#include "native/kernels/few_steps/forward-inl.h"

#if defined(ONEGRU_NATIVE_KERNELS_FEW_STEPS_GRADIENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_FEW_STEPS_GRADIENTS_INL_H_
#undef ONEGRU_NATIVE_KERNELS_FEW_STEPS_GRADIENTS_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_FEW_STEPS_GRADIENTS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {
namespace hn = hwy::HWY_NAMESPACE;

// Computes to[r] += Σ_m g[r][m] · M[m] for a matrix M [count, K], in kVectors vectors of columns from k on. The last
// vector has `last` elements.
template <size_t kRows, size_t kVectors, class D, class C = hn::TFromD<D>>
HWY_INLINE void AddProducts(D d, const C* g, size_t stride_g, const C* M, size_t count, size_t K, size_t k, size_t last,
                            C* to, size_t stride_to) {
  using V = hn::Vec<D>;
  const size_t lanes = hn::Lanes(d);
  V sums[kRows][kVectors];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) {
      const C* const from = to + r * stride_to + k + v * lanes;
      sums[r][v] = v + 1 == kVectors ? LoadPart(d, from, last) : hn::LoadU(d, from);
    }
  }
  for (size_t m = 0; m < count; ++m) {
    V row[kVectors];
    for (size_t v = 0; v < kVectors; ++v) {
      const C* const from = M + m * K + k + v * lanes;
      row[v] = v + 1 == kVectors ? LoadPart(d, from, last) : hn::LoadU(d, from);
    }
    for (size_t r = 0; r < kRows; ++r) {
      const V factor = hn::Set(d, g[r * stride_g + m]);
      for (size_t v = 0; v < kVectors; ++v) sums[r][v] = MultiplyAdd(factor, row[v], sums[r][v]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) {
      C* const at = to + r * stride_to + k + v * lanes;
      if (v + 1 == kVectors) {
        StorePart(sums[r][v], d, at, last);
      } else {
        hn::StoreU(sums[r][v], d, at);
      }
    }
  }
}

// Computes to[m] = Σ_r g[r][m] · x[r], or accumulates it if `adds`, for kUnits rows of a matrix [count, K] from m on.
// Rows are written in address order, for sequential access.
template <size_t kRows, size_t kUnits, class D, class C = hn::TFromD<D>>
HWY_INLINE void OuterProducts(D d, const C* g, size_t stride_g, const C* x, size_t stride_x, size_t m, size_t K,
                              bool adds, C* to) {
  using V = hn::Vec<D>;
  const size_t lanes = hn::Lanes(d);
  V factors[kUnits][kRows];
  for (size_t u = 0; u < kUnits; ++u) {
    for (size_t r = 0; r < kRows; ++r) factors[u][r] = hn::Set(d, g[r * stride_g + m + u]);
  }
  const auto columns = [&](size_t k, size_t count) HWY_ATTR {
    V rows[kRows];
    for (size_t r = 0; r < kRows; ++r) rows[r] = LoadPart(d, x + r * stride_x + k, count);
    for (size_t u = 0; u < kUnits; ++u) {
      C* const at = to + (m + u) * K + k;
      V sum = adds ? LoadPart(d, at, count) : hn::Zero(d);
      for (size_t r = 0; r < kRows; ++r) sum = MultiplyAdd(factors[u][r], rows[r], sum);
      StorePart(sum, d, at, count);
    }
  };
  size_t k = 0;
  for (; k + lanes <= K; k += lanes) columns(k, lanes);
  if (k < K) columns(k, K - k);
}

// Computes the same for all rows r, in a tile of kUnits rows from m on and kVectors vectors of columns from k on. The
// sums stay in registers.
template <size_t kUnits, size_t kVectors, class D, class C = hn::TFromD<D>>
HWY_INLINE void OuterTile(D d, const C* g, size_t stride_g, const C* x, size_t stride_x, size_t rows, size_t m,
                          size_t K, size_t k, size_t last, bool adds, C* to) {
  using V = hn::Vec<D>;
  const size_t lanes = hn::Lanes(d);
  V sums[kUnits][kVectors];
  for (size_t u = 0; u < kUnits; ++u) {
    for (size_t i = 0; i < kVectors; ++i) {
      const size_t count = i + 1 == kVectors ? last : lanes;
      sums[u][i] = adds ? LoadPart(d, to + (m + u) * K + k + i * lanes, count) : hn::Zero(d);
    }
  }
  for (size_t r = 0; r < rows; ++r) {
    V v[kVectors];
    for (size_t i = 0; i < kVectors; ++i) v[i] = hn::LoadU(d, x + r * stride_x + k + i * lanes);
    for (size_t u = 0; u < kUnits; ++u) {
      const V factor = hn::Set(d, g[r * stride_g + m + u]);
      for (size_t i = 0; i < kVectors; ++i) sums[u][i] = MultiplyAdd(factor, v[i], sums[u][i]);
    }
  }
  for (size_t u = 0; u < kUnits; ++u) {
    for (size_t i = 0; i < kVectors; ++i) {
      C* const at = to + (m + u) * K + k + i * lanes;
      if (i + 1 == kVectors) {
        StorePart(sums[u][i], d, at, last);
      } else {
        hn::StoreU(sums[u][i], d, at);
      }
    }
  }
}

// If autograd runs between calls, helpers are asleep when they are invited, so sharing costs more.
inline constexpr double kFlopsToShareGradients = 1.0e7;

// The columns and rows of a matrix that stay in the first-level cache while all rows of the batch are multiplied.
inline constexpr size_t kVectorsOfStrip = 6, kUnitsOfStrip = 64, kUnitsOfBlock = 16;

// Computes columns k…k_end of to[r] += g[r]·M for kRows rows.
template <size_t kRows, class C>
HWY_NOINLINE void AddProductsOfRows(const C* g, size_t stride_g, const C* M, size_t count, size_t K, size_t k,
                                    size_t k_end, C* to, size_t stride_to) {
  const hn::ScalableTag<C> d;
  constexpr size_t kVectors = kRows >= 8 || (kRows == 4 && HWY_TARGET > HWY_AVX3) ? 3 : kVectorsOfStrip;
  const size_t lanes = hn::Lanes(d);
  for (; k + kVectors * lanes <= k_end; k += kVectors * lanes) {
    AddProducts<kRows, kVectors>(d, g, stride_g, M, count, K, k, lanes, to, stride_to);
  }
  for (; k < k_end; k += lanes) {
    AddProducts<kRows, 1>(d, g, stride_g, M, count, K, k, std::min(lanes, k_end - k), to, stride_to);
  }
}

template <class C>
class GradientsOfFewSteps {
 public:
  explicit GradientsOfFewSteps(const FewStepsGradients& given)
      : c_(given), s_(given.call), lanes_(hn::Lanes(d_)), threads_(ThreadsForSteps<C>(given.call)) {}

  void Run() {
    const size_t H = s_.H, rows = Count();
    stride_h_ = Padded(H);
    stride_x_ = Padded(s_.I);
    stride_g_ = (kFewStepsState * H + lanes_ - 1) / lanes_ * lanes_ + lanes_;
    const bool after = s_.linear_before_reset;
    const ScratchMemory<C> memory(rows * (stride_g_ + stride_h_ + (after ? 0 : stride_h_)) +
                                      rows * (c_.dW == nullptr ? 0 : stride_x_) + (s_.B + rows) * stride_h_ +
                                      rows * stride_x_,
                                  true);
    C* next = memory.get();
    const auto take = [&](size_t count) {
      next += count;
      return next - count;
    };
    g_ = take(rows * stride_g_);
    h_ = take(rows * stride_h_);
    rh_ = after ? nullptr : take(rows * stride_h_);
    x_ = c_.dW == nullptr ? nullptr : take(rows * stride_x_);
    dh_ = take(s_.B * stride_h_);
    d_rh_ = take(rows * stride_h_);
    dx_ = take(rows * stride_x_);
    Clear();
    Steps();
    Weights(rows);
    Inputs(rows);
  }

 private:
  using D = hn::ScalableTag<C>;
  using V = hn::Vec<D>;

  size_t Padded(size_t count) const { return (count + lanes_ - 1) / lanes_ * lanes_ + lanes_; }
  size_t Length(size_t b) const { return s_.lengths == nullptr ? s_.T : static_cast<size_t>(s_.lengths[b]); }
  size_t Count() const {
    size_t count = 0;
    for (size_t b = 0; b < s_.B; ++b) count += Length(b);
    return count;
  }
  size_t TimeOf(size_t i) const { return s_.reverse ? s_.T - 1 - i : i; }
  bool IsStateReset(size_t t, size_t b) const { return s_.resets != nullptr && s_.resets[t * s_.B + b]; }

  // Returns the state before a step; null for zeros.
  const C* Before(size_t t, size_t b) const {
    const bool is_first = s_.reverse ? t + 1 >= Length(b) : t == 0;
    const bool is_state_reset = IsStateReset(t, b);
    if (is_first || is_state_reset) {
      if (s_.initial_h.data == nullptr || (is_state_reset && !s_.resets_to_initial)) return nullptr;
      return reinterpret_cast<const C*>(s_.initial_h.at(0, 0, b));
    }
    return reinterpret_cast<const C*>(s_.gates.at(s_.reverse ? t + 1 : t - 1, 0, b)) + kFewStepsState * s_.H;
  }

  // Zeroes the accumulated gradients of inputs. The directions share all of them except d_initial_h.
  void Clear() const {
    for (size_t b = 0; b < s_.B; ++b) {
      if (c_.d_initial_h.data != nullptr) std::memset(c_.d_initial_h.at(0, 0, b), 0, s_.H * sizeof(C));
      for (size_t t = 0; t < (c_.adds ? 0 : s_.T); ++t) {
        if (c_.dX.data != nullptr) std::memset(c_.dX.at(t, 0, b), 0, s_.I * sizeof(C));
        if (c_.d_attention.data != nullptr) std::memset(c_.d_attention.at(t, 0, b), 0, sizeof(C));
      }
    }
  }

  // Computes the entries of g, of the previous states and of r∘h, from the last step to the first.
  void Steps() {
    const size_t H = s_.H, bytes = H * sizeof(C);
    for (size_t b = 0; b < s_.B; ++b) {
      if (c_.dY_h.data != nullptr && Length(b) != 0) std::memcpy(dh_ + b * stride_h_, c_.dY_h.at(0, 0, b), bytes);
    }
    size_t entry = 0;
    for (size_t i = s_.T; i-- > 0;) {
      const size_t t = TimeOf(i), first = entry;
      active_.clear();
      for (size_t b = 0; b < s_.B; ++b) {
        if (t >= Length(b)) continue;
        if (const C* const before = Before(t, b)) std::memcpy(h_ + entry * stride_h_, before, bytes);
        if (x_ != nullptr) std::memcpy(x_ + entry * stride_x_, s_.X.at(t, 0, b), s_.I * sizeof(C));
        active_.push_back(b);
        places_.push_back({t, b});
        ++entry;
      }
      const size_t rows = entry - first, sharing = rows * H < kUnitsToShare ? 1 : threads_;
      ParallelFor(rows, sharing, [&](size_t j) { Gates(t, active_[j], first + j); });
      // The gradients with respect to the previous states. dh already contains the part through z.
      if (!s_.linear_before_reset) {
        Multiply(rows, g_ + first * stride_g_ + kFewStepsN * H, static_cast<const C*>(s_.R) + kFewStepsN * H * H, H, H,
                 d_rh_ + first * stride_h_, stride_h_);
        ParallelFor(rows, sharing, [&](size_t j) { BackThroughR(active_[j], t, first + j); });
      }
      // The rows of dh are those of the batch. They are gathered if some do not have this step.
      const bool has_all_rows = rows == s_.B;
      C* const dh = has_all_rows ? dh_ : Gathered();
      if (i == 0 && c_.d_initial_h.data == nullptr) {
        // this gradient is not requested
      } else if (s_.linear_before_reset) {
        AddProductsWithQ(rows, first, dh);
      } else {
        Multiply(rows, g_ + first * stride_g_, static_cast<const C*>(s_.R), 2 * H, H, dh, stride_h_);
      }
      for (size_t j = 0; j < rows; ++j) {
        C* const dh_of_row = dh_ + active_[j] * stride_h_;
        if (!has_all_rows) std::memcpy(dh_of_row, dh + j * stride_h_, bytes);
        const size_t b = active_[j];
        const bool is_first = s_.reverse ? t + 1 >= Length(b) : t == 0;
        if (!is_first && !IsStateReset(t, b)) continue;
        if (c_.d_initial_h.data != nullptr && (!IsStateReset(t, b) || s_.resets_to_initial)) {
          Add(dh_of_row, H, reinterpret_cast<C*>(c_.d_initial_h.at(0, 0, b)));
        }
        std::memset(dh_of_row, 0, bytes);
      }
    }
  }

  C* Gathered() {
    gathered_.assign((active_.size() + 1) * stride_h_, C{0});
    for (size_t j = 0; j < active_.size(); ++j) {
      std::memcpy(gathered_.data() + j * stride_h_, dh_ + active_[j] * stride_h_, s_.H * sizeof(C));
    }
    return gathered_.data();
  }

  // Computes to[r] += g[r]·M for M [count, K]. Blocks of M stay in the nearest cache for all of g.
  void Multiply(size_t rows, const C* g, const C* M, size_t count, size_t K, C* to, size_t stride_to) const {
    const size_t strip = kVectorsOfStrip * lanes_, block = rows <= kRowsOfFewSteps ? kUnitsOfBlock : kUnitsOfStrip;
    const size_t threads = ThreadsForProducts<C>(count * K, rows, threads_, kFlopsToShareGradients);
    const size_t width = threads == 1 ? K : 2 * strip;
    ParallelFor((K + width - 1) / width, threads, [&](size_t task) {
      const size_t k_end = std::min((task + 1) * width, K);
      for (size_t m = 0; m < count; m += block) {
        for (size_t k = task * width; k < k_end; k += strip) {
          ForRows(rows, [&]<size_t kRows>(size_t r) {
            AddProductsOfRows<kRows>(g + r * stride_g_ + m, stride_g_, M + m * K, std::min(block, count - m), K, k,
                                     std::min(k + strip, k_end), to + r * stride_to, stride_to);
          });
        }
      }
    });
  }

  // With reset after: adds the products of r and z, and of q instead of n.
  void AddProductsWithQ(size_t rows, size_t first, C* dh) const {
    const size_t H = s_.H;
    const C *const g = g_ + first * stride_g_, *const R = static_cast<const C*>(s_.R);
    Multiply(rows, g, R, 2 * H, H, dh, stride_h_);
    Multiply(rows, g + kFewStepsQ * H, R + kFewStepsN * H * H, H, H, dh, stride_h_);
  }

  // Computes an activation and its derivative, which is 0 where the argument is clipped.
  V Apply(const Activation& function, V x, V* derivative) const {
    const V bound = hn::Set(d_, static_cast<C>(s_.clip));
    const V within = Clip(d_, x, bound), y = Activate(d_, function, within);
    *derivative = hn::IfThenElseZero(hn::Le(hn::Abs(x), bound), Derivative(d_, function, within, y));
    return y;
  }

  // Computes the gradients with respect to the gates' arguments, and, in dh, the part through z of that with respect to
  // the previous state.
  void Gates(size_t t, size_t b, size_t entry) {
    const size_t H = s_.H;
    const C* const saved = reinterpret_cast<const C*>(s_.gates.at(t, 0, b));
    const C* const dY = c_.dY.data == nullptr ? nullptr : reinterpret_cast<const C*>(c_.dY.at(t, 0, b));
    C *const dh = dh_ + b * stride_h_, *const g = g_ + entry * stride_g_;
    const C* const h = h_ + entry * stride_h_;
    V factor = hn::Set(d_, C{1}), offset = hn::Zero(d_);
    if (s_.attention.data != nullptr) {
      C a;
      std::memcpy(&a, s_.attention.at(t, 0, b), sizeof(C));
      factor = hn::Set(d_, s_.has_dien_attention ? a : C{1} - a);
      if (s_.has_dien_attention) offset = hn::Set(d_, C{1} - a);
    }
    V da = hn::Zero(d_);
    for (size_t j = 0; j < H; j += lanes_) {
      const size_t left = H - j;
      V r_slope, z_slope, n_slope;
      const V r = Apply(s_.f, LoadPart(d_, saved + kFewStepsR * H + j, left), &r_slope);
      const V raw_z = Apply(s_.f, LoadPart(d_, saved + kFewStepsZ * H + j, left), &z_slope);
      const V n = Apply(s_.g, LoadPart(d_, saved + kFewStepsN * H + j, left), &n_slope);
      V dh_j = LoadPart(d_, dh + j, left);
      if (dY != nullptr) dh_j = hn::Add(dh_j, LoadPart(d_, dY + j, left));
      const V z = MultiplyAdd(factor, raw_z, offset);
      const V before = LoadPart(d_, h + j, left);
      const V dz = hn::Mul(dh_j, hn::Sub(before, n));
      const V dn = hn::Mul(hn::Mul(dh_j, hn::Sub(hn::Set(d_, C{1}), z)), n_slope);
      if (c_.d_attention.data != nullptr) {
        const V dz_da = s_.has_dien_attention ? hn::Sub(raw_z, hn::Set(d_, C{1})) : hn::Neg(raw_z);
        da = hn::Add(da, hn::IfThenElseZero(hn::FirstN(d_, left), hn::Mul(dz, dz_da)));
      }
      StorePart(hn::Mul(hn::Mul(dz, factor), z_slope), d_, g + kFewStepsZ * H + j, left);
      StorePart(dn, d_, g + kFewStepsN * H + j, left);
      StorePart(hn::Mul(dh_j, z), d_, dh + j, left);
      if (s_.linear_before_reset) {
        const V q = LoadPart(d_, saved + kFewStepsQ * H + j, left);
        StorePart(hn::Mul(hn::Mul(dn, q), r_slope), d_, g + kFewStepsR * H + j, left);
        StorePart(hn::Mul(dn, r), d_, g + kFewStepsQ * H + j, left);
      } else {
        StorePart(hn::Mul(r, before), d_, rh_ + entry * stride_h_ + j, left);
      }
    }
    if (c_.d_attention.data != nullptr) {
      C* const at = reinterpret_cast<C*>(c_.d_attention.at(t, 0, b));
      C sum;
      std::memcpy(&sum, at, sizeof(C));
      sum += hn::GetLane(hn::SumOfLanes(d_, da));
      std::memcpy(at, &sum, sizeof(C));
    }
  }

  // With reset before: computes the gradient with respect to r's argument from d_rh, and adds d_rh∘r to dh.
  void BackThroughR(size_t b, size_t t, size_t entry) {
    const size_t H = s_.H;
    const C* const saved = reinterpret_cast<const C*>(s_.gates.at(t, 0, b));
    const C *const d_rh = d_rh_ + entry * stride_h_, *const h = h_ + entry * stride_h_;
    C *const dh = dh_ + b * stride_h_, *const g = g_ + entry * stride_g_;
    for (size_t j = 0; j < H; j += lanes_) {
      const size_t left = H - j;
      V slope;
      const V r = Apply(s_.f, LoadPart(d_, saved + kFewStepsR * H + j, left), &slope),
              drh_j = LoadPart(d_, d_rh + j, left);
      StorePart(hn::Mul(hn::Mul(drh_j, LoadPart(d_, h + j, left)), slope), d_, g + kFewStepsR * H + j, left);
      StorePart(MultiplyAdd(drh_j, r, LoadPart(d_, dh + j, left)), d_, dh + j, left);
    }
  }

  void Add(const C* from, size_t count, C* to) const {
    for (size_t j = 0; j < count; j += lanes_) {
      const size_t left = count - j;
      StorePart(hn::Add(LoadPart(d_, to + j, left), LoadPart(d_, from + j, left)), d_, to + j, left);
    }
  }

  // Computes `count` rows of a weight gradient with K columns, from the gates at `from` in g.
  void Outer(size_t rows, size_t from, size_t count, const C* x, size_t stride_x, size_t K, C* to) const {
    if (rows == 0) std::fill_n(to, count * K, C{0});
    ParallelFor((count + kUnitsOfTask - 1) / kUnitsOfTask,
                ThreadsForProducts<C>(count * K, rows, threads_, kFlopsToShareGradients), [&](size_t task) {
                  const size_t m = task * kUnitsOfTask, end = std::min(m + kUnitsOfTask, count);
                  if (rows > kRowsOfFewSteps) {
                    OuterStrips(rows, g_ + from, m, end, x, stride_x, K, to);
                  } else {
                    OuterRows(rows, g_ + from, m, end, x, stride_x, K, to);
                  }
                });
  }

  static constexpr size_t kUnitsOfTask = 48;

  void OuterRows(size_t rows, const C* g, size_t m, size_t end, const C* x, size_t stride_x, size_t K, C* to) const {
    for (; m + 2 <= end; m += 2) OuterOfUnits<2>(rows, g, m, x, stride_x, K, to);
    for (; m < end; ++m) OuterOfUnits<1>(rows, g, m, x, stride_x, K, to);
  }

  template <size_t kUnits>
  void OuterOfUnits(size_t rows, const C* g, size_t m, const C* x, size_t stride_x, size_t K, C* to) const {
    ForRows(rows, [&]<size_t kRows>(size_t r) {
      OuterProducts<kRows, kUnits>(d_, g + r * stride_g_, stride_g_, x + r * stride_x, stride_x, m, K, r != 0, to);
    });
  }

  // The rows whose part of g, and of x, stays in the first-level cache.
  static constexpr size_t kRowsOfPart = 64;

  void OuterStrips(size_t rows, const C* g, size_t begin, size_t end, const C* x, size_t stride_x, size_t K,
                   C* to) const {
    constexpr size_t kUnits = HWY_TARGET <= HWY_AVX3 ? 8 : 4;
    C part[kRowsOfPart * kUnitsOfTask];
    for (size_t r = 0; r < rows; r += kRowsOfPart, x += kRowsOfPart * stride_x) {
      const size_t some = std::min(kRowsOfPart, rows - r);
      for (size_t n = 0; n < some; ++n) {
        std::copy_n(g + (r + n) * stride_g_ + begin, end - begin, part + n * kUnitsOfTask);
      }
      const auto column = [&]<size_t kVectors>(size_t k, size_t last) {
        const auto tile = [&]<size_t kSome>(size_t m) {
          OuterTile<kSome, kVectors>(d_, part, kUnitsOfTask, x, stride_x, some, m, K, k, last, r != 0, to + begin * K);
        };
        size_t m = 0;
        for (; m + kUnits <= end - begin; m += kUnits) tile.template operator()<kUnits>(m);
        for (; m < end - begin; ++m) tile.template operator()<1>(m);
      };
      size_t k = 0;
      for (; k + 3 * lanes_ <= K; k += 3 * lanes_) column.template operator()<3>(k, lanes_);
      for (; k < K; k += lanes_) column.template operator()<1>(k, std::min(lanes_, K - k));
    }
  }

  void Weights(size_t rows) const {
    const size_t H = s_.H;
    const bool after = s_.linear_before_reset;
    const size_t of_n = after ? kFewStepsQ * H : kFewStepsN * H;  // the gate whose product with the state belongs to n
    if (c_.dW != nullptr) Outer(rows, 0, 3 * H, x_, stride_x_, s_.I, static_cast<C*>(c_.dW));
    if (c_.dR != nullptr) {
      C* const dR = static_cast<C*>(c_.dR);
      Outer(rows, 0, 2 * H, h_, stride_h_, H, dR);
      Outer(rows, of_n, H, after ? h_ : rh_, stride_h_, H, dR + kFewStepsN * H * H);
    }
    for (const bool is_R : {false, true}) {
      C* const to = static_cast<C*>(is_R ? c_.dRb : c_.dWb);
      if (to == nullptr) continue;
      std::fill_n(to, 3 * H, C{0});
      for (size_t entry = 0; entry < rows; ++entry) {
        const C* const g = g_ + entry * stride_g_;
        Add(g, 2 * H, to);
        Add(g + (is_R ? of_n : kFewStepsN * H), H, to + kFewStepsN * H);
      }
    }
  }

  void Inputs(size_t rows) const {
    if (c_.dX.data == nullptr) return;
    const C* const W = static_cast<const C*>(s_.W);
    Multiply(rows, g_, W, 3 * s_.H, s_.I, dx_, stride_x_);
    for (size_t entry = 0; entry < rows; ++entry) {
      const auto [t, b] = places_[entry];
      Add(dx_ + entry * stride_x_, s_.I, reinterpret_cast<C*>(c_.dX.at(t, 0, b)));
    }
  }

  struct Place {
    size_t t, b;
  };

  const FewStepsGradients& c_;
  const FewSteps& s_;
  const D d_;
  const size_t lanes_, threads_;
  size_t stride_h_ = 0, stride_x_ = 0, stride_g_ = 0;
  std::vector<C> gathered_;
  std::vector<size_t> active_;  // the rows of the batch that have the current step
  std::vector<Place> places_;   // of each entry
  C *g_ = nullptr, *h_ = nullptr, *rh_ = nullptr, *x_ = nullptr, *dh_ = nullptr, *d_rh_ = nullptr, *dx_ = nullptr;
};

template <class C>
void RunGradientsOfFewSteps(const FewStepsGradients& steps) {
  GradientsOfFewSteps<C>(steps).Run();
}

template <class C>
constexpr FewStepsKernel MakeFewStepsKernel() {
  return {&RunFewSteps<C>, &RunGradientsOfFewSteps<C>};
}

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
