// Quantization of the weights of a channel to int8 with a scale.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "native/packing/packed.h"

namespace onegru {

void QuantizeChannel(const float* w, std::size_t K, std::int8_t* q, float* scale) {
  float most = 0;
  for (std::size_t k = 0; k < K; ++k) {
    if (!std::isfinite(w[k])) {
      std::fill_n(q, K, std::int8_t{0});
      *scale = std::numeric_limits<float>::quiet_NaN();
      return;
    }
    most = std::max(most, std::abs(w[k]));
  }
  // Rounded up to 16 bits: q times the scale is then exact in float32, and quantizes to the same q and scale.
  const auto bits = std::bit_cast<std::uint32_t>(std::clamp(most, kMinRange, kLargestRange) / 127);
  *scale = std::bit_cast<float>((bits + 0xff) & ~std::uint32_t{0xff});
  const float factor = 1 / *scale;
  for (std::size_t k = 0; k < K; ++k) q[k] = static_cast<std::int8_t>(std::nearbyint(w[k] * factor));
}

}  // namespace onegru
