#include "native/pipeline.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>

#include "native/float_mode.h"
#include "native/plan.h"
#include "native/threads/tasks.h"
#include "native/threads/threads.h"

namespace onegru {
namespace {

// A chunk is long enough that handing it over takes little of its time, and short enough that the layers above soon
// have work.
constexpr std::size_t kMinSteps = 8, kMaxSteps = 64;
constexpr std::size_t kChunks = 16;
// The measured least FLOPs of a stack that is worth a pipeline.
constexpr double kMinFlops = 1.5e6;
constexpr std::size_t kMinChunks = 2;

std::size_t StepsOfChunk(std::size_t T) { return std::clamp(T / kChunks, kMinSteps, kMaxSteps); }

class Pipeline {
 public:
  Pipeline(const std::vector<StackedLayer>& layers, CancellationToken* token)
      : T_(layers[0].call.T), chunk_(StepsOfChunk(T_)), token_(token), caller_(std::this_thread::get_id()) {
    for (const StackedLayer& layer : layers) stages_.push_back(std::make_unique<Stage>(layer));
  }

  // Computes chunks until none is left, on each thread that takes part.
  void Work() {
    std::size_t mine = 0;
    for (Spin spin; !IsOver();) {
      if (ComputeChunk(mine)) {
        spin = {};
      } else {
        spin.OnceOrNap();
      }
      if (token_ != nullptr && std::this_thread::get_id() == caller_) token_->Ask();
    }
  }

 private:
  struct Stage {
    explicit Stage(const StackedLayer& layer)
        : call(layer.call),
          memory(AllocateAligned(StreamCalls::Bytes(*layer.packed, call.B))),
          calls(*layer.packed, memory.get()) {
      calls.next() = call;
    }

    const Call& call;
    AlignedBytes memory;
    StreamCalls calls;
    std::atomic<bool> is_busy{false};
    std::atomic<std::size_t> done{0};  // steps
  };

  bool IsOver() const {
    return stages_.back()->done.load(std::memory_order_acquire) == T_ || (token_ != nullptr && token_->stopped());
  }

  // Computes a chunk of the layer `mine`, whose weights are in this thread's cache, or else of the highest layer that
  // has work. Returns false if there is none.
  bool ComputeChunk(std::size_t& mine) {
    if (ComputeChunkOf(mine)) return true;
    for (std::size_t i = stages_.size(); i-- > 0;) {
      if (i != mine && ComputeChunkOf(i)) return mine = i, true;
    }
    return false;
  }

  bool ComputeChunkOf(std::size_t index) {
    Stage& stage = *stages_[index];
    if (StepsReady(index) == 0 || stage.is_busy.exchange(true, std::memory_order_acquire)) return false;
    const std::size_t steps = StepsReady(index), begin = stage.done.load(std::memory_order_relaxed);
    if (steps != 0) {
      Call& chunk = stage.calls.next();
      chunk.T = steps;
      chunk.X.data = stage.call.X.at(begin, 0, 0);
      chunk.Y.data = stage.call.Y.at(begin, 0, 0);
      chunk.sweep_parity = static_cast<unsigned>(begin);
      stage.calls.Run();
      stage.done.store(begin + steps, std::memory_order_release);
    }
    stage.is_busy.store(false, std::memory_order_release);
    return steps != 0;
  }

  // The steps of a layer's next chunk; 0 if the layer below is not as far.
  std::size_t StepsReady(std::size_t index) const {
    const std::size_t done = stages_[index]->done.load(std::memory_order_relaxed);
    const std::size_t below = index == 0 ? T_ : stages_[index - 1]->done.load(std::memory_order_acquire);
    const std::size_t steps = std::min(chunk_, T_ - done);
    return below - done >= steps ? steps : 0;
  }

  const std::size_t T_, chunk_;
  CancellationToken* const token_;
  const std::thread::id caller_;
  std::vector<std::unique_ptr<Stage>> stages_;
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

bool RunPipeline(const std::vector<StackedLayer>& layers, std::size_t threads, CancellationToken* token) {
  Pipeline pipeline(layers, token);
  const DefaultFloatMode mode;
  ForEach(threads, threads, [&](std::size_t) { pipeline.Work(); });
  return token == nullptr || !token->stopped();
}

}  // namespace onegru
