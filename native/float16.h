// Conversions between float32 and the bits of float16 and bfloat16, with rounding to nearest even. The functions are
// inline, so that the compiler can vectorize loops of them.

#ifndef ONEGRU_NATIVE_FLOAT16_H_
#define ONEGRU_NATIVE_FLOAT16_H_

#include <bit>
#include <cstdint>

namespace onegru {

inline std::uint16_t Float16Bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000;
  const std::uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<std::uint16_t>(sign | 0x7e00);   // NaN
  if (magnitude >= 0x477ff000) return static_cast<std::uint16_t>(sign | 0x7c00);  // rounds to infinity
  if (magnitude < 0x38800000) {
    // Subnormal: adding 0.5 leaves the rounded result in the last bits of the sum.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(sum) - 0x3f000000));
  }
  const std::uint32_t odd = magnitude >> 13 & 1;
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000 + 0xfff + odd) >> 13));
}

inline std::uint16_t BFloat16Bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<std::uint16_t>(bits >> 16 | 0x40);  // NaN
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float FromFloat16Bits(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t magnitude = bits & 0x7fff;
  std::uint32_t wide;
  if (magnitude >= 0x7c00) {
    wide = magnitude << 13 | 0x7f800000;
  } else if (magnitude >= 0x0400) {
    wide = (magnitude << 13) + 0x38000000;
  } else {
    wide = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  }
  return std::bit_cast<float>(sign | wide);
}

inline float FromBFloat16Bits(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

}  // namespace onegru

#endif  // ONEGRU_NATIVE_FLOAT16_H_
