// The interface of the kernels, one set for each SIMD target.

#ifndef ONEGRU_NATIVE_KERNEL_H_
#define ONEGRU_NATIVE_KERNEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "native/float_mode.h"
#include "native/packing/packed.h"
#include "native/problem.h"
#include "native/threads/team.h"

namespace onegru {

// One direction of some rows of the batch, which is independent of all other work items.
struct WorkItem {
  const Packed* packed;
  const Call* call;
  std::size_t d;                                          // the direction
  const std::int32_t* order;                              // the rows, the longest first; null: row, row + 1, …
  std::size_t row;                                        // the first row
  std::size_t stride;                                     // the distance of rows in `order`
  std::size_t rows;                                       // the number of rows
  std::size_t rows_at_once;                               // rows that are processed together
  std::size_t x_rows_at_once;                             // the most rows of X that are projected together
  unsigned char* scratch;                                 // the leader's
  Claim* claim = nullptr;                                 // the claimer's, if a helper has claimed the item
  Crew* crew = nullptr;                                   // the threads that may split its units
  std::size_t expected_helpers = 0;                       // the number of them that are about to join
  std::chrono::nanoseconds wait_budget = kGatherTimeout;  // how long to wait for them
  Claim::Checkpoint from{};                               // where to begin
};

struct Kernel {
  std::size_t lanes;  // units per panel
  // Computes an item, with the members of its crew that join.
  void (*lead)(const WorkItem& item);
  // Joins an epoch of an item that another thread leads. scratch: this member's own memory.
  void (*join)(const WorkItem& item, Epoch& epoch, std::size_t member, unsigned char* scratch);
  // `set_up` prepares an item without a claim or a crew in `memory`, sequence_bytes bytes. `run` computes it, once for
  // each call that differs only in its arrays.
  std::size_t sequence_bytes;
  void (*set_up)(const WorkItem& item, void* memory);
  void (*run)(void* memory);
  // Computes two items on one thread, alternating step by step to hide latency. Each has at most rows_at_once rows.
  void (*run_pair)(const WorkItem& first, const WorkItem& second);
  // Computes y[i] = f(x[i]) for accuracy tests. `count` is a multiple of lanes.
  void (*activate)(const Activation& activation, std::size_t count, const void* x, void* y);
};

// Returns the kernels for a layer and a target of target_list.h. Throws Unsupported if this build has none.
const Kernel& KernelFor(const Spec& spec, std::size_t target);
// Returns whether this build has kernels for matrices of this type.
bool HasKernels(ElementType storage);
const Kernel& Float32Kernel(std::size_t target);
const Kernel& Float64Kernel(std::size_t target);
const Kernel& Float16Kernel(std::size_t target);
const Kernel& BFloat16Kernel(std::size_t target);
const Kernel& RoundedBFloat16Kernel(std::size_t target);  // also rounds inputs
const Kernel& Int8Kernel(std::size_t target);             // one plane per input
const Kernel& Int8By16Kernel(std::size_t target);         // two planes per input
const Kernel& Int8VnniKernel(std::size_t target);         // with VNNI
const Kernel& Int8By16VnniKernel(std::size_t target);

// The number of steps of a single row whose products with x are computed together, ahead of time.
inline constexpr std::size_t kPipelinedSteps = 8;
// A matrix of this many bytes exceeds second-level caches.
inline constexpr std::size_t kLargeMatrix = 8 << 20;
// The number of rows of X in one pass over such a W.
inline constexpr std::size_t kRowsPerSweepOfLargeW = 64;

// A row of K int8 inputs has its scale, then planes of this many bytes: full cache lines, which AMX reads.
inline constexpr std::size_t kQuantizedHeader = 64;
constexpr std::size_t QuantizedPlane(std::size_t K) { return (K + 63) / 64 * 64; }
// The most inputs with two planes that are multiplied as one 16-bit word each. With more, each is two words: see
// int8-inl.h.
inline constexpr std::size_t kMaxInWords = 1040;
constexpr std::size_t QuantizedRow(std::size_t planes, std::size_t K) {
  return kQuantizedHeader + planes * QuantizedPlane(K) * (planes == 2 && K > kMaxInWords ? 2 : 1);
}

// Returns the bytes of K inputs that are rounded to bfloat16: stored in float32 and, for AMX, in bfloat16.
constexpr std::size_t RoundedRow(std::size_t K) { return RoundUpTo(kInputsPerBlock, K) * (sizeof(float) + 2); }

// Returns the bytes of a row of K converted inputs; 0 if inputs are multiplied without conversion.
constexpr std::size_t ConvertedRow(const Spec& spec, std::size_t K) {
  return spec.storage == ElementType::kInt8 ? QuantizedRow(spec.planes, K) : spec.rounds_inputs ? RoundedRow(K) : 0;
}

// Returns the floating-point mode of a layer's kernels.
inline std::uint32_t FloatModeOf(const Spec& spec) {
  return spec.rounds_inputs ? kFlushingFloatMode : kDefaultFloatMode;
}

// The number of buffers for states. A late member may write one step ahead of the leader, so an epoch has more.
inline constexpr std::size_t kStateBuffers = 2, kStateBuffersOfEpoch = 4;
// A pipelined projection keeps the attention scores of this many chunks, of kPipelinedSteps rows each.
inline constexpr std::size_t kPipelinedScoreChunks = 4;

// The owner of scratch memory.
enum class ScratchOwner {
  kCaller,   // leads, and may access the caller's memory
  kClaimer,  // a helper that has claimed the item: leads, with copies of inputs, and buffers for outputs and states
  kEpoch,    // shared by the members
  kMember,   // of one member
};

// The arrays in the scratch memory of one owner, as byte offsets. CallScratch (plan.h) is the memory of all owners.
struct ScratchPlan {
  std::size_t h, rh, z, xp, attention, x, x_rows, h_rows, x_transposed, x_converted, h_converted, sums, y, states,
      bytes;

  // `computed`: the bytes of an element.
  ScratchPlan(ScratchOwner owner, const Packed& packed, std::size_t computed, std::size_t rows_at_once,
              std::size_t x_rows_at_once) {
    const Spec& spec = packed.spec();
    const std::size_t row = packed.geometry().padded() * computed;
    const bool steps = owner != ScratchOwner::kMember, per_thread = owner != ScratchOwner::kEpoch;
    const bool copies = owner == ScratchOwner::kClaimer || SizeOf(spec.type) != computed;
    const std::size_t before = spec.linear_before_reset ? 0 : 1;
    const std::size_t chunks = 2 * x_rows_at_once;  // the current chunk and the next
    MemoryLayout layout;
    const auto reserve = [&](bool is_wanted, std::size_t size) { return layout.Reserve(is_wanted ? size : 0); };
    h = reserve(steps, (per_thread ? kStateBuffers : kStateBuffersOfEpoch) * rows_at_once * row);
    rh = reserve(steps, before * rows_at_once * row);
    z = reserve(steps, before * rows_at_once * row);
    xp = reserve(steps, x_rows_at_once * 3 * row);
    attention = reserve(steps && spec.attention, chunks * computed);
    x = reserve(steps && (!per_thread || copies), (per_thread ? x_rows_at_once : chunks) * spec.I * computed);
    x_rows = reserve(per_thread, chunks * sizeof(void*));
    h_rows = reserve(per_thread, rows_at_once * sizeof(void*));
    x_transposed = reserve(per_thread, kPipelinedSteps * spec.I * computed);
    const bool converts = per_thread && (spec.storage == ElementType::kInt8 || spec.rounds_inputs);
    x_converted = reserve(converts, x_rows_at_once * ConvertedRow(spec, spec.I));
    h_converted = reserve(converts, rows_at_once * ConvertedRow(spec, spec.H));
    sums = reserve(converts, amx::kTiles * amx::kRows * amx::kChannels * sizeof(std::int32_t));
    y = reserve(owner == ScratchOwner::kClaimer, x_rows_at_once * spec.H * SizeOf(spec.type));
    states = reserve(owner == ScratchOwner::kClaimer, rows_at_once * row);
    bytes = layout.bytes;
  }
};

// Another runtime's thread pool. `run` calls task(data, 0…count - 1), in parallel or sequentially, and returns when all
// tasks have returned.
struct ForeignPool {
  void (*run)(void* pool, std::size_t count, void (*task)(void* data, std::size_t index), void* data);
  void* pool;
  std::size_t threads;
};

// Runs a call on one or several threads: onegru's, or those of `pool`. `call.token` can cancel it.
void Run(const std::shared_ptr<const Packed>& packed, const Call& call, const ForeignPool* pool = nullptr);

// Runs a direction of a call on this thread.
void RunDirection(const Packed& packed, const Call& call, std::size_t d);

// The calls of a stream with one direction and without lengths. They run on one thread, in the stream's memory: they
// allocate nothing, take no locks and make no system calls. The plan and the set-up are kept until B or T changes.
class StreamCalls {
 public:
  // memory: Bytes(packed, rows) bytes for calls of at most `rows` rows.
  StreamCalls(const Packed& packed, unsigned char* memory);
  StreamCalls(const StreamCalls&) = delete;  // the set-up refers to call_ and item_
  StreamCalls& operator=(const StreamCalls&) = delete;

  static std::size_t Bytes(const Packed& packed, std::size_t rows);
  // Returns the next call. It keeps its values, so the caller of a short call sets only those that change.
  Call& next() { return call_; }
  void Run();

 private:
  void SetUp();

  const Packed& packed_;
  const Kernel& kernel_;
  unsigned char* const memory_;
  std::size_t B_ = 0, T_ = 0;  // of the prepared call
  Call call_{};
  WorkItem item_{};
};

// Returns the most scratch that a call of this layer needs, for any T and at most `most_threads` threads.
std::size_t ScratchBound(const Packed& packed, std::size_t B, std::size_t most_threads);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_KERNEL_H_
