#include "native/execution_provider.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "native/kernel.h"
#include "native/ort.h"
#include "native/threads.h"

namespace onegru {
namespace {

constexpr char kName[] = "OnegruExecutionProvider";
constexpr char kVendor[] = "onegru";
// ONNX Runtime puts this before the names of a provider's options.
constexpr char kOptionPrefix[] = "ep.onegruexecutionprovider.";
// So that whoever gets a message can tell that it is ours.
constexpr char kMessagePrefix[] = "onegru: ";

enum Input { kX, kW, kR, kB, kSequenceLens, kInitialH, kInputs };
constexpr const char* kInputNames[] = {"X", "W", "R", "B", "sequence_lens", "initial_h"};

std::atomic<Observer*> g_observer{nullptr};

// --- ONNX Runtime's interface, with exceptions on this side and statuses on the other

struct Api {
  ort::Table api;
  ort::Table ep;
  std::uint32_t version;

  void Check(ort::Status* status) const {
    if (status == nullptr) return;
    const std::string message = ort::GetErrorMessage(api, status);
    ort::ReleaseStatus(api, status);
    throw std::runtime_error(message);
  }
  // False: it failed, such as a look for an attribute that is absent.
  bool Succeeds(ort::Status* status) const {
    if (status != nullptr) ort::ReleaseStatus(api, status);
    return status == nullptr;
  }
  ort::Status* Fail(ort::ErrorCode code, const std::string& message) const {
    return ort::CreateStatus(api, code, (kMessagePrefix + message).c_str());
  }

  // where: what to put before a message, such as a node's name.
  template <class F>
  ort::Status* Try(F&& body, const std::string& where = "") const noexcept {
    try {
      body();
      return nullptr;
    } catch (const IllegalGru& error) {
      return Fail(ort::kInvalidArgument, where + error.what());
    } catch (const std::bad_alloc&) {
      return ort::CreateStatus(api, ort::kFail, "onegru: sizes that exhaust memory");
    } catch (const std::exception& error) {
      return Fail(ort::kRuntimeException, error.what());
    } catch (...) {
      return ort::CreateStatus(api, ort::kFail, "onegru: unknown error");
    }
  }
};

// A text whose size is asked for first.
template <class F>
std::optional<std::string> Text(const Api& api, F&& get) {
  std::size_t size = 0;
  api.Succeeds(get(nullptr, &size));
  if (size == 0) return {};
  std::string text(size, '\0');
  if (!api.Succeeds(get(text.data(), &size))) return {};
  text.resize(std::strlen(text.c_str()));
  return text;
}

std::optional<ElementType> TypeOf(ort::TensorType type) {
  switch (type) {
    case ort::kFloat16:
      return ElementType::kFloat16;
    case ort::kBFloat16:
      return ElementType::kBFloat16;
    case ort::kFloat:
      return ElementType::kFloat32;
    case ort::kDouble:
      return ElementType::kFloat64;
    case ort::kInt32:
      break;
  }
  return {};
}

Tensor View(const Api& api, const ort::Value* value) {
  Tensor tensor;
  if (value == nullptr) return tensor;
  ort::TensorType type{};
  const std::int64_t* shape = nullptr;
  std::size_t rank = 0;
  void* data = nullptr;
  api.Check(ort::GetTensorElementTypeAndShapeDataReference(api.api, value, &type, &shape, &rank));
  api.Check(ort::GetTensorMutableData(api.api, const_cast<ort::Value*>(value), &data));
  tensor.type = TypeOf(type).value_or(ElementType::kFloat32);
  tensor.shape = {shape, rank};
  tensor.data = data;
  tensor.is_given = true;
  return tensor;
}

// --- options of a session

struct Options {
  std::size_t threads = 0;  // 0: as many as onegru has
  bool reference = false;   // whether an observer computes
  std::optional<ElementType> weight_storage;
  std::int64_t observer = 0;  // which session an observer takes it for; 0: none looks
};

std::int64_t Number(const char* name, const std::string& text, std::int64_t most, const char* must) {
  std::int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0 || value > most)
    throw IllegalGru(std::string(name) + ": '" + text + "'; must be " + must);
  return value;
}

Options ReadOptions(const Api& api, const ort::SessionOptions* given) {
  const auto option = [&](const char* name) -> std::optional<std::string> {
    const std::string key = std::string(kOptionPrefix) + name;
    int is_there = 0;
    api.Check(ort::HasSessionConfigEntry(api.api, given, key.c_str(), &is_there));
    if (!is_there) return {};
    return Text(api, [&](char* text, std::size_t* size) {
      return ort::GetSessionConfigEntry(api.api, given, key.c_str(), text, size);
    });
  };
  Options options;
  if (const auto text = option("threads"))
    options.threads = static_cast<std::size_t>(Number("threads", *text, kMostThreads, "0…64, 0 for the default"));
  if (const auto text = option("engine")) {
    if (*text != "auto" && *text != "native" && *text != "reference")
      throw IllegalGru("engine: '" + *text + "'; must be one of auto, native, reference");
    options.reference = *text == "reference";
    if (options.reference && g_observer.load() == nullptr)
      throw IllegalGru("engine: 'reference', which needs Python's onegru; must be auto or native");
  }
  if (const auto text = option("weight_storage"); text && !text->empty()) {
    if (*text == "float16") {
      options.weight_storage = ElementType::kFloat16;
    } else if (*text == "bfloat16") {
      options.weight_storage = ElementType::kBFloat16;
    } else {
      throw IllegalGru("weight_storage: '" + *text + "'; must be float16, bfloat16 or empty");
    }
    if (options.reference)
      throw IllegalGru("weight_storage: '" + *text + "'; must be empty with the reference engine");
  }
  if (const auto text = option("observer")) options.observer = Number("observer", *text, INT64_MAX, "a number");
  return options;
}

// --- a node

OnnxGruAttributes ReadAttributes(const Api& api, const ort::KernelInfo* info) {
  OnnxGruAttributes attributes;
  const auto read_floats = [&](const char* name, std::vector<float>& values) {
    std::size_t size = 0;
    api.Succeeds(ort::KernelInfoGetAttributeArray_float(api.api, info, name, nullptr, &size));
    values.resize(size);
    if (size != 0) api.Check(ort::KernelInfoGetAttributeArray_float(api.api, info, name, values.data(), &size));
  };
  const auto read_int = [&](const char* name, std::optional<std::int64_t>& value) {
    std::int64_t read = 0;
    if (api.Succeeds(ort::KernelInfoGetAttribute_int64(api.api, info, name, &read))) value = read;
  };
  read_floats("activation_alpha", attributes.activation_alpha);
  read_floats("activation_beta", attributes.activation_beta);
  read_int("hidden_size", attributes.hidden_size);
  read_int("layout", attributes.layout);
  read_int("linear_before_reset", attributes.linear_before_reset);
  read_int("output_sequence", attributes.output_sequence);
  if (float clip = 0; api.Succeeds(ort::KernelInfoGetAttribute_float(api.api, info, "clip", &clip)))
    attributes.clip = clip;
  attributes.direction = Text(api, [&](char* text, std::size_t* size) {
    return ort::KernelInfoGetAttribute_string(api.api, info, "direction", text, size);
  });
  ort::Allocator* allocator = nullptr;
  api.Check(ort::GetAllocatorWithDefaultOptions(api.api, &allocator));
  char** texts = nullptr;
  std::size_t count = 0;
  if (api.Succeeds(
          ort::KernelInfoGetAttributeArray_string(api.api, info, "activations", allocator, &texts, &count))) {
    attributes.activations.emplace();
    for (std::size_t i = 0; i < count; ++i) {
      attributes.activations->emplace_back(texts[i]);
      api.Succeeds(ort::AllocatorFree(api.api, allocator, texts[i]));
    }
    if (texts != nullptr) api.Succeeds(ort::AllocatorFree(api.api, allocator, texts));
  }
  return attributes;
}

// What to put before a message about a node.
std::string PlaceOf(const Api& api, const ort::KernelInfo* info, const std::string& name) {
  if (!name.empty()) return "GRU node '" + name + "': ";
  for (std::size_t output = 0; output < 2; ++output) {
    const auto text = Text(api, [&](char* to, std::size_t* size) {
      return ort::KernelInfo_GetOutputName(api.api, info, output, to, size);
    });
    if (text && !text->empty()) return "GRU node that gives '" + *text + "': ";
  }
  return "GRU node: ";
}

// Weights that are computed by the model, and what was made of them.
struct Computed {
  explicit Computed(const Tensor (&tensors)[3]) {
    for (std::size_t i = 0; i < 3; ++i) {
      const auto* const data = static_cast<const unsigned char*>(tensors[i].data);
      shapes[i].assign(tensors[i].shape.begin(), tensors[i].shape.end());
      if (tensors[i].bytes() != 0) bytes[i].assign(data, data + tensors[i].bytes());
    }
  }
  bool IsOf(const Tensor (&tensors)[3]) const {
    for (std::size_t i = 0; i < 3; ++i) {
      const Tensor& tensor = tensors[i];
      if (!std::equal(shapes[i].begin(), shapes[i].end(), tensor.shape.begin(), tensor.shape.end()) ||
          bytes[i].size() != tensor.bytes() ||
          (!bytes[i].empty() && std::memcmp(bytes[i].data(), tensor.data, bytes[i].size()) != 0)) {
        return false;
      }
    }
    return true;
  }

  std::vector<std::int64_t> shapes[3];
  std::vector<unsigned char> bytes[3];
  std::shared_ptr<const Packed> packed;
};

class GruKernel : public ort::Kernel {
 public:
  GruKernel(const Api& api, const Options& options, int since_version, const ort::KernelInfo* info,
            const std::string& name)
      : ort::Kernel{},
        api_(api),
        options_(options),
        since_version_(since_version),
        name_(name),
        place_(PlaceOf(api, info, name)),
        attributes_(ReadAttributes(api, info)),
        gru_(attributes_) {
    version = api.version;
    Compute = [](ort::Kernel* self, ort::KernelContext* context) {
      const auto& kernel = static_cast<GruKernel&>(*self);
      return kernel.api_.Try([&] { kernel.Run(context); }, kernel.place_);
    };
    Release = [](ort::Kernel* self) { delete static_cast<GruKernel*>(self); };
    PrePackWeight = [](ort::Kernel* self, const ort::Value*, int index, ort::Allocator*, void*, bool* is_packed) {
      *is_packed = static_cast<GruKernel&>(*self).HasTaken(index);
      return static_cast<ort::Status*>(nullptr);
    };
    api.Check(ort::KernelInfo_GetInputCount(api.api, info, &input_count_));
    api.Check(ort::KernelInfo_GetOutputCount(api.api, info, &output_count_));
    TakeConstants(info);
  }

 private:
  void TakeConstants(const ort::KernelInfo* info) {
    Tensor weights[3];
    for (std::size_t i = 0; i < 3; ++i) {
      const std::size_t input = kW + i;
      const auto name = input >= input_count_ ? std::nullopt : Text(api_, [&](char* text, std::size_t* size) {
        return ort::KernelInfo_GetInputName(api_.api, info, input, text, size);
      });
      if (!name || name->empty()) continue;  // B is absent
      int is_constant = 0;
      const ort::Value* value = nullptr;
      api_.Check(ort::KernelInfoGetConstantInput_tensor(api_.api, info, input, &is_constant, &value));
      if (!is_constant || value == nullptr) return;
      weights[i] = View(api_, value);
    }
    if (!weights[0].is_given || !weights[1].is_given) return;
    packed_ = gru_.Pack(weights[0], weights[1], weights[2], options_.weight_storage);
    if (options_.observer == 0) return;
    const Port ports[] = {{"W", weights[0], false}, {"R", weights[1], false}, {"B", weights[2], false}};
    Show(Moment::kWeights, ports);
  }

  // Whether an input is a constant that nobody needs any more.
  bool HasTaken(int input) const {
    return packed_ != nullptr && !IsObserved() && (input == kW || input == kR || input == kB);
  }
  bool IsObserved() const { return options_.observer != 0 || options_.reference; }

  void Show(Moment moment, std::span<const Port> ports) const {
    if (Observer* const observer = g_observer.load())
      observer->See(options_.observer, moment, name_, since_version_, attributes_, ports);
  }

  Tensor In(const ort::KernelContext* context, std::size_t index) const {
    if (index >= input_count_) return {};
    const ort::Value* value = nullptr;
    api_.Check(ort::KernelContext_GetInput(api_.api, context, index, &value));
    return View(api_, value);
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
    std::shared_ptr<const Computed> known;
    {
      const std::lock_guard lock(mutex_);
      known = computed_;
    }
    if (known != nullptr && known->IsOf(tensors)) return known->packed;
    auto fresh = std::make_shared<Computed>(tensors);
    fresh->packed = gru_.Pack(tensors[0], tensors[1], tensors[2], options_.weight_storage);
    const std::lock_guard lock(mutex_);
    computed_ = fresh;
    return fresh->packed;
  }

  void Run(ort::KernelContext* context) const {
    const Tensor X = In(context, kX);
    const Tensor lengths_in = In(context, kSequenceLens), initial_h = In(context, kInitialH);
    Tensor weights[3];
    if (packed_ == nullptr || IsObserved()) {
      for (std::size_t i = 0; i < 3; ++i) weights[i] = In(context, kW + i);
    }
    std::shared_ptr<const Packed> packed = packed_;
    if (packed == nullptr) {
      if (!weights[0].is_given || !weights[1].is_given) throw IllegalGru("W, R: missing; must be given");
      packed = Weights(weights);
    }
    std::vector<std::int64_t> lengths;
    Call call = gru_.MakeCall(*packed, X, lengths_in, initial_h, lengths);
    const auto y_shape = gru_.YShape(*packed, call);
    const auto h_shape = gru_.StateShape(*packed, call);
    void* const Y = Out(context, 0, y_shape);
    void* const Y_h = Out(context, 1, h_shape);
    if (!IsObserved()) {
      if (Y != nullptr) gru_.SetY(*packed, call, Y);
      if (Y_h != nullptr) gru_.SetYh(*packed, call, Y_h);
      return RunCall(packed, call, context);
    }
    std::vector<Port> ports{
        {"X", X, false}, {"W", weights[0], false}, {"R", weights[1], false}, {"B", weights[2], false}};
    ports.push_back({"sequence_lens", lengths_in, true});
    ports.push_back({"initial_h", initial_h, false});
    ports.push_back({"Y", {X.type, y_shape, Y, Y != nullptr}, false});
    ports.push_back({"Y_h", {X.type, h_shape, Y_h, Y_h != nullptr}, false});
    if (options_.reference) {
      Show(Moment::kCompute, ports);
    } else {
      if (Y != nullptr) gru_.SetY(*packed, call, Y);
      if (Y_h != nullptr) gru_.SetYh(*packed, call, Y_h);
      RunCall(packed, call, context);
    }
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
                                ort::ReleaseStatus(api.api, status);  // it has begun none of them
                                for (std::size_t i = 0; i < count; ++i) task(data, i);
                              },
                              &pool, options_.threads != 0 ? options_.threads : NumThreads()};
    onegru::Run(packed, call, &threads);
  }

  const Api& api_;
  const Options& options_;  // the provider outlives its kernels
  int since_version_;
  const std::string name_;
  const std::string place_;
  const OnnxGruAttributes attributes_;
  const OnnxGru gru_;
  std::size_t input_count_ = 0;
  std::size_t output_count_ = 0;
  std::shared_ptr<const Packed> packed_;  // of constants; null: they are computed
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Computed> computed_;
};

// --- the provider of a session

class Provider : public ort::Ep {
 public:
  Provider(const Api& api, const Options& options) : ort::Ep{}, api_(api), options_(options) {
    version = api.version;
    GetName = [](const ort::Ep*) { return kName; };
    GetCapability = [](ort::Ep* self, const ort::Graph* graph, ort::GraphSupportInfo* support) {
      const auto& provider = static_cast<Provider&>(*self);
      return provider.api_.Try([&] { provider.Claim(graph, support); });
    };
    GetKernelRegistry = [](ort::Ep* self, const ort::KernelRegistry** registry) {
      *registry = static_cast<Provider&>(*self).registry_;
      return static_cast<ort::Status*>(nullptr);
    };
    api.Check(ort::CreateKernelRegistry(api.ep, &registry_));
    try {
      for (Version& version : versions_) Register(version);
    } catch (...) {
      ort::ReleaseKernelRegistry(api.ep, registry_);
      throw;
    }
  }
  ~Provider() { ort::ReleaseKernelRegistry(api_.ep, registry_); }
  Provider(const Provider&) = delete;
  Provider& operator=(const Provider&) = delete;

 private:
  struct Version {
    const Provider* provider;
    int since;
  };

  void Register(Version& version) {
    ort::KernelDefBuilder* builder = nullptr;
    api_.Check(ort::CreateKernelDefBuilder(api_.ep, &builder));
    ort::KernelDef* kernel = nullptr;
    const auto build = [&] {
      api_.Check(ort::SetOperatorType(api_.ep, builder, "GRU"));
      api_.Check(ort::SetDomain(api_.ep, builder, ""));
      api_.Check(ort::SetSinceVersion(api_.ep, builder, version.since, version.since));
      api_.Check(ort::SetExecutionProvider(api_.ep, builder, kName));
      std::vector<const ort::DataType*> types;
      for (const auto type : {ort::kFloat, ort::kDouble, ort::kFloat16, ort::kBFloat16}) {
        if (type == ort::kBFloat16 && version.since < 22) continue;
        types.push_back(nullptr);
        api_.Check(ort::GetTensorDataType(api_.ep, type, &types.back()));
      }
      api_.Check(ort::AddTypeConstraint(api_.ep, builder, "T", types.data(), types.size()));
      const ort::DataType* int32 = nullptr;
      api_.Check(ort::GetTensorDataType(api_.ep, ort::kInt32, &int32));
      api_.Check(ort::AddTypeConstraint(api_.ep, builder, "T1", &int32, 1));
      api_.Check(ort::Build(api_.ep, builder, &kernel));
      api_.Check(ort::AddKernel(api_.ep, registry_, kernel, &MakeKernel, &version));
    };
    try {
      build();
    } catch (...) {
      ort::ReleaseKernelDef(api_.ep, kernel);
      ort::ReleaseKernelDefBuilder(api_.ep, builder);
      throw;
    }
    ort::ReleaseKernelDef(api_.ep, kernel);
    ort::ReleaseKernelDefBuilder(api_.ep, builder);
  }

  static ort::Status* MakeKernel(void* state, const ort::KernelInfo* info, ort::Kernel** kernel) {
    const auto& [provider, since] = *static_cast<Version*>(state);
    const Api& api = provider->api_;
    const auto name = Text(api, [&](char* text, std::size_t* size) {
                        return ort::KernelInfo_GetNodeName(api.api, info, text, size);
                      }).value_or("");
    const auto make = [&] { *kernel = new GruKernel(api, provider->options_, since, info, name); };
    return api.Try(make, PlaceOf(api, info, name));
  }

  void Claim(const ort::Graph* graph, ort::GraphSupportInfo* support) const {
    std::size_t count = 0;
    api_.Check(ort::Graph_GetNumNodes(api_.api, graph, &count));
    std::vector<const ort::Node*> nodes(count);
    if (count != 0) api_.Check(ort::Graph_GetNodes(api_.api, graph, nodes.data(), count));
    for (const ort::Node* const node : nodes) {
      const char *type = nullptr, *domain = nullptr;
      int since = 0;
      api_.Check(ort::Node_GetOperatorType(api_.api, node, &type));
      if (std::strcmp(type, "GRU") != 0) continue;
      api_.Check(ort::Node_GetDomain(api_.api, node, &domain));
      api_.Check(ort::Node_GetSinceVersion(api_.api, node, &since));
      const bool is_known = std::any_of(std::begin(kOnnxGruVersions), std::end(kOnnxGruVersions),
                                        [&](int version) { return version == since; });
      if (is_known && (*domain == '\0' || std::strcmp(domain, "ai.onnx") == 0))
        api_.Check(ort::AddSingleNode(api_.ep, support, node));
    }
  }

  const Api& api_;
  const Options options_;
  ort::KernelRegistry* registry_ = nullptr;
  Version versions_[std::size(kOnnxGruVersions)] = {{this, 1}, {this, 3}, {this, 7}, {this, 14}, {this, 22}};
};

// --- the factory of a process

class GruFactory : public ort::Factory {
 public:
  explicit GruFactory(const Api& api) : ort::Factory{}, api_(api) {
    version = api.version;
    GetName = [](const ort::Factory*) { return kName; };
    GetVendor = [](const ort::Factory*) { return kVendor; };
    GetVendorId = [](const ort::Factory*) { return std::uint32_t{0}; };
    GetVersion = [](const ort::Factory*) { return ONEGRU_RELEASE; };
    GetSupportedDevices = [](ort::Factory* self, const ort::HardwareDevice* const* devices, std::size_t count,
                             ort::EpDevice** found, std::size_t most, std::size_t* found_count) {
      const Api& api = static_cast<GruFactory&>(*self).api_;
      *found_count = 0;
      return api.Try([&] {
        for (std::size_t i = 0; i < count && *found_count == 0 && most != 0; ++i) {
          if (ort::HardwareDevice_Type(api.api, devices[i]) != ort::kCpu) continue;
          api.Check(ort::CreateEpDevice(api.ep, self, devices[i], nullptr, nullptr, found));
          *found_count = 1;
        }
      });
    };
    CreateEp = [](ort::Factory* self, const ort::HardwareDevice* const*, const ort::KeyValuePairs* const*,
                  std::size_t, const ort::SessionOptions* options, const ort::Logger*, ort::Ep** provider) {
      const Api& api = static_cast<GruFactory&>(*self).api_;
      return api.Try([&] { *provider = new Provider(api, ReadOptions(api, options)); });
    };
    ReleaseEp = [](ort::Factory*, ort::Ep* provider) { delete static_cast<Provider*>(provider); };
    CreateAllocator = [](ort::Factory*, const void*, const ort::KeyValuePairs*, ort::Allocator** allocator) {
      *allocator = nullptr;
      return static_cast<ort::Status*>(nullptr);
    };
    ReleaseAllocator = [](ort::Factory*, ort::Allocator*) {};
    CreateDataTransfer = [](ort::Factory*, void** transfer) {
      *transfer = nullptr;
      return static_cast<ort::Status*>(nullptr);
    };
    IsStreamAware = [](const ort::Factory*) { return false; };
  }

 private:
  const Api api_;
};

}  // namespace

void SetObserver(Observer* observer) { g_observer.store(observer); }

}  // namespace onegru

#if defined(_WIN32)
#define ONEGRU_EXPORT __declspec(dllexport)
#else
#define ONEGRU_EXPORT __attribute__((visibility("default")))
#endif

extern "C" ONEGRU_EXPORT onegru::ort::Status* CreateEpFactories(const char*, const onegru::ort::ApiBase* base,
                                                                const void*, onegru::ort::Factory** factories,
                                                                std::size_t most, std::size_t* count) {
  using namespace onegru;
  *count = 0;
  unsigned minor = 0;
  const char* const text = base->GetVersionString();
  const bool is_known = std::sscanf(text, "1.%u.", &minor) == 1;
  Api api{};
  api.version = std::min(static_cast<std::uint32_t>(minor), ort::kNewestVersion);
  api.api = is_known ? base->GetApi(api.version) : nullptr;
  if (api.api == nullptr) api.api = base->GetApi(1);  // for the message
  if (api.api == nullptr) return nullptr;
  if (!is_known || api.version < ort::kOldestVersion) {
    return api.Fail(ort::kFail, "ONNX Runtime " + std::string(text) + "; must be 1." +
                                    std::to_string(ort::kOldestVersion) + " or newer");
  }
#if defined(ONEGRU_STANDALONE)
  SetNumThreads(std::thread::hardware_concurrency());  // of the process's mask; Python reads the environment, too
#endif
  return api.Try([&] {
    if (most == 0) throw std::runtime_error("no room for a factory");
    api.ep = ort::GetEpApi(api.api);
    factories[0] = new GruFactory(api);
    *count = 1;
  });
}

extern "C" ONEGRU_EXPORT onegru::ort::Status* ReleaseEpFactory(onegru::ort::Factory* factory) {
  delete static_cast<onegru::GruFactory*>(factory);
  return nullptr;
}
