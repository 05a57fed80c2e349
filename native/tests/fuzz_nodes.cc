// Creates GRU nodes from bytes. Compares valid nodes with their exact solutions. Other nodes must throw
// InvalidArgument.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "native/runtimes/onnx_gru.h"
#include "native/targets/targets.h"
#include "native/tests/fuzz.h"
#include "native/tests/system.h"
#include "native/threads/threads.h"

namespace onegru {
namespace {

// The limit for a tensor of a corrupted node.
constexpr std::int64_t kMaxElements = 1 << 16;

const FunctionFacts& FactsOf(Function function) { return kFunctionFacts[static_cast<std::size_t>(function)]; }

// A tensor with its memory, of exactly its size.
struct Owned {
  ElementType type = ElementType::kFloat32;
  std::vector<std::int64_t> shape;
  std::unique_ptr<unsigned char[]> data;
  bool is_given = false;

  Tensor view() const { return {type, shape, data.get(), is_given}; }
};

enum Input : std::size_t { kX, kW, kR, kB, kLens, kInitialH, kA, kInputs };

struct Node {
  Problem p;
  OnnxGruAttributes attributes;
  Owned inputs[kInputs];
  bool batch_first = false;
  std::optional<ElementType> storage;
};

template <class Get>
Owned Numbers(ElementType type, std::vector<std::int64_t> shape, Get&& get) {
  Owned made{type, std::move(shape), nullptr, true};
  const std::size_t count = made.view().count(), size = SizeOf(type);
  made.data = std::make_unique<unsigned char[]>(count * size);
  for (std::size_t i = 0; i < count; ++i) Store(type, get(i), made.data.get() + i * size);
  return made;
}

Owned Lengths(const Problem& p) {
  Owned made{ElementType::kFloat32, {static_cast<std::int64_t>(p.B)}, std::make_unique<unsigned char[]>(4 * p.B), true};
  for (std::size_t b = 0; b < p.B; ++b) {
    const auto length = static_cast<std::int32_t>(p.lengths[b]);
    std::memcpy(made.data.get() + 4 * b, &length, 4);
  }
  return made;
}

void DrawAttributes(Bytes& bytes, Node& node) {
  const Spec& spec = node.p.spec;
  OnnxGruAttributes& attributes = node.attributes;
  attributes.direction = spec.D == 2 ? "bidirectional" : spec.reversed[0] ? "reverse" : "forward";
  if (spec.D == 1 && !spec.reversed[0] && bytes.OneIn(2)) attributes.direction = std::nullopt;
  attributes.activations.emplace();
  for (std::size_t d = 0; d < spec.D; ++d) {
    for (const Activation& activation : {spec.f[d], spec.g[d]}) {
      std::string name = FactsOf(activation.function).name;
      if (bytes.OneIn(4)) name[0] = static_cast<char>(name[0] - 'A' + 'a');
      attributes.activations->push_back(name);
      if (FactsOf(activation.function).takes >= 1)
        attributes.activation_alpha.push_back(static_cast<float>(activation.alpha));
      if (FactsOf(activation.function).takes == 2)
        attributes.activation_beta.push_back(static_cast<float>(activation.beta));
    }
  }
  if (spec.clip <= std::numeric_limits<float>::max()) attributes.clip = static_cast<float>(spec.clip);
  if (bytes.OneIn(2)) attributes.hidden_size = static_cast<std::int64_t>(spec.H);
  if (node.batch_first || bytes.OneIn(2)) attributes.layout = node.batch_first;
  if (spec.linear_before_reset || bytes.OneIn(2)) attributes.linear_before_reset = spec.linear_before_reset;
  if (spec.has_dien_attention) attributes.attention = "dien";
}

Node DrawNode(Bytes& bytes) {
  Node node;
  node.batch_first = bytes.OneIn(2);
  const bool has_bias = !bytes.OneIn(4);
  node.p = DrawProblem(bytes);
  Problem& p = node.p;
  p.is_stream = false;
  p.wants_Y = p.wants_Y_h = true;
  if (!has_bias) std::fill(p.bias.begin(), p.bias.end(), 0);
  const Spec& spec = p.spec;
  if (spec.type == ElementType::kFloat32) node.storage = spec.storage;
  // Weights that their type cannot represent are invalid.
  const double limit = spec.storage == ElementType::kInt8       ? 1e3
                       : spec.storage == ElementType::kFloat16  ? 65520
                       : spec.storage == ElementType::kBFloat16 ? 0x1.ffp127
                                                                : HUGE_VAL;
  for (std::vector<double>* const weights : {&p.W, &p.R})
    std::replace_if(
        weights->begin(), weights->end(),
        [&](double weight) { return node.storage && std::isfinite(weight) && std::abs(weight) >= limit; }, 1.0);
  DrawAttributes(bytes, node);
  const auto T = static_cast<std::int64_t>(p.T), B = static_cast<std::int64_t>(p.B);
  const auto I = static_cast<std::int64_t>(spec.I), H = static_cast<std::int64_t>(spec.H);
  const auto D = static_cast<std::int64_t>(spec.D);
  const auto steps = [&](const Array& from) {  // [T, B] rows, or [B, T]
    const std::size_t n = from.sizes[3];
    std::vector<std::int64_t> shape{T, B, static_cast<std::int64_t>(n)};
    if (node.batch_first) std::swap(shape[0], shape[1]);
    return Numbers(spec.type, shape, [&from, &p, n, first = node.batch_first](std::size_t i) {
      const std::size_t at = i / n;
      return first ? from.Get(at % p.T, 0, at / p.T, i % n) : from.Get(at / p.B, 0, at % p.B, i % n);
    });
  };
  const auto states = [&] {
    std::vector<std::int64_t> shape{D, B, H};
    if (node.batch_first) std::swap(shape[0], shape[1]);
    return Numbers(spec.type, shape, [&](std::size_t i) {
      const std::size_t at = i / spec.H, j = i % spec.H;
      return node.batch_first ? p.initial_h.Get(0, at % spec.D, at / spec.D, j)
                              : p.initial_h.Get(0, at / p.B, at % p.B, j);
    });
  };
  node.inputs[kX] = steps(p.X);
  node.inputs[kW] = Numbers(spec.type, {D, 3 * H, I}, [&](std::size_t i) { return p.W[i]; });
  node.inputs[kR] = Numbers(spec.type, {D, 3 * H, H}, [&](std::size_t i) { return p.R[i]; });
  if (has_bias) node.inputs[kB] = Numbers(spec.type, {D, 6 * H}, [&](std::size_t i) { return p.bias[i]; });
  if (p.has_lengths) node.inputs[kLens] = Lengths(p);
  if (p.has_initial_h) node.inputs[kInitialH] = states();
  if (spec.attention) node.inputs[kA] = steps(p.attention);
  return node;
}

// --- errors of a node

std::int64_t DrawInteger(Bytes& bytes) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kOdd[] = {-1, 0, 1, 2, 3, kMax, kMax / 3 + 1, kMax / 6 + 1, std::int64_t{1} << 32, ~kMax};
  return bytes.OneIn(2) ? kOdd[bytes.Below(std::size(kOdd))] : bytes.Next<std::int64_t>();
}

std::string DrawText(Bytes& bytes) {
  std::string text(bytes.Below(8), ' ');
  for (char& c : text) c = bytes.Next<char>();
  return text;
}

void SpoilAttribute(Bytes& bytes, OnnxGruAttributes& attributes) {
  const std::size_t which = bytes.Below(10);
  std::size_t index = 0;
  const auto spoil = [&]<class T>(T& value) {
    if constexpr (std::is_same_v<T, std::optional<std::int64_t>>) {
      value = DrawInteger(bytes);
    } else if constexpr (std::is_same_v<T, std::optional<float>>) {
      value = bytes.Next<float>();
    } else if constexpr (std::is_same_v<T, std::optional<std::string>>) {
      value = DrawText(bytes);
    } else if constexpr (std::is_same_v<T, std::vector<float>>) {
      value.resize(bytes.Below(6), bytes.Next<float>());
    } else {
      value.emplace(bytes.Below(6), kFunctionFacts[bytes.Below(kFunctions)].name);
      if (!value->empty() && bytes.OneIn(2)) value->back() = DrawText(bytes);
    }
  };
  ForEachAttribute(attributes, [&](const char*, auto& value) {
    if (index++ == which) spoil(value);
  });
}

// Corrupts an input. Returns false if no tensor can have the shape.
bool SpoilInput(Bytes& bytes, Node& node) {
  const std::size_t which = bytes.Below(kInputs);
  Owned& input = node.inputs[which];
  input.is_given = !bytes.OneIn(8);
  if (which != kLens) input.type = static_cast<ElementType>(bytes.Below(4));  // lengths are int32
  if (bytes.OneIn(4)) input.shape.resize(bytes.Below(5), 1);
  for (std::int64_t& size : input.shape) {
    if (bytes.OneIn(3)) size = DrawInteger(bytes);
  }
  if (!input.is_given) input.shape.clear();
  double count = 1;
  bool is_empty = false;
  for (const std::int64_t size : input.shape) {
    if (size < 0) return false;
    is_empty |= size == 0;
    count *= static_cast<double>(size);
  }
  if (!is_empty && count > static_cast<double>(kMaxElements)) return false;
  input.data = std::make_unique<unsigned char[]>(input.view().bytes());
  for (std::size_t i = 0; i < input.view().bytes(); ++i) input.data[i] = bytes.Next<std::uint8_t>();
  return true;
}

// --- the call

// Whether Y or Y_h, contiguous in the layout, has the numbers of an array.
bool Matches(const unsigned char* found, const Array& expected, bool batch_first) {
  const std::size_t T = expected.sizes[0], D = expected.sizes[1], B = expected.sizes[2], H = expected.sizes[3];
  bool same = true;
  expected.ForEach([&](auto t, auto d, auto b, auto j) {
    const std::size_t at = batch_first ? ((b * T + t) * D + d) * H + j : ((t * D + d) * B + b) * H + j;
    const double a = Load(expected.type, found + at * SizeOf(expected.type)), e = expected.Get(t, d, b, j);
    same = same && (std::memcmp(&a, &e, sizeof(a)) == 0 || (a != a && e != e));
  });
  return same;
}

void RunNode(const Node& node, bool is_legal, const char* target) {
  const auto in = [&](Input input) { return node.inputs[input].view(); };
  const OnnxGru gru(node.attributes, node.p.spec.attention ? kAugru : kNewestGru);
  if (!in(kW).is_given || !in(kR).is_given) return;  // ONNX Runtime requires them, and X
  const std::shared_ptr<const Packed> packed = gru.Pack(
      in(kW), in(kR), in(kB), {node.storage, node.p.spec.planes, node.p.spec.group, node.p.spec.rounds_inputs});
  if (!in(kX).is_given) return;
  std::vector<std::int64_t> lengths;
  Call call = gru.MakeCall(*packed, in(kX), in(kLens), in(kInitialH), in(kA), lengths);
  const auto y_shape = gru.YShape(*packed, call);
  const auto h_shape = gru.StateShape(*packed, call);
  const auto bytes_of = [&](std::span<const std::int64_t> shape) {
    double count = 1;
    for (const std::int64_t size : shape) count *= static_cast<double>(size);
    return count * static_cast<double>(SizeOf(packed->spec().type));
  };
  if (std::max(bytes_of(y_shape), bytes_of(h_shape)) > 0x1p20) return;
  const auto Y = std::make_unique<unsigned char[]>(static_cast<std::size_t>(bytes_of(y_shape)));
  const auto Y_h = std::make_unique<unsigned char[]>(static_cast<std::size_t>(bytes_of(h_shape)));
  gru.SetY(*packed, call, Y.get());
  gru.SetYh(*packed, call, Y_h.get());
  Run(packed, call);
  if (!is_legal) return;
  const Result expected = Exactly(node.p, packed->target());
  Require(Matches(Y.get(), expected.Y, node.batch_first), "Y of a node", node.p, target);
  Require(Matches(Y_h.get(), expected.Y_h, node.batch_first), "Y_h of a node", node.p, target);
}

}  // namespace

void FuzzNodes(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, size);
  const char* const target = CompiledTargets()[DrawTarget(bytes)].name;
  SelectTarget(target);
  SetNumThreads(1 + bytes.Below(4));
  std::size_t spoils = bytes.Below(4);
  Node node = DrawNode(bytes);
  const bool is_legal = spoils == 0;
  for (; spoils > 0; --spoils) {
    if (bytes.OneIn(2)) {
      SpoilAttribute(bytes, node.attributes);
    } else if (!SpoilInput(bytes, node)) {
      return;
    }
  }
  if (!is_legal && !kHasExceptions) return;
  try {
    RunNode(node, is_legal, target);
  } catch (const InvalidArgument& illegal) {
    Require(!is_legal, illegal.what(), node.p, target);
    Require(*illegal.what() != '\0', "a message", node.p, target);
  }
}

}  // namespace onegru
