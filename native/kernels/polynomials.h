// Made by native/kernels/polynomials.py; lowest power first. The error is relative, before rounding.

#ifndef ONEGRU_NATIVE_KERNELS_POLYNOMIALS_H_
#define ONEGRU_NATIVE_KERNELS_POLYNOMIALS_H_

namespace onegru {

// expm1(x) = x + x^2 p(x), |x| <= ln(2)/2
// error 1.3e-8
inline constexpr float kExpm132[] = {0.499999981f, 0.166665423f, 0.0416672049f, 0.00836670544f, 0.00138825447f};
// error 1.9e-17
inline constexpr double kExpm164[] = {
    0.50000000000000053,    0.16666666666666587,   0.041666666666574750,  0.0083333333333907380, 0.0013888888932277712,
    0.00019841269717145792, 2.4801504361746541e-5, 2.7557408339952146e-6, 2.7626419317936100e-7, 2.5053848072241686e-8};

// log1p(e) = 2 s + s^3 p(s^2), s = e/(2 + e), 0 <= e <= 1; p in s^2
// error 1.1e-10
inline constexpr float kLog1p32[] = {0.666666755f, 0.399988883f, 0.286165988f, 0.214307195f, 0.242896355f};
// error 3.5e-20
inline constexpr double kLog1p64[] = {0.66666666666666678,  0.39999999999994060, 0.28571428572497484,
                                      0.22222222126412750,  0.18181823162282778, 0.15384453015698170,
                                      0.13336787359006582,  0.11716152038591586, 0.10971205832324179,
                                      0.069994371021580424, 0.16459097427600646};

}  // namespace onegru

#endif  // ONEGRU_NATIVE_KERNELS_POLYNOMIALS_H_
