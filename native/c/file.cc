#include "native/c/file.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#if !defined(__wasm__)
#include <filesystem>
#endif

#include "native/float16.h"
#include "native/float_mode.h"
#include "native/problem.h"
#include "native/runtimes/onnx_activations.h"

namespace onegru {
namespace {

static_assert(std::endian::native == std::endian::little, "files are");

constexpr std::uint64_t kLargestHeader = 1 << 20;
constexpr std::size_t kMostLayers = 256;  // the header is read again for each

struct TensorOfFile {
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin, bytes;
};

// Whether its data is that of its shape, of elements of so many bytes.
bool Fits(const TensorOfFile& tensor, std::uint64_t bytes) {
  for (const std::uint64_t axis : tensor.shape) {
    if (axis != 0 && bytes > std::numeric_limits<std::uint64_t>::max() / axis) return false;
    bytes *= axis;
  }
  return bytes == tensor.bytes;
}

class File {
 public:
  explicit File(Source& source) : source_(source) {
    std::uint64_t length = 0;
    if (source.size() < sizeof(length)) throw BadFile("not a safetensors file, or truncated");
    source.Read(0, sizeof(length), &length);
    if (length > std::min(kLargestHeader, source.size() - sizeof(length))) {
      throw BadFile("not a safetensors file, truncated, or with a header of more than 1 MiB");
    }
    std::string text(static_cast<std::size_t>(length), 0);
    source.Read(sizeof(length), text.size(), text.data());
    header_ = JsonParser::Parse(text);
    data_ = sizeof(length) + length;
    const Json* const metadata = header_.Find("__metadata__");
    const Json* const own = metadata == nullptr ? nullptr : metadata->Find("onegru");
    if (own == nullptr || own->kind != Json::kString) {
      throw BadFile("no \"onegru\" in its metadata; must be a file of onegru.save_layers");
    }
    document_ = JsonParser::Parse(own->text);
    const std::uint64_t format = document_.At("format", Json::kNumber).Size();
    if (format != 1 && format != 2) throw BadFile("format: must be 1 or 2");
    document_.At("stack", Json::kBool);
    const std::size_t layers = document_.At("layers", Json::kArray).items.size();
    if (document_.items.size() != 3) throw BadFile("must have format, stack, layers, and nothing else");
    if (layers < 1 || layers > kMostLayers) throw BadFile("layers: " + std::to_string(layers) + "; must be 1…256");
  }

  const Json& Layer(std::size_t index) const {
    const auto& layers = document_.At("layers", Json::kArray).items;
    if (index >= layers.size()) {
      throw NoSuchLayer("index: " + std::to_string(index) + "; the file has " + std::to_string(layers.size()) +
                        (layers.size() == 1 ? " layer" : " layers"));
    }
    return layers[index];
  }

  bool Has(const std::string& name) const { return header_.Find(name) != nullptr; }

  TensorOfFile Find(const std::string& name) const {
    const Json& entry = header_.At(name, Json::kObject);
    TensorOfFile tensor{entry.At("dtype", Json::kString).text, {}, 0, 0};
    for (const auto& axis : entry.At("shape", Json::kArray).items) tensor.shape.push_back(axis.Size());
    const auto& offsets = entry.At("data_offsets", Json::kArray).items;
    if (offsets.size() != 2) throw BadFile(name + ": data_offsets must be two");
    const std::uint64_t begin = offsets[0].Size(), end = offsets[1].Size();
    if (begin > end || end > source_.size() - data_) throw BadFile(name + ": its data is outside the file");
    tensor.begin = data_ + begin;
    tensor.bytes = end - begin;
    return tensor;
  }

  template <class T>
  std::vector<T> Read(const TensorOfFile& tensor) const {
    std::vector<T> numbers(static_cast<std::size_t>(tensor.bytes / sizeof(T)));
    source_.Read(tensor.begin, numbers.size() * sizeof(T), numbers.data());
    return numbers;
  }

 private:
  Source& source_;
  Json header_, document_;
  std::uint64_t data_ = 0;
};

constexpr const char* kTypes[] = {"float16", "bfloat16", "float32", "float64"};
constexpr const char* kTypesOfTensors[] = {"F16", "BF16", "F32", "F64", "I8"};
constexpr const char* kDirections[] = {"forward", "reverse", "bidirectional"};

template <std::size_t kCount>
std::int32_t Place(const char* what, const std::string& word, const char* const (&words)[kCount]) {
  const auto* const found = std::find(std::begin(words), std::end(words), word);
  if (found == std::end(words)) throw BadFile(std::string(what) + ": " + Quoted(word));
  return static_cast<std::int32_t>(found - words);
}

double NumberOrNan(const Json& value, const char* what) {
  if (value.kind == Json::kNull) return std::numeric_limits<double>::quiet_NaN();
  if (value.kind != Json::kNumber) throw BadFile(std::string(what) + ": must be a number or null");
  return value.number;
}

onegru_spec ReadSpec(const Json& layer) {
  if (layer.kind != Json::kObject || layer.items.size() != 8) throw BadFile("a layer must be an object of 8 fields");
  onegru_spec spec;
  const auto size = [&](const char* name) {
    const std::uint64_t found = layer.At(name, Json::kNumber).Size();
    if (found > std::uint64_t{1} << 31) throw BadFile(std::string(name) + ": must be at most 2^31");
    return static_cast<std::uint32_t>(found);
  };
  onegru_spec_init(&spec, size("input_size"), size("hidden_size"));
  spec.dtype = Place("dtype", layer.At("dtype", Json::kString).text, kTypes);
  spec.storage.weight_storage = spec.dtype;
  spec.direction = Place("direction", layer.At("direction", Json::kString).text, kDirections);
  spec.linear_before_reset = layer.At("linear_before_reset", Json::kBool).boolean ? 1 : 0;
  const Json* const clip = layer.Find("clip");
  if (clip == nullptr) throw BadFile("clip: missing");
  const double bound = NumberOrNan(*clip, "clip");
  if (!std::isnan(bound)) spec.clip = bound;
  const Json* const attention = layer.Find("attention");
  if (attention == nullptr || (attention->kind != Json::kBool && attention->text != "dien")) {
    throw BadFile("attention: must be true, false or \"dien\"");
  }
  spec.attention = attention->kind != Json::kBool ? ONEGRU_ATTENTION_DIEN
                   : attention->boolean           ? ONEGRU_ATTENTION_OPENVINO
                                                  : ONEGRU_NO_ATTENTION;
  const auto& pairs = layer.At("activations", Json::kArray).items;
  if (pairs.size() != (spec.direction == ONEGRU_BIDIRECTIONAL ? 2 : 1)) {
    throw BadFile("activations: must be a pair for each direction");
  }
  for (std::size_t i = 0; i < 2 * pairs.size(); ++i) {
    const Json& pair = pairs[i / 2];
    const Json* const function = pair.kind == Json::kArray && pair.items.size() == 2 ? &pair.items[i % 2] : nullptr;
    if (function == nullptr || function->kind != Json::kArray || function->items.size() != 3) {
      throw BadFile("activations: must be pairs of [name, alpha, beta]");
    }
    const auto& parts = function->items;
    spec.activations[i] = {static_cast<std::int32_t>(FindFunction(parts[0].text)), 0, NumberOrNan(parts[1], "alpha"),
                           NumberOrNan(parts[2], "beta")};
  }
  return spec;
}

template <class T>
std::vector<unsigned char> Bytes(const std::vector<T>& numbers) {
  const auto* const begin = reinterpret_cast<const unsigned char*>(numbers.data());
  return {begin, begin + numbers.size() * sizeof(T)};
}

// Integers times their scales, which are of a row, or of the groups of one; sets how many share a scale.
std::vector<unsigned char> Dequantized(const File& file, const std::string& name, const TensorOfFile& tensor,
                                       std::uint32_t* group) {
  const TensorOfFile scales = file.Find(name + "_scale");
  const std::uint64_t K = tensor.shape[2];
  const std::uint64_t groups = scales.shape.size() == 3 ? scales.shape[2] : 1;
  bool fits = scales.dtype == "F32" && scales.shape.size() >= 2 && scales.shape.size() <= 3 &&
              std::equal(scales.shape.begin(), scales.shape.begin() + 2, tensor.shape.begin()) &&
              Fits(scales, sizeof(float));
  std::uint64_t each = std::max<std::uint64_t>(K, 1);
  *group = 0;
  if (fits && groups != 1) {
    fits = false;
    for (const std::uint32_t size : {32u, 64u, 128u}) {
      if (!fits && groups == (K + size - 1) / size) fits = true, *group = size, each = size;
    }
  }
  if (!fits) throw BadFile(name + "_scale: its shape does not fit " + name);
  const std::vector<std::int8_t> q = file.Read<std::int8_t>(tensor);
  const std::vector<float> scale = file.Read<float>(scales);
  const DefaultFloatMode mode;
  std::vector<float> numbers(q.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<float>(q[i]) * scale[static_cast<std::size_t>(i / K * groups + i % K / each)];
  }
  return Bytes(numbers);
}

}  // namespace

Source::Source(const char* path) {
#if defined(__wasm__)
  throw CannotRead(std::string(path) + ": there are no files here; read it, and call onegru_layer_read");
#else
  std::error_code error;
  // A pipe might never end.
  if (!std::filesystem::is_regular_file(path, error)) throw CannotRead(std::string(path) + ": no file");
  size_ = std::filesystem::file_size(path, error);
  file_.reset(std::fopen(path, "rb"));
  if (error || file_ == nullptr) throw CannotRead(std::string(path) + ": cannot be read");
#endif
}

void Source::Read(std::uint64_t at, std::size_t count, void* to) {
  if (count == 0) return;
  if (bytes_ != nullptr) {
    std::memcpy(to, bytes_ + at, count);
  } else if (at > static_cast<std::uint64_t>(std::numeric_limits<long>::max()) ||
             std::fseek(file_.get(), static_cast<long>(at), SEEK_SET) != 0 ||
             std::fread(to, 1, count, file_.get()) != count) {
    throw CannotRead("the file cannot be read to its end");
  }
}

LayerOfFile ReadLayer(Source& source, std::size_t index) {
  const File file(source);
  LayerOfFile layer{ReadSpec(file.Layer(index)), {}, {}, {}};
  onegru_spec& spec = layer.spec;
  const std::uint64_t D = spec.direction == ONEGRU_BIDIRECTIONAL ? 2 : 1, H = spec.hidden_size;
  std::uint32_t groups[2] = {};
  bool is_int8 = true;
  const auto read = [&](const char* part, std::vector<std::uint64_t> shape, std::uint32_t* group) {
    const std::string name = "layers." + std::to_string(index) + "." + part;
    const TensorOfFile tensor = file.Find(name);
    if (tensor.shape != shape) throw BadFile(name + ": its shape does not fit the layer's sizes");
    const std::int32_t type = Place((name + ": type").c_str(), tensor.dtype, kTypesOfTensors);
    const bool integers = type == ONEGRU_INT8;
    if (integers ? group == nullptr || spec.dtype != ONEGRU_FLOAT32 : type != spec.dtype) {
      throw BadFile(name + ": type " + tensor.dtype + "; must be the layer's");
    }
    if (!Fits(tensor, SizeOf(static_cast<ElementType>(type)))) {
      throw BadFile(name + ": its data has another size than its shape");
    }
    if (group != nullptr) is_int8 = is_int8 && integers;
    if (integers) return Dequantized(file, name, tensor, group);
    if (type == ONEGRU_FLOAT32 || type == ONEGRU_FLOAT64) return file.Read<unsigned char>(tensor);
    const std::vector<std::uint16_t> bits = file.Read<std::uint16_t>(tensor);
    std::vector<float> numbers(bits.size());
    std::transform(bits.begin(), bits.end(), numbers.begin(),
                   type == ONEGRU_FLOAT16 ? FromFloat16Bits : FromBFloat16Bits);
    return Bytes(numbers);
  };
  if (H < 1) throw BadFile("hidden_size: must be at least 1");
  layer.W = read("W", {D, 3 * H, spec.input_size}, &groups[0]);
  layer.R = read("R", {D, 3 * H, H}, &groups[1]);
  layer.B = read("B", {D, 6 * H}, nullptr);
  // A row that is no longer than a group has one scale in either way. Otherwise the numbers are kept.
  const std::uint32_t group = std::max(groups[0], groups[1]);
  const auto suits = [&](std::uint32_t own, std::uint64_t K) { return own == group || (own == 0 && K <= group); };
  is_int8 = is_int8 && suits(groups[0], spec.input_size) && suits(groups[1], H);
  if (is_int8) spec.storage = {ONEGRU_INT8, 16, group};
  return layer;
}

}  // namespace onegru
