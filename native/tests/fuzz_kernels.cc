// Compares layers and calls from random bytes with their exact solutions.

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "native/float_mode.h"
#include "native/targets/targets.h"
#include "native/tests/fuzz.h"
#include "native/tests/system.h"
#include "native/threads/threads.h"

namespace onegru {
namespace {

// Stops a call after a number of polls.
class Stopper final : public CancellationToken {
 public:
  Stopper(std::int64_t work, std::size_t at) : CancellationToken(work), at_(at) {}

 private:
  bool ShouldStop() override { return asked_++ == at_; }

  const std::size_t at_;
  std::size_t asked_ = 0;
};

// A pool of one thread that runs its tasks forwards or backwards.
void RunInOrder(void*, std::size_t count, void (*task)(void*, std::size_t), void* data) {
  for (std::size_t i = 0; i < count; ++i) task(data, i);
}
void RunBackwards(void*, std::size_t count, void (*task)(void*, std::size_t), void* data) {
  while (count-- > 0) task(data, count);
}

// A pool with a thread for each task.
void RunAtOnce(void*, std::size_t count, void (*task)(void*, std::size_t), void* data) {
  OnThreads(count, [&](std::size_t i) { task(data, i); });
}

// Whether unpacked matrices equal the original ones, rounded once; for int8, to the steps of their channels.
template <class C>
bool Unpacks(const Problem& p, const Packed& packed) {
  std::vector<C> W(p.W.size()), R(p.R.size());
  packed.Unpack(W.data(), R.data());
  const auto same = [&](double given, C found) {
    const C expected = static_cast<C>(Rounded(p.spec.storage, given));
    return std::memcmp(&expected, &found, sizeof(C)) == 0 || (expected != expected && found != found);
  };
  const auto near = [](const std::vector<double>& given, const std::vector<C>& found, std::size_t inputs) {
    for (std::size_t at = 0; at < given.size(); ++at) {
      const auto row = given.begin() + static_cast<std::ptrdiff_t>(at / inputs * inputs);
      double largest = kMinRange;
      bool is_finite = true;
      for (std::size_t k = 0; k < inputs; ++k) {
        largest = std::max(largest, std::abs(row[k]));
        is_finite = is_finite && std::isfinite(row[k]);
      }
      if (is_finite && !(std::abs(given[at] - static_cast<double>(found[at])) <= largest / 127 * 0.5001)) {
        return false;
      }
    }
    return true;
  };
  if (p.spec.storage == ElementType::kInt8) return near(p.W, W, p.spec.I) && near(p.R, R, p.spec.H);
  return std::equal(p.W.begin(), p.W.end(), W.begin(), same) && std::equal(p.R.begin(), p.R.end(), R.begin(), same);
}

#if defined(__x86_64__)
constexpr std::uint32_t kOtherModes[] = {0x8040, 0x2000, 0x6000};  // subnormals are zero; rounds down; to zero
#elif defined(__wasm__)
constexpr std::uint32_t kOtherModes[] = {0};
#else
constexpr std::uint32_t kOtherModes[] = {0x1000000, 0x800000, 0xc00000};
#endif

struct Way {
  std::size_t threads;
  const ForeignPool* pool;
  CancellationToken* token;
  std::uint32_t mode;
};

Result RunIn(const Way& way, const Problem& p, const std::shared_ptr<const Packed>& packed, const char* target) {
  SetNumThreads(way.threads);
  g_events.wakes_all = true;  // because nearly all calls here are too short to wake a helper
  const std::uint32_t before = GetFloatMode(), mode = before | way.mode;
  SetFloatMode(mode);
  Result result = RunOnce(p, packed, way.pool, way.token);
  const bool kept = GetFloatMode() == mode;
  SetFloatMode(before);
  Require(kept, "the floating-point mode", p, target);
  return result;
}

bool SameBytes(const Array& array, const std::vector<unsigned char>& before) {
  return std::equal(before.begin(), before.end(), array.memory.get());
}

}  // namespace

void FuzzKernels(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, size);
  const std::size_t target = DrawTarget(bytes);
  const char* const name = CompiledTargets()[target].name;
  constexpr decltype(ForeignPool::run) kPools[] = {nullptr, &RunInOrder, &RunBackwards, &RunAtOnce};
  const ForeignPool pool{kPools[bytes.Below(std::size(kPools))], nullptr, 1 + bytes.Below(4)};
  Stopper stopper(bytes.OneIn(2) ? 1 : 100'000, bytes.Below(64));
  const bool stops = bytes.OneIn(4), fresh = bytes.OneIn(16);
  const std::size_t other_mode = bytes.Below(8);
  const Way way{1 + bytes.Below(4), pool.run == nullptr ? nullptr : &pool, stops ? &stopper : nullptr,
                other_mode < std::size(kOtherModes) ? kOtherModes[other_mode] : 0};
  const Problem p = DrawProblem(bytes);

  std::vector<unsigned char> inputs[3];
  const Array* const arrays[] = {&p.X, &p.initial_h, &p.attention};
  for (std::size_t i = 0; i < 3; ++i)
    inputs[i].assign(arrays[i]->memory.get(), arrays[i]->memory.get() + arrays[i]->bytes);
  const std::shared_ptr<const Packed> packed = Pack(p, target);
  const bool wide = p.spec.type == ElementType::kFloat64;
  Require(wide ? Unpacks<double>(p, *packed) : Unpacks<float>(p, *packed), "unpacking", p, name);

  Result result;
  if (fresh) {  // a new thread's scratch has exactly the size of this call, so that sanitizers detect errors
    OnThreads(1, [&](std::size_t) { result = RunIn(way, p, packed, name); });
  } else {
    result = RunIn(way, p, packed, name);
  }
  for (std::size_t i = 0; i < 3; ++i) Require(SameBytes(*arrays[i], inputs[i]), "inputs unchanged", p, name);
  if (stops && stopper.stopped()) {
    Require(result.Y.GapsUntouched() && result.Y_h.GapsUntouched(), "gaps of a stopped call", p, name);
    result = RunIn({way.threads, way.pool, nullptr, way.mode}, p, packed, name);
  }
  const Result expected = Exactly(p, target);
  Require(SameNumbers(result.Y, expected.Y), "the bits of Y", p, name);
  Require(SameNumbers(result.Y_h, expected.Y_h), "the bits of Y_h", p, name);
  Require(SameNumbers(result.state, expected.state), "the bits of states", p, name);
}

}  // namespace onegru
