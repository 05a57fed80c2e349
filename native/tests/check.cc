// Compares random problems on every target of this CPU with plain loops in double.
//
//   check [PROBLEMS]
//   check --calls CALLS      the number of calls for each test of threads (check_threads.h)
//   check --at-exit THREADS  a call in an exit handler
//
// Each problem runs with 1…4 threads, which must give the same bits. Other runs are cancelled. Each target has a hash
// of the bits of all results. It must be the same for all targets with FMA on all machines, for all targets without
// FMA, and in int8 for all targets.

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "hwy/targets.h"
#include "native/runtimes/onnx_gru.h"
#include "native/targets/targets.h"
#include "native/tests/check_gradients.h"
#include "native/tests/check_pool.h"
#include "native/tests/check_threads.h"
#include "native/tests/fuzz.h"
#include "native/tests/problems.h"
#include "native/tests/system.h"

namespace onegru {
namespace {

constexpr std::size_t kMaxThreads = 4;

// Is polled as often as possible. Makes a nested call at the first poll, and stops the call at a later poll.
class Stopper final : public CancellationToken {
 public:
  Stopper(const Problem& p, const std::shared_ptr<const Packed>& packed, std::size_t at)
      : CancellationToken(1), p_(p), packed_(packed), at_(at) {}

  std::size_t asked() const { return asked_; }

 private:
  bool ShouldStop() override {
    if (asked_++ == 0) RunOnce(p_, packed_);
    return asked_ > at_;
  }

  const Problem& p_;
  const std::shared_ptr<const Packed> packed_;
  const std::size_t at_;
  std::size_t asked_ = 0;
};

bool Near(const Spec& spec, double found, double expected, ElementType type, double largest) {
  const double tolerance =
      4096 * Epsilon(ComputedType(spec.type)) * largest * largest + Epsilon(type) * std::abs(expected) + 0x1p-24;
  return std::abs(found - expected) <= tolerance;
}

bool Near(const Problem& p, const Result& result, const Expected& e) {
  const Spec& spec = p.spec;
  const std::size_t H = spec.H, D = spec.D, B = p.B;
  bool good = result.Y.GapsUntouched() && result.Y_h.GapsUntouched();
  const auto near = [&](double found, double expected, ElementType type) {
    good = good && Near(spec, found, expected, type, e.largest);
  };
  result.Y.ForEach([&](auto t, auto d, auto b, auto j) {
    near(result.Y.Get(t, d, b, j), e.Y[((t * D + d) * B + b) * H + j], spec.type);
  });
  result.Y_h.ForEach(
      [&](auto, auto d, auto b, auto j) { near(result.Y_h.Get(0, d, b, j), e.Y_h[(d * B + b) * H + j], spec.type); });
  if (!p.is_stream) return good;
  std::vector<bool> stepped(p.state.sizes[2]);
  for (std::size_t b = 0; b < B; ++b) {
    const auto row = static_cast<std::size_t>(p.state_rows[b]);
    stepped[row] = true;
    for (std::size_t j = 0; j < H; ++j) near(result.state.Get(0, 0, row, j), e.Y_h[b * H + j], p.state.type);
  }
  result.state.ForEach([&](auto, auto, auto row, auto j) {
    good = good && (stepped[row] || result.state.Get(0, 0, row, j) == p.state.Get(0, 0, row, j));
  });
  return good;
}

// Adds the bytes of every element to an FNV-1a hash.
void Hash(const Array& array, std::uint64_t& hash) {
  array.ForEach([&](auto t, auto d, auto b, auto i) {
    for (std::size_t k = 0; k < SizeOf(array.type); ++k)
      hash = (hash ^ static_cast<unsigned char>(array.At(t, d, b, i)[k])) * 0x100000001b3;
  });
}

// The hashes of a target: of float layers, of layers with int8 weights, and of those with bfloat16 weights and inputs.
struct Hashes {
  std::uint64_t of_float = 0xcbf29ce484222325, of_int8 = of_float, of_bfloat16 = of_float;
};

void CheckProblem(std::size_t number, std::vector<Hashes>& hashes) {
  const Problem p = MakeProblem(number);
  const bool is_int8 = p.spec.storage == ElementType::kInt8;
  const bool is_exact = is_int8 || p.spec.rounds_inputs;
  const Expected e = is_exact ? Expected{} : Plainly(p);
  const auto targets = CompiledTargets();
  for (std::size_t target = 0; target < targets.size(); ++target) {
    if (!IsAvailable(targets[target])) continue;
    const char* const name = targets[target].name;
    const std::shared_ptr<const Packed> packed = Pack(p, target);
    Result first;
    for (std::size_t threads = 1; threads <= kMaxThreads; ++threads) {
      SetNumThreads(threads);
      Result result = RunOnce(p, packed);
      if (threads == 1) {
        if (is_exact) {
          const Result exact = Exactly(p, target);
          Check(SameNumbers(result.Y, exact.Y) && SameNumbers(result.Y_h, exact.Y_h), "exact", number, name, threads);
          for (auto by = Int8ProductsOf(target); by > kMinInt8Products;) {
            by = static_cast<Int8Products>(static_cast<int>(by) - 1);
            LimitInt8Products(by);
            Check(SameBits(RunOnce(p, packed), result), "the same bits with other products", number, name, threads);
          }
          LimitInt8Products(Int8Products::kAmx);
        } else {
          Check(Near(p, result, e), "near", number, name, threads);
        }
        first = std::move(result);
      } else {
        Check(SameBits(result, first), "the same bits", number, name, threads);
      }
      if (number % 3 != 0 && number % 10 != 9) continue;
      Stopper never(p, packed, SIZE_MAX);
      Check(SameBits(RunOnce(p, packed, nullptr, &never), first), "the same bits, watched", number, name, threads);
      for (std::size_t part = 0; part < 4; ++part) {
        Stopper stopper(p, packed, never.asked() * part / 4);
        result = RunOnce(p, packed, nullptr, &stopper);
        Check(stopper.stopped() || SameBits(result, first), "stopped or done", number, name, threads);
      }
    }
    for (const Array* array : {&first.Y, &first.Y_h, &first.state}) {
      Hash(*array, is_int8                ? hashes[target].of_int8
                   : p.spec.rounds_inputs ? hashes[target].of_bfloat16
                                          : hashes[target].of_float);
    }
  }
}

// --- batches

// Checks that the bits of a row do not depend on the batch size.
void CheckRows(std::size_t target) {
  constexpr std::size_t kMaxRows = 40;
  const char* const name = CompiledTargets()[target].name;
  // 61, 245 and 809 have int8 weights in two planes, and reset before.
  for (const std::size_t number : {0, 1, 2, 3, 4, 5, 9, 19, 29, 39, 61, 245, 809, 1000002, 1000009}) {
    Problem p = MakeProblem(number);
    p.T = 3;
    p.has_lengths = p.is_stream = false;
    p.wants_Y = p.wants_Y_h = true;
    p.swapped = false;
    p.y_gap = 0;
    const auto packed = Pack(p, target);
    const auto with_rows = [&](std::size_t B) {
      Problem few = MakeProblem(number);
      few.spec = p.spec, few.T = p.T, few.B = B;
      few.has_lengths = few.is_stream = false, few.wants_Y = few.wants_Y_h = true, few.swapped = false, few.y_gap = 0;
      few.has_initial_h = true;
      Random same(number);
      few.X.Make(p.spec.type, p.T, 1, B, p.spec.I, 0, true);  // row by row, for the same numbers in each batch
      few.initial_h.Make(p.spec.type, 1, p.spec.D, B, p.spec.H, 0, true);
      few.attention.Make(p.spec.type, p.T, 1, B, 1, 0, true);
      for (std::size_t b = 0; b < B; ++b) {
        for (std::size_t t = 0; t < p.T; ++t) {
          for (std::size_t i = 0; i < p.spec.I; ++i) Store(p.spec.type, same.Unit(), few.X.At(t, 0, b, i));
          Store(p.spec.type, 0.5 + 0.5 * same.Unit(), few.attention.At(t, 0, b, 0));
        }
        for (std::size_t d = 0; d < p.spec.D; ++d) {
          for (std::size_t j = 0; j < p.spec.H; ++j) Store(p.spec.type, same.Unit(), few.initial_h.At(0, d, b, j));
        }
      }
      return RunOnce(few, packed);
    };
    SetNumThreads(1);
    const Result all = with_rows(kMaxRows);
#if !defined(__wasi__)
    const Stalling stalling;
#endif
    for (std::size_t B = 1; B < kMaxRows; ++B) {
      SetNumThreads(1 + B % 3);
      const Result some = with_rows(B);
      bool good = true;
      some.Y.ForEach([&](auto t, auto d, auto b, auto j) {
        good = good && std::memcmp(some.Y.At(t, d, b, j), all.Y.At(t, d, b, j), SizeOf(p.spec.type)) == 0;
      });
      some.Y_h.ForEach([&](auto t, auto d, auto b, auto j) {
        good = good && std::memcmp(some.Y_h.At(t, d, b, j), all.Y_h.At(t, d, b, j), SizeOf(p.spec.type)) == 0;
      });
      Check(good, "rows in batches of any size", number, name, B);
    }
  }
}

// Checks sums of the largest int8 weights and inputs. On targets that add both planes together, the sum of a group of
// more than 1040 weights exceeds 32 bits.
void CheckGroups(std::size_t target) {
  for (const std::size_t group : {0, 1040, 1044, 2048, 4096}) {
    Problem p;
    Spec& spec = p.spec;
    spec.I = 4096, spec.H = 24, spec.D = 1, spec.linear_before_reset = true, spec.clip = HUGE_VAL;
    spec.type = ElementType::kFloat32, spec.storage = ElementType::kInt8, spec.planes = 2, spec.group = group;
    spec.f[0] = {Function::kSigmoid, 0, 0}, spec.g[0] = {Function::kAffine, 1, 0};
    p.T = 1, p.B = 3;
    p.W.assign(3 * spec.H * spec.I, 1);
    p.R.assign(3 * spec.H * spec.H, 1);
    p.bias.assign(6 * spec.H, 0);
    std::fill_n(p.bias.begin(), spec.H, -2.0 * static_cast<double>(spec.I));  // z is 0, so that h is n
    p.X.Make(spec.type, p.T, 1, p.B, spec.I);
    p.X.ForEach([&](auto t, auto, auto b, auto i) { Store(spec.type, 1, p.X.At(t, 0, b, i)); });
    const Result result = RunOnce(p, Pack(p, target)), exact = Exactly(p, target);
    const char* const name = CompiledTargets()[target].name;
    Check(SameNumbers(result.Y, exact.Y), "long groups of int8 weights", group, name);
    Check(std::abs(result.Y_h.Get(0, 0, 0, 0) - static_cast<double>(spec.I)) < 1, "their sum", group, name);
  }
}

// Checks that a state that halves in each step becomes 0 below the limit, with any number of threads.
void CheckFlush(std::size_t target) {
  const char* const name = CompiledTargets()[target].name;
  for (std::size_t kind = 0; kind < std::size(kTypes); ++kind) {
    Problem p;
    Spec& spec = p.spec;
    SetTypes(spec, kind);
    const bool is_large = kind % 2 == 0;
    spec.I = 3, spec.H = is_large ? 300 : 21, spec.D = 1 + kind / 2 % 2, spec.reversed[1] = true;
    spec.linear_before_reset = kind / 4 % 2 == 0, spec.clip = HUGE_VAL, spec.flush_subnormals = true;
    for (auto& f : spec.f) f = {Function::kSigmoid, 0, 0};
    for (auto& g : spec.g) g = {Function::kTanh, 0, 0};
    const int least = ComputedType(spec.type) == ElementType::kFloat64 ? 1000 : 100;
    p.T = static_cast<std::size_t>(least) + 2, p.B = is_large ? 1 : 1 + kind;
    p.W.assign(spec.D * 3 * spec.H * spec.I, 0);
    p.R.assign(spec.D * 3 * spec.H * spec.H, 0);
    p.bias.assign(spec.D * 6 * spec.H, 0);
    p.X.Make(spec.type, p.T, 1, p.B, spec.I);
    p.X.ForEach([&](auto t, auto, auto b, auto i) { Store(spec.type, 0, p.X.At(t, 0, b, i)); });
    p.has_initial_h = true;
    p.initial_h.Make(spec.type, 1, spec.D, p.B, spec.H);
    p.initial_h.ForEach([&](auto, auto d, auto b, auto i) { Store(spec.type, 1, p.initial_h.At(0, d, b, i)); });
    const auto packed = Pack(p, target);
    for (const std::size_t threads : {1, 3}) {
      SetNumThreads(threads);
      const Result result = RunOnce(p, packed);
      bool good = true;
      result.Y.ForEach([&](auto t, auto d, auto b, auto i) {
        const int halved = static_cast<int>(d == 1 ? p.T - t : t + 1);
        const double state = halved > least ? 0 : std::ldexp(1.0, -halved);
        good = good && result.Y.Get(t, d, b, i) == Rounded(spec.type, state);
      });
      result.Y_h.ForEach([&](auto, auto d, auto b, auto i) { good = good && result.Y_h.Get(0, d, b, i) == 0; });
      Check(good, "flushed states", kind, name, threads);
    }
  }
  SetNumThreads(1);
}

// Checks that onegru detects the same targets as Highway.
void CheckTargets() {
  for (const Target& target : CompiledTargets()) {
    const bool is_static = !kIsNative && (target.bit & HWY_STATIC_TARGET) != 0;
    Check(IsAvailable(target) == (is_static || (hwy::SupportedTargets() & target.bit) != 0), "a target", target.bit);
  }
}

// Checks that streams with many rows have enough memory for any number of steps.
void CheckStreamBytes() {
  if (sizeof(std::size_t) < 8) return;
  const auto packed = Pack(MakeProblem(0), ChosenTargetIndex());
  const std::size_t of_few = StreamCalls::Bytes(*packed, 64);
  for (const std::size_t rows : {std::size_t{1} << 24, (std::size_t{1} << 24) + 1, std::size_t{3} << 24}) {
    Check(StreamCalls::Bytes(*packed, rows) >= of_few, "scratch of many rows", rows);
  }
}

// Runs the code of the fuzzers on random bytes.
void CheckFuzzed(std::size_t inputs) {
  for (std::size_t number = 0; number < inputs; ++number) {
    Random random(number);
    std::uint8_t bytes[256];
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.Next());
    FuzzKernels(bytes, sizeof(bytes));
    FuzzNodes(bytes, sizeof(bytes));
  }
  Check(true, "fuzzed inputs");
}

// Checks that sizes whose products overflow are rejected, or that calls without elements return at once.
void CheckHugeSizes() {
  if (!kHasExceptions || sizeof(std::size_t) < 8) return;  // 32 bits are too small for such sizes
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  const float zeros[6 * 3 * 3] = {};
  const auto tensor = [&](const std::vector<std::int64_t>& shape) {
    return Tensor{ElementType::kFloat32, shape, zeros, true};
  };
  const std::vector<std::int64_t> w{1, 9, 2}, r{1, 9, 3}, other_r{1, 9, 4};
  OnnxGruAttributes attributes;
  attributes.hidden_size = kHuge;
  bool is_refused = false;
  try {
    OnnxGru(attributes, kNewestGru).Pack(tensor(w), tensor(other_r), {});
  } catch (const InvalidArgument&) {
    is_refused = true;
  }
  Check(is_refused, "a huge hidden_size");
  for (const std::int64_t layout : {0, 1}) {
    attributes.hidden_size = std::nullopt;
    attributes.layout = layout;
    const OnnxGru gru(attributes, kNewestGru);
    const auto packed = gru.Pack(tensor(w), tensor(r), {});
    for (const std::vector<std::int64_t>& shape :
         {std::vector{kHuge, std::int64_t{0}, std::int64_t{2}}, std::vector{std::int64_t{0}, kHuge, std::int64_t{2}}}) {
      std::vector<std::int64_t> lengths;
      Call call = gru.MakeCall(*packed, tensor(shape), {}, {}, {}, lengths);
      float Y = 0;
      gru.SetY(*packed, call, &Y);
      Run(packed, call);
      Check(Y == 0, "a huge axis and an empty one");
    }
  }
}

int Main(int argc, char** argv) {
  CheckCpu();
  g_events.wakes_all = true;
  if constexpr (kHasThreads) {
    if (argc == 3 && std::strcmp(argv[1], "--calls") == 0) {
      CheckCalls(std::strtoul(argv[2], nullptr, 10));
      return !AllGood();
    }
    if (argc == 3 && std::strcmp(argv[1], "--at-exit") == 0) return CallAtExit(std::strtoul(argv[2], nullptr, 10));
    CheckFirstCalls();
    for (const char* const threads : {"1", "2"}) {
      Check(RunThisProgram("--at-exit", threads), "a call in an exit handler", std::strtoul(threads, nullptr, 10));
    }
  }
  const std::size_t problems = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 600;
  const auto targets = CompiledTargets();
  std::vector<Hashes> hashes(targets.size());
  for (std::size_t number = 0; number < problems; ++number) CheckProblem(number, hashes);
  for (std::size_t number = 0; number < problems / 4; ++number) CheckProblem(kRoundedProblems + number, hashes);
  const Hashes* common[2] = {};  // without FMA, with FMA
  const std::uint64_t* common_int8 = nullptr;
  for (std::size_t target = 0; target < targets.size(); ++target) {
    if (!IsAvailable(targets[target])) continue;
    if constexpr (kHasThreads) CheckThreads(target, problems);
    CheckRows(target);
    CheckGroups(target);
    CheckFlush(target);
    CheckGradients(target, problems);
    const bool has_fma = targets[target].native_fma;
    const auto [of_float, of_int8, of_bfloat16] = hashes[target];
    const char* const name = targets[target].name;
    std::printf("%-18s hash %016" PRIx64 "%s, in bfloat16 %016" PRIx64 ", in int8 %016" PRIx64 " by %s\n", name,
                of_float, has_fma ? "" : " without FMA", of_bfloat16, of_int8,
                kInt8ProductsNames[static_cast<std::size_t>(Int8ProductsOf(target))]);
    if (common_int8 == nullptr) common_int8 = &hashes[target].of_int8;
    Check(*common_int8 == of_int8, "the same hash in int8", problems, name, 0);
    if (common[has_fma] == nullptr) common[has_fma] = &hashes[target];
    Check(common[has_fma]->of_float == of_float, "the same hash", problems, name, 0);
    Check(common[has_fma]->of_bfloat16 == of_bfloat16, "the same hash in bfloat16", problems, name, 0);
  }
  if (common_int8 != nullptr) std::printf("hash %016" PRIx64 " in int8 of %zu problems\n", *common_int8, problems);
  for (const bool has_fma : {true, false}) {
    if (common[has_fma] == nullptr) continue;
    const char* const without = has_fma ? "" : " without FMA";
    std::printf("hash %016" PRIx64 " in bfloat16%s of %zu problems\n", common[has_fma]->of_bfloat16, without,
                problems / 4);
    std::printf("hash %016" PRIx64 "%s of %zu problems\n", common[has_fma]->of_float, without, problems);
  }
  std::printf("helpers joined %zu epochs, were late in %zu, closed %zu windows, lost %zu work items\n",
              g_events.joined.load(), g_events.late.load(), g_events.windows_closed.load(), g_events.reclaimed.load());
  if (kHasThreads && problems >= 100) {  // otherwise the tests above would check nothing
    Check(g_events.joined != 0 && g_events.late != 0 && g_events.windows_closed != 0 && g_events.reclaimed != 0,
          "helpers of all kinds", problems, "all", 0);
  }
  CheckPool();
  CheckHugeSizes();
  CheckStreamBytes();
  CheckTargets();
  CheckFuzzed(problems);
  return !AllGood();
}

}  // namespace
}  // namespace onegru

int main(int argc, char** argv) { return onegru::Main(argc, argv); }
