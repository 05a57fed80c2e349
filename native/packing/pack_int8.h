// Conversion of a matrix to the packed int8 layout and back.

#ifndef ONEGRU_NATIVE_PACKING_PACK_INT8_H_
#define ONEGRU_NATIVE_PACKING_PACK_INT8_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/packing/packed.h"

namespace onegru {

// Returns the offset of an element in an int8 panel.
inline std::size_t PlaceInQuads(std::size_t gates, std::size_t width, std::size_t k, std::size_t gate,
                                std::size_t unit) {
  return ((k / kQuad * gates + gate) * width + unit) * kQuad + k % kQuad;
}

// Packs `gates` of M [3H, K]: the int8 weights, and the scale and correction of each channel.
template <std::size_t kGates>
void PackInt8(const Spec& spec, const Geometry& geometry, std::size_t K, const float* M,
              const std::size_t (&gates)[kGates], std::int8_t* to, float* scale, std::int32_t* correction) {
  const std::size_t stored_K = RoundUpTo(kQuad, K), groups = Groups(spec, K);
  std::vector<std::int8_t> q(K);
  for (std::size_t panel = 0; panel < geometry.panels(); ++panel) {
    const std::size_t width = geometry.width(panel);
    std::int8_t* const begin = to + geometry.offset(panel, stored_K, kGates);
    for (std::size_t g = 0; g < kGates; ++g) {
      for (std::size_t u = 0; u < width; ++u) {
        const std::size_t channel = gates[g] * geometry.units + panel * geometry.lanes + u;
        for (std::size_t group = 0; group < groups; ++group) {
          const std::size_t at = ((panel * groups + group) * kGates + g) * geometry.lanes + u;
          const std::size_t first = group * spec.group, last = groups == 1 ? K : std::min(K, first + spec.group);
          QuantizeChannel(M + channel * K + first, last - first, q.data() + first, &scale[at]);
          std::int32_t sum = 0;
          for (std::size_t k = first; k < last; ++k) {
            begin[PlaceInQuads(kGates, width, k, g, u)] = q[k];
            sum += q[k];
          }
          correction[at] = -128 * sum;
        }
      }
    }
  }
}

// The inverse of PackInt8. Writes the weights as floats.
template <std::size_t kGates>
void UnpackInt8(const Spec& spec, const Geometry& geometry, std::size_t K, const void* from, const Channels& channels,
                const std::size_t (&gates)[kGates], float* M) {
  const std::size_t stored_K = RoundUpTo(kQuad, K), groups = Groups(spec, K);
  for (std::size_t j = 0; j < geometry.units; ++j) {
    const std::size_t panel = j / geometry.lanes, u = j % geometry.lanes;
    const auto* const begin = static_cast<const std::int8_t*>(from) + geometry.offset(panel, stored_K, kGates);
    for (std::size_t g = 0; g < kGates; ++g) {
      for (std::size_t k = 0; k < K; ++k) {
        const std::size_t group = groups == 1 ? 0 : k / spec.group;
        const float scale = channels.scale[((panel * groups + group) * kGates + g) * geometry.lanes + u];
        M[(gates[g] * geometry.units + j) * K + k] =
            scale * static_cast<float>(begin[PlaceInQuads(kGates, geometry.width(panel), k, g, u)]);
      }
    }
  }
}

}  // namespace onegru

#endif
