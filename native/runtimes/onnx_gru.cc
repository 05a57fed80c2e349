#include "native/runtimes/onnx_gru.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "native/kernel.h"
#include "native/targets/targets.h"

namespace onegru {
namespace {

// --- activations

// A text as Python's repr has it, so that a message is one line and the same in both.
std::string Quoted(const std::string& text) {
  const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  std::string quoted(1, quote);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const char* const escape = c == '\n' ? "\\n" : c == '\r' ? "\\r" : c == '\t' ? "\\t" : nullptr;
    if (escape != nullptr) {
      quoted += escape;
    } else if (byte < 0x20 || byte == 0x7f) {
      char code[5];
      std::snprintf(code, sizeof(code), "\\x%02x", byte);
      quoted += code;
    } else {
      if (c == quote || c == '\\') quoted += '\\';
      quoted += c;
    }
  }
  return quoted + quote;
}

bool SameButForCase(const std::string& a, const char* b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return a.size() == std::strlen(b) &&
         std::equal(a.begin(), a.end(), b, [&](char x, char y) { return lower(x) == lower(y); });
}

Function FindFunction(const std::string& name) {
  std::string known;
  for (std::size_t i = 0; i < kFunctions; ++i) {
    if (SameButForCase(name, kFunctionFacts[i].name)) return static_cast<Function>(i);
    known += (i == 0 ? "" : ", ") + std::string(kFunctionFacts[i].name);
  }
  throw IllegalGru("activations: unknown function " + Quoted(name) + "; must be one of " + known);
}

// Hands out values in order to the functions that take them.
class Parameters {
 public:
  Parameters(const char* name, const std::vector<float>& values) : name_(name), values_(values) {}

  double Next(const FunctionFacts& function, float otherwise) {
    if (next_ < values_.size()) return values_[next_++];
    if (!std::isnan(otherwise)) return otherwise;
    throw IllegalGru("activation_" + std::string(name_) + ": no value left for " + function.name +
                     ", which has no default; must hold one for each function that takes " + name_);
  }

  void WarnOfSpare(const std::vector<Function>& functions, std::vector<std::string>& warnings) const {
    if (next_ == values_.size()) return;
    std::string names;
    for (const Function function : functions)
      names += (names.empty() ? "" : ", ") + std::string(kFunctionFacts[static_cast<std::size_t>(function)].name);
    const std::size_t spare = values_.size() - next_;
    warnings.push_back("activation_" + std::string(name_) + ": " + std::to_string(spare) +
                       (spare == 1 ? " value" : " values") + " left over, which no function of " + names +
                       " takes; without effect");
  }

 private:
  const char* name_;
  const std::vector<float>& values_;
  std::size_t next_ = 0;
};

void ReadActivations(const OnnxGruAttributes& attributes, Spec& spec, std::vector<std::string>& warnings) {
  std::vector<std::string> names;
  for (std::size_t d = 0; d < spec.D; ++d) names.insert(names.end(), {"Sigmoid", "Tanh"});
  if (attributes.activations) {
    if (attributes.activations->size() != names.size()) {
      throw IllegalGru("activations: " + std::to_string(attributes.activations->size()) + " names; must be " +
                       std::to_string(names.size()) + ", 2 for each of " + std::to_string(spec.D) +
                       (spec.D == 1 ? " direction" : " directions"));
    }
    names = *attributes.activations;
  }
  std::vector<Function> functions;
  for (const std::string& name : names) functions.push_back(FindFunction(name));
  Parameters alpha("alpha", attributes.activation_alpha), beta("beta", attributes.activation_beta);
  for (std::size_t i = 0; i < functions.size(); ++i) {
    const FunctionFacts& facts = kFunctionFacts[static_cast<std::size_t>(functions[i])];
    Activation activation{functions[i], 0, 0};
    if (facts.takes >= 1) activation.alpha = alpha.Next(facts, facts.alpha);
    if (facts.takes == 2) activation.beta = beta.Next(facts, facts.beta);
    (i % 2 == 0 ? spec.f : spec.g)[i / 2] = activation;
  }
  alpha.WarnOfSpare(functions, warnings);
  beta.WarnOfSpare(functions, warnings);
}

// --- other attributes

void CheckFlag(const char* name, const std::optional<std::int64_t>& value) {
  if (value && *value != 0 && *value != 1)
    throw IllegalGru(std::string(name) + ": " + std::to_string(*value) + "; must be 0 or 1");
}

void CheckNumber(const char* name, float value) {
  if (std::isnan(value)) throw IllegalGru(std::string(name) + ": NaN; must be a number");
}

double ReadClip(const std::optional<float>& clip) {
  if (!clip) return HUGE_VAL;
  if (*clip > 0) return *clip;
  char text[32];
  std::snprintf(text, sizeof(text), "%g", static_cast<double>(*clip));
  throw IllegalGru("clip: " + std::string(text) + "; must be > 0");
}

// ONNX Runtime does so for GRU; it does not compare an AUGRU node with its function.
void CheckNames(const OnnxGruAttributes& attributes, const OnnxOperator& kind) {
  if (!kind.attention || !attributes.output_sequence) return;
  std::string known;
  ForEachAttribute(attributes, [&](const char* name, const auto&) {
    if (std::strcmp(name, "output_sequence") != 0) known += (known.empty() ? "" : ", ") + std::string(name);
  });
  throw IllegalGru("output_sequence: not an attribute of " + std::string(kind.name) + "-" + std::to_string(kind.since) +
                   "; must be one of " + known);
}

// --- shapes

std::string InWords(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

constexpr std::int64_t kAny = -1;

// A size that is a multiple of another one, which may be any number that a file has.
std::int64_t Times(std::int64_t factor, std::int64_t size) {
  return size > std::numeric_limits<std::int64_t>::max() / factor ? std::numeric_limits<std::int64_t>::max()
                                                                  : factor * size;
}

// Of an axis: what it is called, and what it must be.
struct Axis {
  const char* name;
  std::int64_t size;
};

void CheckShape(const char* name, const Tensor& tensor, std::initializer_list<Axis> axes) {
  bool fits = tensor.shape.size() == axes.size(), is_known = false;
  std::string names, sizes;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const Axis& axis = axes.begin()[i];
    fits = fits && (axis.size == kAny || tensor.shape[i] == axis.size);
  }
  if (fits) return;
  for (const Axis& axis : axes) {
    names += (names.empty() ? "" : ", ") + std::string(axis.name);
    sizes += (sizes.empty() ? "" : ", ") + (axis.size == kAny ? "any" : std::to_string(axis.size));
    is_known |= axis.size != kAny;
  }
  const std::string rank =
      tensor.shape.size() == axes.size() ? "" : "rank " + std::to_string(tensor.shape.size()) + ", ";
  throw IllegalGru(std::string(name) + ": " + rank + "shape " + InWords(tensor.shape) + "; must be [" + names + "]" +
                   (is_known ? " = [" + sizes + "]" : ""));
}

void CheckType(const char* name, const Tensor& tensor, ElementType type) {
  if (tensor.type == type) return;
  throw IllegalGru(std::string(name) + ": type " + NameOf(tensor.type) + "; must be " + NameOf(type) + ", like W");
}

// The elements in the type that is computed in: as they are, or widened into `memory`.
const void* Widened(const Tensor& tensor, std::vector<float>& memory) {
  if (tensor.type == ElementType::kFloat32 || tensor.type == ElementType::kFloat64) return tensor.data;
  const auto* const bits = static_cast<const std::uint16_t*>(tensor.data);
  memory.resize(tensor.count());
  std::transform(bits, bits + memory.size(), memory.begin(),
                 tensor.type == ElementType::kFloat16 ? FromFloat16Bits : FromBFloat16Bits);
  return memory.data();
}

// Of weights that are kept in int8: their scales must be finite, and their sums fit into 32 bits.
void CheckInt8(const char* name, const Tensor& tensor) {
  if (tensor.shape[2] > static_cast<std::int64_t>(kMaxInt8Inputs))
    throw IllegalGru(std::string(name) + ": shape " + InWords(tensor.shape) + "; its last axis must be at most " +
                     std::to_string(kMaxInt8Inputs) + " to be kept in int8");
  const auto* const numbers = static_cast<const float*>(tensor.data);
  if (!std::all_of(numbers, numbers + tensor.count(), [](float number) { return std::isfinite(number); }))
    throw IllegalGru(std::string(name) + ": holds NaN or infinity; must be finite to be kept in int8");
}

}  // namespace

std::size_t Tensor::count() const {
  std::size_t count = is_given ? 1 : 0;
  for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
  return count;
}

// In the order in which the Python package checks them.
OnnxGru::OnnxGru(const OnnxGruAttributes& attributes, const OnnxOperator& kind) : hidden_size_(attributes.hidden_size) {
  CheckNames(attributes, kind);
  for (const float alpha : attributes.activation_alpha) CheckNumber("activation_alpha", alpha);
  for (const float beta : attributes.activation_beta) CheckNumber("activation_beta", beta);
  if (attributes.clip) CheckNumber("clip", *attributes.clip);
  spec_.attention = kind.attention;
  const std::string direction = attributes.direction.value_or("forward");
  if (direction == "bidirectional") {
    spec_.D = 2;
  } else if (direction == "forward" || direction == "reverse" || (direction == "foward" && kind.may_misspell)) {
    spec_.D = 1;
  } else {
    throw IllegalGru("direction: " + Quoted(direction) + "; must be 'forward', 'reverse'" +
                     (kind.may_misspell ? ", 'bidirectional' or 'foward'" : " or 'bidirectional'"));
  }
  spec_.reversed[0] = direction == "reverse";
  spec_.reversed[1] = true;
  if (hidden_size_ && *hidden_size_ < 1)
    throw IllegalGru("hidden_size: " + std::to_string(*hidden_size_) + "; must be at least 1");
  CheckFlag("output_sequence", attributes.output_sequence);
  CheckFlag("layout", attributes.layout);
  batch_first_ = attributes.layout.value_or(0) == 1;
  spec_.linear_before_reset = attributes.linear_before_reset.value_or(0) != 0;
  spec_.clip = ReadClip(attributes.clip);
  ReadActivations(attributes, spec_, warnings_);
}

std::shared_ptr<const Packed> OnnxGru::Pack(const Tensor& W, const Tensor& R, const Tensor& B,
                                            std::optional<ElementType> storage, std::size_t planes,
                                            std::size_t group) const {
  CheckType("R", R, W.type);
  if (B.is_given) CheckType("B", B, W.type);
  const auto D = static_cast<std::int64_t>(spec_.D);
  std::int64_t H = kAny;
  if (R.shape.size() == 3) {
    const std::int64_t own = R.shape[2];
    H = hidden_size_.value_or(own);
    if (H != own && R.shape[1] == Times(3, own)) {
      throw IllegalGru("hidden_size: " + std::to_string(H) + "; must be " + std::to_string(own) + ", as R has shape " +
                       InWords(R.shape));
    }
  }
  const std::int64_t G = H == kAny ? kAny : Times(3, H);
  CheckShape("R", R, {{"num_directions", D}, {"3*hidden_size", G}, {"hidden_size", H}});
  if (H < 1) throw IllegalGru("R: shape " + InWords(R.shape) + ", hidden_size 0; must be at least 1");
  CheckShape("W", W, {{"num_directions", D}, {"3*hidden_size", G}, {"input_size", kAny}});
  if (B.is_given) CheckShape("B", B, {{"num_directions", D}, {"6*hidden_size", Times(6, H)}});

  Spec spec = spec_;
  spec.H = static_cast<std::size_t>(H);
  spec.I = static_cast<std::size_t>(W.shape[2]);
  spec.type = W.type;
  spec.storage = W.type == ElementType::kFloat32 ? storage.value_or(W.type) : W.type;
  if (spec.storage == ElementType::kInt8) {
    spec.planes = planes;
    spec.group = group;
    CheckInt8("W", W);
    CheckInt8("R", R);
  }
  const std::size_t target = ChosenTargetIndex();
  const std::size_t lanes = KernelFor(spec, target).lanes;
  std::vector<float> w, r, b;
  // Zeros of either type are the same bytes.
  std::vector<double> zeros(B.is_given ? 0 : spec.D * 6 * spec.H);
  return std::make_shared<const Packed>(spec, target, lanes, Widened(W, w), Widened(R, r),
                                        B.is_given ? Widened(B, b) : zeros.data());
}

Call OnnxGru::MakeCall(const Packed& packed, const Tensor& X, const Tensor& sequence_lens, const Tensor& initial_h,
                       const Tensor& A, std::vector<std::int64_t>& lengths) const {
  const Spec& spec = packed.spec();
  const auto I = static_cast<std::int64_t>(spec.I), D = static_cast<std::int64_t>(spec.D);
  const auto H = static_cast<std::int64_t>(spec.H);
  CheckType("X", X, spec.type);
  if (batch_first_) {
    CheckShape("X", X, {{"batch_size", kAny}, {"seq_length", kAny}, {"input_size", I}});
  } else {
    CheckShape("X", X, {{"seq_length", kAny}, {"batch_size", kAny}, {"input_size", I}});
  }
  const std::int64_t T = X.shape[batch_first_ ? 1 : 0], B = X.shape[batch_first_ ? 0 : 1];
  Call call{};
  call.T = static_cast<std::size_t>(T);
  call.B = static_cast<std::size_t>(B);
  const std::size_t size = SizeOf(spec.type);
  const char* const steps = batch_first_ ? "BT" : "TB";
  call.X = ContiguousRows(X.data, steps, call.T, spec.D, call.B, spec.I * size);
  if (sequence_lens.is_given) {
    CheckShape("sequence_lens", sequence_lens, {{"batch_size", B}});
    const auto* const given = static_cast<const std::int32_t*>(sequence_lens.data);
    lengths.assign(given, given + B);
    for (const std::int64_t length : lengths) {
      if (length < 0 || length > T) {
        throw IllegalGru("sequence_lens: " + std::to_string(length) + "; must be in 0…seq_length = 0…" +
                         std::to_string(T));
      }
    }
    call.lengths = lengths.data();
  }
  if (initial_h.is_given) {
    CheckType("initial_h", initial_h, spec.type);
    if (batch_first_) {
      CheckShape("initial_h", initial_h, {{"batch_size", B}, {"num_directions", D}, {"hidden_size", H}});
    } else {
      CheckShape("initial_h", initial_h, {{"num_directions", D}, {"batch_size", B}, {"hidden_size", H}});
    }
    call.initial_h = StateRows(packed, call, initial_h.data);
  }
  if (spec.attention) {
    if (!A.is_given) throw IllegalGru("A: missing; must be given");
    CheckType("A", A, spec.type);
    if (batch_first_) {
      CheckShape("A", A, {{"batch_size", B}, {"seq_length", T}, {"1", 1}});
    } else {
      CheckShape("A", A, {{"seq_length", T}, {"batch_size", B}, {"1", 1}});
    }
    call.attention = ContiguousRows(A.data, steps, call.T, spec.D, call.B, size);
  }
  return call;
}

std::array<std::int64_t, 4> OnnxGru::YShape(const Packed& packed, const Call& call) const {
  const auto T = static_cast<std::int64_t>(call.T), D = static_cast<std::int64_t>(packed.spec().D);
  const auto B = static_cast<std::int64_t>(call.B), H = static_cast<std::int64_t>(packed.spec().H);
  return batch_first_ ? std::array{B, T, D, H} : std::array{T, D, B, H};
}

std::array<std::int64_t, 3> OnnxGru::StateShape(const Packed& packed, const Call& call) const {
  const auto D = static_cast<std::int64_t>(packed.spec().D), B = static_cast<std::int64_t>(call.B);
  const auto H = static_cast<std::int64_t>(packed.spec().H);
  return batch_first_ ? std::array{B, D, H} : std::array{D, B, H};
}

void OnnxGru::SetY(const Packed& packed, Call& call, void* Y) const {
  const Spec& spec = packed.spec();
  call.Y = ContiguousRows(Y, batch_first_ ? "BTD" : "TDB", call.T, spec.D, call.B, spec.H * SizeOf(spec.type));
}

void OnnxGru::SetYh(const Packed& packed, Call& call, void* Y_h) const { call.Y_h = StateRows(packed, call, Y_h); }

Rows OnnxGru::StateRows(const Packed& packed, const Call& call, const void* data) const {
  const Spec& spec = packed.spec();
  return ContiguousRows(data, batch_first_ ? "BD" : "DB", call.T, spec.D, call.B, spec.H * SizeOf(spec.type));
}

}  // namespace onegru
