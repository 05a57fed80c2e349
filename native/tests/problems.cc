#include "native/tests/problems.h"

#include <cmath>
#include <cstdio>
#include <limits>

namespace onegru {
namespace {

int g_passed = 0;
int g_failed = 0;

Activation RandomActivation(Random& random) {
  return {static_cast<Function>(random.Below(kFunctions)), 0.125 + 0.125 * static_cast<double>(random.Below(4)),
          0.0625 * static_cast<double>(random.Below(5))};
}

double ExpectedActivation(const Activation& activation, double x) {
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

bool SameBits(const Array& a, const Array& b) {
  return a.bytes == b.bytes && (a.bytes == 0 || std::memcmp(a.memory.get(), b.memory.get(), a.bytes) == 0);
}

}  // namespace

void Check(bool good, const char* what, std::size_t problem, const char* target, std::size_t threads) {
  if (good) {
    ++g_passed;
    return;
  }
  ++g_failed;
  if (g_failed <= 20) std::printf("FAILED %s: problem %zu, %s, %zu threads\n", what, problem, target, threads);
}

bool AllGood() {
  std::printf("%d passed, %d failed\n", g_passed, g_failed);
  return g_failed == 0;
}

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

// --- problems

Problem MakeUsualProblem(const Shape& shape, bool linear_before_reset, Random& random) {
  const auto& [T, B, I, H, D] = shape;
  Problem p;
  SetTypes(p.spec, 0);
  p.spec.I = I, p.spec.H = H, p.spec.D = D, p.spec.reversed[1] = true;
  p.spec.linear_before_reset = linear_before_reset;
  p.spec.clip = HUGE_VAL;
  for (std::size_t d = 0; d < 2; ++d) p.spec.f[d].function = Function::kSigmoid, p.spec.g[d].function = Function::kTanh;
  p.T = T, p.B = B;
  for (auto [to, count] :
       {std::pair{&p.W, D * 3 * H * I}, std::pair{&p.R, D * 3 * H * H}, std::pair{&p.bias, D * 6 * H}}) {
    for (std::size_t i = 0; i < count; ++i) to->push_back(Rounded(p.spec.type, 0.1 * random.Unit()));
  }
  p.X.Make(p.spec.type, T, 1, B, I);
  p.X.Fill(random, 1);
  return p;
}

Problem MakeProblem(std::size_t number) {
  Random random(number * 7919 + 1);
  Problem p;
  Spec& spec = p.spec;
  const bool is_rounded = number >= kRoundedProblems;
  SetTypes(spec, is_rounded ? kRoundedTypes : (number + number / 10) % kRoundedTypes);  // large problems of each type
  const ElementType type = spec.type;
  const bool large = number % 10 == 9;
  spec.H = large ? 96 + random.Below(80) : 1 + random.Below(40);
  spec.I = large             ? (random.OneIn(3) ? 1 + random.Below(300) : 20 + random.Below(40))
           : random.OneIn(4) ? 1
                             : 1 + random.Below(40);
  spec.D = random.OneIn(3) ? 2 : 1;
  spec.reversed[0] = spec.D == 1 && random.OneIn(3);
  spec.reversed[1] = true;
  spec.linear_before_reset = random.OneIn(2);
  spec.attention = random.OneIn(4);
  spec.has_dien_attention = spec.attention && number % 2 == 1;
  const bool usual = random.OneIn(2);
  for (int d = 0; d < 2; ++d) {
    spec.f[d] = usual ? Activation{Function::kSigmoid, 0, 0} : RandomActivation(random);
    spec.g[d] = usual ? Activation{Function::kTanh, 0, 0} : RandomActivation(random);
  }
  // Gates above 1 let a state grow without bound. With a clip, the gates of every function are below 1.
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
  // One statement each, because the order of evaluation of arguments is unspecified.
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
          z[j] = ExpectedActivation(spec.f[d], clip(with_x(0, j) + with_h(0, j, nullptr)));
          r[j] = ExpectedActivation(spec.f[d], clip(with_x(1, j) + with_h(1, j, nullptr)));
        }
        for (std::size_t j = 0; j < H; ++j) {
          const double n =
              ExpectedActivation(spec.g[d], clip(spec.linear_before_reset ? with_x(2, j) + r[j] * with_h(2, j, nullptr)
                                                                          : with_x(2, j) + with_h(2, j, r.data())));
          const double a = spec.attention ? p.attention.Get(t, 0, b, 0) : 0;
          const double update = spec.has_dien_attention ? 1 - a * (1 - z[j]) : (1 - a) * z[j];
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

std::shared_ptr<const Packed> Pack(const Problem& p, std::size_t target) {
  const Spec& spec = p.spec;
  const std::size_t lanes = KernelFor(spec, target).lanes;
  if (spec.type == ElementType::kFloat64)
    return std::make_shared<const Packed>(spec, target, lanes, p.W.data(), p.R.data(), p.bias.data());
  const auto narrow = [](const std::vector<double>& from) { return std::vector<float>(from.begin(), from.end()); };
  const auto W = narrow(p.W), R = narrow(p.R), bias = narrow(p.bias);
  return std::make_shared<const Packed>(spec, target, lanes, W.data(), R.data(), bias.data());
}

Result MakeResult(const Problem& p) {
  const Spec& spec = p.spec;
  Result result;
  if (p.wants_Y) result.Y.Make(spec.type, p.T, spec.D, p.B, spec.H, p.y_gap, p.swapped);
  if (p.is_stream) {
    result.state.Make(p.state.type, 1, 1, p.state.sizes[2], spec.H);
    std::memcpy(result.state.memory.get(), p.state.memory.get(), p.state.bytes);
  } else if (p.wants_Y_h) {
    result.Y_h.Make(spec.type, 1, spec.D, p.B, spec.H, p.y_gap, p.swapped);
  }
  return result;
}

Result RunOnce(const Problem& p, const std::shared_ptr<const Packed>& packed, const ForeignPool* pool,
               CancellationToken* token) {
  Result result = MakeResult(p);
  Call call{};
  call.T = p.T;
  call.B = p.B;
  call.X = p.X.rows;
  if (p.spec.attention) call.attention = p.attention.rows;
  if (p.has_lengths) call.lengths = p.lengths.data();
  call.Y = result.Y.rows;
  if (p.is_stream) {
    call.initial_h = call.Y_h = result.state.rows;
    call.state_rows = p.state_rows.data();
    call.wide_state = true;
  } else {
    if (p.has_initial_h) call.initial_h = p.initial_h.rows;
    call.Y_h = result.Y_h.rows;
  }
  call.token = token;
  Run(packed, call, pool);
  return result;
}

bool SameBits(const Result& a, const Result& b) {
  return SameBits(a.Y, b.Y) && SameBits(a.Y_h, b.Y_h) && SameBits(a.state, b.state);
}

}  // namespace onegru
