// Conversion of a matrix to the packed floating-point layouts and back.

#ifndef ONEGRU_NATIVE_PACKING_PACK_MATRIX_H_
#define ONEGRU_NATIVE_PACKING_PACK_MATRIX_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "native/float16.h"
#include "native/packing/packed.h"

namespace onegru {

// Returns the offset of an element in a panel.
inline std::size_t Place(ElementType storage, std::size_t K, std::size_t gates, std::size_t width, std::size_t k,
                         std::size_t gate, std::size_t unit) {
  if (!IsPairInterleaved(storage) || k == K / 2 * 2) return (k * gates + gate) * width + unit;
  return (k / 2 * gates + gate) * 2 * width + 2 * unit + k % 2;
}

template <class T>
void Put(ElementType storage, unsigned char* to, std::size_t index, T value) {
  const auto put = [&](auto stored) { std::memcpy(to + index * sizeof(stored), &stored, sizeof(stored)); };
  switch (storage) {
    case ElementType::kFloat64:
      return put(static_cast<double>(value));
    case ElementType::kFloat32:
      return put(static_cast<float>(value));
    case ElementType::kFloat16:
      return put(Float16Bits(static_cast<float>(value)));
    case ElementType::kBFloat16:
      return put(BFloat16Bits(static_cast<float>(value)));
    case ElementType::kInt8:
      break;  // PackInt8
  }
}

// Transposes a block of 4 x 4 elements.
template <class T>
void Transpose4(const T* from, std::size_t from_stride, T* to, std::size_t to_stride) {
  using V [[gnu::vector_size(4 * sizeof(T))]] = T;
  V rows[4];
  for (std::size_t i = 0; i < 4; ++i) std::memcpy(&rows[i], from + i * from_stride, sizeof(V));
#if defined(__clang__)
#define ONEGRU_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else  // GCC 11 has only this function
  using Places [[gnu::vector_size(4 * sizeof(T))]] = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
#define ONEGRU_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Places{__VA_ARGS__})
#endif
  const V a = ONEGRU_SHUFFLE(rows[0], rows[1], 0, 4, 1, 5), b = ONEGRU_SHUFFLE(rows[2], rows[3], 0, 4, 1, 5);
  const V c = ONEGRU_SHUFFLE(rows[0], rows[1], 2, 6, 3, 7), d = ONEGRU_SHUFFLE(rows[2], rows[3], 2, 6, 3, 7);
  const V columns[4] = {ONEGRU_SHUFFLE(a, b, 0, 1, 4, 5), ONEGRU_SHUFFLE(a, b, 2, 3, 6, 7),
                        ONEGRU_SHUFFLE(c, d, 0, 1, 4, 5), ONEGRU_SHUFFLE(c, d, 2, 3, 6, 7)};
#undef ONEGRU_SHUFFLE
  for (std::size_t i = 0; i < 4; ++i) std::memcpy(to + i * to_stride, &columns[i], sizeof(V));
}

// PackMatrix for a full panel without conversion, in blocks of 4 x 4.
template <class T, std::size_t kGates>
void PackPanel(const Geometry& geometry, std::size_t K, const T* M, const std::size_t (&gates)[kGates],
               std::size_t panel, T* to) {
  const std::size_t lanes = geometry.lanes, stride = kGates * lanes;
  for (std::size_t g = 0; g < kGates; ++g) {
    for (std::size_t u = 0; u < lanes; u += 4) {
      const T* const from = M + (gates[g] * geometry.units + panel * lanes + u) * K;
      T* const at = to + g * lanes + u;
      std::size_t k = 0;
      for (; k + 4 <= K; k += 4) Transpose4(from + k, K, at + k * stride, stride);
      for (; k < K; ++k) {
        for (std::size_t i = 0; i < 4; ++i) at[k * stride + i] = from[i * K + k];
      }
    }
  }
}

// Packs `gates` of M [3H, K], given by their positions in M.
template <class T, std::size_t kGates>
void PackMatrix(const Spec& spec, const Geometry& geometry, std::size_t K, const T* M,
                const std::size_t (&gates)[kGates], unsigned char* to) {
  const ElementType storage = spec.storage;
  const std::size_t stored_K = StoredInputs(spec, K);
  for (std::size_t panel = 0; panel < geometry.panels(); ++panel) {
    const std::size_t width = geometry.width(panel);
    const std::size_t begin = geometry.offset(panel, stored_K, kGates);
    const bool is_same = storage == (sizeof(T) == 8 ? ElementType::kFloat64 : ElementType::kFloat32);
    if (is_same && width == geometry.lanes && width % 4 == 0) {
      PackPanel(geometry, K, M, gates, panel, reinterpret_cast<T*>(to) + begin);
      continue;
    }
    for (std::size_t k = 0; k < K; ++k) {
      for (std::size_t g = 0; g < kGates; ++g) {
        for (std::size_t u = 0; u < width; ++u) {
          const std::size_t unit = gates[g] * geometry.units + panel * geometry.lanes + u;
          Put(storage, to, begin + Place(storage, stored_K, kGates, width, k, g, u), M[unit * K + k]);
        }
      }
    }
  }
}

template <class T>
T Get(ElementType storage, const unsigned char* from, std::size_t index) {
  const auto get = [&]<class Stored>(Stored stored) {
    std::memcpy(&stored, from + index * sizeof(stored), sizeof(stored));
    return stored;
  };
  switch (storage) {
    case ElementType::kFloat64:
      return static_cast<T>(get(double{}));
    case ElementType::kFloat32:
      return static_cast<T>(get(float{}));
    case ElementType::kFloat16:
      return static_cast<T>(FromFloat16Bits(get(std::uint16_t{})));
    case ElementType::kBFloat16:
    case ElementType::kInt8:
      break;
  }
  return static_cast<T>(FromBFloat16Bits(get(std::uint16_t{})));
}

// The inverse of PackMatrix.
template <class T, std::size_t kGates>
void UnpackMatrix(const Spec& spec, const Geometry& geometry, std::size_t K, const void* from,
                  const std::size_t (&gates)[kGates], T* M) {
  const ElementType storage = spec.storage;
  const std::size_t stored_K = StoredInputs(spec, K);
  for (std::size_t panel = 0; panel < geometry.panels(); ++panel) {
    const std::size_t width = geometry.width(panel);
    const std::size_t begin = geometry.offset(panel, stored_K, kGates);
    for (std::size_t k = 0; k < K; ++k) {
      for (std::size_t g = 0; g < kGates; ++g) {
        for (std::size_t u = 0; u < width; ++u) {
          const std::size_t unit = gates[g] * geometry.units + panel * geometry.lanes + u;
          M[unit * K + k] = Get<T>(storage, static_cast<const unsigned char*>(from),
                                   begin + Place(storage, stored_K, kGates, width, k, g, u));
        }
      }
    }
  }
}

}  // namespace onegru

#endif
