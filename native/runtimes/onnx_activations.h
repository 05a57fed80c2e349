// Reads the activation functions of a GRU node, with their alpha and beta.

#ifndef ONEGRU_NATIVE_RUNTIMES_ONNX_ACTIVATIONS_H_
#define ONEGRU_NATIVE_RUNTIMES_ONNX_ACTIVATIONS_H_

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "native/problem.h"
#include "native/runtimes/onnx_gru.h"

namespace onegru {

// Quotes text like Python's repr, so that a message is one line, and the same as in Python.
inline std::string Quoted(const std::string& text) {
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

inline bool SameButForCase(const std::string& a, const char* b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return a.size() == std::strlen(b) &&
         std::equal(a.begin(), a.end(), b, [&](char x, char y) { return lower(x) == lower(y); });
}

inline Function FindFunction(const std::string& name) {
  std::string known;
  for (std::size_t i = 0; i < kFunctions; ++i) {
    if (SameButForCase(name, kFunctionFacts[i].name)) return static_cast<Function>(i);
    known += (i == 0 ? "" : ", ") + std::string(kFunctionFacts[i].name);
  }
  throw InvalidArgument("activations: unknown function " + Quoted(name) + "; must be one of " + known);
}

// Assigns values in order to the functions that take them.
class Parameters {
 public:
  Parameters(const char* name, const std::vector<float>& values) : name_(name), values_(values) {}

  double Next(const FunctionFacts& function, float otherwise) {
    if (next_ < values_.size()) return values_[next_++];
    if (!std::isnan(otherwise)) return otherwise;
    throw InvalidArgument("activation_" + std::string(name_) + ": no value for " + function.name +
                          ", which has no default; must have one for each function that uses " + name_);
  }

  void WarnOfSpare(const std::vector<Function>& functions, std::vector<std::string>& warnings) const {
    if (next_ == values_.size()) return;
    std::string names;
    for (const Function function : functions)
      names += (names.empty() ? "" : ", ") + std::string(kFunctionFacts[static_cast<std::size_t>(function)].name);
    const std::size_t spare = values_.size() - next_;
    warnings.push_back("activation_" + std::string(name_) + ": " + std::to_string(spare) +
                       (spare == 1 ? " value" : " values") + " too many for " + names + "; without effect");
  }

 private:
  const char* name_;
  const std::vector<float>& values_;
  std::size_t next_ = 0;
};

inline void ReadActivations(const OnnxGruAttributes& attributes, Spec& spec, std::vector<std::string>& warnings) {
  std::vector<std::string> names;
  for (std::size_t d = 0; d < spec.D; ++d) names.insert(names.end(), {"Sigmoid", "Tanh"});
  if (attributes.activations && !attributes.activations->empty()) {  // an empty list means the same as no list
    if (attributes.activations->size() != names.size()) {
      throw InvalidArgument("activations: " + std::to_string(attributes.activations->size()) + " names; must be " +
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

}  // namespace onegru

#endif
