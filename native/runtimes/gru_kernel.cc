#include "native/runtimes/gru_kernel.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "native/kernel.h"
#include "native/runtimes/observer.h"
#include "native/runtimes/ort_api.h"
#include "native/threads/threads.h"

namespace onegru {
namespace {

// table: native_inputs
enum Input { kX, kW, kR, kB, kSequenceLens, kInitialH, kA };
constexpr const char* kInputNames[] = {"X", "W", "R", "B", "sequence_lens", "initial_h", "A"};
// end

// The file name of onegru's messages in ONNX Runtime's log.
constexpr ort::PathChar kFile[] = {'o', 'n', 'e', 'g', 'r', 'u', 0};

std::atomic<Observer*> g_observer{nullptr};

// Reads optional attributes of each type.
class AttributeReader {
 public:
  AttributeReader(const Api& api, const ort::KernelInfo* info) : api_(api), info_(info) {}

  void operator()(const char* name, std::optional<std::int64_t>& value) const {
    std::int64_t read = 0;
    if (api_.Succeeds(ort::KernelInfoGetAttribute_int64(api_.api, info_, name, &read))) value = read;
  }
  void operator()(const char* name, std::optional<float>& value) const {
    float read = 0;
    if (api_.Succeeds(ort::KernelInfoGetAttribute_float(api_.api, info_, name, &read))) value = read;
  }
  void operator()(const char* name, std::optional<std::string>& value) const {
    value = Text(api_, [&](char* text, std::size_t* size) {
      return ort::KernelInfoGetAttribute_string(api_.api, info_, name, text, size);
    });
  }
  void operator()(const char* name, std::vector<float>& values) const {
    std::size_t size = 0;
    api_.Succeeds(ort::KernelInfoGetAttributeArray_float(api_.api, info_, name, nullptr, &size));
    values.resize(size);
    if (size != 0) api_.Check(ort::KernelInfoGetAttributeArray_float(api_.api, info_, name, values.data(), &size));
  }
  void operator()(const char* name, std::optional<std::vector<std::string>>& values) const {
    ort::Allocator* allocator = nullptr;
    api_.Check(ort::GetAllocatorWithDefaultOptions(api_.api, &allocator));
    char** texts = nullptr;
    std::size_t count = 0;
    if (!api_.Succeeds(ort::KernelInfoGetAttributeArray_string(api_.api, info_, name, allocator, &texts, &count)))
      return;
    values.emplace();
    for (std::size_t i = 0; i < count; ++i) {
      values->emplace_back(texts[i]);
      api_.Succeeds(ort::AllocatorFree(api_.api, allocator, texts[i]));
    }
    if (texts != nullptr) api_.Succeeds(ort::AllocatorFree(api_.api, allocator, texts));
  }

 private:
  const Api& api_;
  const ort::KernelInfo* info_;
};

OnnxGruAttributes ReadAttributes(const Api& api, const ort::KernelInfo* info) {
  OnnxGruAttributes attributes;
  ForEachAttribute(attributes, AttributeReader(api, info));
  return attributes;
}

std::optional<ElementType> StorageOf(const Options& options, const std::string& node) {
  const auto word = options.weight_storage.Of(node);
  if (!word || word->empty()) return {};
  if (IsInt8(word)) return ElementType::kInt8;
  for (const auto type : {ElementType::kFloat16, ElementType::kBFloat16})
    if (word == NameOf(type)) return type;
  throw InvalidArgument("weight_storage: '" + *word + "'; must be float16, bfloat16 or int8");
}

// Returns the group size: 64 for "int8_g64", or 0 without groups.
std::size_t GroupOf(const Options& options, const std::string& node) {
  const auto word = options.weight_storage.Of(node);
  if (!IsInt8(word) || word->find('g') == std::string::npos) return 0;
  return std::strtoul(word->c_str() + word->find('g') + 1, nullptr, 10);
}

PackOptions PackOptionsOf(const Options& options, const std::string& node) {
  const auto activations = options.activation_storage.Of(node);
  return {StorageOf(options, node), activations == NameOf(ElementType::kInt8) ? std::size_t{1} : std::size_t{2},
          GroupOf(options, node), activations == NameOf(ElementType::kBFloat16), options.flush_subnormals};
}

// Returns the prefix of messages about a node.
std::string PlaceOf(const Api& api, const OnnxOperator& kind, const ort::KernelInfo* info, const std::string& name) {
  const std::string node = std::string(kind.name) + " node";
  if (!name.empty()) return node + " '" + name + "': ";
  for (const std::string& output : OutputNames(api, info))
    if (!output.empty()) return node + " with output '" + output + "': ";
  return node + ": ";
}

// ONNX Runtime copies defaults of up to 127 bytes. Comparing them takes less time than a lookup.
constexpr std::size_t kSmall = 128;

// Weights that are not constants, and their packed form.
struct Computed {
  // fixed: whether the address identifies a tensor, so that no copy is needed.
  Computed(const Tensor (&tensors)[3], const bool (&fixed)[3]) {
    for (std::size_t i = 0; i < 3; ++i) {
      is_fixed[i] = fixed[i];
      const auto* const data = static_cast<const unsigned char*>(tensors[i].data);
      shapes[i].assign(tensors[i].shape.begin(), tensors[i].shape.end());
      memory[i] = data;
      if (!fixed[i] && tensors[i].bytes() != 0) bytes[i].assign(data, data + tensors[i].bytes());
    }
  }
  bool IsOf(const Tensor (&tensors)[3], const bool (&fixed)[3]) const {
    for (std::size_t i = 0; i < 3; ++i) {
      const Tensor& tensor = tensors[i];
      if (!std::equal(shapes[i].begin(), shapes[i].end(), tensor.shape.begin(), tensor.shape.end()) ||
          is_fixed[i] != fixed[i] ||
          (fixed[i] ? memory[i] != tensor.data
                    : bytes[i].size() != tensor.bytes() ||
                          (!bytes[i].empty() && std::memcmp(bytes[i].data(), tensor.data, bytes[i].size()) != 0))) {
        return false;
      }
    }
    return true;
  }

  bool is_fixed[3];
  const void* memory[3];
  std::vector<std::int64_t> shapes[3];
  std::vector<unsigned char> bytes[3];
  std::shared_ptr<const Packed> packed;
};

class GruKernel : public ort::Kernel {
 public:
  GruKernel(const Api& api, const Options& options, const FixedWeights& fixed_weights, const OnnxOperator& kind,
            const ort::KernelInfo* info, const std::string& name, const std::string& key)
      : ort::Kernel{},
        api_(api),
        options_(options),
        fixed_weights_(fixed_weights),
        kind_(kind),
        name_(name),
        place_(PlaceOf(api, kind, info, name)),
        pack_options_(PackOptionsOf(options, key)),
        attributes_(ReadAttributes(api, info)),
        gru_(attributes_, kind) {
    version = api.version;
    Compute = [](ort::Kernel* self, ort::KernelContext* context) {
      const auto& kernel = static_cast<GruKernel&>(*self);
      return kernel.api_.Try([&] { kernel.Run(context); }, kernel.place_);
    };
    Release = [](ort::Kernel* self) { delete static_cast<GruKernel*>(self); };
    PrePackWeight = [](ort::Kernel* self, const ort::Value*, int index, ort::Allocator*, void*, bool* is_packed) {
      *is_packed = static_cast<GruKernel&>(*self).HasPacked(index);
      return static_cast<ort::Status*>(nullptr);
    };
    api.Check(ort::KernelInfo_GetInputCount(api.api, info, &input_count_));
    api.Check(ort::KernelInfo_GetOutputCount(api.api, info, &output_count_));
    TakeConstants(info);
    for (const std::string& warning : gru_.warnings()) Warn(place_ + warning);
  }

 private:
  void Warn(const std::string& message) const {
    if (Observer* const observer = TheObserver()) return observer->Warn(message);
    api_.Check(ort::Logger_LogMessage(api_.api, options_.logger, ort::kWarning, (kMessagePrefix + message).c_str(),
                                      kFile, __LINE__, __func__));
  }

  void TakeConstants(const ort::KernelInfo* info) {
    Tensor weights[3];
    bool are_known = true;
    std::vector<std::pair<std::string, std::shared_ptr<ComputedWeight>>> found;
    for (std::size_t i = 0; i < 3; ++i) {
      const std::size_t input = kW + i;
      const auto name = input >= input_count_ ? std::nullopt : Text(api_, [&](char* text, std::size_t* size) {
        return ort::KernelInfo_GetInputName(api_.api, info, input, text, size);
      });
      if (!name || name->empty()) continue;  // B is absent
      int is_constant = 0;
      const ort::Value* value = nullptr;
      api_.Check(ort::KernelInfoGetConstantInput_tensor(api_.api, info, input, &is_constant, &value));
      if (!is_constant || value == nullptr) {
        const std::string key = FixedWeights::KeyOf(*name, OutputNames(api_, info));
        const auto weight = fixed_weights_.Find(key);
        are_known = are_known && weight != nullptr;
        if (weight == nullptr) continue;
        found.emplace_back(key, weight);
        value = weight->value.get();
      } else {
        is_constant_[i] = true;
      }
      weights[i] = View(api_, value, kInputNames[input], false);
    }
    if (!are_known || !weights[0].is_given || !weights[1].is_given) return;
    packed_ = Pack(weights);
    if (!IsObserved())
      for (const auto& [key, weight] : found) weight->packed.insert(key);
  }

  // Whether an input is a packed constant that ONNX Runtime may free.
  bool HasPacked(int input) const {
    return packed_ != nullptr && !IsObserved() && (input == kW || input == kR || input == kB);
  }
  bool IsObserved() const { return options_.observer != 0 || options_.reference; }

  void Show(Moment moment, std::span<const Port> ports) const {
    if (Observer* const observer = TheObserver())
      observer->See(options_.observer, moment, name_, kind_, attributes_, ports);
  }

  Tensor In(const ort::KernelContext* context, std::size_t index) const {
    if (index >= input_count_) return {};
    const ort::Value* value = nullptr;
    api_.Check(ort::KernelContext_GetInput(api_.api, context, index, &value));
    return View(api_, value, kInputNames[index], index == kSequenceLens);
  }

  void* Out(ort::KernelContext* context, std::size_t index, std::span<const std::int64_t> shape) const {
    if (index >= output_count_) return nullptr;
    ort::Value* value = nullptr;
    void* data = nullptr;
    api_.Check(ort::KernelContext_GetOutput(api_.api, context, index, shape.data(), shape.size(), &value));
    if (value != nullptr) api_.Check(ort::GetTensorMutableData(api_.api, value, &data));
    return data;
  }

  std::shared_ptr<const Packed> Weights(const Tensor (&tensors)[3]) const {
    bool is_fixed[3];  // constants and defaults: no other tensor can have their address
    bool are_fixed = true;
    for (std::size_t i = 0; i < 3; ++i) {
      is_fixed[i] = is_constant_[i] || !tensors[i].is_given || fixed_weights_.IsDefault(tensors[i].data);
      are_fixed = are_fixed && (is_fixed[i] || tensors[i].bytes() <= kSmall);
    }
    auto& computed = computed_[are_fixed];
    std::shared_ptr<const Computed> known;
    {
      const ForkLock lock;
      known = computed;
    }
    if (known != nullptr && known->IsOf(tensors, is_fixed)) return known->packed;
    auto fresh = std::make_shared<Computed>(tensors, is_fixed);
    fresh->packed = Pack(tensors);
    const bool has_changed = known != nullptr;
    known = fresh;
    {
      const ForkLock lock;
      known.swap(computed);  // the old value is freed after the lock is released
    }
    if (has_changed && !has_warned_.test_and_set()) {
      std::size_t bytes = 0;
      for (const Tensor& tensor : tensors) bytes += tensor.is_given ? tensor.bytes() : 0;
      Warn(place_ + "W, R, B: are not the same in each run; their " + std::to_string(bytes) +
           " bytes are compared in each, and packed again when they have changed (constants are packed once)");
    }
    return fresh->packed;
  }

  std::shared_ptr<const Packed> Pack(const Tensor (&weights)[3]) const {
    auto packed = gru_.Pack(weights[0], weights[1], weights[2], pack_options_);
    if (options_.observer == 0) return packed;
    const Port ports[] = {{"W", weights[0], false}, {"R", weights[1], false}, {"B", weights[2], false}};
    Show(Moment::kWeights, ports);
    return packed;
  }

  void Run(ort::KernelContext* context) const {
    const Tensor X = In(context, kX);
    const Tensor lengths_in = In(context, kSequenceLens), initial_h = In(context, kInitialH);
    const Tensor A = kind_.attention ? In(context, kA) : Tensor{};
    Tensor weights[3];
    if (packed_ == nullptr || IsObserved()) {
      for (std::size_t i = 0; i < 3; ++i) weights[i] = In(context, kW + i);
    }
    std::shared_ptr<const Packed> packed = packed_;
    if (packed == nullptr) {
      if (!weights[0].is_given || !weights[1].is_given) throw InvalidArgument("W, R: missing; must be given");
      packed = Weights(weights);
    }
    std::vector<std::int64_t> lengths;
    Call call = gru_.MakeCall(*packed, X, lengths_in, initial_h, A, lengths);
    const auto y_shape = gru_.YShape(*packed, call);
    const auto h_shape = gru_.StateShape(*packed, call);
    void* const Y = Out(context, 0, y_shape);
    void* const Y_h = Out(context, 1, h_shape);
    if (Y != nullptr) gru_.SetY(*packed, call, Y);
    if (Y_h != nullptr) gru_.SetYh(*packed, call, Y_h);
    if (!options_.reference) RunCall(packed, call, context);
    if (!IsObserved()) return;
    const Port ports[] = {{"X", X, false},
                          {"W", weights[0], false},
                          {"R", weights[1], false},
                          {"B", weights[2], false},
                          {"sequence_lens", lengths_in, true},
                          {"initial_h", initial_h, false},
                          {"A", A, false},
                          {"Y", {X.type, y_shape, Y, Y != nullptr}, false},
                          {"Y_h", {X.type, h_shape, Y_h, Y_h != nullptr}, false}};
    if (options_.reference) Show(Moment::kCompute, ports);
    if (options_.observer != 0) Show(Moment::kDone, ports);
  }

  void RunCall(const std::shared_ptr<const Packed>& packed, const Call& call, ort::KernelContext* context) const {
    struct Pool {
      const Api& api;
      const ort::KernelContext* context;
    } pool{api_, context};
    const ForeignPool threads{[](void* to, std::size_t count, void (*task)(void*, std::size_t), void* data) {
                                const auto& [api, where] = *static_cast<Pool*>(to);
                                ort::Status* const status =
                                    ort::KernelContext_ParallelFor(api.api, where, task, count, count, data);
                                if (status == nullptr) return;
                                ort::ReleaseStatus(api.api, status);  // no task has begun
                                for (std::size_t i = 0; i < count; ++i) task(data, i);
                              },
                              &pool, options_.threads != 0 ? options_.threads : NumThreads()};
    onegru::Run(packed, call, &threads);
  }

  const Api& api_;
  const Options& options_;  // the provider outlives its kernels
  const FixedWeights& fixed_weights_;
  const OnnxOperator& kind_;
  const std::string name_;
  const std::string place_;
  const PackOptions pack_options_;
  const OnnxGruAttributes attributes_;
  const OnnxGru gru_;
  std::size_t input_count_ = 0;
  std::size_t output_count_ = 0;
  std::shared_ptr<const Packed> packed_;                 // null if a weight is not constant
  bool is_constant_[3] = {};                             // of W, R and B
  mutable std::shared_ptr<const Computed> computed_[2];  // [1]: fixed or small weights; protected by ForkLock
  mutable std::atomic_flag has_warned_;
};

}  // namespace

ort::Status* MakeGruKernel(const Api& api, const Options& options, const FixedWeights& fixed_weights,
                           const OnnxOperator& kind, const ort::KernelInfo* info, ort::Kernel** kernel) {
  const auto name = Text(api, [&](char* text, std::size_t* size) {
                      return ort::KernelInfo_GetNodeName(api.api, info, text, size);
                    }).value_or("");
  const auto make = [&] {
    *kernel = new GruKernel(api, options, fixed_weights, kind, info, name, NodeKey(name, OutputNames(api, info)));
  };
  return api.Try(make, PlaceOf(api, kind, info, name));
}

void SetObserver(Observer* observer) { g_observer.store(observer); }
Observer* TheObserver() { return g_observer.load(); }

}  // namespace onegru
