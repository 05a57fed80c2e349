// Functions that read a graph in an execution provider for ONNX Runtime.

#ifndef ONEGRU_NATIVE_RUNTIMES_GRAPH_VIEW_H_
#define ONEGRU_NATIVE_RUNTIMES_GRAPH_VIEW_H_

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "native/runtimes/fixed_weights.h"

namespace onegru {

using Shape = std::vector<std::int64_t>;
using Nodes = std::vector<const ort::Node*>;

template <class T, class Owner, class Count, class Get>
inline std::vector<const T*> List(const Api& api, const Owner* owner, const Count& count_of, const Get& get) {
  std::size_t count = 0;
  api.Check(count_of(api.api, owner, &count));
  std::vector<const T*> items(count);
  if (count != 0) api.Check(get(api.api, owner, items.data(), count));
  return items;
}

inline std::vector<const ort::ValueInfo*> Inputs(const Api& api, const ort::Node* node) {
  return List<ort::ValueInfo>(api, node, ort::Node_GetNumInputs, ort::Node_GetInputs);
}
inline std::vector<const ort::ValueInfo*> Outputs(const Api& api, const ort::Node* node) {
  return List<ort::ValueInfo>(api, node, ort::Node_GetNumOutputs, ort::Node_GetOutputs);
}
inline std::vector<const ort::ValueInfo*> OuterInputs(const Api& api, const ort::Node* node) {
  return List<ort::ValueInfo>(api, node, ort::Node_GetNumImplicitInputs, ort::Node_GetImplicitInputs);
}
inline Nodes NodesOf(const Api& api, const ort::Graph* graph) {
  return List<ort::Node>(api, graph, ort::Graph_GetNumNodes, ort::Graph_GetNodes);
}
inline std::vector<const ort::Graph*> Bodies(const Api& api, const ort::Node* node) {
  return List<ort::Graph>(api, node, ort::Node_GetNumSubgraphs,
                          [](ort::Table table, const ort::Node* of, const ort::Graph** bodies, std::size_t count) {
                            return ort::Node_GetSubgraphs(table, of, bodies, count, nullptr);
                          });
}

// Returns an empty name for an omitted optional value.
inline std::string NameOf(const Api& api, const ort::ValueInfo* value) {
  const char* name = "";
  if (value != nullptr) api.Check(ort::GetValueInfoName(api.api, value, &name));
  return name;
}

inline std::vector<std::string> NamesOf(const Api& api, const std::vector<const ort::ValueInfo*>& values) {
  std::vector<std::string> names;
  for (const ort::ValueInfo* const value : values) names.push_back(NameOf(api, value));
  return names;
}

template <class Query>
inline bool Asks(const Api& api, const ort::ValueInfo* value, const Query& query) {
  bool answer = false;
  api.Check(query(api.api, value, &answer));
  return answer;
}

// Returns the tensor of an initializer, or null for any other value.
inline const ort::Value* Initializer(const Api& api, const ort::ValueInfo* value) {
  const ort::Value* tensor = nullptr;
  return api.Succeeds(ort::ValueInfo_GetInitializerValue(api.api, value, &tensor)) ? tensor : nullptr;
}

inline bool IsConstant(const Api& api, const ort::ValueInfo* value) {
  return Asks(api, value, ort::ValueInfo_IsConstantInitializer);
}

struct TensorKind {
  ort::TensorType type{};
  Shape shape;

  bool operator==(const TensorKind&) const = default;
  double bytes() const {
    double count = 8;  // no type used here is larger
    for (const std::int64_t size : shape) count *= static_cast<double>(size);
    return count;
  }
};

inline TensorKind KindOf(const Api& api, const ort::Value* value) {
  TensorKind kind;
  const std::int64_t* sizes = nullptr;
  std::size_t rank = 0;
  api.Check(ort::GetTensorElementTypeAndShapeDataReference(api.api, value, &kind.type, &sizes, &rank));
  kind.shape.assign(sizes, sizes + rank);
  return kind;
}

// Returns the type and shape of a value, or nullopt if they are not known before a run.
inline std::optional<TensorKind> KindOf(const Api& api, const ort::ValueInfo* value) {
  const ort::TypeInfo* type = nullptr;
  const ort::TensorInfo* tensor = nullptr;
  std::size_t rank = 0;
  TensorKind kind;
  if (!api.Succeeds(ort::GetValueInfoTypeInfo(api.api, value, &type)) || type == nullptr) return {};
  api.Check(ort::CastTypeInfoToTensorInfo(api.api, type, &tensor));
  if (tensor == nullptr) return {};
  api.Check(ort::GetTensorElementType(api.api, tensor, &kind.type));
  api.Check(ort::GetDimensionsCount(api.api, tensor, &rank));
  kind.shape.resize(rank);
  if (rank != 0) api.Check(ort::GetDimensions(api.api, tensor, kind.shape.data(), rank));
  if (std::any_of(kind.shape.begin(), kind.shape.end(), [](std::int64_t size) { return size < 0; })) return {};
  return kind;
}

inline const unsigned char* DataOf(const Api& api, const ort::Value* value) {
  void* data = nullptr;
  api.Check(ort::GetTensorMutableData(api.api, const_cast<ort::Value*>(value), &data));
  return static_cast<const unsigned char*>(data);
}

inline std::size_t BytesOf(const Api& api, const ort::Value* value) {
  std::size_t bytes = 0;
  api.Check(ort::GetTensorSizeInBytes(api.api, value, &bytes));
  return bytes;
}

inline bool AreEqual(const Api& api, const ort::Value* a, const ort::Value* b) {
  const std::size_t bytes = BytesOf(api, a);
  return KindOf(api, a) == KindOf(api, b) && bytes == BytesOf(api, b) &&
         (bytes == 0 || std::memcmp(DataOf(api, a), DataOf(api, b), bytes) == 0);
}

inline ValueHandle Owned(const Api& api, ort::Value* value) {
  return {value, [table = api.api](ort::Value* it) { ort::ReleaseValue(table, it); }};
}

}  // namespace onegru

#endif
