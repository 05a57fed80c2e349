// Writes nodes of a graph as an ONNX model, and runs it once.

#ifndef ONEGRU_NATIVE_RUNTIMES_NODE_MODEL_H_
#define ONEGRU_NATIVE_RUNTIMES_NODE_MODEL_H_

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "native/runtimes/graph_view.h"

namespace onegru {

// A Protocol Buffers message. The field numbers are those of onnx.proto.
class Message {
 public:
  Message& Int(unsigned field, std::int64_t value) {
    Varint(field << 3);
    Varint(static_cast<std::uint64_t>(value));
    return *this;
  }
  Message& Float(unsigned field, float value) {
    Varint(field << 3 | 5);
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  Message& Text(unsigned field, const std::string& text) {
    Varint(field << 3 | 2);
    Varint(text.size());
    text_ += text;
    return *this;
  }
  Message& In(unsigned field, const Message& message) { return Text(field, message.text_); }
  const std::string& text() const { return text_; }

 private:
  void Varint(std::uint64_t value) {
    for (; value >= 128; value >>= 7) text_.push_back(static_cast<char>(value | 128));
    text_.push_back(static_cast<char>(value));
  }
  std::string text_;
};

// Returns nullopt for attribute types that no operator in FixedWeights::Carriers has.
inline std::optional<Message> AttributeMessage(const Api& api, const ort::OpAttribute* attribute) {
  constexpr unsigned kName = 1, kF = 2, kI = 3, kS = 4, kInts = 8, kType = 20;
  enum { kIsFloat = 1, kIsInt = 2, kIsString = 3, kIsInts = 7 };
  const char* name = nullptr;
  ort::AttributeType type{};
  api.Check(ort::OpAttr_GetName(api.api, attribute, &name));
  api.Check(ort::OpAttr_GetType(api.api, attribute, &type));
  std::size_t bytes = 0;
  std::string data(sizeof(std::int64_t), '\0');
  if (!api.Succeeds(ort::ReadOpAttr(api.api, attribute, type, data.data(), data.size(), &bytes))) {
    data.resize(bytes);
    api.Check(ort::ReadOpAttr(api.api, attribute, type, data.data(), data.size(), &bytes));
  }
  data.resize(bytes);
  std::vector<std::int64_t> numbers(bytes / sizeof(std::int64_t));
  std::memcpy(numbers.data(), data.data(), numbers.size() * sizeof(std::int64_t));
  Message message;
  message.Text(kName, name);
  float number = 0;
  switch (type) {
    case ort::kIntAttribute:
      return message.Int(kI, numbers.at(0)).Int(kType, kIsInt);
    case ort::kIntsAttribute:
      for (const std::int64_t item : numbers) message.Int(kInts, item);
      return message.Int(kType, kIsInts);
    case ort::kFloatAttribute:
      std::memcpy(&number, data.data(), std::min(sizeof(number), data.size()));
      return message.Float(kF, number).Int(kType, kIsFloat);
    case ort::kStringAttribute:
      return message.Text(kS, data).Int(kType, kIsString);
  }
  return {};
}

inline std::optional<Message> NodeMessage(const Api& api, const ort::Node* node) {
  constexpr unsigned kInput = 1, kOutput = 2, kOperator = 4, kAttribute = 5;
  const char* kind = nullptr;
  api.Check(ort::Node_GetOperatorType(api.api, node, &kind));
  Message message;
  for (const auto& name : NamesOf(api, Inputs(api, node))) message.Text(kInput, name);
  for (const auto& name : NamesOf(api, Outputs(api, node))) message.Text(kOutput, name);
  message.Text(kOperator, kind);
  for (const auto* item : List<ort::OpAttribute>(api, node, ort::Node_GetNumAttributes, ort::Node_GetAttributes)) {
    const auto attribute = AttributeMessage(api, item);
    if (!attribute) return {};
    message.In(kAttribute, *attribute);
  }
  return message;
}

inline Message InputMessage(const std::string& name, const TensorKind& kind) {
  Message shape;
  for (const std::int64_t size : kind.shape) shape.In(1, Message().Int(1, size));
  return Message().Text(1, name).In(2, Message().In(1, Message().Int(1, kind.type).In(2, shape)));
}

// Returns a model whose inputs are the constants, or nullopt if it cannot be written.
inline std::optional<std::string> ModelOf(const Api& api, const ort::Graph* graph, const Nodes& nodes,
                                          const std::map<std::string, const ort::Value*>& constants,
                                          const std::string& output) {
  constexpr unsigned kNode = 1, kName = 2, kInput = 11, kOutput = 12, kVersion = 1, kGraph = 7, kOpset = 8;
  std::int64_t version = 0;
  std::size_t count = 0;
  api.Check(ort::Graph_GetOnnxIRVersion(api.api, graph, &version));
  api.Check(ort::Graph_GetNumOperatorSets(api.api, graph, &count));
  std::vector<const char*> domains(count);
  std::vector<std::int64_t> opsets(count);
  if (count != 0) api.Check(ort::Graph_GetOperatorSets(api.api, graph, domains.data(), opsets.data(), count));
  Message inner;
  for (const ort::Node* const node : nodes) {
    const auto message = NodeMessage(api, node);
    if (!message) return {};
    inner.In(kNode, *message);
  }
  inner.Text(kName, "weights");
  for (const auto& [name, value] : constants) inner.In(kInput, InputMessage(name, KindOf(api, value)));
  Message model;
  model.Int(kVersion, version).In(kGraph, inner.In(kOutput, Message().Text(1, output)));
  for (std::size_t i = 0; i < count; ++i)
    if (IsOnnx(domains[i])) model.In(kOpset, Message().Text(1, "").Int(2, opsets[i]));
  return model.text();
}

// Runs a model, and returns its output, or null if ONNX Runtime rejects the model or cannot run it.
inline ValueHandle RunModel(const Api& api, const std::string& model,
                            const std::map<std::string, const ort::Value*>& given, const std::string& output) {
  ort::Env* env = nullptr;
  ort::SessionOptions* options = nullptr;
  ort::Session* session = nullptr;
  ort::Value* result = nullptr;
  std::vector<const char*> names;
  std::vector<const ort::Value*> values;
  for (const auto& [name, value] : given) {
    names.push_back(name.c_str());
    values.push_back(value);
  }
  const char* const wanted = output.c_str();
  const bool is_run =
      api.Succeeds(ort::CreateEnv(api.api, ort::kWarning, "onegru", &env)) &&  // returns the existing one
      api.Succeeds(ort::CreateSessionOptions(api.api, &options)) &&
      api.Succeeds(ort::SetSessionGraphOptimizationLevel(api.api, options, ort::kNoOptimizations)) &&
      api.Succeeds(ort::SetSessionLogSeverityLevel(api.api, options, ort::kFatal)) &&
      api.Succeeds(ort::SetIntraOpNumThreads(api.api, options, 1)) &&
      api.Succeeds(ort::DisableCpuMemArena(api.api, options)) &&  // the result would keep it
      api.Succeeds(ort::CreateSessionFromArray(api.api, env, model.data(), model.size(), options, &session)) &&
      api.Succeeds(ort::Run(api.api, session, nullptr, names.data(), values.data(), names.size(), &wanted, 1, &result));
  if (session != nullptr) ort::ReleaseSession(api.api, session);
  if (options != nullptr) ort::ReleaseSessionOptions(api.api, options);
  if (env != nullptr) ort::ReleaseEnv(api.api, env);
  return is_run ? Owned(api, result) : nullptr;
}

}  // namespace onegru

#endif
