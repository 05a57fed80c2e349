// Implements onegru.h. No function throws: an exception becomes a status and the thread's error message.

#include "native/c/onegru.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "native/c/file.h"
#include "native/c/spec.h"
#include "native/kernel.h"
#include "native/runtimes/onnx_checks.h"
#include "native/targets/targets.h"
#include "native/threads/threads.h"

using onegru::AlignedBytes;
using onegru::Call;
using onegru::ContiguousRows;
using onegru::InvalidArgument;
using onegru::LayerFile;
using onegru::Packed;
using onegru::Rows;
using onegru::Source;
using onegru::Spec;
using onegru::StreamCalls;

struct onegru_layer {
  onegru_spec spec;
  std::shared_ptr<const Packed> packed;
};

struct onegru_stream {
  std::shared_ptr<const Packed> packed;
  std::size_t rows;
  AlignedBytes memory;  // for calls, state and is_listed
  StreamCalls calls;
  unsigned char* state;      // [rows, H] in the compute type
  unsigned char* is_listed;  // [rows]: whether the call has listed the row

  std::size_t row_bytes() const { return packed->spec().H * ComputedSize(packed->spec().type); }
};

namespace {

thread_local char t_message[512];

onegru_status Fail(onegru_status status, const char* message) noexcept {
  std::size_t size = std::min(std::strlen(message), sizeof(t_message) - 1);
  if (message[size] != 0) {  // truncate, but not within a UTF-8 character
    while (size > 0 && (message[size] & 0xc0) == 0x80) --size;
  }
  std::memmove(t_message, message, size);
  t_message[size] = 0;
  return status;
}

// Runs `work`, and converts its exceptions to a status.
template <class Work>
onegru_status Guarded(Work&& work) noexcept {
  try {
    work();
    return ONEGRU_OK;
  } catch (const std::bad_alloc&) {
    return Fail(ONEGRU_OUT_OF_MEMORY, "out of memory");
  } catch (const std::length_error&) {
    return Fail(ONEGRU_OUT_OF_MEMORY, "out of memory: larger than the address space");
  } catch (const std::invalid_argument& error) {
    return Fail(ONEGRU_INVALID_ARGUMENT, error.what());
  } catch (const onegru::BadFile& error) {
    return Fail(ONEGRU_BAD_FILE, error.what());
  } catch (const onegru::NoSuchLayer& error) {
    return Fail(ONEGRU_NO_SUCH_LAYER, error.what());
  } catch (const onegru::CannotRead& error) {
    return Fail(ONEGRU_CANNOT_READ, error.what());
  } catch (const onegru::Unsupported& error) {
    return Fail(ONEGRU_UNSUPPORTED, error.what());
  } catch (const std::exception& error) {
    return Fail(ONEGRU_INTERNAL, error.what());
  }
}

// Returns the size of an array in bytes, or SIZE_MAX on overflow. Divisions would slow down short calls.
std::size_t Bytes(std::size_t size, std::initializer_list<std::size_t> axes) {
  bool overflows = false, is_empty = false;
  for (const std::size_t axis : axes) {
    overflows |= __builtin_mul_overflow(size, axis, &size);
    is_empty |= axis == 0;
  }
  return is_empty ? 0 : overflows ? std::numeric_limits<std::size_t>::max() : size;
}

// An array from the program. `size`: bytes per element, a power of two.
struct Array {
  const char* name;
  const void* data;
  std::size_t bytes, size;

  // Returns the error in the array, or null. Allocates nothing, because streams call it.
  const char* Problem(bool is_wanted) const {
    if (data == nullptr) return is_wanted && bytes != 0 ? "null; must be given" : nullptr;
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    if ((address & (size - 1)) != 0) return "not aligned to its elements";
    if (bytes > std::numeric_limits<std::uintptr_t>::max() - address) return "larger than memory";
    return nullptr;
  }
  bool Overlaps(const Array& other) const {
    if (data == nullptr || other.data == nullptr || bytes == 0 || other.bytes == 0) return false;
    const auto a = reinterpret_cast<std::uintptr_t>(data), b = reinterpret_cast<std::uintptr_t>(other.data);
    return a < b ? b - a < bytes : a - b < other.bytes;
  }
};

onegru_status FailOf(const char* name, const char* problem) noexcept {
  std::snprintf(t_message, sizeof(t_message), "%s: %s", name, problem);
  return ONEGRU_INVALID_ARGUMENT;
}

// Returns the status of a call's arrays. Outputs must not overlap any other array.
template <std::size_t kInputs, std::size_t kOutputs>
onegru_status Check(const std::pair<Array, bool> (&inputs)[kInputs],
                    const std::pair<Array, bool> (&outputs)[kOutputs]) {
  const auto check = [](const std::pair<Array, bool>& item) { return item.first.Problem(item.second); };
  for (const auto& item : inputs) {
    if (const char* const problem = check(item)) return FailOf(item.first.name, problem);
  }
  for (const auto& item : outputs) {
    if (const char* const problem = check(item)) return FailOf(item.first.name, problem);
    for (const auto& other : inputs) {
      if (item.first.Overlaps(other.first))
        return FailOf(item.first.name, "overlaps an input; must be a separate array");
    }
    for (const auto& other : outputs) {
      if (&item != &other && item.first.Overlaps(other.first))
        return FailOf(item.first.name, "overlaps another output");
    }
  }
  return ONEGRU_OK;
}

onegru_status CheckLengths(const std::vector<std::int64_t>& lengths, std::size_t T) noexcept {
  for (const std::int64_t length : lengths) {
    if (length >= 0 && static_cast<std::uint64_t>(length) <= T) continue;
    std::snprintf(t_message, sizeof(t_message), "sequence_lens: %d; must be in 0…T = 0…%zu", static_cast<int>(length),
                  T);
    return ONEGRU_INVALID_ARGUMENT;
  }
  return ONEGRU_OK;
}

void RequirePointer(const char* name, const void* pointer) {
  if (pointer == nullptr) throw InvalidArgument(std::string(name) + ": null; must be given");
}

std::unique_ptr<onegru_layer> MakeLayer(const onegru_spec& given, const void* W, const void* R, const void* B) {
  const Spec spec = onegru::CheckedSpec(given);
  const std::size_t computed = ComputedSize(spec.type), rows = 3 * spec.H;
  const auto check = [&](const char* name, const void* data, std::size_t count) {
    const Array array{name, data, count, computed};
    if (const char* const problem = array.Problem(true)) throw InvalidArgument(std::string(name) + ": " + problem);
  };
  check("W", W, Bytes(computed, {spec.D, rows, spec.I}));
  check("R", R, Bytes(computed, {spec.D, rows, spec.H}));
  if (B != nullptr) check("B", B, Bytes(computed, {spec.D, 2 * rows}));
  const auto sides = [&](std::size_t K) {
    return std::array<std::int64_t, 3>{static_cast<std::int64_t>(spec.D), static_cast<std::int64_t>(rows),
                                       static_cast<std::int64_t>(K)};
  };
  if (spec.storage != spec.type) {
    onegru::CheckStorage("W", {spec.type, sides(spec.I), W, true}, spec.storage, spec.group);
    onegru::CheckStorage("R", {spec.type, sides(spec.H), R, true}, spec.storage, spec.group);
  }
  onegru::CheckCpu();
  // Zeros have the same bytes in float and double.
  std::vector<double> zeros(B == nullptr ? spec.D * 2 * rows : 0);
  auto layer = std::make_unique<onegru_layer>();
  layer->spec = given;
  layer->packed = onegru::PackForRuns(spec, W, R, B == nullptr ? zeros.data() : B);
  return layer;
}

onegru_options ReadOptions(const onegru_options* given) {
  onegru_options options;
  onegru_options_init(&options);
  if (given != nullptr) options = onegru::Known("options", given);
  onegru::CheckOptions(options);
  return options;
}

std::unique_ptr<onegru_layer> ReadLayer(const onegru::LayerFile& file, std::size_t index,
                                        const onegru_options& options) {
  onegru::StoredLayer found = file.Read(index);
  if (options.flush_subnormals != ONEGRU_AS_STORED) found.spec.flush_subnormals = options.flush_subnormals;
  const bool is_stored = options.storage.weight_storage == ONEGRU_AS_STORED;
  if (!is_stored) found.spec.storage = options.storage;
  try {
    return MakeLayer(found.spec, found.W.data(), found.R.data(), found.B.data());
  } catch (const InvalidArgument& error) {
    if (is_stored) throw onegru::BadFile(error.what());  // the file is wrong, not an argument
    throw;
  }
}

void ReadLayers(const onegru::LayerFile& file, const onegru_options& options, std::size_t capacity,
                onegru_layer** layers, std::size_t* count) {
  if (file.count() > capacity) {
    throw InvalidArgument("capacity: " + std::to_string(capacity) + "; must be at least " +
                          std::to_string(file.count()) + ", the number of layers in the file");
  }
  std::vector<std::unique_ptr<onegru_layer>> read;
  while (read.size() < file.count()) read.push_back(ReadLayer(file, read.size(), options));
  *count = read.size();
  for (std::size_t i = 0; i < read.size(); ++i) layers[i] = read[i].release();
}

// Points `rows` to a contiguous array [T, B] with `row` bytes per row.
void SetRows(Rows& rows, const void* data, std::size_t B, std::size_t row) {
  rows.data = static_cast<char*>(const_cast<void*>(data));
  rows.time_stride = static_cast<std::ptrdiff_t>(B * row);
  rows.row_stride = static_cast<std::ptrdiff_t>(row);
}

}  // namespace

uint32_t onegru_version(void) { return ONEGRU_VERSION_MAJOR << 16 | ONEGRU_VERSION_MINOR; }

const char* onegru_error_message(void) { return t_message; }

onegru_status onegru_set_num_threads(size_t count) {
  if (count < 1 || count > onegru::kMaxThreads) return FailOf("count", "must be 1…64");
  return Guarded([&] { onegru::SetNumThreads(count); });
}

void(onegru_spec_init)(onegru_spec* spec, uint32_t input_size, uint32_t hidden_size) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  onegru_spec made{};
  made.size = std::max(spec->size, onegru::kSmallest<onegru_spec>);
  made.input_size = input_size;
  made.hidden_size = hidden_size;
  made.dtype = made.storage.weight_storage = ONEGRU_FLOAT32;
  made.clip = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 4; ++i) made.activations[i] = {i % 2 == 0 ? ONEGRU_SIGMOID : ONEGRU_TANH, 0, nan, nan};
  const std::size_t size = made.size, known = std::min(size, sizeof(made));
  std::memcpy(spec, &made, known);
  if (size <= onegru::kLargestSize) std::memset(reinterpret_cast<unsigned char*>(spec) + known, 0, size - known);
}

onegru_status onegru_layer_create(const onegru_spec* spec, const void* W, const void* R, const void* B,
                                  onegru_layer** layer) {
  return Guarded([&] {
    RequirePointer("layer", layer);
    *layer = MakeLayer(onegru::Known("spec", spec), W, R, B).release();
  });
}

onegru_status onegru_layer_open(const char* path, size_t index, const onegru_options* options, onegru_layer** layer) {
  return Guarded([&] {
    RequirePointer("path", path);
    RequirePointer("layer", layer);
    *layer = ReadLayer(LayerFile(Source(path)), index, ReadOptions(options)).release();
  });
}

onegru_status onegru_layer_read(const void* bytes, size_t size, size_t index, const onegru_options* options,
                                onegru_layer** layer) {
  return Guarded([&] {
    RequirePointer("bytes", bytes);
    RequirePointer("layer", layer);
    *layer = ReadLayer(LayerFile(Source(bytes, size)), index, ReadOptions(options)).release();
  });
}

onegru_status onegru_layers_open(const char* path, const onegru_options* options, size_t capacity,
                                 onegru_layer** layers, size_t* count) {
  return Guarded([&] {
    RequirePointer("path", path);
    RequirePointer("layers", layers);
    RequirePointer("count", count);
    ReadLayers(LayerFile(Source(path)), ReadOptions(options), capacity, layers, count);
  });
}

onegru_status onegru_layers_read(const void* bytes, size_t size, const onegru_options* options, size_t capacity,
                                 onegru_layer** layers, size_t* count) {
  return Guarded([&] {
    RequirePointer("bytes", bytes);
    RequirePointer("layers", layers);
    RequirePointer("count", count);
    ReadLayers(LayerFile(Source(bytes, size)), ReadOptions(options), capacity, layers, count);
  });
}

onegru_status onegru_layer_spec(const onegru_layer* layer, onegru_spec* spec) {
  return Guarded([&] {
    RequirePointer("layer", layer);
    RequirePointer("spec", spec);
    const std::uint32_t size = spec->size;
    if (size < onegru::kSmallest<onegru_spec> || size > onegru::kLargestSize)
      throw InvalidArgument("spec.size: " + std::to_string(size) + "; must be sizeof(onegru_spec)");
    const std::size_t known = std::min<std::size_t>(size, sizeof(*spec));
    std::memcpy(spec, &layer->spec, known);
    std::memset(reinterpret_cast<unsigned char*>(spec) + known, 0, size - known);
    spec->size = size;
  });
}

onegru_status onegru_layer_run(const onegru_layer* layer, const onegru_call* program_call) {
  onegru_call known;
  const onegru_status status = Guarded([&] {
    RequirePointer("layer", layer);
    known = onegru::Known("call", program_call);
  });
  if (status != ONEGRU_OK) return status;
  const onegru_call* const given = &known;
  const Spec& spec = layer->packed->spec();
  const std::size_t T = given->T, B = given->B, D = spec.D, size = SizeOf(spec.type);
  if (given->layout != 0 && given->layout != 1) return FailOf("layout", "must be 0 or 1");
  if (spec.attention != (given->attention != nullptr) && T != 0 && B != 0) {
    return FailOf("attention", spec.attention ? "null; must be given" : "the layer has none; must be null");
  }
  const std::size_t h = Bytes(size, {D, B, spec.H});
  const Array initial_h{"initial_h", given->initial_h, h, size}, Y_h{"Y_h", given->Y_h, h, size};
  const bool in_place = given->Y_h != nullptr && given->Y_h == given->initial_h;
  const std::pair<Array, bool> inputs[] = {
      {{"X", given->X, Bytes(size, {T, B, spec.I}), size}, true},
      {{"sequence_lens", given->sequence_lens, Bytes(4, {B}), 4}, false},
      {in_place ? Array{"initial_h", nullptr, 0, size} : initial_h, false},
      {{"attention", given->attention, Bytes(size, {T, B}), size}, spec.attention}};
  const std::pair<Array, bool> outputs[] = {{{"Y", given->Y, Bytes(size, {T, D, B, spec.H}), size}, false},
                                            {Y_h, false}};
  if (const onegru_status status = Check(inputs, outputs); status != ONEGRU_OK) return status;
  if (given->sequence_lens != nullptr && B > std::size_t{std::numeric_limits<std::int32_t>::max()}) {
    return FailOf("B", "must be at most 2^31 - 1 with sequence_lens");
  }
  // All other arguments are valid. Nothing below throws while it holds memory: in WebAssembly, it would leak.
  onegru_status lengths_status = ONEGRU_OK;
  const onegru_status ran = Guarded([&] {
    const bool batch_first = given->layout == 1;
    const char* const steps = batch_first ? "BT" : "TB";
    Call call{};
    call.T = T;
    call.B = B;
    call.X = ContiguousRows(given->X, steps, T, D, B, spec.I * size);
    std::vector<std::int64_t> lengths;
    if (given->sequence_lens != nullptr) {
      lengths.assign(given->sequence_lens, given->sequence_lens + B);  // another thread may change sequence_lens
      call.lengths = lengths.data();
      lengths_status = CheckLengths(lengths, T);
      if (lengths_status != ONEGRU_OK) return;
    }
    const char* const states = batch_first ? "BD" : "DB";
    if (given->initial_h != nullptr) call.initial_h = ContiguousRows(given->initial_h, states, T, D, B, spec.H * size);
    if (spec.attention) call.attention = ContiguousRows(given->attention, steps, T, D, B, size);
    if (given->Y != nullptr) call.Y = ContiguousRows(given->Y, batch_first ? "BTD" : "TDB", T, D, B, spec.H * size);
    if (given->Y_h != nullptr) call.Y_h = ContiguousRows(given->Y_h, states, T, D, B, spec.H * size);
    onegru::Run(layer->packed, call);
  });
  return lengths_status != ONEGRU_OK ? lengths_status : ran;
}

void onegru_layer_destroy(onegru_layer* layer) { delete layer; }

onegru_status onegru_stream_create(const onegru_layer* layer, size_t rows, onegru_stream** stream) {
  return Guarded([&] {
    RequirePointer("layer", layer);
    RequirePointer("stream", stream);
    const Spec& spec = layer->packed->spec();
    if (spec.D != 1 || spec.reversed[0])
      throw InvalidArgument("layer: runs backwards; only forward layers make streams");
    constexpr std::size_t kMostRows = std::numeric_limits<std::int32_t>::max();
    if (rows < 1 || rows > kMostRows) throw InvalidArgument("rows: " + std::to_string(rows) + "; must be 1…2^31 - 1");
    const std::size_t bytes = StreamCalls::Bytes(*layer->packed, rows);
    const std::size_t row_bytes = spec.H * ComputedSize(spec.type) + 1;
    if (rows > (std::numeric_limits<std::size_t>::max() / 2 - bytes) / row_bytes) throw std::bad_alloc();
    AlignedBytes memory = onegru::AllocateAligned(bytes + rows * row_bytes);
    unsigned char* const start = memory.get();
    unsigned char* const state = start + bytes;
    *stream = new onegru_stream{layer->packed,           rows,  std::move(memory),
                                {*layer->packed, start}, state, state + rows * (row_bytes - 1)};
    Call& call = (*stream)->calls.next();
    SetRows(call.initial_h, state, 0, (*stream)->row_bytes());
    call.Y_h = call.initial_h;
    call.wide_state = true;
  });
}

onegru_status onegru_stream_step(onegru_stream* stream, const void* X, const void* attention, void* Y) {
  return onegru_stream_run(stream, 1, nullptr, 0, X, attention, Y);
}

onegru_status onegru_stream_run(onegru_stream* stream, size_t T, const int32_t* row, size_t n, const void* X,
                                const void* attention, void* Y) {
  if (stream == nullptr) return FailOf("stream", "null; must be given");
  const Spec& spec = stream->packed->spec();
  const std::size_t size = SizeOf(spec.type);
  Call& call = stream->calls.next();
  call.T = T;
  call.B = row == nullptr ? stream->rows : n;
  if (call.B > stream->rows) return FailOf("n", "more rows than the stream has");
  if ((attention != nullptr) != spec.attention && T != 0 && call.B != 0) {
    return FailOf("attention", spec.attention ? "null; must be given" : "the layer has none; must be null");
  }
  const std::pair<Array, bool> inputs[] = {{{"X", X, Bytes(size, {T, call.B, spec.I}), size}, true},
                                           {{"row", row, Bytes(4, {call.B}), 4}, false},
                                           {{"attention", attention, Bytes(size, {T, call.B}), size}, spec.attention}};
  const std::pair<Array, bool> outputs[] = {{{"Y", Y, Bytes(size, {T, call.B, spec.H}), size}, true}};
  if (const onegru_status status = Check(inputs, outputs); status != ONEGRU_OK) return status;
  if (row != nullptr) {
    std::size_t distinct = 0;
    for (; distinct < n; ++distinct) {
      const std::int32_t at = row[distinct];
      if (at < 0 || static_cast<std::size_t>(at) >= stream->rows || stream->is_listed[at] != 0) break;
      stream->is_listed[at] = 1;
    }
    for (std::size_t i = 0; i < distinct; ++i) stream->is_listed[row[i]] = 0;
    if (distinct != n) return FailOf("row", "must be different rows of the stream");
  }
  if (T == 0 || call.B == 0) return ONEGRU_OK;  // the state does not change
  SetRows(call.X, X, call.B, spec.I * size);
  SetRows(call.Y, Y, call.B, spec.H * size);
  if (spec.attention) SetRows(call.attention, attention, call.B, size);
  call.state_rows = row;
  ++call.sweep_parity;
  return Guarded([&] { stream->calls.Run(); });
}

onegru_status onegru_stream_get_state(const onegru_stream* stream, void* h) {
  if (stream == nullptr || h == nullptr) return FailOf(stream == nullptr ? "stream" : "h", "null; must be given");
  std::memcpy(h, stream->state, stream->rows * stream->row_bytes());
  return ONEGRU_OK;
}

onegru_status onegru_stream_set_state(onegru_stream* stream, const void* h) {
  if (stream == nullptr || h == nullptr) return FailOf(stream == nullptr ? "stream" : "h", "null; must be given");
  std::memcpy(stream->state, h, stream->rows * stream->row_bytes());
  return ONEGRU_OK;
}

onegru_status onegru_stream_reset(onegru_stream* stream, size_t row) {
  if (stream == nullptr) return FailOf("stream", "null; must be given");
  const bool all = row == ONEGRU_ALL_ROWS;
  if (!all && row >= stream->rows) return FailOf("row", "must be a row of the stream, or ONEGRU_ALL_ROWS");
  std::memset(stream->state + (all ? 0 : row * stream->row_bytes()), 0, (all ? stream->rows : 1) * stream->row_bytes());
  return ONEGRU_OK;
}

void onegru_stream_destroy(onegru_stream* stream) { delete stream; }
