#include "native/plan.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <stdexcept>

#include "native/system/system.h"
#include "native/targets/limits.h"

namespace onegru {
namespace {

// The bytes of the products with x: a fraction of any CPU's second-level cache.
constexpr std::size_t kProjectionBytes = 192 * 1024;
// The most rows of a block. A block has this many even if their products exceed kProjectionBytes, because fewer rows
// mean more passes over R. Measured for an R that exceeds the second-level cache: 1.0 to 1.15 times as fast as within
// these bytes, and more where the next cache is slower.
constexpr std::size_t kMaxRowsAtOnce = 64;
// The most elements of X that are multiplied together. A sweep of one panel over them takes a few milliseconds.
constexpr std::size_t kMaxInputsAtOnce = 1 << 22;
// The minimum, regardless of size: room for the products of two chunks of a single row.
constexpr std::size_t kMinXRowsAtOnce = 2 * kPipelinedSteps;
// Up to these limits, a step is bound by the latency of its longest dependency chain, and two chains take no longer
// than one: vectors of a step, and bytes of both directions' matrices R.
constexpr std::size_t kMaxVectorsOfPair = 4;
constexpr std::size_t kMaxBytesOfPair = 24 * 1024;

// The minimum FLOPs, measured, of a step whose units are worth splitting. With smaller steps, splitting gains time if
// two cores share a cache (64 units: 1.3 times as fast). It loses as much if a hypervisor has placed them apart, which
// it may do at any time.
constexpr double kFlopsToSplitStep = 2.0e4;

// Splitting units must be predicted to be this much faster, because threads with a barrier in each step lose more on a
// busy machine. With at least kMinRowsWithoutWait rows per thread, no core waits for its matrices.
constexpr double kMinGain = 1.25;
constexpr std::size_t kMinRowsWithoutWait = 32;

// A barrier of two members takes a microsecond, measured. The time is assumed to grow with their number, because each
// reads a cache line of every other one. Machines with more than two cores were not measured.
double SecondsOfBarrier(double members) { return 0.5e-6 * members; }

// Returns the number of members whose work and barriers together take the least time: step / m + m · kFlopsToSplitStep
// is minimal for m = √(step / kFlopsToSplitStep).
std::size_t UsefulMembers(double step) {
  return static_cast<std::size_t>(std::max(2.0, std::sqrt(step / kFlopsToSplitStep)));
}

// Returns the bytes of the second-level cache. The first call determines them, for the reasons in targets.cc.
std::size_t CacheBytes() {
  static constinit std::atomic<std::size_t> known{0};
  std::size_t bytes = known.load(std::memory_order_relaxed);
  if (bytes == 0) known.store(bytes = system::SecondLevelCache(), std::memory_order_relaxed);
  return bytes;
}

// The speed of a core, measured at the first use, in a few milliseconds, because CPUs differ by factors. The next cache
// is 1.4 times slower than the second-level one on Zen 3, 2.3 times on Zen 5, 5 times on Sapphire Rapids.
struct Core {
  std::size_t cache = CacheBytes();
  double flops = FmaPeak(1e-3);
  double from_cache = ReadBandwidth(cache / 2, 5e-4);
  double from_beyond = ReadBandwidth(2 * cache, 1e-3);

  // Returns the time of a step with `rows` rows, if the core computes `part` of the units.
  double Seconds(const Spec& spec, std::size_t rows, double part) const {
    const double units = part * static_cast<double>(spec.H), H = static_cast<double>(spec.H);
    const double bytes = 3 * units * H * static_cast<double>(SizeOf(spec.storage));
    const double rate = bytes <= static_cast<double>(cache) ? from_cache : from_beyond;
    return std::max(6 * units * H * static_cast<double>(rows) / flops, bytes / rate);
  }
};

// Takes no lock, for the same reasons. Several threads may measure; the first result is kept.
const Core& TheCore() {
  static constinit std::atomic<const Core*> measured{nullptr};
  const Core* found = measured.load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  auto own = std::make_unique<const Core>();
  if (measured.compare_exchange_strong(found, own.get(), std::memory_order_acq_rel)) return *own.release();
  return *found;
}

// Returns whether all threads should split the units of each direction, one after the other, instead of using `plan`.
bool ShouldSplitUnits(const Spec& spec, const Call& call, const Plan& plan, std::size_t threads) {
#if defined(ONEGRU_STALL)
  if (g_always_by_units) return true;
#endif
  const std::size_t rows = (call.B + plan.row_groups - 1) / plan.row_groups;
  if (3 * spec.H * spec.H * SizeOf(spec.storage) / plan.members <= CacheBytes() || rows >= kMinRowsWithoutWait)
    return false;
  const Core& core = TheCore();
  const auto barriers = [&](std::size_t members) {
    return (spec.linear_before_reset ? 1 : 2) * SecondsOfBarrier(static_cast<double>(members));
  };
  const double seconds_by_rows = core.Seconds(spec, rows, 1.0 / static_cast<double>(plan.members)) +
                                 (plan.members > 1 ? barriers(plan.members) : 0);
  const double seconds_by_units = core.Seconds(spec, call.B, 1.0 / static_cast<double>(threads)) + barriers(threads);
  return kMinGain * static_cast<double>(plan.directions) * seconds_by_units < seconds_by_rows;
}

}  // namespace

#if defined(ONEGRU_STALL)
bool g_always_by_units = false;
#endif

bool GainsFromSplitting(const Spec& spec) { return 3 * spec.H * spec.H * SizeOf(spec.storage) > CacheBytes() / 3; }

std::chrono::nanoseconds LeastTime(const Spec& spec, const Call& call) {
  constexpr double kFlopsPerNanosecond = 100, kBytesPerNanosecond = 40;
  const double numbers = 3.0 * static_cast<double>(spec.D) * static_cast<double>(spec.H) *
                         (static_cast<double>(spec.H) * static_cast<double>(call.T) + static_cast<double>(spec.I));
  const double bytes = numbers * static_cast<double>(SizeOf(spec.storage));
  // The second-level cache is faster, so its reads do not count.
  const bool is_beyond = 3 * spec.H * spec.H * SizeOf(spec.storage) > CacheBytes();
  const double nanoseconds =
      std::max(Flops(spec, call) / kFlopsPerNanosecond, is_beyond ? bytes / kBytesPerNanosecond : 0);
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(nanoseconds, 1e15)));
}

Plan MakePlan(const Packed& packed, const Call& call, std::size_t threads) {
  const Spec& spec = packed.spec();
  const std::size_t panels = packed.geometry().panels();
  Plan plan{std::min(spec.D, threads), 1, 1, 1, 1, false, false};
  const std::size_t each = threads / plan.directions;
  if (call.B >= 4 * each) {
    plan.row_groups = each;
  } else if (each > 1) {
    const double H = static_cast<double>(spec.H), rows = 6.0 * H * static_cast<double>(call.B);
    const bool is_single = call.T == 1;  // the products with x are then split, too
    const std::size_t members =
        std::min({each, panels, UsefulMembers(rows * (is_single ? H + static_cast<double>(spec.I) : H))});
    const bool is_large = rows * H / static_cast<double>(members) >= kFlopsToSplitStep;
    if (is_large || (is_single && panels >= 2 * members)) plan.members = members;
  }
  if (plan.directions * plan.row_groups > 1 && panels >= threads && ShouldSplitUnits(spec, call, plan, threads)) {
    plan = {1, 1, threads, 1, 1, false, spec.D > 1};
  }
  const std::size_t row_bytes = 3 * packed.geometry().padded() * ComputedSize(spec.type);
  const std::size_t rows = (call.B + plan.row_groups - 1) / plan.row_groups;
  // int8 weights are multiplied four times as fast, so they must be loaded four times as fast.
  const std::size_t large_bytes = spec.storage == ElementType::kInt8 ? kLargeMatrix / 4 : kLargeMatrix;
  const bool has_large_R = 3 * spec.H * spec.H * SizeOf(spec.storage) >= large_bytes;
  // Most tiles have 8 or 4 rows, see tile-inl.h, so multiples of these are fast. Any other number of rows is correct.
  const auto all_rows = [&] {
    return std::clamp(kMaxInputsAtOnce / (spec.I + 1), kMinXRowsAtOnce, std::min((rows + 7) / 8 * 8, kMaxRowsAtOnce));
  };
  const std::size_t least = has_large_R               ? kRowsPerSweepOfLargeW
                            : rows <= kMinXRowsAtOnce ? kMinXRowsAtOnce
                                                      : all_rows();
  const auto x_rows_in_cache = [&] { return std::min(kProjectionBytes / row_bytes, kMaxInputsAtOnce / (spec.I + 1)); };
  // Avoids divisions, which would slow down small calls. T may be so large that the product overflows.
  const bool is_small = rows <= kMinXRowsAtOnce && call.T <= kMinXRowsAtOnce && rows * call.T <= kMinXRowsAtOnce;
  const std::size_t x_rows = is_small ? least : std::clamp<std::size_t>(x_rows_in_cache() / 8 * 8, least, 1024);
  plan.rows_at_once = std::min({rows, x_rows, kMaxRowsAtOnce});
  if (plan.rows_at_once < rows) {  // equal blocks, because a block of a few rows takes as long as reading R
    const std::size_t blocks = (rows + plan.rows_at_once - 1) / plan.rows_at_once;
    plan.rows_at_once = std::min(plan.rows_at_once, ((rows + blocks - 1) / blocks + 3) / 4 * 4);
  }
  plan.x_rows_at_once = std::max(kMinXRowsAtOnce, std::min(x_rows, plan.rows_at_once * call.T));
  plan.interleave_directions = spec.D == 2 && plan.threads() == 1 && panels * call.B <= kMaxVectorsOfPair &&
                               plan.rows_at_once == call.B &&
                               6 * spec.H * spec.H * SizeOf(spec.storage) <= kMaxBytesOfPair;
  return plan;
}

Plan MakeStreamPlan(const Packed& packed, const Call& call) {
  Plan plan = MakePlan(packed, call, 1);
  plan.x_rows_at_once = std::min(plan.x_rows_at_once, kMinXRowsAtOnce * plan.rows_at_once);
  return plan;
}

void OrderByLength(const Call& call, std::vector<std::int32_t>& order) {
  order.clear();
  const std::int64_t* const lengths = call.lengths;
  if (lengths == nullptr || std::all_of(lengths, lengths + call.B, [&](std::int64_t n) { return n == *lengths; })) {
    return;
  }
  if (call.B > INT32_MAX) throw std::length_error("lengths: they differ, so the batch must have at most 2^31 - 1 rows");
  order.resize(call.B);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return lengths[a] > lengths[b]; });
}

WorkItem WorkItemOf(const Packed& packed, const Call& call, const Plan& plan, const std::vector<std::int32_t>& order,
                    std::size_t index, unsigned char* scratch) {
  // Distributes rows ordered by length round-robin, and others in contiguous blocks.
  const std::size_t groups = plan.row_groups, group = index % groups;
  const bool in_order = !order.empty();
  const std::size_t begin = in_order ? group : call.B * group / groups;
  WorkItem item{};
  item.packed = &packed;
  item.call = &call;
  item.d = index / groups;
  item.order = in_order ? order.data() : nullptr;
  item.row = begin;
  item.stride = in_order ? groups : 1;
  item.rows = in_order ? (call.B - group + groups - 1) / groups : call.B * (group + 1) / groups - begin;
  item.rows_at_once = plan.rows_at_once;
  item.x_rows_at_once = plan.x_rows_at_once;
  item.scratch = scratch;
  return item;
}

CallScratch::CallScratch(const Packed& packed, const Plan& plan) {
  const auto bytes_of = [&](ScratchOwner owner) {
    return ScratchPlan(owner, packed, ComputedSize(packed.spec().type), plan.rows_at_once, plan.x_rows_at_once).bytes;
  };
  const std::size_t D = packed.spec().D;
  const bool splits = plan.members > 1;
  caller = bytes_of(ScratchOwner::kCaller);
  claimer = bytes_of(ScratchOwner::kClaimer);
  epoch = bytes_of(ScratchOwner::kEpoch);
  member = bytes_of(ScratchOwner::kMember);
  claimers = plan.threads() == 1 || plan.directions_sequentially ? 0 : D * plan.row_groups - 1;
  crews = splits ? D : 0;
  epochs = std::min(plan.members - 1, Crew::kMaxEpochs);
  seats = splits ? plan.threads() - 1 : 0;
  bytes = (plan.interleave_directions ? 2 : 1) * caller + claimers * claimer + crews * epochs * epoch + seats * member;
}

namespace {

// Returns the longest call with this many rows.
Call LongestCall(std::size_t rows) {
  Call call{};
  call.B = rows;
  call.T = std::size_t{1} << 5 * sizeof(std::size_t);  // more than any call has: 2^40, or 2^20 with 32 bits
  return call;
}

}  // namespace

std::size_t ScratchBound(const Packed& packed, std::size_t B, std::size_t most_threads) {
  std::size_t most = 0;
  for (std::size_t threads = 1; threads <= most_threads; ++threads) {
    most = std::max(most, CallScratch(packed, MakePlan(packed, LongestCall(B), threads)).bytes);
  }
  return most;
}

std::size_t StreamScratchBound(const Packed& packed, std::size_t rows) {
  const auto bytes = [&](std::size_t n) { return CallScratch(packed, MakeStreamPlan(packed, LongestCall(n))).bytes; };
  std::size_t most = bytes(rows);
  // A call with fewer rows may process more of them at once: all of 64, but half of 70.
  for (std::size_t n = std::min(rows, kMaxRowsAtOnce); n > 0; --n) most = std::max(most, bytes(n));
  return most;
}

}  // namespace onegru
