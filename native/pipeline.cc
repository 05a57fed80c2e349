#include "native/pipeline.h"

#include <algorithm>
#include <atomic>
#include <cstddef>

#include "native/float_mode.h"
#include "native/plan.h"
#include "native/threads/threads.h"

namespace onegru {
namespace {

// A chunk is so long that handing it over takes little of its time. It is so short that the layers above soon have
// work, and that a fork, a signal and the caller wait for milliseconds at most.
constexpr std::size_t kMinSteps = 8, kMaxSteps = 64;
constexpr std::size_t kChunks = 16;
constexpr double kMaxFlopsOfChunk = 1.0e8;
// The number of chunks that a layer can be ahead of the layer above, and the number for which the layer above comes
// first.
constexpr std::size_t kChunksAhead = 32, kChunksOfLag = 4;
// The minimum FLOPs, measured, of a stack that is worth a pipeline.
constexpr double kMinFlops = 1.5e6;
constexpr std::size_t kMinChunks = 2;

std::size_t StepsOfChunk(const std::vector<StackedLayer>& layers) {
  const std::size_t T = layers[0].call.T;
  double most = 1;  // FLOPs of a step
  for (const StackedLayer& layer : layers) {
    most = std::max(most, Flops(layer.packed->spec(), layer.call) / static_cast<double>(T));
  }
  const auto steps = static_cast<std::size_t>(std::max(kMaxFlopsOfChunk / most, 1.0));
  return std::min(steps, std::clamp(T / kChunks, kMinSteps, kMaxSteps));
}

// A call of all layers, in chunks of steps. Helpers access the caller's memory only in windows, one for each chunk.
class Pipeline final : public Job {
 public:
  Pipeline(const std::vector<StackedLayer>& layers, std::size_t threads, CancellationToken* token)
      : T_(layers[0].call.T),
        chunk_(StepsOfChunk(layers)),
        large_lag_(layers.size() > threads ? kChunksOfLag * chunk_ : T_ + 1),
        token_(token) {
    const std::size_t ring_steps = std::min((T_ + chunk_ - 1) / chunk_, kChunksAhead) * chunk_;
    Rows below = layers[0].call.X;
    for (const StackedLayer& layer : layers) {
      stages_.push_back(std::make_unique<Stage>(layer, below, &layer == &layers.back() ? 0 : ring_steps));
      below = stages_.back()->call.Y;
    }
  }

  // Computes all chunks that no helper computes.
  void Lead() {
    const DefaultFloatMode mode;
    std::size_t mine = 0;
    for (Spin spin; !IsOver();) {
      if (ComputeChunk(mine)) {
        spin = {};
      } else {
        spin.OnceOrNap();
      }
      if (token_ == nullptr) continue;
      token_->Ask();
      if (token_->stopped()) break;
    }
    is_closed_.store(true, std::memory_order_seq_cst);
    for (Spin spin; helping_.load(std::memory_order_seq_cst) != 0;) spin.OnceOrNap();
  }

  void Help() override {
    const DefaultFloatMode mode;
    std::size_t mine = 0;
    for (Spin spin; !is_closed_.load(std::memory_order_acquire);) {
      Window::Open();
      helping_.fetch_add(1, std::memory_order_seq_cst);
      MayStall();
      const bool helped = !is_closed_.load(std::memory_order_seq_cst) && ComputeChunk(mine);
      helping_.fetch_sub(1, std::memory_order_release);
      Window::Close();
      if (helped) {
        spin = {};
      } else {
        spin.OnceOrNap();
      }
    }
  }

 private:
  struct Stage {
    // steps: of the ring of outputs that the layer above reads; 0 for the last layer, which writes all steps.
    Stage(const StackedLayer& layer, const Rows& X, std::size_t steps)
        : packed(layer.packed),
          ring_steps(steps),
          call(layer.call),
          ring(AllocateAligned(steps * call.B * row_bytes())),
          memory(AllocateAligned(StreamCalls::Bytes(*packed, call.B))),
          calls(*packed, memory.get()) {
      call.X = X;
      if (ring_steps != 0) call.Y = ContiguousRows(ring.get(), "TB", ring_steps, 1, call.B, row_bytes());
      calls.next() = call;
    }

    std::size_t row_bytes() const { return packed->spec().H * SizeOf(packed->spec().type); }
    // Returns the outputs of the steps from `step` on.
    char* OutputsAt(std::size_t step) const { return call.Y.at(ring_steps == 0 ? step : step % ring_steps, 0, 0); }

    const std::shared_ptr<const Packed> packed;
    const std::size_t ring_steps;
    Call call;
    const AlignedBytes ring, memory;
    StreamCalls calls;
    std::atomic<bool> is_busy{false};
    std::atomic<std::size_t> done{0};  // steps
  };

  bool IsOver() const { return stages_.back()->done.load(std::memory_order_acquire) == T_; }

  // Computes a chunk. Returns false if no layer has one. With more layers than threads, a layer with a large lag comes
  // first, so that all threads have work until the end. Otherwise it is the layer `mine`, because its weights are in
  // this thread's cache.
  bool ComputeChunk(std::size_t& mine) noexcept {
    return ComputeOther(mine, large_lag_) || ComputeChunkOf(mine) || ComputeOther(mine, 0);
  }

  // Computes a chunk of the highest layer whose lag is at least `least_lag` steps, and makes this layer `mine`.
  bool ComputeOther(std::size_t& mine, std::size_t least_lag) {
    for (std::size_t i = stages_.size(); i-- > 0;) {
      if (i != mine && StepsOfLag(i) >= least_lag && ComputeChunkOf(i)) return mine = i, true;
    }
    return false;
  }

  // Returns the number of steps of the layer below that this layer has not read yet.
  std::size_t StepsOfLag(std::size_t index) const {
    const std::size_t done = stages_[index]->done.load(std::memory_order_relaxed);
    return index == 0 ? 0 : stages_[index - 1]->done.load(std::memory_order_relaxed) - done;
  }

  bool ComputeChunkOf(std::size_t index) {
    Stage& stage = *stages_[index];
    if (StepsReady(index) == 0 || stage.is_busy.exchange(true, std::memory_order_acquire)) return false;
    const std::size_t steps = StepsReady(index), begin = stage.done.load(std::memory_order_relaxed);
    if (steps != 0) {
      Call& chunk = stage.calls.next();
      chunk.T = steps;
      chunk.X.data = index == 0 ? stage.call.X.at(begin, 0, 0) : stages_[index - 1]->OutputsAt(begin);
      chunk.Y.data = stage.OutputsAt(begin);
      chunk.sweep_parity = static_cast<unsigned>(begin);
      stage.calls.Run();
      stage.done.store(begin + steps, std::memory_order_release);
    }
    stage.is_busy.store(false, std::memory_order_release);
    return steps != 0;
  }

  // Returns the steps of a layer's next chunk; 0 if it must wait for the layer below or above.
  std::size_t StepsReady(std::size_t index) const {
    const Stage& stage = *stages_[index];
    const std::size_t done = stage.done.load(std::memory_order_relaxed), steps = std::min(chunk_, T_ - done);
    const std::size_t below = index == 0 ? T_ : stages_[index - 1]->done.load(std::memory_order_acquire);
    if (below - done < steps) return 0;
    if (stage.ring_steps == 0) return steps;
    const std::size_t above = stages_[index + 1]->done.load(std::memory_order_acquire);
    return done + chunk_ - above <= stage.ring_steps ? steps : 0;
  }

  const std::size_t T_, chunk_, large_lag_;  // steps
  CancellationToken* const token_;           // only for the thread that made the call
  std::vector<std::unique_ptr<Stage>> stages_;
  std::atomic<bool> is_closed_{false};
  std::atomic<std::size_t> helping_{0};  // helpers that may compute a chunk
};

}  // namespace

std::size_t PipelineThreads(const std::vector<StackedLayer>& layers) {
  const std::size_t threads = std::min(layers.size(), UncontendedThreads());
  if (threads < 2 || layers[0].call.T < kMinChunks * kMinSteps) return 1;
  double flops = 0;
  for (const StackedLayer& layer : layers) {
    flops += Flops(layer.packed->spec(), layer.call);
    const bool shares_rows = MakePlan(*layer.packed, layer.call, threads).row_groups > 1;
    if (shares_rows || GainsFromSplitting(layer.packed->spec())) return 1;
  }
  return flops < kMinFlops ? 1 : threads;
}

void RunPipeline(const std::vector<StackedLayer>& layers, std::size_t threads, CancellationToken* token) {
  Pipeline* const pipeline = new Pipeline(layers, threads, token);
  {
    const Invitation invitation(*pipeline, threads - 1, true, {});
    pipeline->Lead();
  }
  pipeline->Unref();
}

}  // namespace onegru
