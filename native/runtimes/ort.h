// The part of ONNX Runtime's C API that onegru uses. No package contains its headers, and a plug-in must run with every
// version. The API is a table of functions that only grows at its end, so a function is an index and a signature.
//
// Source: the public documentation of the C API (OrtApi, OrtEpApi, OrtEp, OrtEpFactory, OrtKernelImpl, OrtCustomOp).
// tests/runtimes/test_execution_provider.py runs it on the oldest and the newest supported version.

#ifndef ONEGRU_NATIVE_RUNTIMES_ORT_H_
#define ONEGRU_NATIVE_RUNTIMES_ORT_H_

#include <cstddef>
#include <cstdint>

namespace onegru::ort {

// The API versions that onegru requests. Version 1.25 has all functions used here.
inline constexpr std::uint32_t kOldestVersion = 25;
inline constexpr std::uint32_t kNewestVersion = 31;

// Opaque types.
struct Status;
struct Value;
struct ValueInfo;
struct OpAttribute;
struct Node;
struct Graph;
struct GraphSupportInfo;
struct KernelInfo;
struct KernelContext;
struct KernelRegistry;
struct KernelDefBuilder;
struct KernelDef;
struct DataType;
struct HardwareDevice;
struct EpDevice;
struct SessionOptions;
struct Allocator;
struct Logger;
struct KeyValuePairs;
struct Env;
struct Session;
struct RunOptions;
struct TypeInfo;
struct TensorInfo;
struct CustomOpDomain;
struct CustomOp;

#if defined(_WIN32)
using PathChar = wchar_t;
#else
using PathChar = char;
#endif

enum ErrorCode { kFail = 1, kInvalidArgument = 2, kRuntimeException = 6 };
enum TensorType {
  kAnyType = 0,
  kFloat = 1,
  kUint8 = 2,
  kInt8 = 3,
  kUint16 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kFloat16 = 10,
  kDouble = 11,
  kBFloat16 = 16
};
inline constexpr int kCpu = 0, kWarning = 2, kFatal = 4, kNoOptimizations = 0;
enum AttributeType { kIntAttribute = 1, kIntsAttribute = 2, kFloatAttribute = 3, kStringAttribute = 5 };

using Table = const void* const*;

template <std::size_t kIndex, class Signature>
struct Function;
template <std::size_t kIndex, class Result, class... Arguments>
struct Function<kIndex, Result(Arguments...)> {
  Result operator()(Table table, Arguments... arguments) const {
    return reinterpret_cast<Result (*)(Arguments...)>(const_cast<void*>(table[kIndex]))(arguments...);
  }
};

// --- OrtApi
inline constexpr Function<0, Status*(ErrorCode, const char*)> CreateStatus;
inline constexpr Function<2, const char*(const Status*)> GetErrorMessage;
inline constexpr Function<3, Status*(int, const char*, Env**)> CreateEnv;
inline constexpr Function<8, Status*(const Env*, const void*, std::size_t, const SessionOptions*, Session**)>
    CreateSessionFromArray;
inline constexpr Function<9, Status*(Session*, const RunOptions*, const char* const*, const Value* const*, std::size_t,
                                     const char* const*, std::size_t, Value**)>
    Run;
inline constexpr Function<10, Status*(SessionOptions**)> CreateSessionOptions;
inline constexpr Function<19, Status*(SessionOptions*)> DisableCpuMemArena;
inline constexpr Function<22, Status*(SessionOptions*, int)> SetSessionLogSeverityLevel;
inline constexpr Function<23, Status*(SessionOptions*, int)> SetSessionGraphOptimizationLevel;
inline constexpr Function<24, Status*(SessionOptions*, int)> SetIntraOpNumThreads;
inline constexpr Function<26, Status*(const char*, CustomOpDomain**)> CreateCustomOpDomain;
inline constexpr Function<27, Status*(CustomOpDomain*, const CustomOp*)> CustomOpDomain_Add;
inline constexpr Function<28, Status*(SessionOptions*, CustomOpDomain*)> AddCustomOpDomain;
inline constexpr Function<51, Status*(Value*, void**)> GetTensorMutableData;
inline constexpr Function<55, Status*(const TypeInfo*, const TensorInfo**)> CastTypeInfoToTensorInfo;
inline constexpr Function<60, Status*(const TensorInfo*, TensorType*)> GetTensorElementType;
inline constexpr Function<61, Status*(const TensorInfo*, std::size_t*)> GetDimensionsCount;
inline constexpr Function<62, Status*(const TensorInfo*, std::int64_t*, std::size_t)> GetDimensions;
inline constexpr Function<76, Status*(Allocator*, void*)> AllocatorFree;
inline constexpr Function<78, Status*(Allocator**)> GetAllocatorWithDefaultOptions;
inline constexpr Function<85, Status*(const KernelInfo*, const char*, float*)> KernelInfoGetAttribute_float;
inline constexpr Function<86, Status*(const KernelInfo*, const char*, std::int64_t*)> KernelInfoGetAttribute_int64;
inline constexpr Function<87, Status*(const KernelInfo*, const char*, char*, std::size_t*)>
    KernelInfoGetAttribute_string;
inline constexpr Function<90, Status*(const KernelContext*, std::size_t, const Value**)> KernelContext_GetInput;
inline constexpr Function<91, Status*(KernelContext*, std::size_t, const std::int64_t*, std::size_t, Value**)>
    KernelContext_GetOutput;
inline constexpr Function<92, void(Env*)> ReleaseEnv;
inline constexpr Function<93, void(Status*)> ReleaseStatus;
inline constexpr Function<95, void(Session*)> ReleaseSession;
inline constexpr Function<96, void(Value*)> ReleaseValue;
inline constexpr Function<100, void(SessionOptions*)> ReleaseSessionOptions;
inline constexpr Function<101, void(CustomOpDomain*)> ReleaseCustomOpDomain;
inline constexpr Function<162, Status*(const KernelInfo*, const char*, float*, std::size_t*)>
    KernelInfoGetAttributeArray_float;
inline constexpr Function<230, Status*(const KernelInfo*, std::size_t*)> KernelInfo_GetInputCount;
inline constexpr Function<231, Status*(const KernelInfo*, std::size_t*)> KernelInfo_GetOutputCount;
inline constexpr Function<232, Status*(const KernelInfo*, std::size_t, char*, std::size_t*)> KernelInfo_GetInputName;
inline constexpr Function<233, Status*(const KernelInfo*, std::size_t, char*, std::size_t*)> KernelInfo_GetOutputName;
inline constexpr Function<244, Status*(const KernelInfo*, char*, std::size_t*)> KernelInfo_GetNodeName;
inline constexpr Function<247, Status*(const Logger*, int, const char*, const PathChar*, int, const char*)>
    Logger_LogMessage;
inline constexpr Function<249, Status*(const KernelInfo*, std::size_t, int*, const Value**)>
    KernelInfoGetConstantInput_tensor;
inline constexpr Function<272, Status*(const OpAttribute*, AttributeType, void*, std::size_t, std::size_t*)> ReadOpAttr;
inline constexpr Function<274,
                          Status*(const KernelContext*, void (*)(void*, std::size_t), std::size_t, std::size_t, void*)>
    KernelContext_ParallelFor;
inline constexpr Function<289, Status*(const ValueInfo*, const char**)> GetValueInfoName;
inline constexpr Function<290, Status*(const ValueInfo*, const TypeInfo**)> GetValueInfoTypeInfo;
inline constexpr Function<298, void(const KeyValuePairs*, const char* const**, const char* const**, std::size_t*)>
    GetKeyValuePairs;
inline constexpr Function<300, void(KeyValuePairs*)> ReleaseKeyValuePairs;
inline constexpr Function<307, int(const HardwareDevice*)> HardwareDevice_Type;
inline constexpr Function<317, Table()> GetEpApi;
inline constexpr Function<318, Status*(const Value*, std::size_t*)> GetTensorSizeInBytes;
inline constexpr Function<323, Status*(const ValueInfo*, const Node**, std::size_t*)> ValueInfo_GetValueProducer;
inline constexpr Function<324, Status*(const ValueInfo*, std::size_t*)> ValueInfo_GetValueNumConsumers;
inline constexpr Function<325, Status*(const ValueInfo*, const Node**, std::int64_t*, std::size_t)>
    ValueInfo_GetValueConsumers;
inline constexpr Function<326, Status*(const ValueInfo*, const Value**)> ValueInfo_GetInitializerValue;
inline constexpr Function<330, Status*(const ValueInfo*, bool*)> ValueInfo_IsGraphOutput;
inline constexpr Function<331, Status*(const ValueInfo*, bool*)> ValueInfo_IsConstantInitializer;
inline constexpr Function<332, Status*(const ValueInfo*, bool*)> ValueInfo_IsFromOuterScope;
inline constexpr Function<335, Status*(const Graph*, std::int64_t*)> Graph_GetOnnxIRVersion;
inline constexpr Function<336, Status*(const Graph*, std::size_t*)> Graph_GetNumOperatorSets;
inline constexpr Function<337, Status*(const Graph*, const char**, std::int64_t*, std::size_t)> Graph_GetOperatorSets;
inline constexpr Function<340, Status*(const Graph*, std::size_t*)> Graph_GetNumOutputs;
inline constexpr Function<341, Status*(const Graph*, const ValueInfo**, std::size_t)> Graph_GetOutputs;
inline constexpr Function<344, Status*(const Graph*, std::size_t*)> Graph_GetNumNodes;
inline constexpr Function<345, Status*(const Graph*, const Node**, std::size_t)> Graph_GetNodes;
inline constexpr Function<349, Status*(const Node*, const char**)> Node_GetName;
inline constexpr Function<350, Status*(const Node*, const char**)> Node_GetOperatorType;
inline constexpr Function<351, Status*(const Node*, const char**)> Node_GetDomain;
inline constexpr Function<352, Status*(const Node*, int*)> Node_GetSinceVersion;
inline constexpr Function<353, Status*(const Node*, std::size_t*)> Node_GetNumInputs;
inline constexpr Function<354, Status*(const Node*, const ValueInfo**, std::size_t)> Node_GetInputs;
inline constexpr Function<355, Status*(const Node*, std::size_t*)> Node_GetNumOutputs;
inline constexpr Function<356, Status*(const Node*, const ValueInfo**, std::size_t)> Node_GetOutputs;
inline constexpr Function<357, Status*(const Node*, std::size_t*)> Node_GetNumImplicitInputs;
inline constexpr Function<358, Status*(const Node*, const ValueInfo**, std::size_t)> Node_GetImplicitInputs;
inline constexpr Function<359, Status*(const Node*, std::size_t*)> Node_GetNumAttributes;
inline constexpr Function<360, Status*(const Node*, const OpAttribute**, std::size_t)> Node_GetAttributes;
inline constexpr Function<363, Status*(const OpAttribute*, AttributeType*)> OpAttr_GetType;
inline constexpr Function<364, Status*(const OpAttribute*, const char**)> OpAttr_GetName;
inline constexpr Function<365, Status*(const Node*, std::size_t*)> Node_GetNumSubgraphs;
inline constexpr Function<366, Status*(const Node*, const Graph**, std::size_t, const char**)> Node_GetSubgraphs;
inline constexpr Function<379, Status*(const SessionOptions*, KeyValuePairs**)> GetSessionOptionsConfigEntries;
inline constexpr Function<414, Status*(const Value*, TensorType*, const std::int64_t**, std::size_t*)>
    GetTensorElementTypeAndShapeDataReference;
inline constexpr Function<417, Status*(const KernelInfo*, const char*, Allocator*, char***, std::size_t*)>
    KernelInfoGetAttributeArray_string;

struct Kernel;
struct Ep;
struct Factory;
using CreateKernel = Status* (*)(void* state, const KernelInfo*, Kernel**);

// --- OrtEpApi
inline constexpr Function<0, Status*(Factory*, const HardwareDevice*, const KeyValuePairs*, const KeyValuePairs*,
                                     EpDevice**)>
    CreateEpDevice;
inline constexpr Function<3, Status*(GraphSupportInfo*, const Node*)> AddSingleNode;
inline constexpr Function<18, Status*(KernelRegistry**)> CreateKernelRegistry;
inline constexpr Function<19, void(KernelRegistry*)> ReleaseKernelRegistry;
inline constexpr Function<20, Status*(KernelRegistry*, const KernelDef*, CreateKernel, void*)> AddKernel;
inline constexpr Function<21, Status*(KernelDefBuilder**)> CreateKernelDefBuilder;
inline constexpr Function<22, void(KernelDefBuilder*)> ReleaseKernelDefBuilder;
inline constexpr Function<23, Status*(KernelDefBuilder*, const char*)> SetOperatorType;
inline constexpr Function<24, Status*(KernelDefBuilder*, const char*)> SetDomain;
inline constexpr Function<25, Status*(KernelDefBuilder*, int, int)> SetSinceVersion;
inline constexpr Function<26, Status*(KernelDefBuilder*, const char*)> SetExecutionProvider;
inline constexpr Function<29, Status*(KernelDefBuilder*, const char*, const DataType* const*, std::size_t)>
    AddTypeConstraint;
inline constexpr Function<32, Status*(KernelDefBuilder*, KernelDef**)> Build;
inline constexpr Function<33, void(KernelDef*)> ReleaseKernelDef;
inline constexpr Function<40, Status*(TensorType, const DataType**)> GetTensorDataType;

// --- the functions that a plug-in provides; null means not supported

struct ApiBase {
  Table (*GetApi)(std::uint32_t version);
  const char* (*GetVersionString)();
};

struct Kernel {  // OrtKernelImpl
  std::uint32_t version;
  std::uint32_t flags;
  Status* (*Compute)(Kernel*, KernelContext*);
  void (*Release)(Kernel*);
  Status* (*PrePackWeight)(Kernel*, const Value*, int index, Allocator*, void* shared, bool* is_packed);
  Status* (*SetSharedPrePackedWeight)(Kernel*, const void* const*, const std::size_t*, std::size_t, int);
  void* later[4];
};

struct Ep {  // OrtEp
  std::uint32_t version;
  const char* (*GetName)(const Ep*);
  Status* (*GetCapability)(Ep*, const Graph*, GraphSupportInfo*);
  void* others[5];
  Status* (*OnRunStart)(Ep*, const RunOptions*);
  void* more[4];
  Status* (*GetKernelRegistry)(Ep*, const KernelRegistry**);
  void* later[16];
};

struct Factory {  // OrtEpFactory
  std::uint32_t version;
  const char* (*GetName)(const Factory*);
  const char* (*GetVendor)(const Factory*);
  Status* (*GetSupportedDevices)(Factory*, const HardwareDevice* const*, std::size_t, EpDevice**, std::size_t most,
                                 std::size_t* count);
  Status* (*CreateEp)(Factory*, const HardwareDevice* const*, const KeyValuePairs* const*, std::size_t,
                      const SessionOptions*, const Logger*, Ep**);
  void (*ReleaseEp)(Factory*, Ep*);
  std::uint32_t (*GetVendorId)(const Factory*);
  const char* (*GetVersion)(const Factory*);
  void* ValidateCompiledModelCompatibilityInfo;
  Status* (*CreateAllocator)(Factory*, const void* info, const KeyValuePairs*, Allocator**);
  void (*ReleaseAllocator)(Factory*, Allocator*);
  Status* (*CreateDataTransfer)(Factory*, void** transfer);
  bool (*IsStreamAware)(const Factory*);
  void* others[3];
  Status* (*GetNumCustomOpDomains)(Factory*, std::size_t* count);
  Status* (*GetCustomOpDomains)(Factory*, CustomOpDomain** domains, std::size_t count);
  void* later[11];
};

enum Presence { kRequired = 0, kOptional = 1 };

struct CustomOp {  // OrtCustomOp
  std::uint32_t version;
  void* (*CreateKernel)(const CustomOp*, Table, const KernelInfo*);
  const char* (*GetName)(const CustomOp*);
  const char* (*GetExecutionProviderType)(const CustomOp*);
  TensorType (*GetInputType)(const CustomOp*, std::size_t index);
  std::size_t (*GetInputTypeCount)(const CustomOp*);
  TensorType (*GetOutputType)(const CustomOp*, std::size_t index);
  std::size_t (*GetOutputTypeCount)(const CustomOp*);
  void (*KernelCompute)(void* kernel, KernelContext*);
  void (*KernelDestroy)(void* kernel);
  Presence (*GetInputCharacteristic)(const CustomOp*, std::size_t index);
  Presence (*GetOutputCharacteristic)(const CustomOp*, std::size_t index);
  int (*GetInputMemoryType)(const CustomOp*, std::size_t index);
  void* variadic[4];
  Status* (*CreateKernelV2)(const CustomOp*, Table, const KernelInfo*, void** kernel);
  Status* (*KernelComputeV2)(void* kernel, KernelContext*);
  void* later[16];
};

}  // namespace onegru::ort

#endif  // ONEGRU_NATIVE_RUNTIMES_ORT_H_
