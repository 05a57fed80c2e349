// The interface between what decides (run.cc) and what computes (the kernels, one set per SIMD target).

#ifndef ONEGRU_NATIVE_KERNEL_H_
#define ONEGRU_NATIVE_KERNEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "native/packed.h"
#include "native/problem.h"
#include "native/threads/team.h"

namespace onegru {

// One direction of some rows of the batch: the unit of work that needs no word with any other.
struct Share {
  const Packed* packed;
  const Call* call;
  std::size_t d;              // the direction
  const std::int32_t* order;  // the rows, the longest first; null for row, row + 1, …
  std::size_t row;            // the first row
  std::size_t stride;         // rows lie this far apart in `order`
  std::size_t rows;           // how many
  std::size_t rows_at_once;   // how many go through time together
  std::size_t steps_at_once;  // at most, how many rows of X are projected together
  unsigned char* scratch;     // of whoever leads
  Claim* claim = nullptr;     // of a helper that has the share
  Crew* crew = nullptr;       // of those who may split its units
  std::size_t ready = 0;      // how many of them come at once
  Claim::Place from{};        // where to begin
};

struct Kernel {
  std::size_t lanes;  // units to a panel
  // Does a share, with those of its crew who come.
  void (*lead)(const Share& share);
  // Takes part in an epoch of a share that another thread leads. scratch: for this member alone.
  void (*join)(const Share& share, Epoch& epoch, std::size_t member, unsigned char* scratch);
  // Does two shares alone, step by step in turn: what one waits for, the other fills. Each has no more rows than
  // go through time together.
  void (*run_pair)(const Share& first, const Share& second);
  // y[i] = f(x[i]), count a multiple of lanes; for tests of accuracy.
  void (*activate)(const Activation& activation, std::size_t count, const void* x, void* y);
};

// The kernels for weights stored in a type, for each target of target_list.h.
const Kernel& KernelFor(ElementType storage, bool linear_before_reset, std::size_t target);
const Kernel& Float32Kernel(bool linear_before_reset, std::size_t target);
const Kernel& Float64Kernel(bool linear_before_reset, std::size_t target);
const Kernel& Float16Kernel(bool linear_before_reset, std::size_t target);
const Kernel& BFloat16Kernel(bool linear_before_reset, std::size_t target);

// How many steps of a single row are projected ahead of time, together.
inline constexpr std::size_t kAheadRows = 8;
// Matrices of so many bytes come from the last cache or from memory in each sweep. W is then swept as seldom as
// may be: for this many rows of X together.
inline constexpr std::size_t kLargeMatrix = 8 << 20;
inline constexpr std::size_t kRowsOfLarge = 64;

// Who has some scratch.
enum class Holder {
  kCaller,  // leads with the caller's memory at hand
  kHelper,  // leads, with copies of inputs, and outputs and states to be handed over
  kEpoch,   // members share it
  kMember,  // what each of them has for itself
};

// The parts of some scratch, in bytes from its beginning.
struct ScratchPlan {
  std::size_t h, rh, z, xp, attention, x, x_rows, h_rows, x_block, y, states, bytes = 0;

  // `computed`: the size of a number.
  ScratchPlan(Holder holder, const Packed& packed, std::size_t computed, std::size_t rows_at_once,
              std::size_t steps_at_once) {
    const Spec& spec = packed.spec();
    const std::size_t row = packed.geometry().padded() * computed;
    const bool steps = holder != Holder::kMember, own = holder != Holder::kEpoch;
    const bool copies = holder == Holder::kHelper || SizeOf(spec.type) != computed;
    const std::size_t before = spec.linear_before_reset ? 0 : 1;
    const std::size_t chunks = 2 * steps_at_once;  // one under way and the next
    h = Take(steps, (own ? 2 : 4) * rows_at_once * row);
    rh = Take(steps, before * rows_at_once * row);
    z = Take(steps, before * rows_at_once * row);
    xp = Take(steps, steps_at_once * 3 * row);
    attention = Take(steps && spec.attention, chunks * computed);
    x = Take(steps && (!own || copies), (own ? steps_at_once : chunks) * spec.I * computed);
    x_rows = Take(own, chunks * sizeof(void*));
    h_rows = Take(own, rows_at_once * sizeof(void*));
    x_block = Take(own, kAheadRows * spec.I * computed);
    y = Take(holder == Holder::kHelper, steps_at_once * spec.H * SizeOf(spec.type));
    states = Take(holder == Holder::kHelper, rows_at_once * row);
  }

 private:
  std::size_t Take(bool wanted, std::size_t size) {
    const std::size_t at = bytes;
    if (wanted) bytes += (size + 127) / 128 * 128;
    return at;
  }
};

// A pool of threads that is not ours: calls task(data, 0…count - 1), all at once or one after another, and returns
// when all have returned.
struct ForeignPool {
  void (*run)(void* pool, std::size_t count, void (*task)(void* data, std::size_t index), void* data);
  void* pool;
  std::size_t threads;
};

// Runs a call, by itself or with threads: ours, or those of `pool`. `call.watch` may stop it.
void Run(const std::shared_ptr<const Packed>& packed, const Call& call, const ForeignPool* pool = nullptr);

// The most scratch that a call with this layer may take, whatever T is.
std::size_t ScratchBound(const Packed& packed, std::size_t B);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_KERNEL_H_
