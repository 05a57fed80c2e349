// The interface between what decides (run.cc) and what computes (the kernels, one set per SIMD target).

#ifndef ONEGRU_NATIVE_KERNEL_H_
#define ONEGRU_NATIVE_KERNEL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "native/packed.h"
#include "native/problem.h"
#include "native/threads.h"

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
  Barrier* barrier;           // of those who split the units of this share
  std::size_t members;        // how many they are
  // The number of steps after which all of them leave a stopped call.
  std::atomic<std::size_t>* last_step;
  bool is_callers;         // whether this thread made the call
  unsigned char* scratch;  // ScratchBytes of them
};

struct Kernel {
  std::size_t lanes;  // units to a panel
  // Does the part of a share that falls to one member.
  void (*run)(const Share& share, std::size_t member);
  // Does two shares of one member each, step by step in turn: what one waits for, the other fills. Each has no
  // more rows than go through time together.
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

// The parts of a share's scratch, in bytes from its beginning.
struct ScratchPlan {
  std::size_t h, rh, z, xp, members, x_each, bytes;

  // `computed`: the size of a number. Members have a part of their own for rows of X that are converted.
  ScratchPlan(const Packed& packed, std::size_t computed, std::size_t rows_at_once, std::size_t steps_at_once,
              std::size_t members_count) {
    const Spec& spec = packed.spec();
    const auto round = [](std::size_t n) { return (n + 127) / 128 * 128; };
    const std::size_t row = packed.geometry().padded() * computed;
    const bool convert = SizeOf(spec.type) != computed;
    h = 0;
    rh = h + round(2 * rows_at_once * row);
    z = rh + (spec.linear_before_reset ? 0 : round(rows_at_once * row));
    xp = z + (spec.linear_before_reset ? 0 : round(rows_at_once * row));
    members = xp + round(steps_at_once * 3 * row);
    x_each = round(steps_at_once * sizeof(void*)) + (convert ? round(steps_at_once * spec.I * computed) : 0) +
             round(rows_at_once * sizeof(void*)) + round(kAheadRows * spec.I * computed);
    bytes = members + members_count * x_each;
  }
};

// Runs a call, by itself or with threads. `call.watch` may stop it.
void Run(const Packed& packed, const Call& call);

// The most scratch that a call with this layer may take, whatever T is.
std::size_t ScratchBound(const Packed& packed, std::size_t B);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_KERNEL_H_
