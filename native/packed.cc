#include "native/packed.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

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
    case ElementType::kInt8:
      break;  // PackInt8
  }
}

// A block of four rows of four numbers as four columns.
template <class T>
void Transpose4(const T* from, std::size_t from_stride, T* to, std::size_t to_stride) {
  using V [[gnu::vector_size(4 * sizeof(T))]] = T;
  V rows[4];
  for (std::size_t i = 0; i < 4; ++i) std::memcpy(&rows[i], from + i * from_stride, sizeof(V));
#if defined(__clang__)
#define ONEGRU_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else  // GCC 11 has no other
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
    case ElementType::kInt8:
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

// The offset of an element in a panel of int8.
std::size_t PlaceInQuads(std::size_t gates, std::size_t width, std::size_t k, std::size_t gate, std::size_t unit) {
  return ((k / kQuad * gates + gate) * width + unit) * kQuad + k % kQuad;
}

// Packs `gates` of M [3H, K] in int8: its weights, and the scale and correction of each channel.
template <std::size_t kGates>
void PackInt8(const Spec& spec, const Geometry& geometry, std::size_t K, const float* M,
              const std::size_t (&gates)[kGates], std::int8_t* to, float* scale, std::int32_t* correction) {
  const std::size_t stored = StoredInputs(ElementType::kInt8, K), groups = Groups(spec, K);
  std::vector<std::int8_t> q(K);
  for (std::size_t panel = 0; panel < geometry.panels(); ++panel) {
    const std::size_t width = geometry.width(panel);
    std::int8_t* const begin = to + geometry.offset(panel, stored, kGates);
    for (std::size_t g = 0; g < kGates; ++g) {
      for (std::size_t u = 0; u < width; ++u) {
        const std::size_t channel = gates[g] * geometry.H + panel * geometry.lanes + u;
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

// The reverse, as numbers.
template <std::size_t kGates>
void UnpackInt8(const Spec& spec, const Geometry& geometry, std::size_t K, const void* from, const Channels& channels,
                const std::size_t (&gates)[kGates], float* M) {
  const std::size_t stored = StoredInputs(ElementType::kInt8, K), groups = Groups(spec, K);
  for (std::size_t j = 0; j < geometry.H; ++j) {
    const std::size_t panel = j / geometry.lanes, u = j % geometry.lanes;
    const auto* const begin = static_cast<const std::int8_t*>(from) + geometry.offset(panel, stored, kGates);
    for (std::size_t g = 0; g < kGates; ++g) {
      for (std::size_t k = 0; k < K; ++k) {
        const std::size_t group = groups == 1 ? 0 : k / spec.group;
        const float scale = channels.scale[((panel * groups + group) * kGates + g) * geometry.lanes + u];
        M[(gates[g] * geometry.H + j) * K + k] =
            scale * static_cast<float>(begin[PlaceInQuads(kGates, geometry.width(panel), k, g, u)]);
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
  if (weights != nullptr) Pack(weights, order);
}

void Packed::Pack(const GivenWeights* weights, const GateOrder& order) {
  const DefaultFloatMode mode;
  const Spec& spec = spec_;
  const std::size_t computed = ComputedSize(spec.type);
  const std::size_t H = spec.H, I = spec.I, r_gates = spec.linear_before_reset ? 3 : 2, n_gates = 3 - r_gates;
  // A whole vector may be loaded where a narrow panel's last row begins.
  const std::size_t slack = geometry_.lanes * computed;
  const auto matrix_bytes = [&](std::size_t gates, std::size_t K) {
    return gates == 0 ? 0 : RoundUp(gates * H * StoredInputs(spec.storage, K) * SizeOf(spec.storage) + slack);
  };
  const auto channel_bytes = [&](std::size_t gates, std::size_t K) {
    return spec.storage == ElementType::kInt8 ? RoundUp(Groups(spec, K) * gates * geometry_.padded() * sizeof(float))
                                              : 0;
  };
  const std::size_t bx_bytes = RoundUp(3 * geometry_.padded() * computed);
  const std::size_t bn_bytes = RoundUp(geometry_.padded() * computed);
  const std::size_t each = matrix_bytes(3, I) + matrix_bytes(r_gates, H) + matrix_bytes(n_gates, H) + bx_bytes +
                           bn_bytes + 2 * (channel_bytes(3, I) + channel_bytes(r_gates, H) + channel_bytes(n_gates, H));
  // What AMX reads behind a panel lies behind the last matrix, too; and there are channels and biases already.
  const bool suits_amx = spec.storage == ElementType::kInt8 && AmxCanMultiply(geometry_);
  const std::size_t behind = 2 * channel_bytes(1, H) + bx_bytes + bn_bytes;
  const std::size_t slack_of_amx = suits_amx && behind < amx::kBytesBehind ? RoundUp(amx::kBytesBehind - behind) : 0;
  bytes_ = spec.D * each + slack_of_amx;
  memory_ = AllocateAligned(bytes_);

  unsigned char* next = memory_.get();
  const auto take = [&](std::size_t bytes) { return std::exchange(next, next + bytes); };
  const auto pack = [&]<class T>(T) {
    for (std::size_t d = 0; d < spec.D; ++d) {
      const GivenWeights& given = weights[d];
      PackedDirection& packed = directions_[d];
      const auto matrix = [&]<std::size_t kGates>(const void* M, std::size_t K, const std::size_t (&gates)[kGates],
                                                  Channels& channels) {
        unsigned char* const to = take(matrix_bytes(kGates, K));
        if (spec.storage != ElementType::kInt8) {
          PackMatrix(spec.storage, geometry_, K, static_cast<const T*>(M), gates, to);
          return to;
        }
        auto* const scale = reinterpret_cast<float*>(take(channel_bytes(kGates, K)));
        auto* const correction = reinterpret_cast<std::int32_t*>(take(channel_bytes(kGates, K)));
        PackInt8(spec, geometry_, K, static_cast<const float*>(M), gates, reinterpret_cast<std::int8_t*>(to), scale,
                 correction);
        channels = {scale, correction};
        return to;
      };
      packed.W = matrix(given.W, I, {order.z, order.r, order.n}, packed.of_W);
      if (spec.linear_before_reset) {
        packed.R = matrix(given.R, H, {order.z, order.r, order.n}, packed.of_R);
      } else {
        packed.R = matrix(given.R, H, {order.z, order.r}, packed.of_R);
        packed.N = matrix(given.R, H, {order.n}, packed.of_N);
      }
      auto* const bx = reinterpret_cast<T*>(take(bx_bytes));
      auto* const bn = reinterpret_cast<T*>(take(bn_bytes));
      PackBiases(spec, geometry_, static_cast<const T*>(given.Wb), static_cast<const T*>(given.Rb), order, bx, bn);
      packed.bx = bx;
      packed.bn = bn;
    }
  };
  computed == 8 ? pack(double{}) : pack(float{});
}

void Packed::Unpack(void* W, void* R) const {
  const std::size_t H = spec_.H, I = spec_.I;
  const auto unpack = [&]<class T>(T* w, T* r) {
    const auto matrix = [&]<std::size_t kGates>(const void* from, const Channels& channels, std::size_t K,
                                                const std::size_t (&gates)[kGates], T* M) {
      if constexpr (sizeof(T) == 4) {
        if (spec_.storage == ElementType::kInt8) return UnpackInt8(spec_, geometry_, K, from, channels, gates, M);
      }
      UnpackMatrix(spec_.storage, geometry_, K, from, gates, M);
    };
    for (std::size_t d = 0; d < spec_.D; ++d, w += 3 * H * I, r += 3 * H * H) {
      const PackedDirection& packed = directions_[d];
      matrix(packed.W, packed.of_W, I, {0, 1, 2}, w);
      if (spec_.linear_before_reset) {
        matrix(packed.R, packed.of_R, H, {0, 1, 2}, r);
      } else {
        matrix(packed.R, packed.of_R, H, {0, 1}, r);
        matrix(packed.N, packed.of_N, H, {2}, r);
      }
    }
  };
  if (spec_.type == ElementType::kFloat64) {
    unpack(static_cast<double*>(W), static_cast<double*>(R));
  } else {
    unpack(static_cast<float*>(W), static_cast<float*>(R));
  }
}

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
  // Rounded up to 16 bits: q times the scale is then a float32 number, from which the same q and scale follow.
  const auto bits = std::bit_cast<std::uint32_t>(std::clamp(most, kMinRange, kLargestRange) / 127);
  *scale = std::bit_cast<float>((bits + 0xff) & ~std::uint32_t{0xff});
  const float factor = 1 / *scale;
  for (std::size_t k = 0; k < K; ++k) q[k] = static_cast<std::int8_t>(std::nearbyint(w[k] * factor));
}

}  // namespace onegru
