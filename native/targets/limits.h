// Measures the peak speed of one core.

#ifndef ONEGRU_NATIVE_TARGETS_LIMITS_H_
#define ONEGRU_NATIVE_TARGETS_LIMITS_H_

#include <cstddef>

namespace onegru {

// Returns the best FLOP/s of float32 multiply-adds on the chosen SIMD target, measured for `seconds`.
double FmaPeak(double seconds);

// Returns the best bytes/s of repeated reads of a buffer of this size, measured for `seconds`.
double ReadBandwidth(std::size_t bytes, double seconds);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_TARGETS_LIMITS_H_
