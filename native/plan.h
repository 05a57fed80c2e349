// The division of a call into parts that run in parallel, with their sizes and their memory.
//
// Threads share directions, then rows of the batch, because these need no communication. With few rows, they split the
// units of a direction, with a barrier after each step. If a core's matrices exceed its second-level cache and each
// step would wait for them, all threads split the units of each direction in turn. The plan never changes the result.

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

// The minimum FLOPs, measured, of a call that is worth sharing.
inline constexpr double kFlopsToShareCall = 1.2e5;

// Returns the minimum time of a call on a fast core, to compute it or to read its matrices.
std::chrono::nanoseconds LeastTime(const Spec& spec, const Call& call);

struct Plan {
  std::size_t directions;        // the number of directions that run in parallel
  std::size_t row_groups;        // the number of groups of rows
  std::size_t members;           // the number of threads, with the leader, that may split the units of an item
  std::size_t rows_at_once;      // the rows of a block, which are processed together
  std::size_t x_rows_at_once;    // the rows of X, over rows and steps, that are projected together
  bool interleave_directions;    // one thread computes both directions, alternating step by step
  bool directions_sequentially;  // all members compute both directions, one after the other; only the caller leads

  std::size_t threads() const { return directions * row_groups * members; }
};

Plan MakePlan(const Packed& packed, const Call& call, std::size_t threads);
// Returns whether threads that share the units of a layer read its matrices from their second-level caches much faster
// than one thread does.
bool GainsFromSplitting(const Spec& spec);
// Returns the plan of a stream. It projects fewer steps together, because a stream keeps its scratch.
Plan MakeStreamPlan(const Packed& packed, const Call& call);
// Returns the most scratch that a stream's calls of at most `rows` rows need.
std::size_t StreamScratchBound(const Packed& packed, std::size_t rows);

#if defined(ONEGRU_STALL)
extern bool g_always_by_units;  // for tests, on any machine
#endif

// Orders the rows by length, longest first. `order` is empty if all have the same length.
void OrderByLength(const Call& call, std::vector<std::int32_t>& order);

// Returns a work item of a call, prepared for the caller. `order`: as above.
WorkItem WorkItemOf(const Packed& packed, const Call& call, const Plan& plan, const std::vector<std::int32_t>& order,
                    std::size_t index, unsigned char* scratch);

// The scratch memory of a whole call: its size for each owner, and the number of owners. ScratchPlan has the arrays of
// one owner.
struct CallScratch {
  std::size_t caller, claimer, epoch, member;  // bytes of each
  std::size_t claimers, crews, epochs, seats;  // the number of each
  std::size_t bytes;

  CallScratch(const Packed& packed, const Plan& plan);
};

}  // namespace onegru

#endif  // ONEGRU_NATIVE_PLAN_H_
