// The execution provider for ONNX Runtime, which runs every GRU and AUGRU node of a session. ONNX Runtime registers its
// library, which exports CreateEpFactories and ReleaseEpFactory. It is also a library of custom operators, and exports
// RegisterCustomOps. A session that gets the provider by name reads its file before it asks the provider for operators.

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "native/runtimes/augru_domains.h"
#include "native/runtimes/graph_view.h"
#include "native/runtimes/gru_kernel.h"
#include "native/runtimes/observer.h"
#include "native/runtimes/onnx_gru.h"
#include "native/runtimes/ort.h"
#include "native/runtimes/ort_api.h"
#include "native/targets/targets.h"
#include "native/threads/threads.h"

namespace onegru {
namespace {

constexpr char kName[] = "OnegruExecutionProvider";
constexpr char kVendor[] = "onegru";
// The prefix that ONNX Runtime adds to the names of a provider's options.
constexpr char kOptionPrefix[] = "ep.onegruexecutionprovider.";

// --- options of a session

constexpr const char* kOptions[] = {"threads",          "engine",  "weight_storage", "activation_storage",
                                    "flush_subnormals", "observer"};
// table: native_choices
constexpr const char* kEngines[] = {"auto", "native", "reference"};
constexpr const char* kWeightStorages[] = {"float16", "bfloat16", "int8", "int8_g32", "int8_g64", "int8_g128"};
constexpr const char* kActivationStorages[] = {"int16", "int8", "bfloat16"};
// end

// Returns "a, b, c".
template <std::size_t N>
std::string Listed(const char* const (&words)[N]) {
  std::string text;
  for (const char* const word : words) text += (text.empty() ? "" : ", ") + std::string(word);
  return text;
}

template <std::size_t N>
bool IsAmong(const char* const (&words)[N], const std::string& text) {
  return std::find(std::begin(words), std::end(words), text) != std::end(words);
}

std::int64_t Number(const char* name, const std::string& text, std::int64_t most, const std::string& must) {
  std::int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0 || value > most)
    throw InvalidArgument(std::string(name) + ": '" + text + "'; must be " + must);
  return value;
}

// Reads one of the words for all nodes, or lines of NODE=WORD.
template <std::size_t N>
NodeOption ReadNodeOption(const char* name, const std::string& text, const char* const (&words)[N]) {
  NodeOption option;
  for (std::size_t start = 0, end = 0; end != text.size(); start = end + 1) {
    end = std::min(text.find('\n', start), text.size());
    const std::string line = text.substr(start, end - start);
    const std::size_t equals = line.rfind('=');
    const std::string word = equals == std::string::npos ? line : line.substr(equals + 1);
    const bool is_single = start == 0 && end == text.size();
    if (equals == std::string::npos && !is_single)
      throw InvalidArgument(std::string(name) + ": '" + line + "'; must be NODE=TYPE in each line");
    if (equals == 0 || (equals != std::string::npos && option.named.contains(line.substr(0, equals))))
      throw InvalidArgument(std::string(name) + ": '" + line + "'; must name each node once");
    if (!IsAmong(words, word))
      throw InvalidArgument(std::string(name) + ": '" + word + "'; must be " + Listed(words) + " or empty");
    if (equals == std::string::npos) {
      option.all = word;
    } else {
      option.named[line.substr(0, equals)] = word;
    }
  }
  return option;
}

// Returns the provider's options without their prefix. ONNX Runtime stores those of all providers with the session's.
std::map<std::string, std::string> OptionsOf(const Api& api, const ort::SessionOptions* given) {
  ort::KeyValuePairs* pairs = nullptr;
  api.Check(ort::GetSessionOptionsConfigEntries(api.api, given, &pairs));
  const std::unique_ptr<ort::KeyValuePairs, std::function<void(ort::KeyValuePairs*)>> owner(
      pairs, [&](ort::KeyValuePairs* owned) { ort::ReleaseKeyValuePairs(api.api, owned); });
  const char *const *keys = nullptr, *const *values = nullptr;
  std::size_t count = 0;
  ort::GetKeyValuePairs(api.api, pairs, &keys, &values, &count);
  std::map<std::string, std::string> options;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string_view key(keys[i]);
    if (key.starts_with(kOptionPrefix)) options.emplace(key.substr(std::strlen(kOptionPrefix)), values[i]);
  }
  return options;
}

Options ReadOptions(const Api& api, const ort::SessionOptions* session) {
  const auto given = OptionsOf(api, session);
  for (const auto& [name, text] : given) {
    if (!IsAmong(kOptions, name))
      throw InvalidArgument(name + ": not an option of this provider; must be one of " + Listed(kOptions));
  }
  const auto option = [&](const char* name) -> std::optional<std::string> {
    const auto found = given.find(name);
    return found == given.end() ? std::nullopt : std::optional(found->second);
  };
  Options options;
  if (const auto text = option("threads"))
    options.threads = static_cast<std::size_t>(
        Number("threads", *text, kMaxThreads, "0…" + std::to_string(kMaxThreads) + ", 0 for the default"));
  if (const auto text = option("engine")) {
    if (!IsAmong(kEngines, *text)) throw InvalidArgument("engine: '" + *text + "'; must be one of " + Listed(kEngines));
    options.reference = *text == "reference";
    if (options.reference && TheObserver() == nullptr)
      throw InvalidArgument("engine: 'reference' needs the Python package; must be auto or native");
  }
  if (const auto text = option("weight_storage"); text && !text->empty()) {
    options.weight_storage = ReadNodeOption("weight_storage", *text, kWeightStorages);
    if (options.reference)
      throw InvalidArgument("weight_storage: '" + *text + "'; must be empty with the reference engine");
  }
  if (const auto text = option("activation_storage"); text && !text->empty()) {
    options.activation_storage = ReadNodeOption("activation_storage", *text, kActivationStorages);
    const auto& [all, named] = options.weight_storage;
    const auto& activations = options.activation_storage;
    bool has_effect =
        !activations.all || MayConvert(all, activations.all) ||
        std::any_of(named.begin(), named.end(), [&](auto& i) { return MayConvert(i.second, activations.all); });
    for (const auto& [node, word] : activations.named)
      has_effect = has_effect && MayConvert(options.weight_storage.Of(node), word);
    if (!has_effect)
      throw InvalidArgument("activation_storage: '" + *text +
                            "'; must be int16 or int8 for weights in int8, bfloat16 for weights in bfloat16, or empty");
  }
  if (const auto text = option("flush_subnormals"))
    options.flush_subnormals = Number("flush_subnormals", *text, 1, "0 or 1") == 1;
  if (options.flush_subnormals && options.reference)
    throw InvalidArgument("flush_subnormals: '1'; must be 0 with the reference engine");
  if (const auto text = option("observer")) options.observer = Number("observer", *text, INT64_MAX, "a number");
  return options;
}

// --- the provider of a session

class Provider : public ort::Ep {
 public:
  Provider(const Api& api, const Options& options) : ort::Ep{}, api_(api), options_(options), fixed_weights_(api) {
    version = api.version;
    GetName = [](const ort::Ep*) { return kName; };
    GetCapability = [](ort::Ep* self, const ort::Graph* graph, ort::GraphSupportInfo* support) {
      auto& provider = static_cast<Provider&>(*self);
      return provider.api_.Try([&] { provider.Claim(graph, support); });
    };
    GetKernelRegistry = [](ort::Ep* self, const ort::KernelRegistry** registry) {
      *registry = static_cast<Provider&>(*self).registry_;
      return static_cast<ort::Status*>(nullptr);
    };
    OnRunStart = [](ort::Ep* self, const ort::RunOptions*) {
      static_cast<Provider&>(*self).fixed_weights_.Finish();
      return static_cast<ort::Status*>(nullptr);
    };
    api.Check(ort::CreateKernelRegistry(api.ep, &registry_));
    try {
      for (std::size_t i = 0; i < std::size(kOnnxOperators); ++i) {
        entries_[i] = {this, &kOnnxOperators[i]};
        Register(kOnnxOperators[i], kOnnxOperators[i].since, &MakeKernel, &entries_[i]);
      }
      for (const char* const name : FixedWeights::Carriers())
        Register({name, "", 1, false, false, false}, kNoVersion, &MakeIdleKernel, this);
    } catch (...) {
      ort::ReleaseKernelRegistry(api.ep, registry_);
      throw;
    }
  }
  ~Provider() { ort::ReleaseKernelRegistry(api_.ep, registry_); }
  Provider(const Provider&) = delete;
  Provider& operator=(const Provider&) = delete;

 private:
  struct Entry {
    const Provider* provider;
    const OnnxOperator* kind;
  };

  // A version that no operator will have.
  static constexpr int kNoVersion = 1000;

  void Register(const OnnxOperator& kind, int last, ort::CreateKernel create, void* state) {
    ort::KernelDefBuilder* builder = nullptr;
    api_.Check(ort::CreateKernelDefBuilder(api_.ep, &builder));
    ort::KernelDef* kernel = nullptr;
    const auto build = [&] {
      api_.Check(ort::SetOperatorType(api_.ep, builder, kind.name));
      api_.Check(ort::SetDomain(api_.ep, builder, kind.domain));
      api_.Check(ort::SetSinceVersion(api_.ep, builder, kind.since, last));
      api_.Check(ort::SetExecutionProvider(api_.ep, builder, kName));
      if (std::strcmp(kind.name, "GRU") == 0)
        AddTypes(builder, kind);  // AUGRU is a function without types; the kernel checks them
      api_.Check(ort::Build(api_.ep, builder, &kernel));
      api_.Check(ort::AddKernel(api_.ep, registry_, kernel, create, state));
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

  void AddTypes(ort::KernelDefBuilder* builder, const OnnxOperator& kind) const {
    std::vector<const ort::DataType*> types;
    for (const auto type : {ort::kFloat, ort::kDouble, ort::kFloat16, ort::kBFloat16}) {
      if (type == ort::kBFloat16 && !kind.has_bfloat16) continue;
      types.push_back(nullptr);
      api_.Check(ort::GetTensorDataType(api_.ep, type, &types.back()));
    }
    api_.Check(ort::AddTypeConstraint(api_.ep, builder, "T", types.data(), types.size()));
    const ort::DataType* int32 = nullptr;
    api_.Check(ort::GetTensorDataType(api_.ep, ort::kInt32, &int32));
    api_.Check(ort::AddTypeConstraint(api_.ep, builder, "T1", &int32, 1));
  }

  static ort::Status* MakeKernel(void* state, const ort::KernelInfo* info, ort::Kernel** kernel) {
    const auto& [provider, kind] = *static_cast<Entry*>(state);
    if (ort::Status* const refused = provider->api_.Try([&] { provider->CheckNames(); })) return refused;
    return MakeGruKernel(provider->api_, provider->options_, provider->fixed_weights_, *kind, info, kernel);
  }
  static ort::Status* MakeIdleKernel(void* state, const ort::KernelInfo* info, ort::Kernel** kernel) {
    return static_cast<Provider*>(state)->fixed_weights_.MakeKernel(info, kernel);
  }

  void Claim(const ort::Graph* graph, ort::GraphSupportInfo* support) {
    std::size_t count = 0;
    api_.Check(ort::Graph_GetNumNodes(api_.api, graph, &count));
    std::vector<const ort::Node*> nodes(count);
    if (count != 0) api_.Check(ort::Graph_GetNodes(api_.api, graph, nodes.data(), count));
    for (const ort::Node* const node : nodes) {
      if (!IsGru(api_, node)) continue;
      api_.Check(ort::AddSingleNode(api_.ep, support, node));
      const char* name = "";
      api_.Check(ort::Node_GetName(api_.api, node, &name));
      names_.insert(NodeKey(name, NamesOf(api_, Outputs(api_, node))));
    }
    for (const ort::Node* const node : fixed_weights_.Add(graph, &IsGru))
      api_.Check(ort::AddSingleNode(api_.ep, support, node));
  }

  // Rejects options for missing nodes. All graphs have been claimed before the first kernel is created.
  void CheckNames() const {
    const auto check = [&](const char* option, const NodeOption& value) {
      for (const auto& [name, word] : value.named) {
        if (names_.contains(name)) continue;
        std::string listed;
        for (const std::string& known : names_) listed += (listed.empty() ? "'" : ", '") + known + "'";
        throw InvalidArgument(std::string(option) + ": no GRU node that this provider runs is called '" + name +
                              "'; must name one of " + listed);
      }
    };
    check("weight_storage", options_.weight_storage);
    check("activation_storage", options_.activation_storage);
  }

  static bool IsGru(const Api& api, const ort::Node* node) {
    const char *type = nullptr, *domain = nullptr;
    int since = 0;
    api.Check(ort::Node_GetOperatorType(api.api, node, &type));
    if (std::strcmp(type, "GRU") != 0 && std::strcmp(type, "AUGRU") != 0) return false;
    api.Check(ort::Node_GetDomain(api.api, node, &domain));
    api.Check(ort::Node_GetSinceVersion(api.api, node, &since));
    if (IsOnnx(domain)) domain = "";
    return std::any_of(std::begin(kOnnxOperators), std::end(kOnnxOperators), [&](const auto& kind) {
      return std::strcmp(kind.name, type) == 0 && std::strcmp(kind.domain, domain) == 0 && kind.since == since;
    });
  }

  const Api& api_;
  const Options options_;
  FixedWeights fixed_weights_;
  ort::KernelRegistry* registry_ = nullptr;
  std::set<std::string> names_;  // of the claimed GRU nodes
  Entry entries_[std::size(kOnnxOperators)];
};

// --- the factory of a process

class GruFactory : public ort::Factory {
 public:
  explicit GruFactory(const Api& api) : ort::Factory{}, api_(api), augrus_(api) {
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
    CreateEp = [](ort::Factory* self, const ort::HardwareDevice* const*, const ort::KeyValuePairs* const*, std::size_t,
                  const ort::SessionOptions* given, const ort::Logger* logger, ort::Ep** provider) {
      const Api& api = static_cast<GruFactory&>(*self).api_;
      return api.Try([&] {
        Options options = ReadOptions(api, given);
        options.logger = logger;
        *provider = new Provider(api, options);
      });
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
    GetNumCustomOpDomains = [](ort::Factory* self, std::size_t* count) {
      *count = static_cast<GruFactory&>(*self).augrus_.all().size();
      return static_cast<ort::Status*>(nullptr);
    };
    GetCustomOpDomains = [](ort::Factory* self, ort::CustomOpDomain** domains, std::size_t count) {
      const auto& all = static_cast<GruFactory&>(*self).augrus_.all();
      std::copy_n(all.begin(), std::min(count, all.size()), domains);
      return static_cast<ort::Status*>(nullptr);
    };
  }

 private:
  const Api api_;
  const AugruDomains augrus_;
};

// For sessions that register a library of custom operators. Never destroyed, because they may outlive other objects.
std::atomic<const AugruDomains*> g_augrus{nullptr};

// Gets the function tables of the calling ONNX Runtime.
ort::Status* Ask(const ort::ApiBase* base, Api& api) {
  unsigned minor = 0;
  const char* const text = base->GetVersionString();
  const bool is_known = std::sscanf(text, "1.%u.", &minor) == 1;
  api.version = std::min(static_cast<std::uint32_t>(minor), ort::kNewestVersion);
  api.api = is_known ? base->GetApi(api.version) : nullptr;
  if (api.api == nullptr) api.api = base->GetApi(1);  // for the message
  if (api.api == nullptr || (is_known && api.version >= ort::kOldestVersion)) return nullptr;
  return api.Fail(ort::kFail, "ONNX Runtime " + std::string(text) + "; must be 1." +
                                  std::to_string(ort::kOldestVersion) + " or newer");
}

}  // namespace
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
  Api api{};
  ort::Status* const refused = Ask(base, api);
  if (refused != nullptr || api.api == nullptr) return refused;
#if defined(ONEGRU_STANDALONE)
  SetNumThreads(std::thread::hardware_concurrency(), true);  // the affinity mask; Python reads the environment, too
#endif
  return api.Try([&] {
    if (most == 0) throw std::runtime_error("no room for a factory");
    CheckCpu();
    api.ep = ort::GetEpApi(api.api);
    factories[0] = new GruFactory(api);
    *count = 1;
  });
}

extern "C" ONEGRU_EXPORT onegru::ort::Status* ReleaseEpFactory(onegru::ort::Factory* factory) {
  delete static_cast<onegru::GruFactory*>(factory);
  return nullptr;
}

extern "C" ONEGRU_EXPORT onegru::ort::Status* RegisterCustomOps(onegru::ort::SessionOptions* options,
                                                                const onegru::ort::ApiBase* base) {
  using namespace onegru;
  Api api{};
  ort::Status* const refused = Ask(base, api);
  if (refused != nullptr || api.api == nullptr) return refused;
  return api.Try([&] {
    const AugruDomains* domains = g_augrus.load();
    if (domains == nullptr) {
      auto fresh = std::make_unique<const AugruDomains>(api);
      if (g_augrus.compare_exchange_strong(domains, fresh.get())) domains = fresh.release();
    }
    for (ort::CustomOpDomain* const domain : domains->all())
      api.Check(ort::AddCustomOpDomain(api.api, options, domain));
  });
}
