// The activation functions, one vector at a time. Included once for each SIMD target.
//
// All functions consist of additions, multiplications, fused multiply-adds, divisions and bit operations, in one order,
// so results are bitwise identical on every target with FMA. NaN propagates. The tests measure the largest errors
// over the whole float32 range, against float64. docs/accuracy.md lists them.

#include "hwy/highway.h"
#include "native/kernels/products/arithmetic-inl.h"
#include "native/kernels/polynomials.h"
#include "native/problem.h"

#if defined(ONEGRU_NATIVE_KERNELS_ACTIVATIONS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_ACTIVATIONS_INL_H_
#undef ONEGRU_NATIVE_KERNELS_ACTIVATIONS_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_ACTIVATIONS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
struct ExpConstants;

template <>
struct ExpConstants<float> {
  static constexpr float kLog2E = 1.44269504088896341f;
  static constexpr float kLn2Hi = 0.693359375f;  // few bits: n * kLn2Hi is exact
  static constexpr float kLn2Lo = -2.12194440054690583e-4f;
  static constexpr float kMagic = 0x1.8p23f;   // adding it rounds to an integer
  static constexpr float kSmallest = -104.0f;  // below: e^x rounds to zero
  static constexpr float kUnshift = 0x1p-64f;
  static constexpr int kShiftExponent = 64;
  static constexpr int kMantissa = 23;
  static constexpr int kBias = 127;
  static constexpr auto& kExpm1 = kExpm132;
  static constexpr auto& kLog1p = kLog1p32;
};

template <>
struct ExpConstants<double> {
  static constexpr double kLog2E = 1.44269504088896340736;
  static constexpr double kLn2Hi = 0x1.62e42feep-1;
  static constexpr double kLn2Lo = 0x1.a39ef35793c76p-33;
  static constexpr double kMagic = 0x1.8p52;
  static constexpr double kSmallest = -746.0;
  static constexpr double kUnshift = 0x1p-256;
  static constexpr int kShiftExponent = 256;
  static constexpr int kMantissa = 52;
  static constexpr int kBias = 1023;
  static constexpr auto& kExpm1 = kExpm164;
  static constexpr auto& kLog1p = kLog1p64;
};

// Evaluates a polynomial, with the lowest power first: pairs of terms independently, then Horner's rule in x^2. This
// dependency chain is half as long as that in x.
template <class D, class V, class T, size_t kCount>
HWY_INLINE V Polynomial(D d, V x, V square, const T (&coefficients)[kCount]) {
  const auto pair = [&](size_t i) HWY_ATTR {
    const V low = hn::Set(d, coefficients[i]);
    return i + 1 == kCount ? low : MultiplyAdd(x, hn::Set(d, coefficients[i + 1]), low);
  };
  constexpr size_t kLast = (kCount - 1) / 2 * 2;
  V sum = pair(kLast);
#pragma GCC unroll 16
  for (size_t i = kLast; i != 0; i -= 2) sum = MultiplyAdd(sum, square, pair(i - 2));
  return sum;
}

// Limit x to at least `low` or at most `high`, and preserve NaN. Minimum and maximum of NaN depend on the CPU. On x86,
// Max and Min return their second argument if one is NaN.
template <class V>
HWY_INLINE V AtLeast(V low, V x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  return hn::Max(low, x);
#else
  return hn::IfThenElse(hn::Lt(x, low), low, x);
#endif
}
template <class V>
HWY_INLINE V AtMost(V high, V x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  return hn::Min(high, x);
#else
  return hn::IfThenElse(hn::Gt(x, high), high, x);
#endif
}

// x = n ln2 + r, |r| <= ln2 / 2; `scale` is 2^(n + kShift), so multiply it by 2^-kShift; `p` is expm1(r).
template <class V>
struct Reduced {
  V scale;
  V p;
};

// Reduces kFactor·x. kFactor is a power of two, so that kFactor·x is exact and n can be computed from x.
template <int kShift, int kFactor = 1, class D, class V>
HWY_INLINE Reduced<V> ReduceExp(D d, V x) {
  using T = hn::TFromD<D>;
  using C = ExpConstants<T>;
  const hn::RebindToSigned<D> di;
  // The last bits of `shifted` are n and the exponent's bias; the shift removes the others.
  const V magic = hn::Set(d, C::kMagic + (C::kBias + kShift));
  const V shifted = MultiplyAdd(x, hn::Set(d, kFactor * C::kLog2E), magic);
  const V scale = hn::BitCast(d, hn::ShiftLeft<C::kMantissa>(hn::BitCast(di, shifted)));
  const V n = hn::Sub(shifted, magic);
  if constexpr (kFactor != 1) x = hn::Mul(x, hn::Set(d, T{kFactor}));
  V r = NegMultiplyAdd(n, hn::Set(d, C::kLn2Hi), x);
  r = NegMultiplyAdd(n, hn::Set(d, C::kLn2Lo), r);
  const V square = hn::Mul(r, r);
  const V p = MultiplyAdd(square, Polynomial(d, r, square, C::kExpm1), r);
  return {scale, p};
}

// Returns e^x for x <= 0, down to the smallest subnormal.
template <class D, class V>
HWY_INLINE V ExpOfNegative(D d, V x) {
  using C = ExpConstants<hn::TFromD<D>>;
  const Reduced<V> e = ReduceExp<C::kShiftExponent>(d, AtLeast(hn::Set(d, C::kSmallest), x));
  return hn::Mul(MultiplyAdd(e.scale, e.p, e.scale), hn::Set(d, C::kUnshift));
}

// Returns 1 / (1 + e^-x), below zero as e^-|x| / (1 + e^-|x|), so that nothing overflows or cancels.
template <class D, class V>
HWY_INLINE V Sigmoid(D d, V x) {
  using T = hn::TFromD<D>;
  using C = ExpConstants<T>;
  const V one = hn::Set(d, T{1});
  const V low = hn::Set(d, C::kSmallest);
  const Reduced<V> reduced = ReduceExp<C::kShiftExponent>(d, AtLeast(low, hn::Or(hn::SignBit(d), x)));
  const V scale = hn::Mul(reduced.scale, hn::Set(d, C::kUnshift));
  // 1 + e is not computed from e, so that neither waits for the other.
  const V e = MultiplyAdd(scale, reduced.p, scale);
  const V sum = MultiplyAdd(scale, reduced.p, hn::Add(one, scale));
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one), sum);
}

// Returns (1 - e) / (1 + e) with e = e^-2|x|. 1 - e is computed from e - 1, so that nothing cancels near zero.
template <class D, class V>
HWY_INLINE V Tanh(D d, V x) {
  using T = hn::TFromD<D>;
  const V one = hn::Set(d, T{1});
  // Beyond 22 (10 would do for float) the result is 1.
  const Reduced<V> e = ReduceExp<0, -2>(d, AtMost(hn::Set(d, T{22}), hn::Abs(x)));
  const V difference = NegMultiplyAdd(e.scale, e.p, hn::Sub(one, e.scale));
  const V sum = MultiplyAdd(e.scale, e.p, hn::Add(one, e.scale));
  return hn::CopySign(hn::Div(difference, sum), x);
}

// Returns e^x - 1 for x <= 0. Below -60, it rounds to -1.
template <class D, class V>
HWY_INLINE V Expm1OfNegative(D d, V x) {
  using T = hn::TFromD<D>;
  const Reduced<V> e = ReduceExp<0>(d, AtLeast(hn::Set(d, T{-60}), x));
  return MultiplyAdd(e.scale, e.p, hn::Sub(e.scale, hn::Set(d, T{1})));
}

// Returns log(1 + e^x) = max(x, 0) + log1p(e^-|x|).
template <class D, class V>
HWY_INLINE V Softplus(D d, V x) {
  using T = hn::TFromD<D>;
  using C = ExpConstants<T>;
  const V e = ExpOfNegative(d, hn::Neg(hn::Abs(x)));
  const V s = hn::Div(e, hn::Add(e, hn::Set(d, T{2})));
  const V square = hn::Mul(s, s);
  const V polynomial = Polynomial(d, square, hn::Mul(square, square), C::kLog1p);
  const V log1p = MultiplyAdd(hn::Mul(square, s), polynomial, hn::Add(s, s));
  return hn::Add(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), x), log1p);
}

template <class D, class V>
HWY_INLINE V Softsign(D d, V x) {
  using T = hn::TFromD<D>;
  const V one = hn::Set(d, T{1});
  const V a = hn::Abs(x);
  const V limit = hn::CopySign(one, x);
  return hn::IfThenElse(hn::Eq(a, hn::Inf(d)), limit, hn::Div(x, hn::Add(one, a)));
}

// Returns the activation function at x.
template <class D, class V>
HWY_NOINLINE V Activate(D d, const Activation& activation, V x) {
  using T = hn::TFromD<D>;
  const V zero = hn::Zero(d);
  const V alpha = hn::Set(d, static_cast<T>(activation.alpha));
  const V beta = hn::Set(d, static_cast<T>(activation.beta));
  switch (activation.function) {
    case Function::kRelu:
      return hn::IfThenElse(hn::Lt(x, zero), zero, x);
    case Function::kTanh:
      return Tanh(d, x);
    case Function::kSigmoid:
      return Sigmoid(d, x);
    case Function::kAffine:
      return MultiplyAdd(alpha, x, beta);
    case Function::kLeakyRelu:
      return hn::IfThenElse(hn::Lt(x, zero), hn::Mul(alpha, x), x);
    case Function::kThresholdedRelu:
      return hn::IfThenElse(hn::Lt(x, alpha), zero, x);
    case Function::kScaledTanh:
      return hn::Mul(alpha, Tanh(d, hn::Mul(beta, x)));
    case Function::kHardSigmoid: {
      const V one = hn::Set(d, T{1});
      const V y = MultiplyAdd(alpha, x, beta);
      const V floored = hn::IfThenElse(hn::Lt(y, zero), zero, y);
      return hn::IfThenElse(hn::Gt(floored, one), one, floored);
    }
    case Function::kElu:
      return hn::IfThenElse(hn::Lt(x, zero), hn::Mul(alpha, Expm1OfNegative(d, x)), x);
    case Function::kSoftsign:
      return Softsign(d, x);
    case Function::kSoftplus:
      return Softplus(d, x);
  }
  return x;
}

// Clips x to [-c, c], and preserves NaN.
template <class D, class V>
HWY_INLINE V Clip(D, V x, V c) {
  const V low = hn::Neg(c);
  x = hn::IfThenElse(hn::Gt(x, c), c, x);
  return hn::IfThenElse(hn::Lt(x, low), low, x);
}

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
