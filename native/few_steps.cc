#include "native/few_steps.h"

#include <algorithm>
#include <optional>

#include "native/separate_rows.h"
#include "native/threads/tasks.h"
#include "native/threads/threads.h"

namespace onegru {
namespace {

// The minimum and maximum FLOPs of a direction for which waking a helper pays. The caller cannot take over a direction
// that a helper has begun, so the maximum takes only milliseconds. Larger calls share each product instead. Reading a
// weight takes as long as kFlopsOfWeight FLOPs.
constexpr double kLeastFlops = 1.0e7, kMostFlops = 5.0e8, kFlopsOfWeight = 16;

// Returns whether two threads should run one direction each.
bool ShouldRunBoth(const FewSteps& s, std::size_t directions) {
  if (directions != 2 || s.threads < 2) return false;
  const double T = static_cast<double>(s.T), H = static_cast<double>(s.H), flops = 2.0 * static_cast<double>(s.B);
  const double by_x = static_cast<double>(s.I) * std::max(T * flops, kFlopsOfWeight);
  const double by_h = H * T * std::max(flops, kFlopsOfWeight), all = 3 * H * (by_x + by_h);
  return all >= kLeastFlops && all <= kMostFlops && UncontendedThreads() > 1;
}

template <class C>
void RunBoth(const FewStepsKernel& kernel, const FewStepsGradients& first, FewStepsGradients second) {
  const FewSteps& s = second.call;
  std::optional<SeparateRows<C>> dX, d_attention;
  if (second.dX.data != nullptr) dX.emplace(s.T, s.B, s.I, &second.dX);
  if (second.d_attention.data != nullptr) d_attention.emplace(s.T, s.B, 1, &second.d_attention);
  ParallelFor(2, 2, [&](std::size_t d) { kernel.gradients(d == 0 ? first : second); });
  if (dX) dX->AddToShared();
  if (d_attention) d_attention->AddToShared();
}

}  // namespace

void RunDirections(const FewStepsKernel& kernel, std::span<const FewSteps> directions) {
  const std::size_t threads = ShouldRunBoth(directions[0], directions.size()) ? 2 : 1;
  ParallelFor(directions.size(), threads, [&](std::size_t d) { kernel.run(directions[d]); });
}

void RunDirections(const FewStepsKernel& kernel, bool is_double, std::span<const FewStepsGradients> directions) {
  if (ShouldRunBoth(directions[0].call, directions.size())) {
    return (is_double ? RunBoth<double> : RunBoth<float>)(kernel, directions[0], directions[1]);
  }
  for (const FewStepsGradients& direction : directions) kernel.gradients(direction);
}

}  // namespace onegru
