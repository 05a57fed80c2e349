#include "native/tests/check_gradients.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "native/gradients.h"
#include "native/targets/targets.h"
#include "native/tests/problems.h"
#include "native/threads/threads.h"

namespace onegru {
namespace {

// Numbers of a type as a call takes them, in memory of exactly their size.
std::unique_ptr<unsigned char[]> Typed(const std::vector<double>& from, ElementType type) {
  auto to = std::make_unique<unsigned char[]>(from.size() * SizeOf(type) + 1);
  for (std::size_t i = 0; i < from.size(); ++i) Store(type, from[i], to.get() + i * SizeOf(type));
  return to;
}

struct Gradient {
  Array X, initial_h, attention;
  std::unique_ptr<unsigned char[]> W, R, bias;  // of all directions, as the weights

  static bool Same(const Array& a, const Array& b) { return std::memcmp(a.memory.get(), b.memory.get(), a.bytes) == 0; }
};

// A problem to be differentiated: outputs, and gradients by them.
struct Trained {
  explicit Trained(std::size_t number) : p(MakeProblem(number)), random(number) {
    p.is_stream = false;
    p.wants_Y = p.wants_Y_h = true;
    p.y_gap = 0;
    const Spec& spec = p.spec;
    dY.Make(spec.type, p.T, spec.D, p.B, spec.H, 0, random.OneIn(2));
    dY.Fill(random, 1);
    dY_h.Make(spec.type, 1, spec.D, p.B, spec.H);
    dY_h.Fill(random, 1);
  }

  // dY and dY_h by the outputs of the plain loops.
  double Loss() const {
    const Spec& spec = p.spec;
    const Expected e = Plainly(p);
    double sum = 0;
    dY.ForEach([&](auto t, auto d, auto b, auto j) {
      sum += dY.Get(t, d, b, j) * e.Y[((t * spec.D + d) * p.B + b) * spec.H + j];
    });
    dY_h.ForEach(
        [&](auto, auto d, auto b, auto j) { sum += dY_h.Get(0, d, b, j) * e.Y_h[(d * p.B + b) * spec.H + j]; });
    return sum;
  }

  Problem p;
  Random random;
  Array dY, dY_h;
};

Gradient Differentiate(const Trained& trained, std::size_t target, bool saves) {
  const Problem& p = trained.p;
  const Spec& spec = p.spec;
  const std::size_t H = spec.H, I = spec.I, size = SizeOf(spec.type);
  const auto W = Typed(p.W, spec.type), R = Typed(p.R, spec.type), bias = Typed(p.bias, spec.type);
  const std::vector<double> zeros_W(p.W.size()), zeros_R(p.R.size()), zeros_bias(p.bias.size());
  Gradient by;
  by.W = Typed(zeros_W, spec.type), by.R = Typed(zeros_R, spec.type), by.bias = Typed(zeros_bias, spec.type);
  by.X.Make(spec.type, p.T, 1, p.B, I);
  by.initial_h.Make(spec.type, 1, spec.D, p.B, H);
  by.attention.Make(spec.type, p.T, 1, p.B, 1);
  for (Array* const array : {&by.X, &by.initial_h, &by.attention}) std::memset(array->memory.get(), 0, array->bytes);

  GradientCall call{};
  for (std::size_t d = 0; d < spec.D; ++d) {
    const std::size_t w = d * 3 * H * I * size, r = d * 3 * H * H * size, b = d * 6 * H * size, half = 3 * H * size;
    call.weights[d] = {W.get() + w, R.get() + r, bias.get() + b, bias.get() + b + half};
    call.by[d] = {by.W.get() + w, by.R.get() + r, by.bias.get() + b, by.bias.get() + b + half};
  }
  const std::size_t lanes = KernelFor(spec, target).lanes;
  const auto packed = std::make_shared<const Packed>(spec, target, lanes, call.weights, call.order);
  Call forward{};
  call.T = forward.T = p.T;
  call.B = forward.B = p.B;
  call.X = forward.X = p.X.rows;
  if (p.spec.attention) call.attention = forward.attention = p.attention.rows, call.d_attention = by.attention.rows;
  if (p.has_lengths) call.lengths = forward.lengths = p.lengths.data();
  if (p.has_initial_h) call.initial_h = forward.initial_h = p.initial_h.rows;
  Array Y, Y_h, gates;
  Y.Make(spec.type, p.T, spec.D, p.B, H);
  Y_h.Make(spec.type, 1, spec.D, p.B, H);
  forward.Y = Y.rows, forward.Y_h = Y_h.rows;
  if (saves) {
    gates.Make(spec.type, p.T, spec.D, p.B, kSavedGates * packed->geometry().padded());
    forward.gates = call.gates = gates.rows;
    RunSaving(packed, forward);
  } else {
    Run(packed, forward);
  }
  call.Y = Y.rows, call.dY = trained.dY.rows, call.dY_h = trained.dY_h.rows;
  call.dX = by.X.rows, call.d_initial_h = by.initial_h.rows;
  Gradients(*packed, call);
  return by;
}

// The loss a step ahead along a direction less that a step behind, and what the gradient makes of the direction.
bool IsNear(Trained& trained, const Gradient& by) {
  constexpr double kStep = 0x1p-16;
  Problem& p = trained.p;
  const ElementType type = p.spec.type;
  double expected = 0, scale = 1;
  std::vector<double> ahead[3], behind[3];
  std::vector<double>* const weights[] = {&p.W, &p.R, &p.bias};
  const unsigned char* const gradients[] = {by.W.get(), by.R.get(), by.bias.get()};
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < weights[i]->size(); ++j) {
      const double direction = trained.random.Unit(), gradient = Load(type, gradients[i] + j * SizeOf(type));
      expected += direction * gradient;
      scale += std::abs(direction * gradient);
      ahead[i].push_back((*weights[i])[j] + kStep * direction);
      behind[i].push_back((*weights[i])[j] - kStep * direction);
    }
  }
  p.spec.storage = ElementType::kFloat64;  // the loops round weights to it
  const auto loss = [&](std::vector<double>* values) {
    for (std::size_t i = 0; i < 3; ++i) std::swap(*weights[i], values[i]);
    const double found = trained.Loss();
    for (std::size_t i = 0; i < 3; ++i) std::swap(*weights[i], values[i]);
    return found;
  };
  const double found = (loss(ahead) - loss(behind)) / (2 * kStep);
  p.spec.storage = type;
  return std::abs(found - expected) <= 5e-7 * scale;
}

}  // namespace

void CheckGradients(std::size_t target, std::size_t problems) {
  const char* const name = CompiledTargets()[target].name;
  for (std::size_t number = 0; number < problems; ++number) {
    Trained trained(number);
    const Spec& spec = trained.p.spec;
    if (spec.type != spec.storage || ComputedType(spec.type) != spec.type) continue;
    const bool is_usual = spec.clip > 1 && spec.f[0].function == Function::kSigmoid;
    for (const bool saves : {false, true}) {
      if (saves && !is_usual) continue;
      SetNumThreads(1);
      const Gradient first = Differentiate(trained, target, saves);
      if (is_usual) Check(IsNear(trained, first), "gradients near differences", number, name, 1);
      for (std::size_t threads = 2; threads <= 3; ++threads) {
        SetNumThreads(threads);
        const Gradient other = Differentiate(trained, target, saves);
        const std::size_t size = SizeOf(spec.type);
        const bool good = Gradient::Same(first.X, other.X) && Gradient::Same(first.initial_h, other.initial_h) &&
                          Gradient::Same(first.attention, other.attention) &&
                          std::memcmp(first.W.get(), other.W.get(), trained.p.W.size() * size) == 0 &&
                          std::memcmp(first.R.get(), other.R.get(), trained.p.R.size() * size) == 0 &&
                          std::memcmp(first.bias.get(), other.bias.get(), trained.p.bias.size() * size) == 0;
        Check(good, "the same bits of gradients", number, name, threads);
      }
    }
  }
}

}  // namespace onegru
