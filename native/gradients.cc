#include "native/gradients.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "native/assert.h"
#include "native/float_mode.h"
#include "native/kernel.h"
#include "native/memory_pool.h"
#include "native/plan.h"
#include "native/threads/tasks.h"
#include "native/threads/threads.h"

namespace onegru {
namespace {

// The memory of a chunk's buffers, so that they stay in cache.
constexpr std::size_t kBytesOfChunk = std::size_t{3} << 19;
// The least rows of a chunk, because all sums of the weights' gradients are loaded and stored once per chunk.
constexpr std::size_t kMinRows = 256;
// From this many FLOPs on it pays to share a task.
constexpr double kFlopsToShare = 4.0e5;
constexpr std::size_t kLine = 64;

// Cuts memory into parts.
class Parts {
 public:
  std::size_t Take(std::size_t size) {
    const std::size_t at = bytes;
    bytes += (size + 127) / 128 * 128;
    return at;
  }
  std::size_t bytes = 0;
};

// The gradients of one direction.
class Direction {
 public:
  Direction(const Packed& packed, const GradientCall& call, std::size_t d)
      : packed_(packed),
        call_(call),
        spec_(packed.spec()),
        kernel_(GradientKernelFor(spec_.type, packed.target())),
        d_(d),
        size_(ComputedSize(spec_.type)),
        lanes_(kernel_.lanes),
        h_(Padded(spec_.H)),
        x_(Padded(spec_.I)) {
    order_.resize(call.B);
    std::iota(order_.begin(), order_.end(), 0);
    if (call.lengths != nullptr) {
      std::stable_sort(order_.begin(), order_.end(),
                       [&](std::int32_t a, std::int32_t b) { return call.lengths[a] > call.lengths[b]; });
    }
    steps_ = call.B == 0 ? 0 : Length(0);
    const std::size_t row = (x_ + (call_.gates.data == nullptr ? 9 : 5) * h_) * size_;
    const std::size_t rows = std::max(kBytesOfChunk / row, kMinRows);
    chunk_steps_ =
        std::min(std::max<std::size_t>(rows / std::max<std::size_t>(call.B, 1), 1), std::max<std::size_t>(steps_, 1));
    chunk_rows_ = chunk_steps_ * call.B;
    const double work = static_cast<double>(steps_) * static_cast<double>(call.B) * 6.0 * static_cast<double>(spec_.H) *
                        static_cast<double>(spec_.I + spec_.H);
    threads_ = work < kFlopsToShare ? 1 : UncontendedThreads();
  }

  void Run() {
    if (steps_ == 0) return;
    Allocate();
    std::size_t end = steps_;
    while (end != 0) {
      const std::size_t begin = (end - 1) / chunk_steps_ * chunk_steps_;
      Chunk(begin, end);
      end = begin;
    }
    const auto& by = call_.by[d_];
    const GateOrder& order = call_.order;
    const std::size_t places[] = {order.z, order.r, order.n};
    const std::size_t last = spec_.linear_before_reset ? 3 : 0;
    if (by.W != nullptr) Unpad(dW_, {1, 2, 0}, places, spec_.H, h_, spec_.I, x_, by.W);
    if (by.R != nullptr) Unpad(dR_, {0, 1, 2}, places, spec_.H, h_, spec_.H, h_, by.R);
    if (by.Wb != nullptr) Unpad(dB_, {1, 2, 0}, places, 1, 1, spec_.H, h_, by.Wb);
    if (by.Rb != nullptr) Unpad(dB_, {1, 2, last}, places, 1, 1, spec_.H, h_, by.Rb);
  }

 private:
  std::size_t Padded(std::size_t units) const { return (units + lanes_ - 1) / lanes_ * lanes_; }
  std::size_t Length(std::size_t slot) const {
    return call_.lengths == nullptr ? call_.T : static_cast<std::size_t>(call_.lengths[order_[slot]]);
  }
  // An odd number of cache lines from one row to the next, so that columns do not share sets of a cache.
  std::size_t Stride(std::size_t numbers) const {
    std::size_t lines = (numbers * size_ + kLine - 1) / kLine;
    lines += lines % 2 == 0;
    return lines * kLine / size_;
  }

  void Allocate() {
    chunk_.packed = &packed_;
    chunk_.call = &call_;
    chunk_.d = d_;
    chunk_.order = order_.data();
    chunk_.stride_x = Stride(x_);
    chunk_.stride_h = Stride(h_);
    chunk_.stride_s = Stride(kSavedGates * h_);
    chunk_.stride_g = Stride(4 * h_);
    chunk_.begin = 0;
    chunk_.end = chunk_steps_;
    const bool after = spec_.linear_before_reset;
    groups_ = std::min(threads_, call_.B);
    // The two stages take turns.
    scratch_size_ = std::max(kernel_.scratch_size(chunk_, (call_.B + groups_ - 1) / groups_),
                             (kernel_.weights_scratch_size(chunk_, chunk_rows_) + kLine - 1) / kLine * kLine);
    Parts parts;
    const std::size_t x = parts.Take(chunk_rows_ * chunk_.stride_x * size_);
    const std::size_t h = parts.Take(chunk_rows_ * chunk_.stride_h * size_);
    const bool is_saved = call_.gates.data != nullptr;
    const std::size_t s = parts.Take(is_saved ? 0 : chunk_rows_ * chunk_.stride_s * size_);
    const std::size_t g = parts.Take(chunk_rows_ * chunk_.stride_g * size_);
    const std::size_t dh = parts.Take(call_.B * h_ * size_);
    const std::size_t by_h = parts.Take(kernel_.packed_size((after ? 3 : 2) * h_, spec_.H));
    const std::size_t by_x = parts.Take(call_.dX.data == nullptr ? 0 : kernel_.packed_size(3 * h_, spec_.I));
    const std::size_t by_rh = parts.Take(after ? 0 : kernel_.packed_size(h_, spec_.H));
    const std::size_t dW = parts.Take(3 * h_ * x_ * size_), dR = parts.Take(3 * h_ * h_ * size_);
    const std::size_t dB = parts.Take(4 * h_ * size_), scratch = parts.Take(threads_ * scratch_size_);
    memory_ = AllocatePooled(parts.bytes + 256);  // loads of full vectors may read past the end
    unsigned char* const base = memory_.get();
    chunk_.x = base + x;
    chunk_.h = base + h;
    chunk_.s = base + s;
    gates_.resize(chunk_rows_);
    chunk_.gates = gates_.data();
    chunk_.g = base + g;
    chunk_.dh = base + dh;
    chunk_.dW = dW_ = base + dW;
    chunk_.dR = dR_ = base + dR;
    chunk_.dB = dB_ = base + dB;
    scratch_ = base + scratch;
    const GivenWeights& weights = call_.weights[d_];
    const GateOrder& order = call_.order;
    const std::size_t of_R[] = {order.z, order.r, order.n}, of_W[] = {order.n, order.z, order.r};
    kernel_.pack(weights.R, spec_.H, spec_.H, of_R, after ? 3 : 2, base + by_h);
    if (call_.dX.data != nullptr) kernel_.pack(weights.W, spec_.H, spec_.I, of_W, 3, base + by_x);
    if (!after) kernel_.pack(weights.R, spec_.H, spec_.H, &order.n, 1, base + by_rh);
    chunk_.by_h = base + by_h;
    chunk_.by_x = base + by_x;
    chunk_.by_rh = base + by_rh;
  }

  void Chunk(std::size_t begin, std::size_t end) {
    active_.clear();
    first_.clear();
    std::size_t rows = 0, active = call_.B;
    for (std::size_t step = begin; step < end; ++step) {
      while (active > 0 && Length(active - 1) <= step) --active;
      active_.push_back(active);
      first_.push_back(rows);
      rows += active;
    }
    chunk_.begin = begin;
    chunk_.end = end;
    chunk_.active = active_.data();
    chunk_.first = first_.data();
    chunk_.rows = rows;
    ForEach(groups_, threads_, [&](std::size_t i) {
      kernel_.rows(chunk_, call_.B * i / groups_, call_.B * (i + 1) / groups_, scratch_ + i * scratch_size_);
    });
    const auto& by = call_.by[d_];
    if (by.W == nullptr && by.R == nullptr && by.Wb == nullptr && by.Rb == nullptr) return;
    const std::size_t panel = 3 * lanes_, panels = (x_ + panel - 1) / panel + (h_ + panel - 1) / panel;
    const std::size_t tasks = std::min(panels, threads_);
    ForEach(tasks, threads_, [&](std::size_t i) {
      kernel_.weights(chunk_, panels * i / tasks, panels * (i + 1) / tasks, scratch_ + i * scratch_size_);
    });
  }

  // Copies z, r and n, blocks of rows at `from`, to their places, without the padding.
  void Unpad(const void* from, const std::size_t (&blocks)[3], const std::size_t (&places)[3], std::size_t rows,
             std::size_t padded_rows, std::size_t columns, std::size_t padded, void* to) const {
    for (std::size_t gate = 0; gate < 3; ++gate) {
      const char* row = static_cast<const char*>(from) + blocks[gate] * padded_rows * padded * size_;
      char* at = static_cast<char*>(to) + places[gate] * rows * columns * size_;
      for (std::size_t i = 0; i < rows; ++i, row += padded * size_, at += columns * size_) {
        std::memcpy(at, row, columns * size_);
      }
    }
  }

  const Packed& packed_;
  const GradientCall& call_;
  const Spec& spec_;
  const GradientKernel& kernel_;
  const std::size_t d_, size_, lanes_, h_, x_;
  std::vector<std::int32_t> order_;
  std::vector<std::size_t> active_, first_;
  std::vector<void*> gates_;
  std::size_t steps_ = 0, chunk_steps_ = 0, chunk_rows_ = 0, threads_ = 1, groups_ = 1, scratch_size_ = 0;
  PooledBytes memory_;
  GradientChunk chunk_{};
  void *dW_ = nullptr, *dR_ = nullptr, *dB_ = nullptr;
  unsigned char* scratch_ = nullptr;
};

}  // namespace

void RunSaving(const std::shared_ptr<const Packed>& packed, const Call& call) {
  const std::size_t parts = Flops(packed->spec(), call) < kFlopsToShare
                                ? 1
                                : std::min(UncontendedThreads(), std::max<std::size_t>(call.B, 1));
  ForEach(parts, parts, [&](std::size_t i) {
    const std::size_t begin = call.B * i / parts;
    Call part = call;
    part.B = call.B * (i + 1) / parts - begin;
    for (Rows* const rows : {&part.X, &part.initial_h, &part.attention, &part.Y, &part.Y_h, &part.gates}) {
      if (rows->data != nullptr) rows->data = rows->at(0, 0, begin);
    }
    if (part.lengths != nullptr) part.lengths += begin;
    onegru::Run(packed, part);
  });
}

void Gradients(const Packed& packed, const GradientCall& call) {
  const DefaultFloatMode mode;
  for (std::size_t d = 0; d < packed.spec().D; ++d) Direction(packed, call, d).Run();
}

}  // namespace onegru
