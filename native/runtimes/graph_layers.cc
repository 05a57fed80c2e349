#include "native/runtimes/graph_layers.h"

#include <algorithm>
#include <cstdio>
#include <new>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "native/kernel.h"
#include "native/threads/threads.h"

namespace onegru {
namespace {

// ForkLock protects both. They are created when the library is loaded and never destroyed, because nodes may outlive
// all other objects.
auto& g_layers = *new std::unordered_map<std::string, std::weak_ptr<const Packed>>;
auto& g_lost = *new std::vector<std::string>;
constexpr std::size_t kMaxLost = 100;  // messages
bool g_has_lost_more = false;          // whether there was no memory for a message

thread_local FailureWatch* t_watch = nullptr;  // the innermost one of this thread

void* Open(const char* name) {
  std::shared_ptr<const Packed> packed;
  {
    const std::string_view wanted(name);  // no copy: an exception must not reach another runtime
    const ForkLock lock;
    for (const auto& [own, layer] : g_layers) {
      if (own == wanted) packed = layer.lock();
    }
  }
  return packed == nullptr ? nullptr : new (std::nothrow) std::shared_ptr<const Packed>(std::move(packed));
}

void Close(void* layer) { delete static_cast<std::shared_ptr<const Packed>*>(layer); }

bool ReadLengths(const OnegruGraphCall& given, std::vector<std::int64_t>& lengths) {
  lengths.resize(given.batch_size);
  for (std::size_t b = 0; b < given.batch_size; ++b) {
    lengths[b] = given.length_size == 4 ? static_cast<const std::int32_t*>(given.lengths)[b]
                                        : static_cast<const std::int64_t*>(given.lengths)[b];
    if (lengths[b] < 0 || lengths[b] > static_cast<std::int64_t>(given.seq_length)) return false;
  }
  return true;
}

// Converts a runtime's float32 elements to the layer's type and back.
class Converted {
 public:
  Converted(ElementType type, std::size_t size) : type_(type), is_needed_(size == 4 && type != ElementType::kFloat32) {}

  const void* In(const void* data, std::size_t count) {
    if (!is_needed_ || data == nullptr) return data;
    auto* const to = Room(count);
    const auto* const from = static_cast<const float*>(data);
    for (std::size_t i = 0; i < count; ++i) {
      if (type_ == ElementType::kFloat64) {
        reinterpret_cast<double*>(to)[i] = from[i];
      } else {
        reinterpret_cast<std::uint16_t*>(to)[i] =
            type_ == ElementType::kFloat16 ? Float16Bits(from[i]) : BFloat16Bits(from[i]);
      }
    }
    return to;
  }
  void* Out(void* data, std::size_t count) { return is_needed_ && data != nullptr ? Room(count) : data; }
  void Back(const void* from, void* data, std::size_t count) const {
    if (!is_needed_ || data == nullptr) return;
    auto* const to = static_cast<float*>(data);
    for (std::size_t i = 0; i < count; ++i) {
      if (type_ == ElementType::kFloat64) {
        to[i] = static_cast<float>(static_cast<const double*>(from)[i]);
      } else {
        const std::uint16_t bits = static_cast<const std::uint16_t*>(from)[i];
        to[i] = type_ == ElementType::kFloat16 ? FromFloat16Bits(bits) : FromBFloat16Bits(bits);
      }
    }
  }

 private:
  unsigned char* Room(std::size_t count) {
    memory_.push_back(AllocateAligned(count * SizeOf(type_)));
    return memory_.back().get();
  }

  ElementType type_;
  bool is_needed_;
  std::vector<AlignedBytes> memory_;
};

const char* Run(const void* layer, const OnegruGraphCall* call_given) try {
  const OnegruGraphCall& given = *call_given;
  const auto& packed = *static_cast<const std::shared_ptr<const Packed>*>(layer);
  const Spec& spec = packed->spec();
  if (given.input_size != spec.I || given.num_directions != spec.D || given.hidden_size != spec.H ||
      (given.element_size != SizeOf(spec.type) && given.element_size != 4) || (given.A != nullptr) != spec.attention) {
    return "the shapes or types of its inputs do not match its layer";
  }
  std::vector<std::int64_t> lengths;
  Call call{};
  call.T = given.seq_length;
  call.B = given.batch_size;
  if (given.lengths != nullptr) {
    if (!ReadLengths(given, lengths)) return "sequence_lengths: must be in 0…seq_length";
    call.lengths = lengths.data();
  }
  const auto rows = [&](const void* data, const char* axes, std::size_t elements) {
    return ContiguousRows(data, axes, call.T, spec.D, call.B, elements * SizeOf(spec.type));
  };
  const std::size_t steps = call.T * call.B, states = call.B * spec.D * spec.H;
  Converted converted(spec.type, given.element_size);
  void* const Y = converted.Out(given.Y, steps * spec.D * spec.H);
  void* const Ho = converted.Out(given.Ho, states);
  call.X = rows(converted.In(given.X, steps * spec.I), "BT", spec.I);
  call.initial_h = rows(converted.In(given.H, states), "BD", spec.H);
  call.attention = rows(converted.In(given.A, steps), "BT", 1);
  call.Y = rows(Y, "BDT", spec.H);
  call.Y_h = rows(Ho, "BD", spec.H);
  const ForeignPool pool{given.run_tasks, given.pool, given.threads};
  onegru::Run(packed, call, &pool);
  converted.Back(Y, given.Y, steps * spec.D * spec.H);
  converted.Back(Ho, given.Ho, states);
  return nullptr;
} catch (const std::bad_alloc&) {
  return "out of memory";
} catch (...) {
  return "unknown error";
}

int Fail(const char* message, int is_watched, int threads) try {
  if (is_watched != 0) {
    if (t_watch == nullptr) return 1;
    t_watch->Record(message);
    return 0;
  }
  if (threads > 1) return 1;
  const ForkLock lock;
  if (g_lost.size() < kMaxLost && std::find(g_lost.begin(), g_lost.end(), message) == g_lost.end()) {
    std::fprintf(stderr, "onegru: %s; the outputs are NaN, because OpenVINO loses errors on one thread\n", message);
    const bool before = std::exchange(g_has_lost_more, true);
    g_lost.emplace_back(message);
    g_has_lost_more = before;
  }
  return 0;
} catch (const std::bad_alloc&) {
  return 0;  // the outputs, has_failed and g_has_lost_more report the failure
}

}  // namespace

const OnegruGraphApi& GraphApi() {
  static constexpr OnegruGraphApi api{&Open, &Close, &Run, &Fail};
  return api;
}

FailureWatch::FailureWatch() : outer_(std::exchange(t_watch, this)) {}

FailureWatch::~FailureWatch() { t_watch = outer_; }

void FailureWatch::Record(const char* message) {
  if (!std::exchange(has_failed_, true)) failure_ = message;
}

std::string FailureWatch::Failure() const { return has_failed_ && failure_.empty() ? "out of memory" : failure_; }

std::vector<std::string> TakeLostErrors() {
  const ForkLock lock;
  auto lost = std::exchange(g_lost, {});
  if (std::exchange(g_has_lost_more, false)) lost.emplace_back("out of memory");
  return lost;
}

void NameLayer(const std::string& name, const std::shared_ptr<const Packed>& packed) {
  const ForkLock lock;
  for (auto entry = g_layers.begin(); entry != g_layers.end();) {
    entry = entry->second.expired() ? g_layers.erase(entry) : std::next(entry);
  }
  g_layers[name] = packed;
}

}  // namespace onegru
