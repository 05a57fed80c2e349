// Random problems on every target of this CPU, against plain loops in double.
//
//   check [PROBLEMS]
//
// Each problem runs with 1…4 threads, which must give the same bits; some are stopped on the way. The bits of all
// results are hashed, for each target with FMA: the hashes of all such targets, on all machines, must be one and
// the same.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "native/kernel.h"
#include "native/targets.h"
#include "native/tests/check_pool.h"

namespace onegru {
namespace {

constexpr unsigned char kUntouched = 0xa5;
constexpr std::size_t kMostThreads = 4;

int g_passed = 0;
int g_failed = 0;

void Check(bool good, const char* what, std::size_t problem, const char* target, std::size_t threads) {
  if (good) {
    ++g_passed;
    return;
  }
  ++g_failed;
  if (g_failed <= 20) std::printf("FAILED %s: problem %zu, %s, %zu threads\n", what, problem, target, threads);
}

// SplitMix64's recurrence: the same numbers everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t Next() {
    std::uint64_t x = state_ += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
  }
  std::size_t Below(std::size_t n) { return static_cast<std::size_t>(Next() % n); }
  bool OneIn(std::size_t n) { return Below(n) == 0; }
  // In [-1, 1), a multiple of 2^-20.
  double Unit() { return (static_cast<double>(Next() >> 43) - 0x1p20) * 0x1p-20; }

 private:
  std::uint64_t state_;
};

// --- numbers of a type, in bytes

double Load(ElementType type, const void* from) {
  std::uint16_t bits;
  float single;
  double wide;
  switch (type) {
    case ElementType::kFloat64:
      std::memcpy(&wide, from, 8);
      return wide;
    case ElementType::kFloat32:
      std::memcpy(&single, from, 4);
      return single;
    default:
      std::memcpy(&bits, from, 2);
      return type == ElementType::kFloat16 ? FromFloat16Bits(bits) : FromBFloat16Bits(bits);
  }
}

void Store(ElementType type, double value, void* to) {
  const float single = static_cast<float>(value);
  if (type == ElementType::kFloat64) {
    std::memcpy(to, &value, 8);
  } else if (type == ElementType::kFloat32) {
    std::memcpy(to, &single, 4);
  } else {
    const std::uint16_t bits = type == ElementType::kFloat16 ? Float16Bits(single) : BFloat16Bits(single);
    std::memcpy(to, &bits, 2);
  }
}

double Rounded(ElementType type, double value) {
  unsigned char bytes[8];
  Store(type, value, bytes);
  return Load(type, bytes);
}

double Epsilon(ElementType type) {
  switch (type) {
    case ElementType::kFloat64:
      return 0x1p-52;
    case ElementType::kFloat32:
      return 0x1p-23;
    case ElementType::kFloat16:
      return 0x1p-10;
    default:
      return 0x1p-7;
  }
}

ElementType ComputedType(ElementType type) {
  return type == ElementType::kFloat64 ? ElementType::kFloat64 : ElementType::kFloat32;
}

// Rows in memory of exactly the size that they need: a sanitizer sees what reads or writes past it.
struct Array {
  ElementType type = ElementType::kFloat32;
  std::size_t sizes[4] = {};  // time, direction, row, element
  Rows rows;
  std::unique_ptr<unsigned char[]> memory;
  std::size_t bytes = 0;

  // gap: bytes between rows. swapped: rows lie outside time.
  void Make(ElementType t, std::size_t time, std::size_t directions, std::size_t count, std::size_t elements,
            std::size_t gap = 0, bool swapped = false) {
    type = t;
    sizes[0] = time, sizes[1] = directions, sizes[2] = count, sizes[3] = elements;
    const std::size_t row = elements * SizeOf(t) + gap;
    bytes = time * directions * count * row;
    memory = std::make_unique<unsigned char[]>(std::max<std::size_t>(bytes, 1));
    std::memset(memory.get(), kUntouched, bytes);
    rows.data = reinterpret_cast<char*>(memory.get());
    rows.row = static_cast<std::ptrdiff_t>(swapped ? row * directions * time : row);
    rows.direction = static_cast<std::ptrdiff_t>(swapped ? row : row * count);
    rows.time = static_cast<std::ptrdiff_t>(swapped ? row * directions : row * count * directions);
  }

  char* At(std::size_t t, std::size_t d, std::size_t b, std::size_t i) const {
    return rows.at(t, d, b) + i * SizeOf(type);
  }
  double Get(std::size_t t, std::size_t d, std::size_t b, std::size_t i) const {
    return Load(type, At(t, d, b, i));
  }

  template <class Body>
  void ForEach(Body&& body) const {
    for (std::size_t t = 0; t < sizes[0]; ++t)
      for (std::size_t d = 0; d < sizes[1]; ++d)
        for (std::size_t b = 0; b < sizes[2]; ++b)
          for (std::size_t i = 0; i < sizes[3]; ++i) body(t, d, b, i);
  }
  void Fill(Random& random, double scale) {
    ForEach([&](auto t, auto d, auto b, auto i) { Store(type, scale * random.Unit(), At(t, d, b, i)); });
  }
  // Whether only elements were written, and the gaps are as they were.
  bool GapsUntouched() const {
    std::vector<bool> element(bytes);
    ForEach([&](auto t, auto d, auto b, auto i) {
      const auto at = static_cast<std::size_t>(At(t, d, b, i) - rows.data);
      std::fill_n(element.begin() + static_cast<std::ptrdiff_t>(at), SizeOf(type), true);
    });
    for (std::size_t at = 0; at < bytes; ++at)
      if (!element[at] && memory[at] != kUntouched) return false;
    return true;
  }
};

// --- a problem

struct Problem {
  Spec spec{};
  std::size_t T = 0, B = 0;
  std::vector<double> W, R, bias;  // numbers of spec.type
  Array X, initial_h, attention, state;
  std::vector<std::int64_t> lengths;
  std::vector<std::int32_t> state_rows;
  bool has_initial_h = false, has_lengths = false, wants_Y = true, wants_Y_h = true, is_stream = false;
  std::size_t y_gap = 0;
  bool swapped = false;

  std::size_t Length(std::size_t b) const { return has_lengths ? static_cast<std::size_t>(lengths[b]) : T; }
};

struct Pair {
  ElementType type, storage;
};
constexpr Pair kTypes[] = {
    {ElementType::kFloat32, ElementType::kFloat32}, {ElementType::kFloat64, ElementType::kFloat64},
    {ElementType::kFloat16, ElementType::kFloat16}, {ElementType::kBFloat16, ElementType::kBFloat16},
    {ElementType::kFloat32, ElementType::kFloat16}, {ElementType::kFloat32, ElementType::kBFloat16},
};

Activation RandomActivation(Random& random) {
  return {static_cast<Function>(random.Below(kFunctions)), 0.125 + 0.125 * static_cast<double>(random.Below(4)),
          0.0625 * static_cast<double>(random.Below(5))};
}

// Every tenth is large enough for several threads, in rows or in units.
Problem MakeProblem(std::size_t number) {
  Random random(number * 7919 + 1);
  Problem p;
  Spec& spec = p.spec;
  const auto [type, storage] = kTypes[number % std::size(kTypes)];
  const bool large = number % 10 == 9;
  spec.type = type;
  spec.storage = storage;
  spec.H = large ? 96 + random.Below(80) : 1 + random.Below(40);
  spec.I = large             ? (random.OneIn(3) ? 1 + random.Below(300) : 20 + random.Below(40))
           : random.OneIn(4) ? 1
                             : 1 + random.Below(40);
  spec.D = random.OneIn(3) ? 2 : 1;
  spec.reversed[0] = spec.D == 1 && random.OneIn(3);
  spec.reversed[1] = true;
  spec.linear_before_reset = random.OneIn(2);
  spec.attention = random.OneIn(4);
  const bool usual = random.OneIn(2);
  for (int d = 0; d < 2; ++d) {
    spec.f[d] = usual ? Activation{Function::kSigmoid, 0, 0} : RandomActivation(random);
    spec.g[d] = usual ? Activation{Function::kTanh, 0, 0} : RandomActivation(random);
  }
  // Gates beyond 1 let a state grow without bound: clipped, those of every function stay below.
  const bool clip = random.OneIn(4) || !usual;
  spec.clip = clip ? 0.5 : std::numeric_limits<double>::infinity();
  p.T = large ? 8 + random.Below(16) : random.OneIn(12) ? 0 : random.OneIn(4) ? 1 : 1 + random.Below(9);
  p.B = large              ? (random.OneIn(2) ? 1 : 1 + random.Below(random.OneIn(2) ? 3 : 30))
        : random.OneIn(16) ? 0
                           : 1 + random.Below(13);
  p.is_stream = spec.D == 1 && !spec.reversed[0] && p.T > 0 && random.OneIn(2);
  p.has_initial_h = random.OneIn(2);
  p.has_lengths = !p.is_stream && random.OneIn(2);
  p.wants_Y = !random.OneIn(6);
  p.wants_Y_h = !random.OneIn(6) || !p.wants_Y;
  p.y_gap = random.OneIn(2) ? SizeOf(type) * random.Below(9) : 0;
  p.swapped = random.OneIn(3);

  const auto draw = [&](std::vector<double>& to, std::size_t count, double scale) {
    to.resize(count);
    for (double& value : to) value = Rounded(type, scale * random.Unit());
  };
  const double scale = 1 / std::sqrt(static_cast<double>(spec.H));
  draw(p.W, spec.D * 3 * spec.H * spec.I, 1 / std::sqrt(static_cast<double>(spec.I)));
  draw(p.R, spec.D * 3 * spec.H * spec.H, scale);
  draw(p.bias, spec.D * 6 * spec.H, 0.5);
  // Drawn apart: compilers are free in the order of a call's arguments.
  const std::size_t x_gap = random.OneIn(2) ? SizeOf(type) * random.Below(5) : 0;
  const bool x_swapped = random.OneIn(3);
  p.X.Make(type, p.T, 1, p.B, spec.I, x_gap, x_swapped);
  p.X.Fill(random, random.OneIn(8) ? 20 : 2);
  p.initial_h.Make(type, 1, spec.D, p.B, spec.H, p.y_gap, p.swapped);
  p.initial_h.Fill(random, 1);
  p.attention.Make(type, p.T, 1, p.B, 1, 0, random.OneIn(2));
  p.attention.ForEach(
      [&](auto t, auto, auto b, auto) { Store(type, 0.5 + 0.5 * random.Unit(), p.attention.At(t, 0, b, 0)); });
  for (std::size_t b = 0; b < p.B; ++b) p.lengths.push_back(static_cast<std::int64_t>(random.Below(p.T + 1)));
  if (p.is_stream) {
    const std::size_t rows = p.B + random.Below(5);
    p.state.Make(ComputedType(type), 1, 1, rows, spec.H);
    p.state.Fill(random, 1);
    for (std::size_t b = 0; b < rows; ++b) p.state_rows.push_back(static_cast<std::int32_t>(b));
    for (std::size_t b = rows; b > 1; --b) std::swap(p.state_rows[b - 1], p.state_rows[random.Below(b)]);
    p.state_rows.resize(p.B);
  }
  return p;
}

// --- the plain loops

double Function1(const Activation& activation, double x) {
  const double a = activation.alpha, b = activation.beta;
  switch (activation.function) {
    case Function::kRelu:
      return std::max(x, 0.0);
    case Function::kTanh:
      return std::tanh(x);
    case Function::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case Function::kAffine:
      return a * x + b;
    case Function::kLeakyRelu:
      return x >= 0 ? x : a * x;
    case Function::kThresholdedRelu:
      return x >= a ? x : 0;
    case Function::kScaledTanh:
      return a * std::tanh(b * x);
    case Function::kHardSigmoid:
      return std::clamp(a * x + b, 0.0, 1.0);
    case Function::kElu:
      return x >= 0 ? x : a * std::expm1(x);
    case Function::kSoftsign:
      return x / (1 + std::abs(x));
    case Function::kSoftplus:
      return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
  }
  return x;
}

struct Expected {
  std::vector<double> Y, Y_h;  // [T, D, B, H], [D, B, H]
  double largest = 1;          // of all gates and states
};

Expected Plainly(const Problem& p) {
  const Spec& spec = p.spec;
  const std::size_t H = spec.H, I = spec.I, D = spec.D, B = p.B;
  Expected e;
  e.Y.assign(p.T * D * B * H, 0);
  e.Y_h.assign(D * B * H, 0);
  std::vector<double> h(H), next(H), z(H), r(H);
  for (std::size_t d = 0; d < D; ++d) {
    const double* const W = p.W.data() + d * 3 * H * I;
    const double* const R = p.R.data() + d * 3 * H * H;
    const double* const bias = p.bias.data() + d * 6 * H;
    const auto clip = [&](double x) { return std::clamp(x, -spec.clip, spec.clip); };
    const auto stored = [&](double w) { return Rounded(spec.storage, w); };
    for (std::size_t b = 0; b < B; ++b) {
      const std::size_t length = p.Length(b);
      if (length == 0) continue;
      for (std::size_t j = 0; j < H; ++j) {
        h[j] = p.is_stream       ? p.state.Get(0, 0, static_cast<std::size_t>(p.state_rows[b]), j)
               : p.has_initial_h ? p.initial_h.Get(0, d, b, j)
                                 : 0;
      }
      for (std::size_t step = 0; step < length; ++step) {
        const std::size_t t = spec.reversed[d] ? length - 1 - step : step;
        const auto with_x = [&](std::size_t gate, std::size_t j) {
          double sum = 0;
          for (std::size_t i = 0; i < I; ++i) sum += p.X.Get(t, 0, b, i) * stored(W[(gate * H + j) * I + i]);
          return sum + bias[gate * H + j];
        };
        const auto with_h = [&](std::size_t gate, std::size_t j, const double* reset) {
          double sum = 0;
          for (std::size_t k = 0; k < H; ++k)
            sum += (reset ? reset[k] * h[k] : h[k]) * stored(R[(gate * H + j) * H + k]);
          return sum + bias[(3 + gate) * H + j];
        };
        for (std::size_t j = 0; j < H; ++j) {
          z[j] = Function1(spec.f[d], clip(with_x(0, j) + with_h(0, j, nullptr)));
          r[j] = Function1(spec.f[d], clip(with_x(1, j) + with_h(1, j, nullptr)));
        }
        for (std::size_t j = 0; j < H; ++j) {
          const double n =
              Function1(spec.g[d], clip(spec.linear_before_reset ? with_x(2, j) + r[j] * with_h(2, j, nullptr)
                                                                 : with_x(2, j) + with_h(2, j, r.data())));
          const double update = spec.attention ? (1 - p.attention.Get(t, 0, b, 0)) * z[j] : z[j];
          next[j] = (1 - update) * n + update * h[j];
          e.largest = std::max({e.largest, std::abs(next[j]), std::abs(update), std::abs(r[j]), std::abs(n)});
        }
        h = next;
        std::copy(h.begin(), h.end(), e.Y.begin() + static_cast<std::ptrdiff_t>(((t * D + d) * B + b) * H));
      }
      std::copy(h.begin(), h.end(), e.Y_h.begin() + static_cast<std::ptrdiff_t>((d * B + b) * H));
    }
  }
  return e;
}

// --- the kernels

struct Result {
  Array Y, Y_h, state;
};

std::shared_ptr<const Packed> Pack(const Problem& p, std::size_t target) {
  const Spec& spec = p.spec;
  const std::size_t lanes = KernelFor(spec.storage, spec.linear_before_reset, target).lanes;
  if (spec.type == ElementType::kFloat64)
    return std::make_shared<const Packed>(spec, target, lanes, p.W.data(), p.R.data(), p.bias.data());
  const auto narrow = [](const std::vector<double>& from) { return std::vector<float>(from.begin(), from.end()); };
  const auto W = narrow(p.W), R = narrow(p.R), bias = narrow(p.bias);
  return std::make_shared<const Packed>(spec, target, lanes, W.data(), R.data(), bias.data());
}

Result RunOnce(const Problem& p, const std::shared_ptr<const Packed>& packed, const ForeignPool* pool = nullptr,
               Watch* watch = nullptr) {
  const Spec& spec = p.spec;
  Result result;
  Call call{};
  call.T = p.T;
  call.B = p.B;
  call.X = p.X.rows;
  if (spec.attention) call.attention = p.attention.rows;
  if (p.has_lengths) call.lengths = p.lengths.data();
  if (p.wants_Y) {
    result.Y.Make(spec.type, p.T, spec.D, p.B, spec.H, p.y_gap, p.swapped);
    call.Y = result.Y.rows;
  }
  if (p.is_stream) {
    result.state.Make(p.state.type, 1, 1, p.state.sizes[2], spec.H);
    std::memcpy(result.state.memory.get(), p.state.memory.get(), p.state.bytes);
    call.initial_h = call.Y_h = result.state.rows;
    call.state_rows = p.state_rows.data();
    call.wide_state = true;
  } else {
    if (p.has_initial_h) call.initial_h = p.initial_h.rows;
    if (p.wants_Y_h) {
      result.Y_h.Make(spec.type, 1, spec.D, p.B, spec.H, p.y_gap, p.swapped);
      call.Y_h = result.Y_h.rows;
    }
  }
  call.watch = watch;
  Run(packed, call, pool);
  return result;
}

// Is asked as often as may be, makes a call of its own at the first question, and stops at a later one.
class Stopper final : public Watch {
 public:
  Stopper(const Problem& p, const std::shared_ptr<const Packed>& packed, std::size_t at)
      : Watch(1), p_(p), packed_(packed), at_(at) {}

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

bool SameBits(const Array& a, const Array& b) {
  return a.bytes == b.bytes && (a.bytes == 0 || std::memcmp(a.memory.get(), b.memory.get(), a.bytes) == 0);
}

bool SameBits(const Result& a, const Result& b) {
  return SameBits(a.Y, b.Y) && SameBits(a.Y_h, b.Y_h) && SameBits(a.state, b.state);
}

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
  result.Y_h.ForEach([&](auto, auto d, auto b, auto j) {
    near(result.Y_h.Get(0, d, b, j), e.Y_h[(d * B + b) * H + j], spec.type);
  });
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

// FNV-1a of every element's bytes.
void Hash(const Array& array, std::uint64_t& hash) {
  array.ForEach([&](auto t, auto d, auto b, auto i) {
    for (std::size_t k = 0; k < SizeOf(array.type); ++k)
      hash = (hash ^ static_cast<unsigned char>(array.At(t, d, b, i)[k])) * 0x100000001b3;
  });
}

// --- all of it

void CheckProblem(std::size_t number, std::vector<std::uint64_t>& hashes) {
  const Problem p = MakeProblem(number);
  const Expected e = Plainly(p);
  const auto targets = CompiledTargets();
  for (std::size_t target = 0; target < targets.size(); ++target) {
    if (!IsAvailable(targets[target])) continue;
    const char* const name = targets[target].name;
    const std::shared_ptr<const Packed> packed = Pack(p, target);
    Result first;
    for (std::size_t threads = 1; threads <= kMostThreads; ++threads) {
      SetNumThreads(threads);
      Result result = RunOnce(p, packed);
      if (threads == 1) {
        Check(Near(p, result, e), "near", number, name, threads);
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
    for (const Array* array : {&first.Y, &first.Y_h, &first.state}) Hash(*array, hashes[target]);
  }
}

// Several callers, some with the same layer, share the threads.
void CheckCallers(std::size_t target) {
  constexpr std::size_t kCallers = 4, kCalls = 12;
  const std::size_t numbers[] = {9, 19, 29};
  std::vector<Problem> problems;
  std::vector<std::shared_ptr<const Packed>> layers;
  std::vector<Result> expected;
  SetNumThreads(1);
  for (const std::size_t number : numbers) {
    problems.push_back(MakeProblem(number));
    layers.push_back(Pack(problems.back(), target));
    expected.push_back(RunOnce(problems.back(), layers.back()));
  }
  SetNumThreads(3);
  std::vector<int> good(kCallers);
  std::vector<std::thread> callers;
  for (std::size_t caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&, caller] {
      for (std::size_t n = 0; n < kCalls; ++n) {
        const std::size_t which = (caller + n) % std::size(numbers);
        good[caller] += SameBits(RunOnce(problems[which], layers[which]), expected[which]);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (std::size_t caller = 0; caller < kCallers; ++caller)
    Check(good[caller] == static_cast<int>(kCalls), "callers at once", caller, CompiledTargets()[target].name, 3);
}

// --- helpers that the system stops

enum class Stalls { kNone, kShort, kUntilReleased };
std::atomic<Stalls> g_stalls{Stalls::kNone};
std::atomic<bool> g_released{true};

// At one of the places where a helper may be stopped.
void Stall() {
  static std::atomic<std::uint64_t> seeds{1};
  thread_local Random random(seeds.fetch_add(1));
  const Stalls stalls = g_stalls.load();
  if (stalls == Stalls::kShort && random.OneIn(4)) {
    std::this_thread::sleep_for(std::chrono::microseconds(random.OneIn(8) ? 3000 : random.Below(200)));
  } else if (stalls == Stalls::kUntilReleased && random.OneIn(16)) {
    while (!g_released.load()) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

// Problems that several threads do; every tenth is one.
std::size_t LargeProblem(std::size_t n) { return 10 * n + 9; }

// Nothing of a call may be touched when it has returned, so a helper is stopped until the results, the inputs and
// the layer are gone.
void CheckStalled(std::size_t target, std::size_t problems) {
  const char* const name = CompiledTargets()[target].name;
  g_events.stall = Stall;
  for (std::size_t n = 0; n < problems; ++n) {
    auto p = std::make_unique<Problem>(MakeProblem(LargeProblem(n)));
    auto packed = Pack(*p, target);
    SetNumThreads(1);
    auto expected = std::make_unique<Result>(RunOnce(*p, packed));
    SetNumThreads(2 + n % 3);
    for (const Stalls stalls : {Stalls::kShort, Stalls::kUntilReleased}) {
      g_released = false;
      g_stalls = stalls;
      for (int again = 0; again < 6; ++again) {
        auto result = std::make_unique<Result>(RunOnce(*p, packed));
        Check(SameBits(*result, *expected), "the same bits with helpers that stop", LargeProblem(n), name,
              2 + n % 3);
      }
      if (stalls == Stalls::kUntilReleased) p = nullptr, packed = nullptr, expected = nullptr;
      g_stalls = Stalls::kNone;
      g_released = true;
    }
  }
  g_events.stall = nullptr;
}

// --- a pool that is not ours

struct Tasks {
  static void InTurn(void*, std::size_t count, void (*task)(void*, std::size_t), void* data) {
    for (std::size_t i = 0; i < count; ++i) task(data, i);
  }
  static void AtOnce(void*, std::size_t count, void (*task)(void*, std::size_t), void* data) {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < count; ++i) threads.emplace_back(task, data, i);
    for (std::thread& thread : threads) thread.join();
  }
};

void CheckForeignPools(std::size_t target, std::size_t problems) {
  const char* const name = CompiledTargets()[target].name;
  for (std::size_t n = 0; n < problems; ++n) {
    const Problem p = MakeProblem(LargeProblem(n));
    const auto packed = Pack(p, target);
    SetNumThreads(1);
    const Result expected = RunOnce(p, packed);
    for (const auto run : {Tasks::InTurn, Tasks::AtOnce}) {
      for (std::size_t threads = 1; threads <= kMostThreads; ++threads) {
        const ForeignPool pool{run, nullptr, threads};
        Check(SameBits(RunOnce(p, packed, &pool), expected), "the same bits in a foreign pool", LargeProblem(n),
              name, threads);
      }
    }
  }
}

// --- rows beside rows

// A row's bits do not depend on the rows beside it, for every number of them.
void CheckRows(std::size_t target) {
  constexpr std::size_t kMostRows = 40;
  const char* const name = CompiledTargets()[target].name;
  for (const std::size_t number : {0, 1, 2, 3, 4, 5, 9, 19, 29, 39}) {
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
      few.has_lengths = few.is_stream = false, few.wants_Y = few.wants_Y_h = true, few.swapped = false,
      few.y_gap = 0;
      few.has_initial_h = true;
      Random same(number);
      few.X.Make(p.spec.type, p.T, 1, B, p.spec.I, 0, true);  // row after row, so that all draw the same ones
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
    const Result all = with_rows(kMostRows);
    for (std::size_t B = 1; B < kMostRows; ++B) {
      SetNumThreads(1 + B % 2);
      const Result some = with_rows(B);
      bool good = true;
      some.Y.ForEach([&](auto t, auto d, auto b, auto j) {
        good = good && std::memcmp(some.Y.At(t, d, b, j), all.Y.At(t, d, b, j), SizeOf(p.spec.type)) == 0;
      });
      some.Y_h.ForEach([&](auto t, auto d, auto b, auto j) {
        good = good && std::memcmp(some.Y_h.At(t, d, b, j), all.Y_h.At(t, d, b, j), SizeOf(p.spec.type)) == 0;
      });
      Check(good, "rows alone and among others", number, name, B);
    }
  }
}

int Main(int argc, char** argv) {
  const std::size_t problems = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 600;
  g_events.wakes_all = true;
  const auto targets = CompiledTargets();
  std::vector<std::uint64_t> hashes(targets.size(), 0xcbf29ce484222325);
  for (std::size_t number = 0; number < problems; ++number) CheckProblem(number, hashes);
  const std::uint64_t* common = nullptr;
  for (std::size_t target = 0; target < targets.size(); ++target) {
    if (!IsAvailable(targets[target])) continue;
    CheckCallers(target);
    CheckStalled(target, problems / 10);
    CheckForeignPools(target, problems / 10);
    CheckRows(target);
    if (!targets[target].native_fma) {
      std::printf("%-18s without FMA\n", targets[target].name);
      continue;
    }
    std::printf("%-18s hash %016" PRIx64 "\n", targets[target].name, hashes[target]);
    if (common == nullptr) common = &hashes[target];
    Check(*common == hashes[target], "the same hash", problems, targets[target].name, 0);
  }
  if (common != nullptr) std::printf("hash %016" PRIx64 " of %zu problems\n", *common, problems);
  std::printf("helpers joined %zu epochs, were late in %zu, handed over %zu times, lost %zu shares\n",
              g_events.joined.load(), g_events.late.load(), g_events.handed_over.load(),
              g_events.taken_back.load());
  if (problems >= 100) {  // or the tests above test nothing
    Check(g_events.joined != 0 && g_events.late != 0 && g_events.handed_over != 0 && g_events.taken_back != 0,
          "helpers of all kinds", problems, "all", 0);
  }
  CheckPool([](bool good, const char* what) { Check(good, what, 0, "memory pool", 0); });
  std::printf("%d passed, %d failed\n", g_passed, g_failed);
  return g_failed != 0;
}

}  // namespace
}  // namespace onegru

int main(int argc, char** argv) { return onegru::Main(argc, argv); }
