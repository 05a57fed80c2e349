// The peak speed of one core.

#ifndef ONEGRU_NATIVE_TARGETS_LIMITS_H_
#define ONEGRU_NATIVE_TARGETS_LIMITS_H_

#include <cstddef>

namespace onegru {

// float32 multiply-adds, in FLOP/s, on the chosen SIMD target; the best of `seconds`.
double FmaPeak(double seconds);

// Reading a buffer of this size again and again, in bytes/s; the best of `seconds`.
double ReadBandwidth(std::size_t bytes, double seconds);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_TARGETS_LIMITS_H_
