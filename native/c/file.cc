#include "native/c/file.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>
#if !defined(__wasm__)
#include <filesystem>
#endif

#include "native/c/spec.h"
#include "native/float16.h"
#include "native/float_mode.h"
#include "native/problem.h"
#include "native/runtimes/onnx_activations.h"

namespace onegru {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

constexpr std::uint64_t kLargestHeader = 1 << 20;

constexpr const char* kTypes[] = {"float16", "bfloat16", "float32", "float64"};
constexpr const char* kTypesOfTensors[] = {"F16", "BF16", "F32", "F64", "I8"};
constexpr const char* kDirections[] = {"forward", "reverse", "bidirectional"};

template <std::size_t kCount>
std::int32_t Place(const std::string& what, const std::string& word, const char* const (&words)[kCount]) {
  const auto* const found = std::find(std::begin(words), std::end(words), word);
  if (found == std::end(words)) throw BadFile(what + ": " + Quoted(word));
  return static_cast<std::int32_t>(found - words);
}

double Number(const Json& value, const std::string& what) {
  if (value.kind != Json::kNumber) throw BadFile(what + ": must be a number");
  return value.number;
}

onegru_activation ReadFunction(const Json& function) {
  if (function.kind != Json::kArray || function.items.size() != 3 || function.items[0].kind != Json::kString) {
    throw BadFile("activations: must be pairs of [name, alpha, beta]");
  }
  const std::string& name = function.items[0].text;
  const auto* const facts = std::find_if(std::begin(kFunctionFacts), std::end(kFunctionFacts),
                                         [&](const FunctionFacts& known) { return name == known.name; });
  if (facts == std::end(kFunctionFacts)) throw BadFile("activations: unknown function " + Quoted(name));
  onegru_activation read{static_cast<std::int32_t>(facts - kFunctionFacts), 0, 0, 0};
  for (int i = 0; i < 2; ++i) {
    const Json& value = function.items[static_cast<std::size_t>(1 + i)];
    const char* const parameter = i == 0 ? "alpha" : "beta";
    const bool takes = facts->takes > i;
    if (takes == (value.kind == Json::kNull)) {
      throw BadFile("activations: " + name + (takes ? " needs " : " takes no ") + parameter);
    }
    if (takes) (i == 0 ? read.alpha : read.beta) = Number(value, parameter);
  }
  return read;
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
  if (clip->kind != Json::kNull) spec.clip = Number(*clip, "clip");
  const Json* const attention = layer.Find("attention");
  if (attention == nullptr || (attention->kind != Json::kBool && attention->text != "dien")) {
    throw BadFile("attention: must be true, false or \"dien\"");
  }
  spec.attention = attention->kind != Json::kBool ? ONEGRU_ATTENTION_DIEN
                   : attention->boolean           ? ONEGRU_ATTENTION_OPENVINO
                                                  : ONEGRU_NO_ATTENTION;
  const auto& pairs = layer.At("activations", Json::kArray).items;
  if (pairs.size() != (spec.direction == ONEGRU_BIDIRECTIONAL ? 2 : 1)) {
    throw BadFile("activations: must be one pair for each direction");
  }
  for (std::size_t i = 0; i < 2 * pairs.size(); ++i) {
    const Json& pair = pairs[i / 2];
    if (pair.kind != Json::kArray || pair.items.size() != 2) {
      throw BadFile("activations: must be pairs of [name, alpha, beta]");
    }
    spec.activations[i] = ReadFunction(pair.items[i % 2]);
  }
  static_cast<void>(CheckedSpec(spec));
  return spec;
}

// Checks that a layer's inputs have the size and the type of the outputs of the layer below.
void CheckStack(const onegru_spec& below, const onegru_spec& above) {
  const std::uint64_t width = std::uint64_t{below.hidden_size} * (below.direction == ONEGRU_BIDIRECTIONAL ? 2 : 1);
  if (above.input_size != width || above.dtype != below.dtype) {
    throw BadFile("layers: input_size and dtype must match the outputs of the layer below");
  }
}

template <class T>
std::vector<unsigned char> Bytes(const std::vector<T>& numbers) {
  const auto* const begin = reinterpret_cast<const unsigned char*>(numbers.data());
  return {begin, begin + numbers.size() * sizeof(T)};
}

// Quotes a path for a message. Keeps only the end of a long path, so that the message has room for the reason.
std::string Shown(const char* path) {
  constexpr std::size_t kMost = 400;
  std::string shown = Quoted(path);
  if (shown.size() <= kMost) return shown;
  std::size_t begin = shown.size() - kMost;
  while (begin < shown.size() && (shown[begin] & 0xc0) == 0x80) ++begin;  // not within a UTF-8 character
  return "'…" + shown.substr(begin);
}

#if !defined(__wasm__)
std::FILE* Open(const std::filesystem::path& path) {
#if defined(_WIN32)
  return _wfopen(path.c_str(), L"rb");
#else
  return std::fopen(path.c_str(), "rb");
#endif
}
bool Seek(std::FILE* file, std::uint64_t at, int origin = SEEK_SET) {
#if defined(_WIN32)
  return _fseeki64(file, static_cast<std::int64_t>(at), origin) == 0;
#else
  return fseeko(file, static_cast<off_t>(at), origin) == 0;
#endif
}
// Returns the size of an open file, or a negative number if it has none. Its path may already name another file.
std::int64_t SizeOfFile(std::FILE* file) {
  if (!Seek(file, 0, SEEK_END)) return -1;
#if defined(_WIN32)
  return _ftelli64(file);
#else
  return ftello(file);
#endif
}
#endif

}  // namespace

Source::Source(const char* path) {
  name_ = Shown(path);
  const auto fail = [&](const std::string& why) -> void { throw CannotRead(name_ + ": " + why); };
#if defined(__wasm__)
  fail("this build has no access to files; pass the bytes of the file to onegru_layer_read");
#else
  const std::u8string name(path, path + std::strlen(path));
  std::error_code error;
  std::filesystem::path place;
  try {
    place = name;  // throws on Windows if the path is not UTF-8
  } catch (const std::exception&) {
    fail("the path must be UTF-8");
  }
  // Opening a pipe blocks, and a pipe may never end.
  const std::filesystem::file_status status = std::filesystem::status(place, error);
  if (!std::filesystem::status_known(status) || !std::filesystem::exists(status)) {
    fail(error ? error.message() : "no such file");
  }
  if (std::filesystem::is_directory(status)) fail("a folder; must be a file");
  if (!std::filesystem::is_regular_file(status)) fail("not a regular file");
  errno = 0;
  file_.reset(Open(place));
  if (file_ == nullptr) fail(std::generic_category().message(errno));
  const std::int64_t size = SizeOfFile(file_.get());
  if (size < 0) fail(std::generic_category().message(errno));
  size_ = static_cast<std::uint64_t>(size);
#endif
}

void Source::Read(std::uint64_t at, std::size_t count, void* to) const {
  if (count == 0) return;
  if (bytes_ != nullptr) {
    std::memcpy(to, bytes_ + at, count);
    return;
  }
#if !defined(__wasm__)
  errno = 0;
  if (Seek(file_.get(), at) && std::fread(to, 1, count, file_.get()) == count) return;
#endif
  throw CannotRead(name_ + ": cannot be read to the end" +
                   (errno == 0 ? std::string() : ": " + std::generic_category().message(errno)));
}

LayerFile::LayerFile(Source&& source) : source_(std::move(source)) {
  std::uint64_t length = 0;
  if (source_.size() < sizeof(length)) throw BadFile("not a safetensors file, or truncated");
  source_.Read(0, sizeof(length), &length);
  if (length > std::min(kLargestHeader, source_.size() - sizeof(length))) {
    throw BadFile("not a safetensors file, truncated, or its header is larger than 1 MiB");
  }
  std::string text(static_cast<std::size_t>(length), 0);
  source_.Read(sizeof(length), text.size(), text.data());
  data_ = sizeof(length) + length;
  const Json header = JsonParser::Parse(text);
  ReadTensors(header);
  CheckPlaces();
  const Json* const metadata = header.Find("__metadata__");
  const Json* const own = metadata == nullptr ? nullptr : metadata->Find("onegru");
  if (own == nullptr) throw BadFile("no \"onegru\" in its metadata; must be a file from onegru.save_layers");
  for (const Json& entry : metadata->items) {
    if (entry.kind != Json::kString) throw BadFile("the values of its metadata must be strings");
  }
  try {
    ReadDocument(JsonParser::Parse(own->text));
  } catch (const InvalidArgument& error) {  // the file is wrong, not an argument
    throw BadFile(error.what());
  }
  if (found_ != tensors_.size()) throw BadFile("has a tensor that does not belong to a layer");
}

void LayerFile::ReadTensors(const Json& header) {
  if (header.kind != Json::kObject) throw BadFile("its header must be a JSON object");
  for (std::size_t i = 0; i < header.items.size(); ++i) {
    const std::string& name = header.names[i];
    if (name == "__metadata__") continue;
    const Json& entry = header.items[i];
    Tensor tensor{entry.At("dtype", Json::kString).text, {}, 0, 0};
    for (const Json& axis : entry.At("shape", Json::kArray).items) tensor.shape.push_back(axis.Size());
    const auto& offsets = entry.At("data_offsets", Json::kArray).items;
    if (offsets.size() != 2 || offsets[0].Size() > offsets[1].Size()) {
      throw BadFile(Quoted(name) + ": data_offsets must be [begin, end]");
    }
    tensor.begin = offsets[0].Size();
    tensor.bytes = offsets[1].Size() - tensor.begin;
    tensors_.emplace(name, std::move(tensor));
  }
}

// Checks that the tensors fill the rest of the file, without gaps and overlaps.
void LayerFile::CheckPlaces() const {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> places;
  for (const auto& [name, tensor] : tensors_) places.emplace_back(tensor.begin, tensor.bytes);
  std::sort(places.begin(), places.end());
  std::uint64_t end = 0;
  for (const auto& [begin, bytes] : places) {
    if (begin != end) throw BadFile("its tensors overlap, or have gaps between them");
    end += bytes;
  }
  if (end != source_.size() - data_) throw BadFile("truncated, or longer than its tensors");
}

void LayerFile::ReadDocument(const Json& document) {
  constexpr std::size_t kMostLayers = ONEGRU_MAX_LAYERS;
  const std::uint64_t format = document.At("format", Json::kNumber).Size();
  if (format != 1 && format != 2) throw BadFile("format: must be 1 or 2");
  const bool is_stack = document.At("stack", Json::kBool).boolean;
  const auto& layers = document.At("layers", Json::kArray).items;
  if (document.items.size() != 3) throw BadFile("its metadata must have only format, stack and layers");
  if (layers.empty() || layers.size() > kMostLayers) {
    throw BadFile("layers: " + std::to_string(layers.size()) + "; must be 1…256");
  }
  if (!is_stack && layers.size() > 1) throw BadFile("layers: several; must be 1 unless stack is true");
  for (const Json& item : layers) {
    Layer layer{ReadSpec(item), {}, {}, {}};
    onegru_spec& spec = layer.spec;
    if (is_stack && spec.attention != ONEGRU_NO_ATTENTION) throw BadFile("attention: must be false in a stack");
    if (!layers_.empty()) CheckStack(layers_.back().spec, spec);
    const std::string prefix = "layers." + std::to_string(layers_.size()) + ".";
    const std::uint64_t D = spec.direction == ONEGRU_BIDIRECTIONAL ? 2 : 1, H = spec.hidden_size, I = spec.input_size;
    layer.W = FindWeight(prefix + "W", spec, {D, 3 * H, I}, true);
    layer.R = FindWeight(prefix + "R", spec, {D, 3 * H, H}, true);
    layer.B = FindWeight(prefix + "B", spec, {D, 6 * H}, false);
    // A row of at most `group` weights has one scale in both forms. Without a common group, W and R become float32.
    const std::uint32_t group = std::max(layer.W.group, layer.R.group);
    const auto suits = [&](const Weight& weight, std::uint64_t K) {
      return weight.scales != nullptr && (weight.group == group || (weight.group == 0 && K <= group));
    };
    if (suits(layer.W, I) && suits(layer.R, H)) spec.storage = {ONEGRU_INT8, 16, group};
    layers_.push_back(layer);
  }
}

const LayerFile::Tensor& LayerFile::Find(const std::string& name) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw BadFile(name + ": missing");
  ++found_;
  return found->second;
}

LayerFile::Weight LayerFile::FindWeight(const std::string& name, const onegru_spec& spec,
                                        const std::vector<std::uint64_t>& shape, bool may_be_integers) {
  Weight weight{&Find(name), nullptr, 0};
  if (weight.numbers->shape != shape) throw BadFile(name + ": its shape does not match the sizes of the layer");
  const std::int32_t type = Place(name + ": type", weight.numbers->dtype, kTypesOfTensors);
  const bool integers = type == ONEGRU_INT8;
  if (integers ? !may_be_integers || spec.dtype != ONEGRU_FLOAT32 : type != spec.dtype) {
    throw BadFile(name + ": type " + weight.numbers->dtype + "; must match dtype");
  }
  if (!weight.numbers->HasBytes(SizeOf(static_cast<ElementType>(type)))) {
    throw BadFile(name + ": the size of its data does not match its shape");
  }
  if (integers) FindScales(name, weight);
  return weight;
}

// Finds the scales of a weight: one for each row, or one for each group of a row.
void LayerFile::FindScales(const std::string& name, Weight& weight) {
  const Tensor& scales = Find(name + "_scale");
  const auto& sides = weight.numbers->shape;
  const std::uint64_t K = sides[2], groups = scales.shape.size() == 3 ? scales.shape[2] : 1;
  bool fits = scales.dtype == "F32" && scales.shape.size() >= 2 && scales.shape.size() <= 3 &&
              std::equal(scales.shape.begin(), scales.shape.begin() + 2, sides.begin()) &&
              scales.HasBytes(sizeof(float));
  if (fits && groups != 1) {
    constexpr std::uint32_t kGroups[] = {32, 64, 128};
    const auto* const found = std::find_if(std::begin(kGroups), std::end(kGroups),
                                           [&](std::uint32_t size) { return groups == (K + size - 1) / size; });
    fits = found != std::end(kGroups);
    if (fits) weight.group = *found;
  }
  if (!fits) throw BadFile(name + "_scale: must be F32, with a shape that matches " + name);
  weight.scales = &scales;
}

bool LayerFile::Tensor::HasBytes(std::uint64_t each) const {
  for (const std::uint64_t axis : shape) {
    if (axis != 0 && each > std::numeric_limits<std::uint64_t>::max() / axis) return false;
    each *= axis;
  }
  return each == bytes;
}

template <class T>
std::vector<T> LayerFile::Read(const Tensor& tensor) const {
  std::vector<T> numbers(static_cast<std::size_t>(tensor.bytes / sizeof(T)));
  source_.Read(data_ + tensor.begin, numbers.size() * sizeof(T), numbers.data());
  return numbers;
}

std::vector<unsigned char> LayerFile::Numbers(const Weight& weight) const {
  const Tensor& tensor = *weight.numbers;
  if (tensor.dtype == "F32" || tensor.dtype == "F64") return Read<unsigned char>(tensor);
  if (weight.scales == nullptr) {
    const std::vector<std::uint16_t> bits = Read<std::uint16_t>(tensor);
    std::vector<float> numbers(bits.size());
    std::transform(bits.begin(), bits.end(), numbers.begin(),
                   tensor.dtype == "F16" ? FromFloat16Bits : FromBFloat16Bits);
    return Bytes(numbers);
  }
  const std::vector<std::int8_t> q = Read<std::int8_t>(tensor);
  const std::vector<float> scale = Read<float>(*weight.scales);
  const std::size_t K = static_cast<std::size_t>(tensor.shape[2]),
                    each = weight.group == 0 ? std::max<std::size_t>(K, 1) : weight.group;
  const std::size_t groups = (K + each - 1) / each;
  const DefaultFloatMode mode;
  std::vector<float> numbers(q.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<float>(q[i]) * scale[i / K * groups + i % K / each];
  }
  return Bytes(numbers);
}

StoredLayer LayerFile::Read(std::size_t index) const {
  if (index >= layers_.size()) {
    throw NoSuchLayer("index: " + std::to_string(index) + "; the file has " + std::to_string(layers_.size()) +
                      (layers_.size() == 1 ? " layer" : " layers"));
  }
  const Layer& layer = layers_[index];
  return {layer.spec, Numbers(layer.W), Numbers(layer.R), Numbers(layer.B)};
}

}  // namespace onegru
