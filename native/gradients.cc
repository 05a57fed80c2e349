#include "native/gradients.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "native/assert.h"
#include "native/float_mode.h"
#include "native/kernel.h"
#include "native/memory_pool.h"
#include "native/separate_rows.h"
#include "native/plan.h"
#include "native/threads/tasks.h"
#include "native/threads/threads.h"

namespace onegru {
namespace {

// The bytes of a chunk's buffers, few enough to stay in the cache.
constexpr std::size_t kBytesOfChunk = std::size_t{3} << 19;
// The minimum rows of a chunk, because each chunk loads and stores all sums of the weight gradients once.
constexpr std::size_t kMinRows = 256;
// The minimum FLOPs of a call that is worth sharing.
constexpr double kFlopsToShare = 4.0e5;
constexpr std::size_t kLine = 64;

// Returns the number of steps of the longest row.
std::size_t StepsOf(const GradientCall& call) {
  if (call.B == 0 || call.lengths == nullptr) return call.B == 0 ? 0 : call.T;
  return static_cast<std::size_t>(*std::max_element(call.lengths, call.lengths + call.B));
}

// Computes the gradients of one direction, in chunks of steps from the last to the first. A chunk has two stages. The
// tasks of a stage can run in parallel, also with those of the other direction.
class Direction {
 public:
  // most_tasks: of a stage.
  Direction(const Packed& packed, const GradientCall& call, std::size_t d, std::size_t most_tasks)
      : packed_(packed),
        call_(call),
        spec_(packed.spec()),
        kernel_(GradientKernelFor(spec_.type, packed.target())),
        d_(d),
        size_(ComputedSize(spec_.type)),
        lanes_(kernel_.lanes),
        h_(Padded(spec_.H)),
        x_(Padded(spec_.I)),
        most_tasks_(most_tasks) {
    order_.resize(call.B);
    std::iota(order_.begin(), order_.end(), 0);
    if (call.lengths != nullptr) {
      std::stable_sort(order_.begin(), order_.end(),
                       [&](std::int32_t a, std::int32_t b) { return call.lengths[a] > call.lengths[b]; });
    }
    steps_ = StepsOf(call);
    const std::size_t row = (x_ + (call_.gates.data == nullptr ? 9 : 5) * h_) * size_;
    const std::size_t rows = std::max(kBytesOfChunk / row, kMinRows);
    chunk_steps_ =
        std::min(std::max<std::size_t>(rows / std::max<std::size_t>(call.B, 1), 1), std::max<std::size_t>(steps_, 1));
    chunk_rows_ = chunk_steps_ * call.B;
    end_ = steps_;
    if (steps_ != 0) Allocate();
  }

  // Prepares the next chunk. Returns false after the last.
  bool NextChunk() {
    if (end_ == 0) return false;
    const std::size_t begin = (end_ - 1) / chunk_steps_ * chunk_steps_;
    active_.clear();
    first_.clear();
    std::size_t rows = 0, active = call_.B;
    for (std::size_t step = begin; step < end_; ++step) {
      while (active > 0 && Length(active - 1) <= step) --active;
      active_.push_back(active);
      first_.push_back(rows);
      rows += active;
    }
    chunk_.begin = begin;
    chunk_.end = end_;
    chunk_.active = active_.data();
    chunk_.first = first_.data();
    chunk_.rows = rows;
    end_ = begin;
    return true;
  }

  std::size_t row_tasks() const { return groups_; }
  void RunRows(std::size_t i) const {
    kernel_.rows(chunk_, call_.B * i / groups_, call_.B * (i + 1) / groups_, scratch_ + i * scratch_size_);
  }

  std::size_t weight_tasks() const {
    const auto& to = call_.d_weights[d_];
    const bool wanted = to.W != nullptr || to.R != nullptr || to.Wb != nullptr || to.Rb != nullptr;
    return wanted ? std::min(strips(), most_tasks_) : 0;
  }
  void RunWeights(std::size_t i) const {
    const std::size_t tasks = weight_tasks();
    if (i >= tasks) return;  // the other direction has more tasks
    kernel_.weights(chunk_, strips() * i / tasks, strips() * (i + 1) / tasks, scratch_ + i * scratch_size_);
  }

  // Writes the weight gradients.
  void Finish() const {
    if (steps_ == 0) return;
    const auto& to = call_.d_weights[d_];
    const GateOrder& order = call_.order;
    const std::size_t places[] = {order.z, order.r, order.n};
    const std::size_t n_by_h = spec_.linear_before_reset ? kGradientQ : kGradientN;
    if (to.W != nullptr) Unpad(dW_, {kGradientZ, kGradientR, kGradientN}, places, spec_.H, h_, spec_.I, x_, to.W);
    if (to.R != nullptr) Unpad(dR_, {0, 1, 2}, places, spec_.H, h_, spec_.H, h_, to.R);  // dR has z, r, n
    if (to.Wb != nullptr) Unpad(dB_, {kGradientZ, kGradientR, kGradientN}, places, 1, 1, spec_.H, h_, to.Wb);
    if (to.Rb != nullptr) Unpad(dB_, {kGradientZ, kGradientR, n_by_h}, places, 1, 1, spec_.H, h_, to.Rb);
  }

 private:
  std::size_t Padded(std::size_t units) const { return (units + lanes_ - 1) / lanes_ * lanes_; }
  std::size_t strips() const {
    const std::size_t strip = 3 * lanes_;
    return (x_ + strip - 1) / strip + (h_ + strip - 1) / strip;
  }
  std::size_t Length(std::size_t slot) const {
    return call_.lengths == nullptr ? call_.T : static_cast<std::size_t>(call_.lengths[order_[slot]]);
  }
  // Returns the stride of rows: an odd number of cache lines, so that columns do not map to the same cache sets.
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
    chunk_.stride_g = Stride(kGradientGates * h_);
    chunk_.begin = 0;
    chunk_.end = chunk_steps_;
    const bool after = spec_.linear_before_reset;
    groups_ = std::min(most_tasks_, call_.B);
    // The stages run one after the other, so they share this memory.
    scratch_size_ = std::max(kernel_.scratch_size(chunk_, (call_.B + groups_ - 1) / groups_),
                             RoundUpTo(kLine, kernel_.weights_scratch_size(chunk_, chunk_rows_)));
    MemoryLayout layout;
    const std::size_t x = layout.Reserve(chunk_rows_ * chunk_.stride_x * size_);
    const std::size_t h = layout.Reserve(chunk_rows_ * chunk_.stride_h * size_);
    const bool is_saved = call_.gates.data != nullptr;
    const std::size_t s = layout.Reserve(is_saved ? 0 : chunk_rows_ * chunk_.stride_s * size_);
    const std::size_t g = layout.Reserve(chunk_rows_ * chunk_.stride_g * size_);
    const std::size_t dh = layout.Reserve(call_.B * h_ * size_);
    const std::size_t packed_R = layout.Reserve(kernel_.packed_size((after ? 3 : 2) * h_, spec_.H));
    const std::size_t packed_W = layout.Reserve(call_.dX.data == nullptr ? 0 : kernel_.packed_size(3 * h_, spec_.I));
    const std::size_t packed_Rh = layout.Reserve(after ? 0 : kernel_.packed_size(h_, spec_.H));
    const std::size_t dW = layout.Reserve(3 * h_ * x_ * size_), dR = layout.Reserve(3 * h_ * h_ * size_);
    const std::size_t dB = layout.Reserve(kGradientGates * h_ * size_),
                      scratch = layout.Reserve(most_tasks_ * scratch_size_);
    memory_ = AllocatePooled(layout.bytes + 256);  // loads of full vectors may read past the end
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
    kernel_.pack(weights.R, spec_.H, spec_.H, of_R, after ? 3 : 2, base + packed_R);
    if (call_.dX.data != nullptr) kernel_.pack(weights.W, spec_.H, spec_.I, of_W, 3, base + packed_W);
    if (!after) kernel_.pack(weights.R, spec_.H, spec_.H, &order.n, 1, base + packed_Rh);
    chunk_.packed_R = base + packed_R;
    chunk_.packed_W = base + packed_W;
    chunk_.packed_Rh = base + packed_Rh;
  }

  // Copies z, r and n, blocks of rows at `from`, to their positions, without the padding.
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
  const std::size_t d_, size_, lanes_, h_, x_, most_tasks_;
  std::vector<std::int32_t> order_;
  std::vector<std::size_t> active_, first_;
  std::vector<void*> gates_;
  std::size_t steps_ = 0, end_ = 0, chunk_steps_ = 0, chunk_rows_ = 0, groups_ = 1, scratch_size_ = 0;
  PooledBytes memory_;
  GradientChunk chunk_{};
  void *dW_ = nullptr, *dR_ = nullptr, *dB_ = nullptr;
  unsigned char* scratch_ = nullptr;
};

// Computes one direction, or two with the same steps in parallel.
void RunTogether(Direction& first, Direction* second, std::size_t threads) {
  const std::size_t count = second == nullptr ? 1 : 2;
  const auto direction = [&](std::size_t i) -> Direction& { return i % count == 0 ? first : *second; };
  const std::size_t of_weights = std::max(first.weight_tasks(), direction(count - 1).weight_tasks());
  for (;;) {
    for (std::size_t d = 0; d < count; ++d) {
      if (!direction(d).NextChunk()) return;
    }
    ParallelFor(count * first.row_tasks(), threads, [&](std::size_t i) { direction(i).RunRows(i / count); });
    ParallelFor(count * of_weights, threads, [&](std::size_t i) { direction(i).RunWeights(i / count); });
  }
}

// Returns the number of tasks per direction that keeps all threads busy with both.
std::size_t TasksOfEach(std::size_t threads) { return threads % 2 == 0 ? threads / 2 : threads; }

template <class C>
void RunBoth(const Packed& packed, const GradientCall& call, std::size_t threads) {
  GradientCall of_second = call;
  std::optional<SeparateRows<C>> dX, d_attention;
  if (call.dX.data != nullptr) dX.emplace(call.T, call.B, packed.spec().I, &of_second.dX);
  if (call.d_attention.data != nullptr) d_attention.emplace(call.T, call.B, 1, &of_second.d_attention);
  Direction first(packed, call, 0, TasksOfEach(threads)), second(packed, of_second, 1, TasksOfEach(threads));
  RunTogether(first, &second, threads);
  first.Finish();
  second.Finish();
  if (dX) dX->AddToShared();
  if (d_attention) d_attention->AddToShared();
}

}  // namespace

void RunSaving(const std::shared_ptr<const Packed>& packed, const Call& call) {
  const std::size_t threads = Flops(packed->spec(), call) < kFlopsToShare ? 1 : UncontendedThreads();
  const std::size_t directions = threads == 1 ? 1 : packed->spec().D;
  const std::size_t groups =
      std::min(directions == 1 ? threads : TasksOfEach(threads), std::max<std::size_t>(call.B, 1));
  ParallelFor(directions * groups, threads, [&](std::size_t i) {
    const std::size_t group = i / directions, begin = call.B * group / groups;
    Call part = call;
    part.B = call.B * (group + 1) / groups - begin;
    for (Rows* const rows : {&part.X, &part.initial_h, &part.attention, &part.Y, &part.Y_h, &part.gates}) {
      if (rows->data != nullptr) rows->data = rows->at(0, 0, begin);
    }
    if (part.lengths != nullptr) part.lengths += begin;
    if (directions == 1) return onegru::Run(packed, part);
    RunDirection(*packed, part, i % directions);
  });
}

void Gradients(const Packed& packed, const GradientCall& call) {
  const DefaultFloatMode mode;
  const Spec& spec = packed.spec();
  const std::size_t steps = StepsOf(call);
  const double work = static_cast<double>(steps) * static_cast<double>(call.B) * 6.0 * static_cast<double>(spec.H) *
                      static_cast<double>(spec.I + spec.H);
  const std::size_t threads = work < kFlopsToShare ? 1 : UncontendedThreads();
  if (spec.D == 2 && threads > 1) {
    return spec.type == ElementType::kFloat64 ? RunBoth<double>(packed, call, threads)
                                              : RunBoth<float>(packed, call, threads);
  }
  for (std::size_t d = 0; d < spec.D; ++d) {
    Direction direction(packed, call, d, threads);
    RunTogether(direction, nullptr, threads);
    direction.Finish();
  }
}

}  // namespace onegru
