#include "native/packing/packed.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include "native/float_mode.h"
#include "native/kernel.h"
#include "native/packing/pack_int8.h"
#include "native/packing/pack_matrix.h"
#include "native/system/system.h"
#include "native/targets/targets.h"

namespace onegru {
namespace {

std::size_t RoundUp(std::size_t bytes) { return RoundUpTo(kAlignment, bytes); }

// Packs the initial value of each sum. With reset before, r scales no bias of n.
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

// A matrix R of this many bytes fills or exceeds the second-level cache, so fewer bytes are faster. Measured on an
// Intel Xeon with 2 MiB: 1.2 to 1.5 times with 384 units, 1.5 to 2.3 times with 512, no gain with 256.
constexpr std::size_t kLeastToShrink = 3 << 19;

bool IsLossless(ElementType storage, const float* weights, std::size_t count) {
  return std::all_of(weights, weights + count, [&](float weight) {
    const float kept = storage == ElementType::kFloat16 ? FromFloat16Bits(Float16Bits(weight))
                                                        : FromBFloat16Bits(BFloat16Bits(weight));
    return std::memcmp(&kept, &weight, sizeof(kept)) == 0;
  });
}

// Returns the spec, with 16-bit storage if it represents all weights exactly.
Spec WithLosslessStorage(const Spec& spec, std::size_t target, const void* W, const void* R) {
  Spec found = spec;
  const std::size_t channels = 3 * spec.D * spec.H;
  const bool is_float = spec.type == ElementType::kFloat32 && spec.storage == ElementType::kFloat32;
  // Targets without FMA are slow at converting float16.
  if (!is_float || 3 * spec.H * spec.H * sizeof(float) < kLeastToShrink || !CompiledTargets()[target].native_fma) {
    return found;
  }
  const DefaultFloatMode mode;
  for (const ElementType storage : {ElementType::kBFloat16, ElementType::kFloat16}) {
    if (HasKernels(storage) && IsLossless(storage, static_cast<const float*>(W), channels * spec.I) &&
        IsLossless(storage, static_cast<const float*>(R), channels * spec.H)) {
      found.storage = storage;
      break;
    }
  }
  return found;
}

}  // namespace

std::shared_ptr<const Packed> PackForRuns(const Spec& spec, const void* W, const void* R, const void* B) {
  const std::size_t target = ChosenTargetIndex();
  const Spec kept = WithLosslessStorage(spec, target, W, R);
  return std::make_shared<const Packed>(kept, target, KernelFor(kept, target).lanes, W, R, B);
}

void AlignedDelete::operator()(void* pointer) const { system::Free(pointer); }

AlignedBytes AllocateAligned(std::size_t bytes) {
  // Uses huge pages if they fit: a sweep over a matrix then has no TLB misses, and prefetchers, which stop at the end
  // of a page, continue.
  const std::size_t huge = bytes / system::kHugePage * system::kHugePage;
  const std::size_t alignment = huge ? system::kHugePage : kAlignment;
  bytes = RoundUp(bytes);
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
  // A load of a full vector may begin at the last row of a narrow panel.
  const std::size_t slack = geometry_.lanes * computed;
  const auto matrix_bytes = [&](std::size_t gates, std::size_t K) {
    return gates == 0 ? 0 : RoundUp(gates * H * StoredInputs(spec, K) * SizeOf(spec.storage) + slack);
  };
  const auto channel_bytes = [&](std::size_t gates, std::size_t K) {
    return spec.storage == ElementType::kInt8 ? RoundUp(Groups(spec, K) * gates * geometry_.padded() * sizeof(float))
                                              : 0;
  };
  const std::size_t bx_bytes = RoundUp(3 * geometry_.padded() * computed);
  const std::size_t bn_bytes = RoundUp(geometry_.padded() * computed);
  const std::size_t each = matrix_bytes(3, I) + matrix_bytes(r_gates, H) + matrix_bytes(n_gates, H) + bx_bytes +
                           bn_bytes + 2 * (channel_bytes(3, I) + channel_bytes(r_gates, H) + channel_bytes(n_gates, H));
  // AMX reads some bytes past the end of a panel, and so past the last matrix, where channels and biases are stored.
  const bool suits_amx = spec.storage == ElementType::kInt8 && AmxCanMultiply(geometry_);
  const std::size_t bytes_after_last_matrix = 2 * channel_bytes(1, H) + bx_bytes + bn_bytes;
  const std::size_t slack_of_amx = suits_amx && bytes_after_last_matrix < amx::kBytesReadPastPanel
                                       ? RoundUp(amx::kBytesReadPastPanel - bytes_after_last_matrix)
                                       : 0;
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
          PackMatrix(spec, geometry_, K, static_cast<const T*>(M), gates, to);
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
        packed.Rh = matrix(given.R, H, {order.n}, packed.of_Rh);
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
      UnpackMatrix(spec_, geometry_, K, from, gates, M);
    };
    for (std::size_t d = 0; d < spec_.D; ++d, w += 3 * H * I, r += 3 * H * H) {
      const PackedDirection& packed = directions_[d];
      matrix(packed.W, packed.of_W, I, {0, 1, 2}, w);
      if (spec_.linear_before_reset) {
        matrix(packed.R, packed.of_R, H, {0, 1, 2}, r);
      } else {
        matrix(packed.R, packed.of_R, H, {0, 1}, r);
        matrix(packed.Rh, packed.of_Rh, H, {2}, r);
      }
    }
  };
  if (spec_.type == ElementType::kFloat64) {
    unpack(static_cast<double*>(W), static_cast<double*>(R));
  } else {
    unpack(static_cast<float*>(W), static_cast<float*>(R));
  }
}

}  // namespace onegru
