// The division of a call into parts that run in parallel, with their sizes and their memory.
//
// First directions, then rows of the batch: these need no communication. For few rows, the units of one direction, with
// a barrier after each step. If the second-level cache cannot hold a core's matrices, and the core would wait for them
// in each step, all threads split the units of one direction after the other instead. The result never changes.

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

// The measured least FLOPs of calls that are worth sharing.
inline constexpr double kFlopsToShareCall = 1.2e5;

// The least time that a fast core needs for a call, to compute or to read its matrices.
std::chrono::nanoseconds LeastTime(const Spec& spec, const Call& call);

struct Plan {
  std::size_t directions;  // the number of directions that run in parallel
  std::size_t row_groups;  // the number of groups of rows
  std::size_t members;     // the number of threads that may split the units of an item
  std::size_t rows_at_once;
  std::size_t x_rows_at_once;
  bool interleave_directions;    // one thread computes both directions, step by step in turn
  bool directions_sequentially;  // all members compute both directions, one after the other; only the caller leads

  std::size_t threads() const { return directions * row_groups * members; }
};

Plan MakePlan(const Packed& packed, const Call& call, std::size_t threads);
// Whether threads that share the units of a layer read its matrices from their second-level caches much faster than one
// thread does.
bool GainsFromSplitting(const Spec& spec);
// The plan of a stream, which keeps its scratch: it projects fewer steps together.
Plan MakeStreamPlan(const Packed& packed, const Call& call);
// The most scratch of a stream's calls of at most `rows` rows.
std::size_t StreamScratchBound(const Packed& packed, std::size_t rows);

#if defined(ONEGRU_STALL)
extern bool g_always_by_units;  // for tests, on any machine
#endif

// The rows, the longest first; empty if all have the same length.
void OrderByLength(const Call& call, std::vector<std::int32_t>& order);

// A work item of a call, for its caller; `order` as above.
WorkItem WorkItemOf(const Packed& packed, const Call& call, const Plan& plan, const std::vector<std::int32_t>& order,
                    std::size_t index, unsigned char* scratch);

// The scratch of a call.
struct Scratch {
  std::size_t caller, helper, epoch, member;  // bytes of each
  std::size_t helpers, crews, epochs, seats;  // the number of each
  std::size_t bytes;

  Scratch(const Packed& packed, const Plan& plan);
};

}  // namespace onegru

#endif  // ONEGRU_NATIVE_PLAN_H_
