// Creates problems from bytes, and solves them exactly.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <vector>

#if defined(_WIN32)
#include <immintrin.h>
#endif

#include "native/targets/targets.h"
#include "native/tests/fuzz.h"

namespace onegru {
namespace {

// The limits of the plain loops, because a fuzzer needs many runs. Some calls are long enough for several threads.
constexpr std::size_t kMaxProducts = 20'000, kMaxProductsOfSome = 200'000;

#if defined(_WIN32)
// std::fma of MinGW-w64 returns NaN if the product is far smaller than the addend, so this uses the CPU's instruction.
__attribute__((target("fma"))) double Fma(double a, double b, double c) {
  return _mm_cvtsd_f64(_mm_fmadd_sd(_mm_set_sd(a), _mm_set_sd(b), _mm_set_sd(c)));
}
__attribute__((target("fma"))) float Fma(float a, float b, float c) {
  return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}
#else
template <class C>
C Fma(C a, C b, C c) {
  return std::fma(a, b, c);
}
#endif

// Draws numbers of one kind: usual ones, or special cases of arithmetic.
class Numbers {
 public:
  explicit Numbers(Bytes& bytes)
      : kind_(static_cast<Kind>(bytes.Below(6))),
        scale_(std::ldexp(1.0, static_cast<int>(bytes.Below(256)) - 128)),
        random_(bytes.Next<std::uint16_t>()) {}

  double Next(ElementType type) {
    static constexpr double kInfinity = std::numeric_limits<double>::infinity();
    static constexpr double kSpecial[] = {
        0,     -0.0,   1,        -1,        kInfinity,      -kInfinity, std::numeric_limits<double>::quiet_NaN(),
        65504, -65520, 0x1p-149, -0x1p-126, 0x1.fffffep127, 0x1p-1074,  0x1.fffffffffffffp1023};
    switch (kind_) {
      case kUsual:
        return random_.Unit();
      case kScaled:
        return Rounded(type, scale_ * random_.Unit());
      case kRare:
        if (!random_.OneIn(50)) return random_.Unit();
        [[fallthrough]];
      case kSpecials:
        return Rounded(type, kSpecial[random_.Below(std::size(kSpecial))]);
      case kAny: {
        const std::uint64_t bits = random_.Next();
        return Load(type, &bits);
      }
      case kZero:
        break;
    }
    return 0;
  }
  void Fill(std::vector<double>& to, std::size_t count, ElementType type) {
    to.resize(count);
    for (double& number : to) number = Rounded(type, Next(type));
  }
  void Fill(const Array& to) {
    to.ForEach([&](auto t, auto d, auto b, auto i) { Store(to.type, Next(to.type), to.At(t, d, b, i)); });
  }

 private:
  enum Kind { kUsual, kZero, kScaled, kRare, kSpecials, kAny };
  const Kind kind_;
  const double scale_;
  Random random_;
};

Activation DrawActivation(Bytes& bytes) {
  static constexpr double kUsual[] = {0, 0.01f, 0.2f, 0.5, 1, 2, -1};
  const auto number = [&] {  // nodes and layers with NaN are rejected
    const double any = bytes.OneIn(4) ? bytes.Next<float>() : std::numeric_limits<float>::quiet_NaN();
    return std::isnan(any) ? kUsual[bytes.Below(std::size(kUsual))] : any;
  };
  Activation activation{static_cast<Function>(bytes.Below(kFunctions)), 0, 0};
  activation.alpha = number();
  activation.beta = number();
  return activation;
}

void DrawSpec(Bytes& bytes, Spec& spec) {
  SetTypes(spec, bytes.Below(std::size(kTypes)));
  const bool large = bytes.OneIn(8);
  spec.H = 1 + bytes.Below(large ? 80 : 24);
  spec.I = bytes.Below(large ? 64 : 24);
  spec.D = 1 + bytes.Below(2);
  spec.reversed[0] = spec.D == 1 && bytes.OneIn(2);
  spec.reversed[1] = true;
  spec.linear_before_reset = bytes.OneIn(2);
  spec.attention = bytes.OneIn(3);
  spec.has_dien_attention = spec.attention && bytes.OneIn(2);
  const bool usual = bytes.OneIn(2);
  for (std::size_t d = 0; d < 2; ++d) {
    spec.f[d] = usual ? Activation{Function::kSigmoid, 0, 0} : DrawActivation(bytes);
    spec.g[d] = usual ? Activation{Function::kTanh, 0, 0} : DrawActivation(bytes);
  }
  const auto clip = bytes.OneIn(3) ? bytes.Next<float>() : std::numeric_limits<float>::infinity();
  spec.clip = clip > 0 ? clip : 0.5;
}

// Creates rows with any order in memory, including backwards, or one row for all.
void MakeInput(Bytes& bytes, Array& array, ElementType type, std::size_t T, std::size_t D, std::size_t B,
               std::size_t elements) {
  const std::size_t gap = bytes.OneIn(3) ? SizeOf(type) * bytes.Below(9) : 0;
  array.Make(type, T, D, B, elements, gap, bytes.OneIn(3));
  std::ptrdiff_t* const strides[] = {&array.rows.time_stride, &array.rows.direction_stride, &array.rows.row_stride};
  for (std::size_t axis = 0; axis < 3; ++axis) {
    const std::size_t way = bytes.Below(8);
    if (way == 6) *strides[axis] = 0;
    if (way != 7 || array.bytes == 0) continue;
    array.rows.data += static_cast<std::ptrdiff_t>(array.sizes[axis] - 1) * *strides[axis];
    *strides[axis] *= -1;
  }
  Numbers(bytes).Fill(array);
}

template <class C>
class Solver {
 public:
  Solver(const Problem& p, std::size_t target)
      : p_(p),
        spec_(p.spec),
        kernel_(KernelFor(spec_, target)),
        is_int8_(spec_.storage == ElementType::kInt8),
        fused_(CompiledTargets()[target].native_fma && !is_int8_),
        W_(p.W, spec_.I, spec_),
        R_(p.R, spec_.H, spec_),
        bias_(SumsOfBiases(p)) {}

  void Solve(Result& result) {
    SetFloatMode(FloatModeOf(spec_));  // after the constructor, because weights are packed in the default mode
    for (std::size_t d = 0; d < spec_.D; ++d) {
      for (std::size_t b = 0; b < p_.B; ++b) {
        if (p_.Length(b) != 0) SolveRow(d, b, result);
      }
    }
    SetFloatMode(kDefaultFloatMode);
  }

 private:
  // Returns the initial values of sums for each direction: of z, r and n, then of n's product with h.
  static std::vector<C> SumsOfBiases(const Problem& p) {
    const std::size_t H = p.spec.H;
    std::vector<C> sums;
    for (std::size_t d = 0; d < p.spec.D; ++d) {
      for (std::size_t i = 0; i < 4 * H; ++i) {
        const auto bias = [&](std::size_t index) { return static_cast<C>(p.bias[d * 6 * H + index]); };
        const bool is_of_x = p.spec.linear_before_reset && i >= 2 * H;
        sums.push_back(i >= 3 * H ? bias(2 * H + i) : is_of_x ? bias(i) : bias(i) + bias(3 * H + i));
      }
    }
    return sums;
  }

  // Stored weights. In int8, each group of a channel of K numbers has a scale.
  struct Matrix {
    Matrix(const std::vector<double>& weights, std::size_t K, const Spec& spec)
        : numbers(weights.size()), group(spec.group == 0 ? K : spec.group), groups(Groups(spec, K)) {
      if (spec.storage != ElementType::kInt8) {
        std::transform(weights.begin(), weights.end(), numbers.begin(),
                       [&](double weight) { return static_cast<C>(Rounded(spec.storage, weight)); });
        return;
      }
      const std::vector<float> floats(weights.begin(), weights.end());
      std::vector<std::int8_t> q(weights.size());
      scales.resize(K == 0 ? 0 : weights.size() / K * groups);
      for (std::size_t i = 0; i < scales.size(); ++i) {
        const std::size_t first = i % groups * group, begin = i / groups * K + first;
        QuantizeChannel(floats.data() + begin, std::min(group, K - first), q.data() + begin, &scales[i]);
      }
      std::copy(q.begin(), q.end(), numbers.begin());
    }
    std::vector<C> numbers;
    std::vector<float> scales;
    std::size_t group, groups;
  };

  // The inputs of a product. In int8, they are integers in one or two planes, with a scale.
  struct Inputs {
    explicit Inputs(std::size_t K) : numbers(K), high(K), low(K) {}
    std::vector<C> numbers;
    std::vector<std::int64_t> high, low;
    float scale = 0;
  };

  void Quantize(Inputs& inputs, bool is_state) const {
    if (!is_int8_) return;
    const float most = spec_.planes == 1 ? 127 : 127 * 128;
    float range = is_state ? 1 : kMinRange;
    bool is_finite = true;
    for (const C number : inputs.numbers) {
      const auto size = static_cast<float>(std::abs(number));
      is_finite = is_finite && std::isfinite(size);
      if (size > range && (!is_state || size > 1 + 0x1p-20f)) range = size;
    }
    inputs.scale = is_finite ? range / most : std::numeric_limits<float>::quiet_NaN();
    if (!is_finite) return;
    const float factor = most / range;
    for (std::size_t k = 0; k < inputs.numbers.size(); ++k) {
      const auto number = static_cast<float>(inputs.numbers[k]) * factor;
      const auto q = static_cast<std::int64_t>(std::nearbyint(std::clamp(number, -most, most)));
      inputs.high[k] = spec_.planes == 1 ? 0 : (q + 64) >> 7;
      inputs.low[k] = q - 128 * inputs.high[k];
    }
  }

  // Returns numbers for all units, padded to whole SIMD vectors.
  std::vector<C> Units() const { return std::vector<C>((spec_.H + kernel_.lanes - 1) / kernel_.lanes * kernel_.lanes); }

  C MulAdd(C a, C b, C c) const { return fused_ ? Fma(a, b, c) : a * b + c; }

  C Sum(C sum, const Matrix& matrix, std::size_t channel, const Inputs& with) const {
    const std::size_t K = with.numbers.size();
    const C* const weights = matrix.numbers.data() + channel * K;
    if (spec_.rounds_inputs) {
      C total = 0;
      for (std::size_t first = 0; first < K; first += kInputsPerBlock) {
        C chains[2] = {};  // of even and of odd inputs
        for (std::size_t k = first; k < std::min(K, first + kInputsPerBlock); ++k) {
          const C input = static_cast<C>(Rounded(ElementType::kBFloat16, with.numbers[k]));
          chains[k % 2] = MulAdd(input, weights[k], chains[k % 2]);
        }
        total += chains[0] + chains[1];
      }
      return sum + total;
    }
    if (!is_int8_) {
      for (std::size_t k = 0; k < K; ++k) sum = MulAdd(weights[k], with.numbers[k], sum);
      return sum;
    }
    for (std::size_t first = 0, group = channel * matrix.groups; first < K; first += matrix.group, ++group) {
      std::int64_t high = 0, low = 0;
      for (std::size_t k = first; k < std::min(K, first + matrix.group); ++k) {
        high += static_cast<std::int64_t>(weights[k]) * with.high[k];
        low += static_cast<std::int64_t>(weights[k]) * with.low[k];
      }
      const float integers =
          spec_.planes == 1 ? static_cast<float>(low) : static_cast<float>(high) * 128 + static_cast<float>(low);
      sum += static_cast<C>(with.scale * matrix.scales[group] * integers);
    }
    return sum;
  }

  void Activate(const Activation& activation, std::vector<C>& units) const {
    const C clip = static_cast<C>(spec_.clip);
    for (C& x : units) x = x > clip ? clip : x < -clip ? -clip : x;
    kernel_.activate(activation, units.size(), units.data(), units.data());
  }

  void SolveRow(std::size_t d, std::size_t b, Result& result) const {
    const std::size_t H = spec_.H, I = spec_.I, length = p_.Length(b);
    const std::size_t row = p_.is_stream ? static_cast<std::size_t>(p_.state_rows[b]) : b;
    const Array& from = p_.is_stream ? p_.state : p_.initial_h;
    const C* const bias = bias_.data() + d * 4 * H;
    const auto gate_of_x = [&](std::size_t gate, std::size_t j, C start, const Inputs& x) {
      return Sum(start, W_, (d * 3 + gate) * H + j, x);
    };
    const auto gate_of_h = [&](std::size_t gate, std::size_t j, C start, const Inputs& h) {
      return Sum(start, R_, (d * 3 + gate) * H + j, h);
    };
    Inputs inputs(I), states(H), reset_states(H);
    std::vector<C>&x = inputs.numbers, &h = states.numbers, &rh = reset_states.numbers;
    std::vector<C> z = Units(), r = Units(), n = Units();
    for (std::size_t j = 0; j < H; ++j)
      h[j] = p_.is_stream || p_.has_initial_h ? static_cast<C>(from.Get(0, d, row, j)) : 0;
    for (std::size_t step = 0; step < length; ++step) {
      const std::size_t t = spec_.reversed[d] ? length - 1 - step : step;
      for (std::size_t i = 0; i < I; ++i) x[i] = static_cast<C>(p_.X.Get(t, 0, b, i));
      Quantize(inputs, false);
      Quantize(states, true);
      for (std::size_t j = 0; j < H; ++j) {
        z[j] = gate_of_h(0, j, gate_of_x(0, j, bias[j], inputs), states);
        r[j] = gate_of_h(1, j, gate_of_x(1, j, bias[H + j], inputs), states);
      }
      Activate(spec_.f[d], z);
      Activate(spec_.f[d], r);
      for (std::size_t j = 0; j < H; ++j) rh[j] = r[j] * h[j];
      Quantize(reset_states, true);
      for (std::size_t j = 0; j < H; ++j) {
        const C bx = bias[2 * H + j], bn = bias[3 * H + j];
        n[j] = spec_.linear_before_reset ? MulAdd(r[j], gate_of_h(2, j, bn, states), gate_of_x(2, j, bx, inputs))
                                         : gate_of_h(2, j, gate_of_x(2, j, bx, inputs), reset_states);
      }
      Activate(spec_.g[d], n);
      const C a = spec_.attention ? static_cast<C>(p_.attention.Get(t, 0, b, 0)) : C{0};
      for (std::size_t j = 0; j < H; ++j) {
        C update = z[j];
        if (spec_.has_dien_attention) {  // the sum of an infinite score's two parts would be NaN
          update = std::isinf(a) ? MulAdd(-a, C{1} - z[j], C{1}) : MulAdd(a, z[j], C{1} - a);
        } else if (spec_.attention) {
          update = (C{1} - a) * z[j];
        }
        h[j] = MulAdd(C{1} - update, n[j], update * h[j]);
        if (p_.wants_Y) Store(spec_.type, h[j], result.Y.At(t, d, b, j));
      }
    }
    const Array& to = p_.is_stream ? result.state : result.Y_h;
    if (!p_.is_stream && !p_.wants_Y_h) return;
    for (std::size_t j = 0; j < H; ++j) Store(to.type, h[j], to.At(0, d, row, j));
  }

  const Problem& p_;
  const Spec& spec_;
  const Kernel& kernel_;
  const bool is_int8_, fused_;
  const Matrix W_, R_;
  const std::vector<C> bias_;
};

}  // namespace

void Require(bool good, const char* what, const Problem& p, const char* target) {
  if (good) return;
  const Spec& spec = p.spec;
  std::printf("FAILED %s on %s: %s in %s, T %zu, B %zu, I %zu, H %zu, D %zu, reset %s%s%s%s, %s%s%s, clip %g\n", what,
              target, NameOf(spec.type), NameOf(spec.storage), p.T, p.B, spec.I, spec.H, spec.D,
              spec.linear_before_reset ? "after" : "before", spec.reversed[0] ? ", reversed" : "",
              spec.attention ? ", attention" : "", p.has_lengths ? ", lengths" : "", p.is_stream ? "stream" : "call",
              p.wants_Y ? ", Y" : "", p.wants_Y_h ? ", Y_h" : "", spec.clip);
  std::fflush(stdout);
  std::abort();
}

std::size_t DrawTarget(Bytes& bytes) {
  const auto targets = CompiledTargets();
  const std::size_t target = bytes.Below(targets.size());
  return IsAvailable(targets[target]) ? target : ChosenTargetIndex();
}

Problem DrawProblem(Bytes& bytes) {
  Problem p;
  Spec& spec = p.spec;
  DrawSpec(bytes, spec);
  const std::size_t products = 3 * spec.D * spec.H * (spec.I + spec.H);
  const std::size_t most = std::max<std::size_t>(1, (bytes.OneIn(4) ? kMaxProductsOfSome : kMaxProducts) / products);
  p.T = std::min(bytes.Below(bytes.OneIn(4) ? 512 : 12), most);
  p.B = std::min(bytes.Below(bytes.OneIn(4) ? 100 : 8), most / std::max<std::size_t>(p.T, 1));
  p.is_stream = spec.D == 1 && !spec.reversed[0] && p.T > 0 && bytes.OneIn(2);
  p.has_initial_h = bytes.OneIn(2);
  p.has_lengths = !p.is_stream && bytes.OneIn(2);
  p.wants_Y = !bytes.OneIn(6);
  p.wants_Y_h = !bytes.OneIn(6) || !p.wants_Y;
  p.y_gap = bytes.OneIn(3) ? SizeOf(spec.type) * bytes.Below(9) : 0;
  p.swapped = bytes.OneIn(3);
  Numbers(bytes).Fill(p.W, spec.D * 3 * spec.H * spec.I, spec.type);
  Numbers(bytes).Fill(p.R, spec.D * 3 * spec.H * spec.H, spec.type);
  Numbers(bytes).Fill(p.bias, spec.D * 6 * spec.H, spec.type);
  if (spec.storage == ElementType::kInt8) {
    for (std::vector<double>* const weights : {&p.W, &p.R})
      std::replace_if(weights->begin(), weights->end(), [](double weight) { return !std::isfinite(weight); }, 1.0);
  }
  MakeInput(bytes, p.X, spec.type, p.T, 1, p.B, spec.I);
  MakeInput(bytes, p.initial_h, spec.type, 1, spec.D, p.B, spec.H);
  MakeInput(bytes, p.attention, spec.type, p.T, 1, p.B, 1);
  for (std::size_t b = 0; b < p.B; ++b) p.lengths.push_back(static_cast<std::int64_t>(bytes.Below(p.T + 1)));
  if (p.is_stream) {
    const std::size_t rows = p.B + bytes.Below(5);
    p.state.Make(ComputedType(spec.type), 1, 1, rows, spec.H);
    Numbers(bytes).Fill(p.state);
    for (std::size_t b = 0; b < rows; ++b) p.state_rows.push_back(static_cast<std::int32_t>(b));
    for (std::size_t b = rows; b > 1; --b) std::swap(p.state_rows[b - 1], p.state_rows[bytes.Below(b)]);
    p.state_rows.resize(p.B);
  }
  return p;
}

Result Exactly(const Problem& p, std::size_t target) {
  const Spec& spec = p.spec;
  Result result = MakeResult(p);
  const auto clear = [](const Array& array) {
    array.ForEach([&](auto t, auto d, auto b, auto i) { Store(array.type, 0, array.At(t, d, b, i)); });
  };
  clear(result.Y);
  clear(result.Y_h);
  if (spec.type == ElementType::kFloat64) {
    Solver<double>(p, target).Solve(result);
  } else {
    Solver<float>(p, target).Solve(result);
  }
  return result;
}

bool SameNumbers(const Array& a, const Array& b) {
  if (a.bytes != b.bytes) return false;
  if (a.bytes == 0 || std::memcmp(a.memory.get(), b.memory.get(), a.bytes) == 0) return true;
  bool same = a.GapsUntouched() && b.GapsUntouched();
  a.ForEach([&](auto t, auto d, auto row, auto i) {
    same = same && (std::memcmp(a.At(t, d, row, i), b.At(t, d, row, i), SizeOf(a.type)) == 0 ||
                    (std::isnan(a.Get(t, d, row, i)) && std::isnan(b.Get(t, d, row, i))));
  });
  return same;
}

}  // namespace onegru
