// The derivatives of the activation functions. Included once for each SIMD target.

#include "hwy/highway.h"
#include "native/kernels/activations-inl.h"

#if defined(ONEGRU_NATIVE_KERNELS_TRAINING_DERIVATIVES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_TRAINING_DERIVATIVES_INL_H_
#undef ONEGRU_NATIVE_KERNELS_TRAINING_DERIVATIVES_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_TRAINING_DERIVATIVES_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {
namespace hn = hwy::HWY_NAMESPACE;

// Returns the derivative of an activation at x, where its value is y. At a kink it is the left derivative, except for
// HardSigmoid, where it is 0 at both kinks.
template <class D, class V>
HWY_NOINLINE V Derivative(D d, const Activation& activation, V x, V y) {
  using T = hn::TFromD<D>;
  const V zero = hn::Zero(d), one = hn::Set(d, T{1});
  const V alpha = hn::Set(d, static_cast<T>(activation.alpha));
  const V beta = hn::Set(d, static_cast<T>(activation.beta));
  switch (activation.function) {
    case Function::kRelu:
      return hn::IfThenElse(hn::Gt(x, zero), one, zero);
    case Function::kTanh:
      return NegMultiplyAdd(y, y, one);
    case Function::kSigmoid:
      return hn::Mul(y, hn::Sub(one, y));
    case Function::kAffine:
      return alpha;
    case Function::kLeakyRelu:
      return hn::IfThenElse(hn::Gt(x, zero), one, alpha);
    case Function::kThresholdedRelu:
      return hn::IfThenElse(hn::Gt(x, alpha), one, zero);
    case Function::kScaledTanh: {
      const V t = Tanh(d, hn::Mul(beta, x));
      return hn::Mul(hn::Mul(alpha, beta), NegMultiplyAdd(t, t, one));
    }
    case Function::kHardSigmoid: {
      const V line = MultiplyAdd(alpha, x, beta);
      return hn::IfThenElse(hn::And(hn::Gt(line, zero), hn::Lt(line, one)), alpha, zero);
    }
    case Function::kElu:
      return hn::IfThenElse(hn::Gt(x, zero), one, hn::Add(hn::Mul(alpha, Expm1OfNegative(d, hn::Min(x, zero))), alpha));
    case Function::kSoftsign: {
      const V a = hn::Add(one, hn::Abs(x));
      return hn::Div(one, hn::Mul(a, a));
    }
    case Function::kSoftplus:
      return Sigmoid(d, x);
  }
  return one;
}

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
