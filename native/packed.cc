#include "native/packed.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <new>

#include "native/float_mode.h"
#include "native/system/system.h"

namespace onegru {
namespace {

constexpr std::size_t kAlignment = 128;  // two cache lines, which some CPUs fetch together

std::size_t RoundUp(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The offset of an element in a panel.
std::size_t Place(ElementType storage, std::size_t K, std::size_t gates, std::size_t width, std::size_t k,
                  std::size_t gate, std::size_t unit) {
  if (!InPairs(storage) || k == K / 2 * 2) return (k * gates + gate) * width + unit;
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
  }
}

// A block of four rows of four numbers as four columns.
template <class T>
void Transpose4(const T* from, std::size_t from_stride, T* to, std::size_t to_stride) {
  using V [[gnu::vector_size(4 * sizeof(T))]] = T;
  V rows[4];
  for (std::size_t i = 0; i < 4; ++i) std::memcpy(&rows[i], from + i * from_stride, sizeof(V));
  const V a = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5),
          b = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
  const V c = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7),
          d = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
  const V columns[4] = {__builtin_shufflevector(a, b, 0, 1, 4, 5), __builtin_shufflevector(a, b, 2, 3, 6, 7),
                        __builtin_shufflevector(c, d, 0, 1, 4, 5), __builtin_shufflevector(c, d, 2, 3, 6, 7)};
  for (std::size_t i = 0; i < 4; ++i) std::memcpy(to + i * to_stride, &columns[i], sizeof(V));
}

// PackMatrix of whole panels that keep their type, in blocks.
template <class T, std::size_t kGates>
void PackPanel(const Geometry& geometry, std::size_t K, const T* M, const std::size_t (&gates)[kGates],
               std::size_t panel, T* to) {
  const std::size_t lanes = geometry.lanes, stride = kGates * lanes;
  for (std::size_t g = 0; g < kGates; ++g) {
    for (std::size_t u = 0; u < lanes; u += 4) {
      const T* const from = M + (gates[g] * geometry.H + panel * lanes + u) * K;
      T* const at = to + g * lanes + u;
      std::size_t k = 0;
      for (; k + 4 <= K; k += 4) Transpose4(from + k, K, at + k * stride, stride);
      for (; k < K; ++k) {
        for (std::size_t i = 0; i < 4; ++i) at[k * stride + i] = from[i * K + k];
      }
    }
  }
}

// Packs `gates` of M [3H, K], named by their places there.
template <class T, std::size_t kGates>
void PackMatrix(ElementType storage, const Geometry& geometry, std::size_t K, const T* M,
                const std::size_t (&gates)[kGates], unsigned char* to) {
  for (std::size_t panel = 0; panel < geometry.panels(); ++panel) {
    const std::size_t width = geometry.width(panel);
    const std::size_t begin = geometry.offset(panel, K, kGates);
    const bool is_same = storage == (sizeof(T) == 8 ? ElementType::kFloat64 : ElementType::kFloat32);
    if (is_same && width == geometry.lanes && width % 4 == 0) {
      PackPanel(geometry, K, M, gates, panel, reinterpret_cast<T*>(to) + begin);
      continue;
    }
    for (std::size_t k = 0; k < K; ++k) {
      for (std::size_t g = 0; g < kGates; ++g) {
        for (std::size_t u = 0; u < width; ++u) {
          const std::size_t unit = gates[g] * geometry.H + panel * geometry.lanes + u;
          Put(storage, to, begin + Place(storage, K, kGates, width, k, g, u), M[unit * K + k]);
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
      break;
  }
  return static_cast<T>(FromBFloat16Bits(get(std::uint16_t{})));
}

// The reverse of PackMatrix.
template <class T, std::size_t kGates>
void UnpackMatrix(ElementType storage, const Geometry& geometry, std::size_t K, const void* from,
                  const std::size_t (&gates)[kGates], T* M) {
  for (std::size_t panel = 0; panel < geometry.panels(); ++panel) {
    const std::size_t width = geometry.width(panel);
    const std::size_t begin = geometry.offset(panel, K, kGates);
    for (std::size_t k = 0; k < K; ++k) {
      for (std::size_t g = 0; g < kGates; ++g) {
        for (std::size_t u = 0; u < width; ++u) {
          const std::size_t unit = gates[g] * geometry.H + panel * geometry.lanes + u;
          M[unit * K + k] = Get<T>(storage, static_cast<const unsigned char*>(from),
                                   begin + Place(storage, K, kGates, width, k, g, u));
        }
      }
    }
  }
}

// What each sum starts from. With reset before, all of n's biases stand outside r.
template <class T>
void PackBiases(const Spec& spec, const Geometry& geometry, const T* Wb, const T* Rb, const GateOrder& order, T* bx,
                T* bn) {
  const std::size_t H = spec.H, L = geometry.lanes;
  const auto at = [](const T* biases, std::size_t index) { return biases == nullptr ? T{0} : biases[index]; };
  for (std::size_t j = 0; j < H; ++j) {
    T* const x = bx + j / L * 3 * L + j % L;
    const T n = at(Rb, order.n * H + j);
    x[0] = at(Wb, order.z * H + j) + at(Rb, order.z * H + j);
    x[L] = at(Wb, order.r * H + j) + at(Rb, order.r * H + j);
    x[2 * L] = spec.linear_before_reset ? at(Wb, order.n * H + j) : at(Wb, order.n * H + j) + n;
    bn[j] = n;
  }
}

}  // namespace

void AlignedDelete::operator()(void* pointer) const { system::Free(pointer); }

AlignedBytes AllocateAligned(std::size_t bytes) {
  // Huge pages where they fit: no TLB misses in a sweep over a matrix, and prefetchers, which stop at page ends, keep
  // going.
  const std::size_t huge = bytes / system::kHugePage * system::kHugePage;
  const std::size_t alignment = huge ? system::kHugePage : kAlignment;
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* const memory = system::Allocate(bytes, alignment, huge);
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, bytes);
  return AlignedBytes(static_cast<unsigned char*>(memory));
}

Packed::Packed(const Spec& spec, std::size_t target, std::size_t lanes, const void* W, const void* R, const void* B)
    : spec_(spec), target_(target), geometry_{spec.H, lanes} {
  const std::size_t row = 3 * spec.H * ComputedSize(spec.type);
  const auto at = [](const void* data, std::size_t bytes) {
    return static_cast<const void*>(static_cast<const char*>(data) + bytes);
  };
  GivenWeights weights[2];
  for (std::size_t d = 0; d < spec.D; ++d) {
    weights[d] = {at(W, d * row * spec.I), at(R, d * row * spec.H), at(B, 2 * d * row), at(B, (2 * d + 1) * row)};
  }
  Pack(weights, {});
}

Packed::Packed(const Spec& spec, std::size_t target, std::size_t lanes, const GivenWeights* weights,
               const GateOrder& order)
    : spec_(spec), target_(target), geometry_{spec.H, lanes} {
  Pack(weights, order);
}

void Packed::Pack(const GivenWeights* weights, const GateOrder& order) {
  const DefaultFloatMode mode;
  const Spec& spec = spec_;
  const std::size_t computed = ComputedSize(spec.type);
  const std::size_t H = spec.H, I = spec.I;
  // A whole vector may be loaded where a narrow panel's last row begins.
  const std::size_t slack = geometry_.lanes * computed;
  const std::size_t w_bytes = RoundUp(3 * H * I * SizeOf(spec.storage) + slack);
  const std::size_t r_bytes = RoundUp((spec.linear_before_reset ? 3 : 2) * H * H * SizeOf(spec.storage) + slack);
  const std::size_t n_bytes = spec.linear_before_reset ? 0 : RoundUp(H * H * SizeOf(spec.storage) + slack);
  const std::size_t bx_bytes = RoundUp(3 * geometry_.padded() * computed);
  const std::size_t bn_bytes = RoundUp(geometry_.padded() * computed);
  const std::size_t each = w_bytes + r_bytes + n_bytes + bx_bytes + bn_bytes;
  bytes_ = spec.D * each;
  memory_ = AllocateAligned(bytes_);

  const auto pack = [&]<class T>(T) {
    for (std::size_t d = 0; d < spec.D; ++d) {
      const auto* const w = static_cast<const T*>(weights[d].W);
      const auto* const r = static_cast<const T*>(weights[d].R);
      unsigned char* const base = memory_.get() + d * each;
      unsigned char* const r_at = base + w_bytes;
      unsigned char* const n_at = r_at + r_bytes;
      unsigned char* const bx_at = n_at + n_bytes;
      unsigned char* const bn_at = bx_at + bx_bytes;
      PackMatrix(spec.storage, geometry_, I, w, {order.z, order.r, order.n}, base);
      if (spec.linear_before_reset) {
        PackMatrix(spec.storage, geometry_, H, r, {order.z, order.r, order.n}, r_at);
      } else {
        PackMatrix(spec.storage, geometry_, H, r, {order.z, order.r}, r_at);
        PackMatrix(spec.storage, geometry_, H, r, {order.n}, n_at);
      }
      PackBiases(spec, geometry_, static_cast<const T*>(weights[d].Wb), static_cast<const T*>(weights[d].Rb), order,
                 reinterpret_cast<T*>(bx_at), reinterpret_cast<T*>(bn_at));
      directions_[d] = {base, r_at, n_bytes ? n_at : nullptr, bx_at, bn_at};
    }
  };
  computed == 8 ? pack(double{}) : pack(float{});
}

void Packed::Unpack(void* W, void* R) const {
  const std::size_t H = spec_.H, I = spec_.I;
  const auto unpack = [&]<class T>(T* w, T* r) {
    for (std::size_t d = 0; d < spec_.D; ++d, w += 3 * H * I, r += 3 * H * H) {
      UnpackMatrix(spec_.storage, geometry_, I, directions_[d].W, {0, 1, 2}, w);
      if (spec_.linear_before_reset) {
        UnpackMatrix(spec_.storage, geometry_, H, directions_[d].R, {0, 1, 2}, r);
      } else {
        UnpackMatrix(spec_.storage, geometry_, H, directions_[d].R, {0, 1}, r);
        UnpackMatrix(spec_.storage, geometry_, H, directions_[d].N, {2}, r);
      }
    }
  };
  if (spec_.type == ElementType::kFloat64) {
    unpack(static_cast<double*>(W), static_cast<double*>(R));
  } else {
    unpack(static_cast<float*>(W), static_cast<float*>(R));
  }
}

std::uint16_t Float16Bits(float value) {
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

std::uint16_t BFloat16Bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<std::uint16_t>(bits >> 16 | 0x40);  // NaN
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float FromFloat16Bits(std::uint16_t bits) {
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

float FromBFloat16Bits(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

}  // namespace onegru
