#include "native/runtimes/onnx_gru.h"

#include "native/kernel.h"
#include "native/runtimes/onnx_activations.h"
#include "native/runtimes/onnx_checks.h"
#include "native/targets/targets.h"

namespace onegru {
std::size_t Tensor::count() const {
  std::size_t count = is_given ? 1 : 0;
  for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
  return count;
}

// Checks the attributes in the same order as the Python package.
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
    throw InvalidArgument("direction: " + Quoted(direction) + "; must be 'forward', 'reverse'" +
                          (kind.may_misspell ? ", 'bidirectional' or 'foward'" : " or 'bidirectional'"));
  }
  spec_.reversed[0] = direction == "reverse";
  spec_.reversed[1] = true;
  if (hidden_size_ && *hidden_size_ < 1)
    throw InvalidArgument("hidden_size: " + std::to_string(*hidden_size_) + "; must be at least 1");
  CheckFlag("output_sequence", attributes.output_sequence);
  CheckFlag("layout", attributes.layout);
  batch_first_ = attributes.layout.value_or(0) == 1;
  const std::string attention = attributes.attention.value_or("openvino");
  if (attention != "openvino" && attention != "dien")
    throw InvalidArgument("attention: " + Quoted(attention) + "; must be 'openvino' or 'dien'");
  spec_.has_dien_attention = attention == "dien";
  spec_.linear_before_reset = attributes.linear_before_reset.value_or(0) != 0;
  spec_.clip = ReadClip(attributes.clip);
  ReadActivations(attributes, spec_, warnings_);
}

std::shared_ptr<const Packed> OnnxGru::Pack(const Tensor& W, const Tensor& R, const Tensor& B,
                                            const PackOptions& options) const {
  CheckType("R", R, W.type);
  if (B.is_given) CheckType("B", B, W.type);
  const auto D = static_cast<std::int64_t>(spec_.D);
  std::int64_t H = kAny;
  if (R.shape.size() == 3) {
    const std::int64_t own = R.shape[2];
    H = hidden_size_.value_or(own);
    if (H != own && R.shape[1] == Times(3, own)) {
      throw InvalidArgument("hidden_size: " + std::to_string(H) + "; must be " + std::to_string(own) +
                            ", because R has shape " + InWords(R.shape));
    }
  }
  const std::int64_t G = H == kAny ? kAny : Times(3, H);
  CheckShape("R", R, {{"num_directions", D}, {"3*hidden_size", G}, {"hidden_size", H}});
  if (H < 1) throw InvalidArgument("R: shape " + InWords(R.shape) + ", hidden_size 0; must be at least 1");
  CheckShape("W", W, {{"num_directions", D}, {"3*hidden_size", G}, {"input_size", kAny}});
  if (B.is_given) CheckShape("B", B, {{"num_directions", D}, {"6*hidden_size", Times(6, H)}});

  Spec spec = spec_;
  spec.H = static_cast<std::size_t>(H);
  spec.I = static_cast<std::size_t>(W.shape[2]);
  spec.type = W.type;
  spec.flush_subnormals = options.flush_subnormals;
  spec.storage = W.type == ElementType::kFloat32 ? options.storage.value_or(W.type) : W.type;
  if (spec.storage == ElementType::kInt8) {
    spec.planes = options.planes;
    spec.group = options.group;
  }
  spec.rounds_inputs = options.rounds_inputs && spec.storage == ElementType::kBFloat16 && spec.storage != spec.type;
  if (spec.storage != spec.type) {
    CheckStorage("W", W, spec.storage, options.group);
    CheckStorage("R", R, spec.storage, options.group);
  }
  std::vector<float> w, r, b;
  // Zeros have the same bytes in float and double.
  std::vector<double> zeros(B.is_given ? 0 : spec.D * 6 * spec.H);
  return PackForRuns(spec, Widened(W, w), Widened(R, r), B.is_given ? Widened(B, b) : zeros.data());
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
        throw InvalidArgument("sequence_lens: " + std::to_string(length) + "; must be in 0…seq_length = 0…" +
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
    if (!A.is_given) throw InvalidArgument("A: missing; must be given");
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
