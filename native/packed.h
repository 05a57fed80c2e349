// The packed layout of a layer's weights, the only description of it.
//
// The units are cut into panels of `lanes` units, a vector each; the last panel may be narrower. A
// matrix with G gates is stored panel after panel, each as
//
//   [k][gate][unit]      k: the input of the product, 0 … K-1;  unit: width of the panel
//
// so that one step of the product reads G neighbouring vectors, and several panels are several
// streams. In bfloat16 two inputs lie side by side, [k / 2][gate][unit][k % 2], but for the last of an odd number:
// a vector of pairs becomes two of float32 by one operation each. In int8 four inputs do, [k / 4][gate][unit][k % 4],
// with zeros behind the last input: what an instruction multiplies and adds up for one sum in 32 bits. W has the gates
// z, r, n. Reset after: R has z, r, n. Reset before: R has z, r, and N, the recurrent matrix of n alone, comes behind
// it, as it is multiplied with r∘h. A narrow panel is stored without padding; loads of whole vectors then run into what
// follows.
//
// In int8 a weight of an output channel, which is a row of W or R, is a number within ±127 times the channel's scale,
// or that of its group of the channel's weights.

#ifndef ONEGRU_NATIVE_PACKED_H_
#define ONEGRU_NATIVE_PACKED_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "native/float16.h"
#include "native/kernels/amx.h"
#include "native/problem.h"

namespace onegru {

struct AlignedDelete {
  void operator()(void* pointer) const;
};
using AlignedBytes = std::unique_ptr<unsigned char, AlignedDelete>;

constexpr std::size_t RoundUpTo(std::size_t unit, std::size_t count) { return (count + unit - 1) / unit * unit; }

// The alignment of memory and of its parts: two cache lines, which some CPUs fetch together.
inline constexpr std::size_t kAlignment = 128;
// Aligned memory, zeroed.
AlignedBytes AllocateAligned(std::size_t bytes);

// Divides one allocation among aligned arrays.
struct MemoryLayout {
  std::size_t bytes = 0;

  // Returns the byte offset of the next array, of `size` bytes.
  std::size_t Reserve(std::size_t size) {
    const std::size_t at = bytes;
    bytes += RoundUpTo(kAlignment, size);
    return at;
  }
};

// How the units of a layer are cut into panels. The divisions are done once, as a call of a single step would notice
// them.
struct Geometry {
  constexpr Geometry() = default;
  constexpr Geometry(std::size_t units, std::size_t lanes)
      : H(units), lanes(lanes), full_(units / lanes), panels_((units + lanes - 1) / lanes) {}

  std::size_t H = 0;
  std::size_t lanes = 1;

  std::size_t panels() const { return panels_; }
  std::size_t full_panels() const { return full_; }
  // H, rounded up to whole vectors: the length of a row of scratch.
  std::size_t padded() const { return panels() * lanes; }
  std::size_t width(std::size_t panel) const { return panel < full_panels() ? lanes : H - full_ * lanes; }
  // Where a panel of a matrix of K inputs and G gates begins, in elements.
  std::size_t offset(std::size_t panel, std::size_t K, std::size_t G) const { return panel * lanes * K * G; }

 private:
  std::size_t full_ = 0, panels_ = 0;
};

// Whether AMX multiplies whole panels: there have to be some.
constexpr bool AmxCanMultiply(const Geometry& geometry, bool of_bfloat16 = false) {
  return geometry.lanes == amx::kChannels && geometry.H >= (of_bfloat16 ? 1 : 2) * amx::kChannels;
}

// Whether the inputs of a matrix are stored in pairs.
constexpr bool IsPairInterleaved(ElementType storage) { return storage == ElementType::kBFloat16; }

// In int8, inputs are stored in fours. Where inputs are rounded to bfloat16, they are stored in blocks, see
// bfloat16-inl.h.
inline constexpr std::size_t kQuad = 4, kBlock = 32;

// The inputs of a matrix of K as they are stored, with zeros after the last.
constexpr std::size_t StoredInputs(const Spec& spec, std::size_t K) {
  return spec.storage == ElementType::kInt8 ? RoundUpTo(kQuad, K) : spec.rounds_inputs ? RoundUpTo(kBlock, K) : K;
}

// The groups of a channel's weights.
constexpr std::size_t Groups(const Spec& spec, std::size_t K) {
  return spec.group == 0 ? 1 : K / spec.group + (K % spec.group != 0);  // a sum with K could overflow
}

// What belongs to the output channels of a matrix in int8, [panel][group][gate][lanes].
struct Channels {
  const float* scale;
  const std::int32_t* correction;  // -128 times the sum of the group's weights: for inputs with 128 added
};

// One direction's weights. Matrices are of the storage type, biases of the type that is computed in.
struct PackedDirection {
  const void* W;
  const void* R;
  const void* N;              // null with reset after
  const void* bx;             // [panel][z, r, n][lanes]: the initial values of the products with x
  const void* bn;             // [panel][lanes]: the initial value of n's product with h, reset after
  Channels of_W, of_R, of_N;  // in int8
};

// One direction's weights before packing: W [3H, I], R [3H, H] and the biases of both [3H], null for zeros, contiguous,
// of the type that is computed in.
struct GivenWeights {
  const void* W;
  const void* R;
  const void* Wb;
  const void* Rb;
};

// Where z, r and n are among the gates of weights.
struct GateOrder {
  std::size_t z = 0, r = 1, n = 2;
};

class Packed {
 public:
  // W [D, 3H, I], R [D, 3H, H] and B [D, 6H] are contiguous, of the type that is computed in.
  Packed(const Spec& spec, std::size_t target, std::size_t lanes, const void* W, const void* R, const void* B);
  // weights: of each direction; null: nothing is packed, and only gradients from saved gates can be computed.
  Packed(const Spec& spec, std::size_t target, std::size_t lanes, const GivenWeights* weights, const GateOrder& order);

  // The matrices as given, in the storage type's precision: W [D, 3H, I] and R [D, 3H, H].
  void Unpack(void* W, void* R) const;

  const Spec& spec() const { return spec_; }
  std::size_t target() const { return target_; }
  const Geometry& geometry() const { return geometry_; }
  const PackedDirection& direction(std::size_t d) const { return directions_[d]; }
  std::size_t bytes() const { return bytes_; }  // 0: nothing is packed

 private:
  void Pack(const GivenWeights* weights, const GateOrder& order);

  Spec spec_;
  std::size_t target_;
  Geometry geometry_;
  std::size_t bytes_ = 0;
  AlignedBytes memory_;
  PackedDirection directions_[2] = {};
};

// Weights as the constructor takes them, for the chosen target. If those of a large float32 layer are float16 or
// bfloat16 numbers, as in files of half precision, they are kept so: each step reads half of the memory, and results
// have the same bits.
std::shared_ptr<const Packed> PackForRuns(const Spec& spec, const void* W, const void* R, const void* B);

// The most inputs of an int8 product: its sums and their corrections fit into 32 bits.
inline constexpr std::size_t kMaxInt8Inputs = 1 << 17;
// The least largest number that is quantized by itself: below, its reciprocal would overflow.
inline constexpr float kMinRange = 0x1p-100f;
// The largest range of a channel of weights: 127 times its scale must be finite.
inline constexpr float kLargestRange = 0x1.fffffp127f;

// A channel, or a group, of K weights in int8: the scale is a 127th of the largest |w|, rounded up to 16 bits, and q =
// w / scale, rounded to nearest even, within ±127. q times the scale is a float32 number, and gives the same q and
// scale again. The scale is NaN if a weight is not finite.
void QuantizeChannel(const float* w, std::size_t K, std::int8_t* q, float* scale);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_PACKED_H_
