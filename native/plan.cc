#include "native/plan.h"

#include <algorithm>
#include <numeric>

namespace onegru {
namespace {

// Bytes of the products with x: a part of any CPU's second-level cache.
constexpr std::size_t kProjectionBytes = 192 * 1024;
constexpr std::size_t kMostRowsAtOnce = 64;
// Numbers of X that are multiplied together: a sweep of one panel over them takes some milliseconds.
constexpr std::size_t kMostInputsAtOnce = 1 << 22;
// Room for the products of two chunks of a single row, however large they are.
constexpr std::size_t kLeastStepsAtOnce = 2 * kAheadRows;
// Up to these limits a step takes as long as its longest dependency chain, and two chains take no longer than one:
// vectors of a step, and bytes of both directions' matrices R.
constexpr std::size_t kMostVectorsOfPair = 4;
constexpr std::size_t kMostBytesOfPair = 24 * 1024;

// FLOPs of a step from which, measured, it pays to split it by units. Splitting a smaller one pays where two cores
// share a cache (64 units: 1.3 times as fast), and loses as much where a hypervisor has put them apart, which it may
// do at any time.
constexpr double kFlopsToSplitStep = 2.0e4;

}  // namespace

Plan MakePlan(const Packed& packed, const Call& call, std::size_t threads) {
  const Spec& spec = packed.spec();
  const std::size_t panels = packed.geometry().panels();
  Plan plan{std::min(spec.D, threads), 1, 1, 1, 1, false};
  const std::size_t each = threads / plan.directions;
  if (call.B >= 4 * each) {
    plan.row_groups = each;
  } else if (each > 1) {
    const double step = 6.0 * static_cast<double>(spec.H) * static_cast<double>(spec.H) * static_cast<double>(call.B) /
                        static_cast<double>(each);
    if (step >= kFlopsToSplitStep || (call.T == 1 && panels >= 2 * each)) plan.members = std::min(each, panels);
  }
  const std::size_t row_bytes = 3 * packed.geometry().padded() * ComputedSize(spec.type);
  const std::size_t rows = (call.B + plan.row_groups - 1) / plan.row_groups;
  const bool large = 3 * spec.H * spec.H * SizeOf(spec.storage) >= kLargeMatrix;
  const std::size_t least = large ? kRowsOfLarge : kLeastStepsAtOnce;
  const auto rows_that_fit = [&] { return std::min(kProjectionBytes / row_bytes, kMostInputsAtOnce / (spec.I + 1)); };
  const bool fits = rows * call.T <= kLeastStepsAtOnce;  // without divisions, which small calls would notice
  const std::size_t fit = fits ? least : std::clamp<std::size_t>(rows_that_fit() / 8 * 8, least, 1024);
  plan.rows_at_once = std::min({rows, fit, kMostRowsAtOnce});
  plan.steps_at_once = std::max(kLeastStepsAtOnce, std::min(fit, plan.rows_at_once * call.T));
  plan.paired = spec.D == 2 && plan.threads() == 1 && panels * call.B <= kMostVectorsOfPair &&
                plan.rows_at_once == call.B && 6 * spec.H * spec.H * SizeOf(spec.storage) <= kMostBytesOfPair;
  return plan;
}

void OrderByLength(const Call& call, std::vector<std::int32_t>& order) {
  order.clear();
  const std::int64_t* const lengths = call.lengths;
  if (lengths == nullptr || std::all_of(lengths, lengths + call.B, [&](std::int64_t n) { return n == *lengths; })) {
    return;
  }
  order.resize(call.B);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return lengths[a] > lengths[b]; });
}

Share ShareOf(const Packed& packed, const Call& call, const Plan& plan, const std::vector<std::int32_t>& order,
              std::size_t index, unsigned char* scratch) {
  // Rows ordered by length are dealt round-robin, others in one block.
  const std::size_t groups = plan.row_groups, group = index % groups;
  const bool in_order = !order.empty();
  const std::size_t begin = in_order ? group : call.B * group / groups;
  Share share{};
  share.packed = &packed;
  share.call = &call;
  share.d = index / groups;
  share.order = in_order ? order.data() : nullptr;
  share.row = begin;
  share.stride = in_order ? groups : 1;
  share.rows = in_order ? (call.B - group + groups - 1) / groups : call.B * (group + 1) / groups - begin;
  share.rows_at_once = plan.rows_at_once;
  share.steps_at_once = plan.steps_at_once;
  share.scratch = scratch;
  return share;
}

Scratch::Scratch(const Packed& packed, const Plan& plan) {
  const auto bytes_of = [&](Holder holder) {
    return ScratchPlan(holder, packed, ComputedSize(packed.spec().type), plan.rows_at_once, plan.steps_at_once).bytes;
  };
  const std::size_t D = packed.spec().D;
  const bool splits = plan.members > 1;
  caller = bytes_of(Holder::kCaller);
  helper = bytes_of(Holder::kHelper);
  epoch = bytes_of(Holder::kEpoch);
  member = bytes_of(Holder::kMember);
  helpers = plan.threads() == 1 ? 0 : D * plan.row_groups - 1;
  crews = splits ? D : 0;
  epochs = std::min(plan.members - 1, Crew::kMostEpochs);
  seats = splits ? plan.threads() - 1 : 0;
  bytes = (plan.paired ? 2 : 1) * caller + helpers * helper + crews * epochs * epoch + seats * member;
}

std::size_t ScratchBound(const Packed& packed, std::size_t B) {
  Call call{};
  call.B = B;
  call.T = std::size_t{1} << 40;
  std::size_t most = 0;
  for (std::size_t threads = 1; threads <= NumThreads(); ++threads) {
    most = std::max(most, Scratch(packed, MakePlan(packed, call, threads)).bytes);
  }
  return most;
}

}  // namespace onegru
