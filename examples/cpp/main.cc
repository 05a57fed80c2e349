// A program without Python that runs an ONNX model in ONNX Runtime, its GRU nodes by onegru:
//
//     c++ -std=c++17 examples/cpp/main.cc -o build/main -ldl
//     build/main libonnxruntime.so "$PWD/build/provider/libonegru_execution_provider.so" examples/digits/digits.onnx
//
// It gives the model's first input zeros of the shape [1, 8, 8] and prints the sum of its first output. A program
// that has ONNX Runtime's headers says the same in the words of its README; here are those functions of the C
// interface that it takes, by their places in the table, so that this compiles anywhere.

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace {

using Table = void* const*;
struct ApiBase {
  Table (*GetApi)(std::uint32_t version);
  const char* (*GetVersionString)();
};

constexpr std::uint32_t kVersion = 25;  // of the interface; newer ONNX Runtimes have it, too

template <std::size_t kPlace, class... Arguments>
void* Call(Table api, Arguments... arguments) {
  return reinterpret_cast<void* (*)(Arguments...)>(api[kPlace])(arguments...);
}

// Every function returns null, or what went wrong.
void Check(Table api, void* status) {
  if (status == nullptr) return;
  std::fprintf(stderr, "%s\n", reinterpret_cast<const char* (*)(void*)>(api[2])(status));  // GetErrorMessage
  std::exit(1);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) {
    std::fprintf(stderr, "usage: %s LIBONNXRUNTIME PROVIDER MODEL\n", arguments[0]);
    return 2;
  }
  void* const library = dlopen(arguments[1], RTLD_NOW);
  void* const base = library == nullptr ? nullptr : dlsym(library, "OrtGetApiBase");
  if (base == nullptr) {
    std::fprintf(stderr, "%s: not ONNX Runtime's library\n", arguments[1]);
    return 1;
  }
  Table const api = reinterpret_cast<ApiBase* (*)()>(base)()->GetApi(kVersion);
  if (api == nullptr) {
    std::fprintf(stderr, "ONNX Runtime is older than 1.%u\n", kVersion);
    return 1;
  }

  void *environment = nullptr, *options = nullptr, *session = nullptr;
  Check(api, Call<3>(api, 3, "example", &environment));             // CreateEnv; 3: only errors
  Check(api, Call<301>(api, environment, "onegru", arguments[2]));  // RegisterExecutionProviderLibrary
  void* const* devices = nullptr;
  std::size_t found = 0;
  Check(api, Call<303>(api, environment, &devices, &found));  // GetEpDevices
  std::vector<void*> ours;
  for (std::size_t i = 0; i < found; ++i) {
    const char* const name = reinterpret_cast<const char* (*)(void*)>(api[312])(devices[i]);  // EpDevice_EpName
    if (std::string_view(name) == "OnegruExecutionProvider") ours.push_back(devices[i]);
  }
  const char* keys[] = {"threads"};
  const char* values[] = {"1"};
  Check(api, Call<10>(api, &options));  // CreateSessionOptions
  Check(api, Call<304>(api, options, environment, ours.data(), ours.size(), keys, values,
                       std::size_t{1}));                                   // …AppendExecutionProvider_V2
  Check(api, Call<7>(api, environment, arguments[3], options, &session));  // CreateSession

  void *memory = nullptr, *input = nullptr, *output = nullptr, *allocator = nullptr;
  char *input_name = nullptr, *output_name = nullptr;
  std::vector<float> zeros(64);
  const std::int64_t shape[] = {1, 8, 8};
  Check(api, Call<78>(api, &allocator));                                        // GetAllocatorWithDefaultOptions
  Check(api, Call<36>(api, session, std::size_t{0}, allocator, &input_name));   // SessionGetInputName
  Check(api, Call<37>(api, session, std::size_t{0}, allocator, &output_name));  // SessionGetOutputName
  Check(api, Call<69>(api, 0, 0, &memory));                                     // CreateCpuMemoryInfo
  Check(api, Call<49>(api, memory, zeros.data(), zeros.size() * sizeof(float), shape, std::size_t{3}, 1,
                      &input));  // CreateTensorWithDataAsOrtValue
  const char* const inputs[] = {input_name};
  const char* const outputs[] = {output_name};
  void* const given[] = {input};
  Check(api,
        Call<9>(api, session, nullptr, inputs, given, std::size_t{1}, outputs, std::size_t{1}, &output));  // Run
  float* numbers = nullptr;
  void* info = nullptr;
  std::size_t size = 0;
  Check(api, Call<51>(api, output, &numbers));  // GetTensorMutableData
  Check(api, Call<65>(api, output, &info));     // GetTensorTypeAndShape
  Check(api, Call<64>(api, info, &size));       // GetTensorShapeElementCount
  double sum = 0;
  for (std::size_t i = 0; i < size; ++i) sum += numbers[i];
  std::printf("%.6f\n", sum);

  Call<95>(api, session);  // ReleaseSession; the provider stays until the process ends
  Call<100>(api, options);
  Call<92>(api, environment);
}
