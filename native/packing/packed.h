// The packed layout of a layer's weights. This is its only description.
//
// The units are divided into panels of `lanes` units, a vector each. The last panel may be narrower. A matrix with G
// gates is stored panel by panel, each as
//
//   [k][gate][unit]      k: the input of the product, 0 … K-1;  unit: 0 … width of the panel - 1
//
// so that each input of a product reads G adjacent vectors, and several panels are several streams. In bfloat16, pairs
// of inputs are interleaved: [k / 2][gate][unit][k % 2], except for the last of an odd number. One operation each
// extracts the two float32 vectors of a vector of pairs. In int8, four inputs are interleaved:
// [k / 4][gate][unit][k % 4], with zeros after the last. One instruction multiplies all four into a 32-bit sum.
//
// W has the gates z, r, n, and so does R with reset after. With reset before, R has z and r, and Rh, the matrix of n,
// follows, because it is multiplied with r∘h. A narrow panel has no padding: full-vector loads read the data after it.
//
// An output channel is a row of W or R. In int8, its weights are integers in ±127 times the scale of the channel, or of
// their group within the channel.

#ifndef ONEGRU_NATIVE_PACKING_PACKED_H_
#define ONEGRU_NATIVE_PACKING_PACKED_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "native/float16.h"
#include "native/kernels/products/amx.h"
#include "native/problem.h"

namespace onegru {

struct AlignedDelete {
  void operator()(void* pointer) const;
};
using AlignedBytes = std::unique_ptr<unsigned char, AlignedDelete>;

constexpr std::size_t RoundUpTo(std::size_t unit, std::size_t count) { return (count + unit - 1) / unit * unit; }

// The alignment of memory and of its parts: two cache lines, which some CPUs fetch together.
inline constexpr std::size_t kAlignment = 128;
// Returns zeroed, aligned memory.
AlignedBytes AllocateAligned(std::size_t bytes);

// Adds up the sizes of aligned arrays that are parts of one allocation.
struct MemoryLayout {
  std::size_t bytes = 0;

  // Returns the byte offset of the next array, of `size` bytes.
  std::size_t Reserve(std::size_t size) {
    const std::size_t at = bytes;
    bytes += RoundUpTo(kAlignment, size);
    return at;
  }
};

// The division of a layer's units into panels. The quotients are stored, because divisions would slow down a call of a
// single step.
struct Geometry {
  constexpr Geometry() = default;
  constexpr Geometry(std::size_t units, std::size_t lanes)
      : units(units), lanes(lanes), full_(units / lanes), panels_((units + lanes - 1) / lanes) {}

  std::size_t units = 0;  // H, or of a matrix for the gradients, its padded columns
  std::size_t lanes = 1;

  std::size_t panels() const { return panels_; }
  std::size_t full_panels() const { return full_; }
  // The units, rounded up to full vectors: the length of a row of scratch.
  std::size_t padded() const { return panels() * lanes; }
  std::size_t width(std::size_t panel) const { return panel < full_panels() ? lanes : units - full_ * lanes; }
  // Returns the offset of a panel, in elements, in a matrix with K inputs and G gates.
  std::size_t offset(std::size_t panel, std::size_t K, std::size_t G) const { return panel * lanes * K * G; }

 private:
  std::size_t full_ = 0, panels_ = 0;
};

// Returns whether AMX can multiply the full panels: they must have AMX's width, and there must be enough of them.
constexpr bool AmxCanMultiply(const Geometry& geometry, bool of_bfloat16 = false) {
  return geometry.lanes == amx::kChannels && geometry.units >= (of_bfloat16 ? 1 : 2) * amx::kChannels;
}

// Returns whether the inputs of a matrix are stored in pairs.
constexpr bool IsPairInterleaved(ElementType storage) { return storage == ElementType::kBFloat16; }

// The number of inputs that are interleaved in int8, and the inputs of a block if they are rounded to bfloat16: see
// bfloat16-inl.h.
inline constexpr std::size_t kQuad = 4, kInputsPerBlock = 32;

// Returns the number of stored inputs of a matrix with K inputs, including the zeros after the last.
constexpr std::size_t StoredInputs(const Spec& spec, std::size_t K) {
  return spec.storage == ElementType::kInt8 ? RoundUpTo(kQuad, K)
         : spec.rounds_inputs               ? RoundUpTo(kInputsPerBlock, K)
                                            : K;
}

// Returns the number of groups of a channel's weights.
constexpr std::size_t Groups(const Spec& spec, std::size_t K) {
  return spec.group == 0 ? 1 : K / spec.group + (K % spec.group != 0);  // a sum with K could overflow
}

// The scales and corrections of the output channels of an int8 matrix, [panel][group][gate][lanes].
struct Channels {
  const float* scale;
  const std::int32_t* correction;  // -128 times the sum of the group's weights: for inputs with 128 added
};

// The packed weights of a direction. Matrices have the storage type, biases the compute type.
struct PackedDirection {
  const void* W;
  const void* R;
  const void* Rh;              // null with reset after
  const void* bx;              // [panel][z, r, n][lanes]: the initial values of the products with x
  const void* bn;              // [panel][lanes]: the initial value of n's product with h, with reset after
  Channels of_W, of_R, of_Rh;  // in int8
};

// The weights of a direction before packing: W [3H, I], R [3H, H] and their biases [3H]; null biases are zeros. All are
// contiguous and have the compute type.
struct GivenWeights {
  const void* W;
  const void* R;
  const void* Wb;
  const void* Rb;
};

// The positions of z, r and n among the gates of the weights.
struct GateOrder {
  std::size_t z = 0, r = 1, n = 2;
};

class Packed {
 public:
  // W [D, 3H, I], R [D, 3H, H] and B [D, 6H] are contiguous and have the compute type.
  Packed(const Spec& spec, std::size_t target, std::size_t lanes, const void* W, const void* R, const void* B);
  // weights: one per direction. If null, nothing is packed, and only gradients from saved gates can be computed.
  Packed(const Spec& spec, std::size_t target, std::size_t lanes, const GivenWeights* weights, const GateOrder& order);

  // Writes the matrices in their original layout, with the storage type's precision: W [D, 3H, I] and R [D, 3H, H].
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

// Packs weights, as the constructor does, for the chosen target. If bfloat16 or float16 represents all weights of a
// large float32 layer exactly, as in half-precision files, they are stored in that type. Each step then reads half the
// memory, and the results are bitwise identical.
std::shared_ptr<const Packed> PackForRuns(const Spec& spec, const void* W, const void* R, const void* B);

// The most inputs of an int8 product whose sums and corrections fit into 32 bits.
inline constexpr std::size_t kMaxInt8Inputs = 1 << 17;
// The smallest range for quantization. The reciprocal of a smaller range could overflow.
inline constexpr float kMinRange = 0x1p-100f;
// The largest range of a channel of weights, because 127 times its scale must be finite.
inline constexpr float kLargestRange = 0x1.fffffp127f;

// Quantizes the K weights of a channel or a group to int8. The scale is max |w| / 127, rounded up to 16 significant
// bits. q is w / scale, rounded to nearest even, in ±127. q times the scale is exact in float32, and quantizes to the
// same q and scale again. The scale is NaN if a weight is not finite.
void QuantizeChannel(const float* w, std::size_t K, std::int8_t* q, float* scale);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_PACKING_PACKED_H_
