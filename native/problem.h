// The specification of a layer, and a call, as plain data. Names are the symbols of the specifications: X, h, W, R, B;
// z, r, n; T, B, I, H, D.

#ifndef ONEGRU_NATIVE_PROBLEM_H_
#define ONEGRU_NATIVE_PROBLEM_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "native/assert.h"

namespace onegru {

// kInt8 is only for packed matrices.
// table: native_types
enum class ElementType : std::uint8_t { kFloat16, kBFloat16, kFloat32, kFloat64, kInt8 };
constexpr const char* kTypeNames[] = {"float16", "bfloat16", "float32", "float64", "int8"};
// end

constexpr std::size_t SizeOf(ElementType type) {
  constexpr std::size_t kSizes[] = {2, 2, 4, 8, 1};
  ONEGRU_ASSERT(type <= ElementType::kInt8);
  return kSizes[static_cast<std::size_t>(type)];
}

// Returns the bytes of the compute type for elements of a type.
constexpr std::size_t ComputedSize(ElementType type) { return type == ElementType::kFloat64 ? 8 : 4; }

constexpr const char* NameOf(ElementType type) {
  ONEGRU_ASSERT(type <= ElementType::kInt8);
  return kTypeNames[static_cast<std::size_t>(type)];
}

// table: native_functions
enum class Function : std::uint8_t {
  kRelu,
  kTanh,
  kSigmoid,
  kAffine,
  kLeakyRelu,
  kThresholdedRelu,
  kScaledTanh,
  kHardSigmoid,
  kElu,
  kSoftsign,
  kSoftplus,
};
inline constexpr std::size_t kFunctions = 11;
// end

struct Activation {
  Function function;
  double alpha;  // both are float32 values, so that float and double represent them
  double beta;
};

// The configuration of a layer, without its weights.
struct Spec {
  std::size_t I;
  std::size_t H;
  std::size_t D;     // 1 or 2 directions
  bool reversed[2];  // whether a direction runs backwards in time
  bool linear_before_reset;
  bool attention;           // z = (1 - a)·z, as in OpenVINO's operators
  bool has_dien_attention;  // with attention: z = 1 - a·(1 - z), as in interest evolution networks (DIEN)
  double clip;              // infinity: no clipping
  Activation f[2];          // of z and r, for each direction
  Activation g[2];          // of n
  ElementType type;         // of X, h and Y
  ElementType storage;      // of the packed matrices
  // With int8 matrices: the number of int8 values per input, 1 or 2. Then the number of weights of a channel that share
  // a scale, a multiple of 4, or 0 for the whole channel.
  std::size_t planes, group;
  // With bfloat16 matrices: whether inputs and states are rounded to bfloat16 too, for products as in bfloat16-inl.h.
  bool rounds_inputs;
  // Whether states below kLeastState become 0. Otherwise, a state that decays without input becomes subnormal, and
  // products with subnormals take many times as long.
  bool flush_subnormals;
};

// The smallest state that is not flushed. It is far enough above the subnormals that products with weights are normal.
// It is a power of two, so that every CPU and every weight type flushes the same values.
template <class C>
inline constexpr C kLeastState = sizeof(C) == 8 ? static_cast<C>(0x1p-1000) : static_cast<C>(0x1p-100);

// Rows of contiguous elements, addressed by byte strides.
struct Rows {
  char* data = nullptr;
  std::ptrdiff_t time_stride = 0;
  std::ptrdiff_t direction_stride = 0;
  std::ptrdiff_t row_stride = 0;

  char* at(std::size_t t, std::size_t d, std::size_t b) const {
    return data + static_cast<std::ptrdiff_t>(t) * time_stride + static_cast<std::ptrdiff_t>(d) * direction_stride +
           static_cast<std::ptrdiff_t>(b) * row_stride;
  }
};

// Returns the rows of a contiguous tensor, of `row` bytes each. `axes` gives the order of the axes T, D and B before
// the last axis.
inline Rows ContiguousRows(const void* data, const char* axes, std::size_t T, std::size_t D, std::size_t B,
                           std::size_t row) {
  Rows rows{static_cast<char*>(const_cast<void*>(data))};
  std::size_t stride = row;  // may overflow if another axis is empty, but then it is not used
  for (std::size_t i = std::strlen(axes); i-- > 0;) {
    const char axis = axes[i];
    (axis == 'T'   ? rows.time_stride
     : axis == 'D' ? rows.direction_stride
                   : rows.row_stride) = static_cast<std::ptrdiff_t>(stride);
    stride *= axis == 'T' ? T : axis == 'D' ? D : B;
  }
  return rows;
}

// The values of a step that a call can save: z before attention, r, n and, with reset after, q = h·Rhᵀ + Rbh.
enum SavedGate : std::size_t { kSavedZ, kSavedR, kSavedN, kSavedQ, kSavedGates };

// Cancels a call, which then returns soon. Its outputs are then unspecified, and nothing else changes.
class CancellationToken {
 public:
  // work: the approximate number of multiply-adds of a thread between two checks.
  explicit CancellationToken(std::int64_t work) : work_(work) {}

  std::int64_t work() const { return work_; }
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }
  // Only for the thread that made the call; other threads check stopped().
  void Ask() {
    if (!stopped() && ShouldStop()) stopped_.store(true, std::memory_order_relaxed);
  }

 protected:
  ~CancellationToken() = default;
  // May run any code, including another call.
  virtual bool ShouldStop() = 0;

 private:
  const std::int64_t work_;
  std::atomic<bool> stopped_{false};
};

// One call. Null means that an array is absent.
struct Call {
  std::size_t T;
  std::size_t B;
  Rows X;                       // [T, B] rows of I
  Rows initial_h;               // [D, B] rows of H
  const std::int64_t* lengths;  // [B]
  Rows attention;               // [T, B] single elements
  Rows Y;                       // [T, D, B] rows of H
  Rows Y_h;                     // [D, B] rows of H
  Rows gates;                   // [T, D, B] rows of [kSavedGates][H, in full vectors]: the values that gradients need
  const std::int32_t* state_rows;  // [B]: the rows of initial_h and Y_h to use; null for row b
  bool wide_state;                 // initial_h and Y_h have the compute type instead of X's type
  unsigned sweep_parity;  // odd: the first sweep over the panels runs backwards, because the last ones are still in the
                          // cache
  CancellationToken* token;  // can cancel the call
};

}  // namespace onegru

#endif  // ONEGRU_NATIVE_PROBLEM_H_
