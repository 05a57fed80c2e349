// The interface of the kernels, one set for each SIMD target.

#ifndef ONEGRU_NATIVE_KERNEL_H_
#define ONEGRU_NATIVE_KERNEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "native/float_mode.h"
#include "native/packed.h"
#include "native/problem.h"
#include "native/threads/team.h"

namespace onegru {

// One direction of some rows of the batch, which is independent of all other work items.
struct WorkItem {
  const Packed* packed;
  const Call* call;
  std::size_t d;                                          // the direction
  const std::int32_t* order;                              // the rows, the longest first; null for row, row + 1, …
  std::size_t row;                                        // the first row
  std::size_t stride;                                     // the distance of rows in `order`
  std::size_t rows;                                       // how many
  std::size_t rows_at_once;                               // how many are processed together
  std::size_t x_rows_at_once;                             // at most, how many rows of X are projected together
  unsigned char* scratch;                                 // the leader's
  Claim* claim = nullptr;                                 // the helper's, if one has the item
  Crew* crew = nullptr;                                   // the threads that may split its units
  std::size_t expected_helpers = 0;                       // how many of them are about to join
  std::chrono::nanoseconds wait_budget = kGatherTimeout;  // how long to wait for those
  Claim::Checkpoint from{};                               // where to begin
};

struct Kernel {
  std::size_t lanes;  // units to a panel
  // Computes an item, with those of its crew who join.
  void (*lead)(const WorkItem& item);
  // Takes part in an epoch of an item that another thread leads. scratch: this member's own.
  void (*join)(const WorkItem& item, Epoch& epoch, std::size_t member, unsigned char* scratch);
  // Sets up an item's sequence in `memory`, sequence_bytes bytes, without a claim or a crew. `run` leads it once for
  // each call that differs only in its arrays.
  std::size_t sequence_bytes;
  void (*set_up)(const WorkItem& item, void* memory);
  void (*run)(void* memory);
  // Computes two items on one thread, alternating step by step to hide latency. Neither has more than rows_at_once
  // rows.
  void (*run_pair)(const WorkItem& first, const WorkItem& second);
  // y[i] = f(x[i]), count a multiple of lanes; for tests of accuracy.
  void (*activate)(const Activation& activation, std::size_t count, const void* x, void* y);
};

// The kernels for a layer, for each target of target_list.h. Throws Unsupported if this build has none.
const Kernel& KernelFor(const Spec& spec, std::size_t target);
// Whether this build has kernels for matrices of this type.
bool HasKernels(ElementType storage);
const Kernel& Float32Kernel(std::size_t target);
const Kernel& Float64Kernel(std::size_t target);
const Kernel& Float16Kernel(std::size_t target);
const Kernel& BFloat16Kernel(std::size_t target);
const Kernel& RoundedBFloat16Kernel(std::size_t target);  // inputs are rounded, too
const Kernel& Int8Kernel(std::size_t target);             // inputs of one plane
const Kernel& Int8By16Kernel(std::size_t target);         // of two
const Kernel& Int8VnniKernel(std::size_t target);         // the same by VNNI
const Kernel& Int8By16VnniKernel(std::size_t target);

// For how many steps of a single row the products with x are computed together, ahead of time.
inline constexpr std::size_t kAheadRows = 8;
// A matrix of this many bytes is larger than second-level caches.
inline constexpr std::size_t kLargeMatrix = 8 << 20;
// The number of rows of X that one pass over such a W serves.
inline constexpr std::size_t kRowsPerSweepOfLargeW = 64;

// A row of K inputs in int8: its scale, then planes of this many bytes, in whole cache lines, as AMX reads them.
inline constexpr std::size_t kQuantizedHeader = 64;
constexpr std::size_t QuantizedPlane(std::size_t K) { return (K + 63) / 64 * 64; }
// The most inputs that are multiplied as words of 16 bits, see int8-inl.h: of two planes, more are two words each.
inline constexpr std::size_t kMaxInWords = 1040;
constexpr std::size_t QuantizedRow(std::size_t planes, std::size_t K) {
  return kQuantizedHeader + planes * QuantizedPlane(K) * (planes == 2 && K > kMaxInWords ? 2 : 1);
}

// A row of K inputs that are rounded to bfloat16: in float32, then, for AMX, in bfloat16.
constexpr std::size_t RoundedRow(std::size_t K) { return RoundUpTo(kBlock, K) * (sizeof(float) + 2); }

// Bytes of a row of K inputs that is converted for its products; 0 if inputs are multiplied as they are.
constexpr std::size_t ConvertedRow(const Spec& spec, std::size_t K) {
  return spec.storage == ElementType::kInt8 ? QuantizedRow(spec.planes, K) : spec.rounds_inputs ? RoundedRow(K) : 0;
}

// The mode that a layer's kernels compute in.
inline std::uint32_t FloatModeOf(const Spec& spec) {
  return spec.rounds_inputs ? kFlushingFloatMode : kDefaultFloatMode;
}

// Whose scratch memory it is.
enum class ScratchOwner {
  kCaller,  // leads, and may touch the caller's memory
  kHelper,  // leads, with copies of inputs, and with outputs and states to hand over
  kEpoch,   // shared by the members
  kMember,  // a member's own
};

// The parts of scratch memory, as byte offsets.
struct ScratchPlan {
  std::size_t h, rh, z, xp, attention, x, x_rows, h_rows, x_block, x_converted, h_converted, sums, y, states, bytes;

  // `computed`: the size of a number.
  ScratchPlan(ScratchOwner owner, const Packed& packed, std::size_t computed, std::size_t rows_at_once,
              std::size_t x_rows_at_once) {
    const Spec& spec = packed.spec();
    const std::size_t row = packed.geometry().padded() * computed;
    const bool steps = owner != ScratchOwner::kMember, own = owner != ScratchOwner::kEpoch;
    const bool copies = owner == ScratchOwner::kHelper || SizeOf(spec.type) != computed;
    const std::size_t before = spec.linear_before_reset ? 0 : 1;
    const std::size_t chunks = 2 * x_rows_at_once;  // one under way and the next
    MemoryLayout layout;
    const auto reserve = [&](bool is_wanted, std::size_t size) { return layout.Reserve(is_wanted ? size : 0); };
    h = reserve(steps, (own ? 2 : 4) * rows_at_once * row);
    rh = reserve(steps, before * rows_at_once * row);
    z = reserve(steps, before * rows_at_once * row);
    xp = reserve(steps, x_rows_at_once * 3 * row);
    attention = reserve(steps && spec.attention, chunks * computed);
    x = reserve(steps && (!own || copies), (own ? x_rows_at_once : chunks) * spec.I * computed);
    x_rows = reserve(own, chunks * sizeof(void*));
    h_rows = reserve(own, rows_at_once * sizeof(void*));
    x_block = reserve(own, kAheadRows * spec.I * computed);
    const bool converts = own && (spec.storage == ElementType::kInt8 || spec.rounds_inputs);
    x_converted = reserve(converts, x_rows_at_once * ConvertedRow(spec, spec.I));
    h_converted = reserve(converts, rows_at_once * ConvertedRow(spec, spec.H));
    sums = reserve(converts, amx::kTiles * amx::kRows * amx::kChannels * sizeof(std::int32_t));
    y = reserve(owner == ScratchOwner::kHelper, x_rows_at_once * spec.H * SizeOf(spec.type));
    states = reserve(owner == ScratchOwner::kHelper, rows_at_once * row);
    bytes = layout.bytes;
  }
};

// Another runtime's thread pool: `run` calls task(data, 0…count - 1), in parallel or one after another, and returns
// when all have returned.
struct ForeignPool {
  void (*run)(void* pool, std::size_t count, void (*task)(void* data, std::size_t index), void* data);
  void* pool;
  std::size_t threads;
};

// Runs a call, on this thread or several: ours, or those of `pool`. `call.token` may stop it.
void Run(const std::shared_ptr<const Packed>& packed, const Call& call, const ForeignPool* pool = nullptr);

// Runs a direction of a call, on this thread.
void RunDirection(const Packed& packed, const Call& call, std::size_t d);

// The calls of a stream of one direction, without lengths, on one thread and in the stream's memory: nothing is
// allocated, locked, or asked of the system. The plan and the kernel's set-up are kept until B or T changes.
class StreamCalls {
 public:
  // memory: Bytes(packed, rows) bytes for calls of at most `rows` rows.
  StreamCalls(const Packed& packed, unsigned char* memory);
  StreamCalls(const StreamCalls&) = delete;  // the set-up refers to call_ and item_
  StreamCalls& operator=(const StreamCalls&) = delete;

  static std::size_t Bytes(const Packed& packed, std::size_t rows);
  // The next call. It keeps its values, so that a short call sets only those that change.
  Call& next() { return call_; }
  void Run();

 private:
  void SetUp();

  const Packed& packed_;
  const Kernel& kernel_;
  unsigned char* const memory_;
  std::size_t B_ = 0, T_ = 0;  // of the call that is set up
  Call call_{};
  WorkItem item_{};
};

// The most scratch of a call of this layer, for any T and at most `most_threads` threads.
std::size_t ScratchBound(const Packed& packed, std::size_t B, std::size_t most_threads);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_KERNEL_H_
