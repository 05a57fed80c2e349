#include "native/c/spec.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>

#include "native/float_mode.h"
#include "native/packing/packed.h"
#include "native/runtimes/onnx_gru.h"
#include "native/targets/targets.h"

namespace onegru {
namespace {

static_assert(ONEGRU_INT8 == static_cast<int>(ElementType::kInt8) &&
              ONEGRU_FLOAT32 == static_cast<int>(ElementType::kFloat32));

void Require(bool holds, const char* name, std::int64_t number, const char* must) {
  if (!holds) throw InvalidArgument(std::string(name) + ": " + std::to_string(number) + "; must be " + must);
}

// Rounds to float32. ONNX files and the Python package have float32 parameters for every dtype.
double Rounded(double value) {
  const DefaultFloatMode mode;  // keeps subnormal numbers
  return static_cast<float>(value);
}

}  // namespace

void CheckSize(const char* name, const void* given, std::uint32_t smallest, std::uint32_t known) {
  if (given == nullptr) throw InvalidArgument(std::string(name) + ": null; must be given");
  std::uint32_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  const std::string member = std::string(name) + ".size";
  Require(size >= smallest && size <= kLargestSize, member.c_str(), size,
          ("sizeof(onegru_" + std::string(name) + ")").c_str());
  const auto* const bytes = static_cast<const unsigned char*>(given);
  const auto is_set = [](unsigned char byte) { return byte != 0; };
  if (size > known && std::any_of(bytes + known, bytes + size, is_set)) {
    throw Unsupported(std::string(name) + ": sets a field that this version of libonegru does not know; install a " +
                      "newer libonegru, or leave the field 0");
  }
}

Activation CheckedActivation(const onegru_activation& given) {
  Require(given.function >= 0 && given.function < static_cast<int>(kFunctions), "activations", given.function,
          ("an onegru_function, 0…" + std::to_string(kFunctions - 1)).c_str());
  Require(given.reserved == 0, "reserved", given.reserved, "0");
  const FunctionFacts& facts = kFunctionFacts[given.function];
  const auto parameter = [&](const char* name, double value, float otherwise, bool takes) {
    if (!takes) return 0.0;
    if (std::isnan(value)) value = otherwise;
    if (std::isnan(value))
      throw InvalidArgument(std::string(name) + ": NaN; must be given, as " + facts.name + " has no default");
    return Rounded(value);
  };
  return {static_cast<Function>(given.function), parameter("alpha", given.alpha, facts.alpha, facts.takes >= 1),
          parameter("beta", given.beta, facts.beta, facts.takes == 2)};
}

Spec CheckedSpec(const onegru_spec& given) {
  constexpr std::uint32_t kMost = std::uint32_t{1} << 31;
  Require(given.input_size <= kMost, "input_size", given.input_size, "at most 2^31");
  Require(given.hidden_size >= 1 && given.hidden_size <= kMost, "hidden_size", given.hidden_size, "1…2^31");
  Require(given.dtype >= ONEGRU_FLOAT16 && given.dtype <= ONEGRU_FLOAT64, "dtype", given.dtype,
          "float16, bfloat16, float32 or float64, 0…3");
  Require(given.direction >= ONEGRU_FORWARD && given.direction <= ONEGRU_BIDIRECTIONAL, "direction", given.direction,
          "an onegru_direction, 0…2");
  Require(given.linear_before_reset == 0 || given.linear_before_reset == 1, "linear_before_reset",
          given.linear_before_reset, "0 or 1");
  Require(given.attention >= ONEGRU_NO_ATTENTION && given.attention <= ONEGRU_ATTENTION_DIEN, "attention",
          given.attention, "an onegru_attention, 0…2");
  const double clip = Rounded(given.clip);
  if (!(clip > 0) || std::isinf(clip) != std::isinf(given.clip)) {
    char text[32];
    std::snprintf(text, sizeof(text), "%g", given.clip);
    throw InvalidArgument("clip: " + std::string(text) + "; must be > 0 and finite in float32, or infinity for none");
  }
  Require(given.flush_subnormals == 0 || given.flush_subnormals == 1, "flush_subnormals", given.flush_subnormals,
          "0 or 1");
  Require(given.reserved == 0, "spec.reserved", given.reserved, "0");
  const onegru_storage& storage = given.storage;
  const bool is_float = given.dtype == ONEGRU_FLOAT32;
  Require(storage.weight_storage == given.dtype ||
              (is_float && storage.weight_storage >= ONEGRU_FLOAT16 && storage.weight_storage <= ONEGRU_INT8 &&
               storage.weight_storage != ONEGRU_FLOAT64),
          "weight_storage", storage.weight_storage,
          is_float ? "float16, bfloat16, float32 or int8: 0, 1, 2 or 4" : "dtype, unless dtype is float32");
  const bool is_int8 = storage.weight_storage == ONEGRU_INT8;
  const bool may_round = is_float && storage.weight_storage == ONEGRU_BFLOAT16;
  const std::int32_t bits = storage.activation_bits;
  Require((bits == 0 && !is_int8) || (bits == 8 && is_int8) || (bits == 16 && (is_int8 || may_round)),
          "activation_bits", bits,
          is_int8     ? "8 or 16"
          : may_round ? "0, or 16 for inputs that are rounded to bfloat16"
                      : "0 unless weight_storage is int8, or bfloat16 in a float32 layer");
  Require(is_int8 ? storage.group % kQuad == 0 : storage.group == 0, "group", storage.group,
          is_int8 ? "a multiple of 4" : "0 unless weight_storage is int8");

  Spec spec{};
  spec.I = given.input_size;
  spec.H = given.hidden_size;
  spec.D = given.direction == ONEGRU_BIDIRECTIONAL ? 2 : 1;
  spec.reversed[0] = given.direction == ONEGRU_REVERSE;
  spec.reversed[1] = true;
  spec.linear_before_reset = given.linear_before_reset != 0;
  spec.attention = given.attention != ONEGRU_NO_ATTENTION;
  spec.has_dien_attention = given.attention == ONEGRU_ATTENTION_DIEN;
  spec.clip = clip;
  spec.flush_subnormals = given.flush_subnormals != 0;
  spec.type = static_cast<ElementType>(given.dtype);
  spec.storage = static_cast<ElementType>(storage.weight_storage);
  spec.planes = is_int8 && bits == 16 ? 2 : 1;
  spec.rounds_inputs = !is_int8 && bits == 16;
  spec.group = storage.group;
  for (std::size_t d = 0; d < spec.D; ++d) {
    spec.f[d] = CheckedActivation(given.activations[2 * d]);
    spec.g[d] = CheckedActivation(given.activations[2 * d + 1]);
  }
  return spec;
}

void CheckOptions(const onegru_options& given) {
  if (given.storage.weight_storage == ONEGRU_AS_STORED) {
    Require(given.storage.activation_bits == 0, "activation_bits", given.storage.activation_bits,
            "0 with ONEGRU_AS_STORED");
    Require(given.storage.group == 0, "group", given.storage.group, "0 with ONEGRU_AS_STORED");
  }
  Require(given.flush_subnormals >= ONEGRU_AS_STORED && given.flush_subnormals <= 1, "flush_subnormals",
          given.flush_subnormals, "0, 1 or ONEGRU_AS_STORED");
  Require(given.reserved == 0, "options.reserved", given.reserved, "0");
}

}  // namespace onegru
