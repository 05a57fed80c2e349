// The division of a call: what runs beside what, in which portions, in which memory.
//
// First what needs no communication between threads: directions, then rows of the batch. Then, for few rows, the
// hidden units of one direction, with a meeting after each step; those first, and one direction after the other, where
// each core would else read matrices in each step that its second-level cache does not hold, and waits for them. None
// of this changes a result.

#ifndef ONEGRU_NATIVE_PLAN_H_
#define ONEGRU_NATIVE_PLAN_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/kernel.h"

namespace onegru {

inline double Flops(const Spec& spec, const Call& call) {
  return 6.0 * static_cast<double>(spec.D) * static_cast<double>(spec.H) * static_cast<double>(spec.I + spec.H) *
         static_cast<double>(call.B) * static_cast<double>(call.T);
}

// How long a call takes a fast core at least: by its arithmetic, or by reading its matrices.
std::chrono::nanoseconds LeastTime(const Spec& spec, const Call& call);

struct Plan {
  std::size_t directions;  // how many run side by side
  std::size_t row_groups;  // into how many the rows are divided
  std::size_t members;     // how many may split the units of an item
  std::size_t rows_at_once;
  std::size_t steps_at_once;
  bool paired;   // one thread does both directions, step by step in turn
  bool in_turn;  // all members do both directions, one after the other; only the caller leads

  std::size_t threads() const { return directions * row_groups * members; }
};

Plan MakePlan(const Packed& packed, const Call& call, std::size_t threads);
// The plan of a stream, which keeps its scratch: its products with x are computed for fewer steps together.
Plan MakeStreamPlan(const Packed& packed, const Call& call);

#if defined(ONEGRU_STALL)
extern bool g_always_by_units;  // for tests: whatever this machine's speeds are
#endif

// The rows, the longest first; empty if they are all of one length.
void OrderByLength(const Call& call, std::vector<std::int32_t>& order);

// A work item of a call, for its caller; `order` as above.
WorkItem WorkItemOf(const Packed& packed, const Call& call, const Plan& plan, const std::vector<std::int32_t>& order,
                    std::size_t index, unsigned char* scratch);

// The scratch of a call.
struct Scratch {
  std::size_t caller, helper, epoch, member;  // bytes of each
  std::size_t helpers, crews, epochs, seats;  // how many
  std::size_t bytes;

  Scratch(const Packed& packed, const Plan& plan);
};

}  // namespace onegru

#endif  // ONEGRU_NATIVE_PLAN_H_
