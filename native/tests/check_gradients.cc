#include "native/tests/check_gradients.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "native/gradients.h"
#include "native/targets/targets.h"
#include "native/tests/problems.h"
#include "native/tests/system.h"
#include "native/threads/threads.h"

namespace onegru {
namespace {

// Returns numbers in the type of a call, in memory of exactly their size.
std::unique_ptr<unsigned char[]> Typed(const std::vector<double>& from, ElementType type) {
  auto to = std::make_unique<unsigned char[]>(from.size() * SizeOf(type) + 1);
  for (std::size_t i = 0; i < from.size(); ++i) Store(type, from[i], to.get() + i * SizeOf(type));
  return to;
}

struct Gradient {
  Array X, initial_h, attention;
  std::unique_ptr<unsigned char[]> W, R, bias;  // of all directions, like the weights

  static bool Same(const Array& a, const Array& b) { return std::memcmp(a.memory.get(), b.memory.get(), a.bytes) == 0; }
};

// A problem for training: outputs, and their gradients.
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

  // Returns the sum of dY and dY_h times the outputs of the plain loops.
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
    call.d_weights[d] = {by.W.get() + w, by.R.get() + r, by.bias.get() + b, by.bias.get() + b + half};
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

// Compares a central difference of the loss along a random direction with the gradient times the direction.
bool IsNear(Trained& trained, const Gradient& by) {
  constexpr double kStep = 0x1p-16;
  Problem& p = trained.p;
  const ElementType type = p.spec.type;
  double expected = 0, scale = 1;
  std::vector<double> increased[3], decreased[3];
  std::vector<double>* const weights[] = {&p.W, &p.R, &p.bias};
  const unsigned char* const gradients[] = {by.W.get(), by.R.get(), by.bias.get()};
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < weights[i]->size(); ++j) {
      const double direction = trained.random.Unit(), gradient = Load(type, gradients[i] + j * SizeOf(type));
      expected += direction * gradient;
      scale += std::abs(direction * gradient);
      increased[i].push_back((*weights[i])[j] + kStep * direction);
      decreased[i].push_back((*weights[i])[j] - kStep * direction);
    }
  }
  p.spec.storage = ElementType::kFloat64;  // the loops round weights to this type
  const auto loss = [&](std::vector<double>* values) {
    for (std::size_t i = 0; i < 3; ++i) std::swap(*weights[i], values[i]);
    const double found = trained.Loss();
    for (std::size_t i = 0; i < 3; ++i) std::swap(*weights[i], values[i]);
    return found;
  };
  const double found = (loss(increased) - loss(decreased)) / (2 * kStep);
  p.spec.storage = type;
  return std::abs(found - expected) <= 5e-7 * scale;
}

bool Same(const Gradient& a, const Gradient& b, const Problem& p) {
  const std::size_t size = SizeOf(p.spec.type);
  return Gradient::Same(a.X, b.X) && Gradient::Same(a.initial_h, b.initial_h) &&
         Gradient::Same(a.attention, b.attention) && std::memcmp(a.W.get(), b.W.get(), p.W.size() * size) == 0 &&
         std::memcmp(a.R.get(), b.R.get(), p.R.size() * size) == 0 &&
         std::memcmp(a.bias.get(), b.bias.get(), p.bias.size() * size) == 0;
}

#if !defined(__wasi__)
// Returns a problem that is large enough for several threads.
Trained MakeLargeTrained(std::size_t D) {
  constexpr std::size_t T = 12, B = 24, H = 40;
  Trained trained(0);
  trained.p = MakeUsualProblem({T, B, 24, H, D}, false, trained.random);
  trained.dY.Make(ElementType::kFloat32, T, D, B, H), trained.dY.Fill(trained.random, 1);
  trained.dY_h.Make(ElementType::kFloat32, 1, D, B, H), trained.dY_h.Fill(trained.random, 1);
  return trained;
}

// Forks at any moment of a training step. The children also run a training step.
void CheckForksDuringTraining(std::size_t target, std::size_t D) {
  const Trained trained = MakeLargeTrained(D);
  SetNumThreads(1);
  const Gradient expected = Differentiate(trained, target, true);
  SetNumThreads(2);
  std::atomic<bool> over{false};
  std::atomic<std::size_t> steps{0}, wrong{0};
  std::thread other([&] {
    for (; !over; ++steps) wrong += !Same(Differentiate(trained, target, true), expected, trained.p);
  });
  while (steps == 0) std::this_thread::yield();
  for (std::size_t n = 0; n < 20; ++n) {
    std::this_thread::sleep_for(std::chrono::microseconds(250 * n));
    const auto train = [&] {
      SetNumThreads(kThreadsOfChildren);
      return Same(Differentiate(trained, target, true), expected, trained.p);
    };
    Check(!kForks || InChild(train, 10), "a fork during training", n);
  }
  over = true;
  other.join();
  Check(wrong == 0, "training during forks", steps);
}

// Checks that a thread which waits for a suspended helper does not keep its CPU.
void CheckLateHelper(std::size_t target) {
  const Trained trained = MakeLargeTrained(1);
  SetNumThreads(2);
  static std::thread::id caller;
  static std::atomic<int> naps;
  caller = std::this_thread::get_id();
  naps = 0;
  g_events.stall = [] {
    if (std::this_thread::get_id() == caller || naps.fetch_add(1) != 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  };
  std::clock_t usual = CLOCKS_PER_SEC, waiting = 0;
  for (int i = 0; i < 200 && waiting == 0; ++i) {
    const int before = naps;
    const std::clock_t begin = std::clock();
    Differentiate(trained, target, true);
    const std::clock_t busy = std::clock() - begin;
    if (i != 0 && before == 0 && naps != 0) {
      waiting = busy;
    } else {
      usual = std::min(usual, busy), naps = 0;
    }
  }
  g_events.stall = nullptr;
  if (waiting == 0) {  // for example, on one CPU
    std::printf("no helper joined: the wait for a late helper was not tested\n");
    return;
  }
  Check(waiting - usual < CLOCKS_PER_SEC / 20, "the wait for a late helper sleeps",
        static_cast<std::size_t>(1000 * (waiting - usual) / CLOCKS_PER_SEC));
}
#endif

}  // namespace

void CheckGradients(std::size_t target, std::size_t problems) {
  const char* const name = CompiledTargets()[target].name;
#if !defined(__wasi__)
  for (const std::size_t D : {1, 2}) CheckForksDuringTraining(target, D);
  if (kForks) CheckLateHelper(target);  // on Windows, std::clock() includes the time of sleep
#endif
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
        Check(Same(first, other, trained.p), "the same bits of gradients", number, name, threads);
      }
    }
  }
}

}  // namespace onegru
