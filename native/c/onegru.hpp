// The C++20 API of onegru, on top of onegru.h. Objects own their memory, sizes are checked, and errors throw
// onegru::Error.
//
//   onegru::Layer layer = onegru::Layer::Open("gru.safetensors");
//   onegru::Stream stream(layer);
//   stream.Step(x, y);  // std::vector<float>, std::span<float> or other contiguous ranges

#ifndef ONEGRU_HPP_
#define ONEGRU_HPP_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "onegru.h"

namespace onegru {
inline namespace api {  // because the static library has other classes with these names

class Error : public std::runtime_error {
 public:
  Error(onegru_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  onegru_status status() const { return status_; }

 private:
  onegru_status status_;
};

inline void Check(onegru_status status) {
  if (status != ONEGRU_OK) throw Error(status, onegru_error_message());
}

namespace detail {

struct Destroy {
  void operator()(onegru_layer* layer) const { onegru_layer_destroy(layer); }
  void operator()(onegru_stream* stream) const { onegru_stream_destroy(stream); }
};

// Whether T holds elements of a layer's type: float, double, or std::uint16_t for the bits of 16-bit types.
template <class T>
bool Suits(std::int32_t dtype) {
  return dtype == ONEGRU_FLOAT32   ? std::is_same_v<T, float>
         : dtype == ONEGRU_FLOAT64 ? std::is_same_v<T, double>
                                   : std::is_same_v<T, std::uint16_t>;
}

// Returns the data of a contiguous range of the required type and size.
template <class Range>
auto* Given(const char* name, Range&& range, std::size_t wanted, std::int32_t dtype) {
  if (!Suits<std::remove_cv_t<std::remove_pointer_t<decltype(std::data(range))>>>(dtype)) {
    throw Error(ONEGRU_INVALID_ARGUMENT, std::string(name) + ": its element type does not match the layer's");
  }
  if (std::size(range) != wanted) {
    throw Error(ONEGRU_INVALID_ARGUMENT, std::string(name) + ": " + std::to_string(std::size(range)) +
                                             " numbers; must be " + std::to_string(wanted));
  }
  return std::data(range);
}

}  // namespace detail

// A GRU layer. It does not change, so threads can share it.
class Layer {
 public:
  // Takes contiguous ranges W [D, 3H, I], R [D, 3H, H] and B [D, 6H], or none for zeros. The elements are double for
  // float64, and float for other types.
  template <class W, class R, class B = std::span<const float>>
  Layer(const onegru_spec& spec, const W& w, const R& r, const B& b = {}) {
    const std::size_t D = spec.direction == ONEGRU_BIDIRECTIONAL ? 2 : 1, I = spec.input_size, H = spec.hidden_size;
    const std::int32_t computed = spec.dtype == ONEGRU_FLOAT64 ? ONEGRU_FLOAT64 : ONEGRU_FLOAT32;
    Take([&](onegru_layer** made) {
      return onegru_layer_create(&spec, detail::Given("W", w, D * 3 * H * I, computed),
                                 detail::Given("R", r, D * 3 * H * H, computed),
                                 std::size(b) == 0 ? nullptr : detail::Given("B", b, D * 6 * H, computed), made);
    });
  }

  // Opens a layer of a .safetensors file from onegru.save_layers. options: null for those of the file.
  static Layer Open(const std::string& path, std::size_t index = 0, const onegru_options* options = nullptr) {
    return Layer([&](onegru_layer** made) { return onegru_layer_open(path.c_str(), index, options, made); });
  }
  static Layer Read(std::span<const std::byte> file, std::size_t index = 0, const onegru_options* options = nullptr) {
    return Layer(
        [&](onegru_layer** made) { return onegru_layer_read(file.data(), file.size(), index, options, made); });
  }
  // Opens all layers of a file, the lowest first.
  static std::vector<Layer> OpenAll(const std::string& path, const onegru_options* options = nullptr) {
    return All([&](onegru_layer** made, std::size_t* count) {
      return onegru_layers_open(path.c_str(), options, ONEGRU_MAX_LAYERS, made, count);
    });
  }
  static std::vector<Layer> ReadAll(std::span<const std::byte> file, const onegru_options* options = nullptr) {
    return All([&](onegru_layer** made, std::size_t* count) {
      return onegru_layers_read(file.data(), file.size(), options, ONEGRU_MAX_LAYERS, made, count);
    });
  }

  const onegru_spec& spec() const { return spec_; }
  std::size_t directions() const { return spec_.direction == ONEGRU_BIDIRECTIONAL ? 2 : 1; }
  const onegru_layer* get() const { return layer_.get(); }

  // Runs the layer; you need not set call.size.
  void Run(onegru_call call) const {
    call.size = sizeof(call);
    Check(onegru_layer_run(layer_.get(), &call));
  }

 private:
  template <class Make>
    requires std::is_invocable_r_v<onegru_status, Make, onegru_layer**>
  explicit Layer(Make&& make) {
    Take(std::forward<Make>(make));
  }
  template <class Make>
  static std::vector<Layer> All(Make&& make) {
    onegru_layer* made[ONEGRU_MAX_LAYERS];
    std::size_t count = 0;
    Check(make(made, &count));
    std::vector<std::unique_ptr<onegru_layer, detail::Destroy>> owned(made, made + count);
    std::vector<Layer> layers;
    for (auto& each : owned) {
      layers.push_back(Layer([&](onegru_layer** layer) { return *layer = each.release(), ONEGRU_OK; }));
    }
    return layers;
  }
  template <class Make>
  void Take(Make&& make) {
    onegru_layer* made = nullptr;
    Check(make(&made));
    layer_.reset(made);
    spec_.size = sizeof(spec_);
    Check(onegru_layer_spec(made, &spec_));
  }

  std::unique_ptr<onegru_layer, detail::Destroy> layer_;
  onegru_spec spec_{};
};

// The states of rows, between steps. Only one thread at a time may use it. Steps allocate memory only when they throw.
class Stream {
 public:
  explicit Stream(const Layer& layer, std::size_t rows = 1) : spec_(layer.spec()), rows_(rows) {
    onegru_stream* made = nullptr;
    Check(onegru_stream_create(layer.get(), rows, &made));
    stream_.reset(made);
  }

  // Runs one step. Contiguous ranges: X [rows, I], Y [rows, H], and attention [rows] if the layer has it.
  template <class X, class Y>
  void Step(const X& x, Y&& y) {
    Steps(1, x, y);
  }
  template <class X, class Y, class A>
  void Step(const X& x, Y&& y, const A& attention) {
    Steps(1, x, y, attention);
  }

  // Runs T steps: X [T, rows, I], Y [T, rows, H], attention [T, rows].
  template <class X, class Y, class A = std::span<const float>>
  void Steps(std::size_t T, const X& x, Y&& y, const A& attention = {}) {
    const std::size_t count = T * rows_;
    const void* const scores =
        std::size(attention) == 0 ? nullptr : detail::Given("attention", attention, count, spec_.dtype);
    Check(onegru_stream_run(stream_.get(), T, nullptr, 0, detail::Given("X", x, count * spec_.input_size, spec_.dtype),
                            scores, detail::Given("Y", y, count * spec_.hidden_size, spec_.dtype)));
  }

  // Returns the states [rows, H]: double for float64, and float for other types.
  template <class T = float>
  std::vector<T> State() const {
    std::vector<T> h(rows_ * spec_.hidden_size);
    detail::Given("h", h, h.size(), Computed());
    Check(onegru_stream_get_state(stream_.get(), h.data()));
    return h;
  }
  template <class H>
  void SetState(const H& h) {
    Check(onegru_stream_set_state(stream_.get(), detail::Given("h", h, rows_ * spec_.hidden_size, Computed())));
  }
  void Reset(std::size_t row = ONEGRU_ALL_ROWS) { Check(onegru_stream_reset(stream_.get(), row)); }

  onegru_stream* get() const { return stream_.get(); }

 private:
  std::int32_t Computed() const { return spec_.dtype == ONEGRU_FLOAT64 ? ONEGRU_FLOAT64 : ONEGRU_FLOAT32; }

  std::unique_ptr<onegru_stream, detail::Destroy> stream_;
  onegru_spec spec_;
  std::size_t rows_;
};

}  // namespace api
}  // namespace onegru

#endif  // ONEGRU_HPP_
