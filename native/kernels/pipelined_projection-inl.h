// The pipelined input projection: computed one chunk ahead, interleaved with the products with h.
//
// A step of one row is bound by loading its matrix from a cache, and leaves arithmetic units idle. A product of several
// rows of x is bound by arithmetic. So each chunk of kPipelinedSteps steps also computes the products of the next
// chunk: between the inputs of each panel of R, it adds a few inputs to a tile of rows. A tile's sums are stored
// unchanged between two panels of R, so each is still one sum in the order of k.

#include "hwy/highway.h"
#include "native/kernel.h"
#include "native/kernels/products/tile-inl.h"

#if defined(ONEGRU_NATIVE_KERNELS_PIPELINED_PROJECTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_PIPELINED_PROJECTION_INL_H_
#undef ONEGRU_NATIVE_KERNELS_PIPELINED_PROJECTION_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_PIPELINED_PROJECTION_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {
namespace hn = hwy::HWY_NAMESPACE;

// A member's part of R must exceed the first-level cache by enough that loading it takes most of the time.
inline constexpr size_t kMinBytesToPipeline = 96 * 1024;
// A chunk of any number of steps has the same cost, so more than half of the second chunk must be needed.
inline constexpr size_t kMinStepsToPipeline = kPipelinedSteps * 3 / 2 + 1;
// The number of panels of a tile of 1, 2 or 3 gates while the projection is pipelined; see the limit in AddRecurrent.
inline constexpr size_t kPanelsOfPipelinedTile[] = {0, 4, 2, 1};

template <class C, class S>
class PipelinedProjection {
 public:
  // Returns whether any work remains.
  bool waiting() const { return panel_ < last_; }

  void DiscardRemainingWork() { panel_ = last_ = 0; }

  // Begins the products of kPipelinedSteps rows with the panels [first, last) of W, which must be full.
  //
  // x: [k][row]. bias: as PackedDirection::bx. sums: [panel][row][z, r, n][lanes], from panel 0 on. H: the inputs of R.
  // The work is spread over the panels of R so that it ends with kPipelinedSteps steps.
  void Start(const S* W, size_t I, size_t H, const Geometry& geometry, size_t first, size_t last, const C* x,
             const C* bias, C* sums) {
    W_ = W;
    I_ = I;
    H_ = H;
    geometry_ = geometry;
    panel_ = first;
    last_ = last;
    x_ = x;
    bias_ = bias;
    sums_ = sums;
    k_ = done_ = passed_ = 0;
  }

  // Adds input · panels to `result`, like Multiply for one row, and does a part of the work.
  template <size_t kPanels, size_t kGates, class D, class V>
  HWY_NOINLINE void MultiplyBoth(D d, size_t K, const C* input, const S* const* panels,
                                 V (&result)[1][kPanels * kGates]) {
    constexpr size_t kStreams = kPanels * kGates;
    constexpr size_t kInputs = kTileSums / kStreams;  // of R per input of W, with equally many multiply-adds
    passed_ += K * kStreams;
    const size_t due = (passed_ * I_ + kTileSums * H_ - 1) / (kTileSums * H_) - done_;
    const size_t count = HWY_MIN(HWY_MIN(due, I_ - k_), K / kInputs);
    const S* w[kPanels];
#pragma GCC unroll 16
    for (size_t p = 0; p < kPanels; ++p) w[p] = panels[p];
    V sums[1][kStreams];  // in registers
#pragma GCC unroll 16
    for (size_t v = 0; v < kStreams; ++v) sums[0][v] = result[0][v];
    if (count != 0) {
      V tile[kPipelinedSteps][3];
      Load(d, tile);
      const S* weights = Weights();
      const C* x = x_ + k_ * kPipelinedSteps;
      for (size_t i = 0; i < count; ++i) {
        V of_x[3];
#pragma GCC unroll 16
        for (size_t g = 0; g < 3; ++g) of_x[g] = WeightsOfX(d, weights, k_ + i, g);
#pragma GCC unroll 16
        for (size_t r = 0; r < kPipelinedSteps; ++r) {
          const V from_x = hn::Set(d, x[r]);
#pragma GCC unroll 16
          for (size_t g = 0; g < 3; ++g) tile[r][g] = MultiplyAdd(from_x, of_x[g], tile[r][g]);
#pragma GCC unroll 16
          for (size_t k = r * kInputs / kPipelinedSteps; k < (r + 1) * kInputs / kPipelinedSteps; ++k) {
            const V from_h = hn::Set(d, input[k]);
#pragma GCC unroll 16
            for (size_t v = 0; v < kStreams; ++v) {
              const V of_h = k % 2 == 0 ? WeightsOf<PairLane::kFirst, kGates>(d, w[v / kGates], k, v % kGates, kLanes)
                                        : WeightsOf<PairLane::kSecond, kGates>(d, w[v / kGates], k, v % kGates, kLanes);
              sums[0][v] = MultiplyAdd(from_h, of_h, sums[0][v]);
            }
          }
        }
        x += kPipelinedSteps;
        input += kInputs;
#pragma GCC unroll 16
        for (size_t p = 0; p < kPanels; ++p) w[p] += kInputs * kGates * kLanes;
      }
      Store(d, tile);
      Advance(count);
    }
    Multiply<1, kPanels, kGates>(d, K - count * kInputs, &input, w, FullWidth<D>(), sums);
#pragma GCC unroll 16
    for (size_t v = 0; v < kStreams; ++v) result[0][v] = sums[0][v];
  }

  // Does the remaining work while poll() is true.
  template <class D, class PollCancel>
  HWY_NOINLINE void Finish(D d, PollCancel poll) {
    while (waiting() && poll()) {
      hn::Vec<D> tile[kPipelinedSteps][3];
      Load(d, tile);
      const size_t count = I_ - k_;
      const S* weights = Weights();
      const C* x = x_ + k_ * kPipelinedSteps;
      for (size_t i = 0; i < count; ++i) {
        hn::Vec<D> of_x[3];
#pragma GCC unroll 16
        for (size_t g = 0; g < 3; ++g) of_x[g] = WeightsOfX(d, weights, k_ + i, g);
#pragma GCC unroll 16
        for (size_t r = 0; r < kPipelinedSteps; ++r) {
          const auto from_x = hn::Set(d, x[i * kPipelinedSteps + r]);
#pragma GCC unroll 16
          for (size_t g = 0; g < 3; ++g) tile[r][g] = MultiplyAdd(from_x, of_x[g], tile[r][g]);
        }
      }
      Store(d, tile);
      Advance(count);
    }
  }

 private:
  static constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<C>());
  static constexpr size_t kTileSums = 3 * kPipelinedSteps;

  const S* Weights() const { return W_ + geometry_.offset(panel_, I_, 3); }

  template <class D>
  HWY_INLINE hn::Vec<D> WeightsOfX(D d, const S* panel, size_t k, size_t gate) const {
    if constexpr (std::is_same_v<S, StoredBFloat16>) {
      if (k == I_ / 2 * 2) return WeightsOf<PairLane::kUnpaired, 3>(d, panel, k, gate, kLanes);
      return k % 2 == 0 ? WeightsOf<PairLane::kFirst, 3>(d, panel, k, gate, kLanes)
                        : WeightsOf<PairLane::kSecond, 3>(d, panel, k, gate, kLanes);
    }
    return WeightsOf<PairLane::kUnpaired, 3>(d, panel, k, gate, kLanes);
  }

  template <class D, class V>
  HWY_INLINE void Load(D d, V (&tile)[kPipelinedSteps][3]) const {
    const bool begun = k_ != 0;
    const C* const from = begun ? sums_ + panel_ * kTileSums * kLanes : bias_ + panel_ * 3 * kLanes;
    const size_t row = begun ? 3 * kLanes : 0;
#pragma GCC unroll 16
    for (size_t r = 0; r < kPipelinedSteps; ++r) {
#pragma GCC unroll 16
      for (size_t g = 0; g < 3; ++g) tile[r][g] = hn::LoadU(d, from + r * row + g * kLanes);
    }
  }

  template <class D, class V>
  HWY_INLINE void Store(D d, const V (&tile)[kPipelinedSteps][3]) const {
    C* const to = sums_ + panel_ * kTileSums * kLanes;
#pragma GCC unroll 16
    for (size_t r = 0; r < kPipelinedSteps; ++r) {
#pragma GCC unroll 16
      for (size_t g = 0; g < 3; ++g) hn::StoreU(tile[r][g], d, to + (r * 3 + g) * kLanes);
    }
  }

  void Advance(size_t count) {
    k_ += count;
    done_ += count;
    if (k_ < I_) return;
    k_ = 0;
    ++panel_;
  }

  const S* W_ = nullptr;
  size_t I_ = 0, H_ = 0;
  Geometry geometry_{};
  size_t panel_ = 0, last_ = 0;  // the current panel
  size_t k_ = 0;                 // its next input
  size_t done_ = 0;              // inputs of W so far, over all panels
  size_t passed_ = 0;            // vectors of R so far
  const C* x_ = nullptr;
  const C* bias_ = nullptr;
  C* sums_ = nullptr;
};

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
