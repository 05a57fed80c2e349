// Measures the peak speed of one core, as a baseline of benchmarks. Compiled once for each SIMD target.

#include <algorithm>
#include <chrono>
#include <cstddef>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "native/targets/limits.cc"
#include "hwy/foreach_target.h"  // before highway.h: it chooses the target that highway.h sets up

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Runs 12 independent float32 multiply-adds `count` times. Returns the number of FLOPs.
double Fma(std::size_t count, float* sink) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const V a = hn::Set(d, 0.999f), b = hn::Set(d, 1e-3f);
  // They differ, because the compiler would merge equal sums.
  V s0 = hn::Set(d, *sink), s1 = hn::Add(s0, b), s2 = hn::Add(s1, b), s3 = hn::Add(s2, b);
  V s4 = hn::Add(s3, b), s5 = hn::Add(s4, b), s6 = hn::Add(s5, b), s7 = hn::Add(s6, b);
  V t0 = hn::Add(s7, b), t1 = hn::Add(t0, b), t2 = hn::Add(t1, b), t3 = hn::Add(t2, b);
  for (std::size_t i = 0; i < count; ++i) {
    s0 = hn::MulAdd(s0, a, b);
    s1 = hn::MulAdd(s1, a, b);
    s2 = hn::MulAdd(s2, a, b);
    s3 = hn::MulAdd(s3, a, b);
    s4 = hn::MulAdd(s4, a, b);
    s5 = hn::MulAdd(s5, a, b);
    s6 = hn::MulAdd(s6, a, b);
    s7 = hn::MulAdd(s7, a, b);
    t0 = hn::MulAdd(t0, a, b);
    t1 = hn::MulAdd(t1, a, b);
    t2 = hn::MulAdd(t2, a, b);
    t3 = hn::MulAdd(t3, a, b);
  }
  const V s = hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)), hn::Add(hn::Add(s4, s5), hn::Add(s6, s7)));
  const V t = hn::Add(hn::Add(t0, t1), hn::Add(t2, t3));
  *sink += hn::GetLane(hn::Add(s, t));
  return 24.0 * static_cast<double>(count * hn::Lanes(d));
}

// Reads a buffer once, with independent sums.
void Read(const float* from, std::size_t count, float* sink) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const std::size_t n = hn::Lanes(d);
  V s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  for (std::size_t i = 0; i + 4 * n <= count; i += 4 * n) {
    s0 = hn::Add(s0, hn::Load(d, from + i));
    s1 = hn::Add(s1, hn::Load(d, from + i + n));
    s2 = hn::Add(s2, hn::Load(d, from + i + 2 * n));
    s3 = hn::Add(s3, hn::Load(d, from + i + 3 * n));
  }
  *sink += hn::GetLane(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)));
}

}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "native/packing/packed.h"
#include "native/targets/limits.h"
#include "native/targets/target_list.h"
#include "native/targets/targets.h"

namespace onegru {
namespace {

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Repeats run(sink), which returns its amount of work, for `seconds`. Returns the best rate.
template <class F>
double BestRate(double seconds, F&& run) {
  float sink = 0;
  double best = 0;
  for (const double begin = Now(); Now() - begin < seconds;) {
    const double before = Now(), work = run(&sink);
    best = std::max(best, work / (Now() - before));
  }
  [[maybe_unused]] static volatile float keep;
  keep = sink;
  return best;
}

}  // namespace

double FmaPeak(double seconds) {
#define ONEGRU_ENTRY(ns, bit, name) &ns::Fma,
  static constexpr double (*kTable[])(std::size_t, float*) = {ONEGRU_FOR_EACH_TARGET(ONEGRU_ENTRY)};
#undef ONEGRU_ENTRY
  return BestRate(seconds, [run = kTable[ChosenTargetIndex()]](float* sink) { return run(200000, sink); });
}

double ReadBandwidth(std::size_t bytes, double seconds) {
#define ONEGRU_ENTRY(ns, bit, name) &ns::Read,
  static constexpr void (*kTable[])(const float*, std::size_t, float*) = {ONEGRU_FOR_EACH_TARGET(ONEGRU_ENTRY)};
#undef ONEGRU_ENTRY
  const auto run = kTable[ChosenTargetIndex()];
  const AlignedBytes memory = AllocateAligned(bytes);
  const auto* const from = reinterpret_cast<const float*>(memory.get());
  const std::size_t turns = 1 + (std::size_t{4} << 20) / bytes;
  return BestRate(seconds, [&](float* sink) {
    for (std::size_t i = 0; i < turns; ++i) run(from, bytes / sizeof(float), sink);
    return static_cast<double>(turns) * static_cast<double>(bytes);
  });
}

}  // namespace onegru

#endif  // HWY_ONCE
