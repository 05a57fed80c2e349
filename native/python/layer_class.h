// The Python class of a layer, which runs calls on arrays.
//
// Try takes any arguments, inspects them, and uses the fast path if it applies. The caller checks the arguments of Run.

#ifndef ONEGRU_NATIVE_PYTHON_LAYER_CLASS_H_
#define ONEGRU_NATIVE_PYTHON_LAYER_CLASS_H_

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "native/c/spec.h"
#include "native/gradients.h"
#include "native/kernel.h"
#include "native/python/arrays.h"
#include "native/python/bindings.h"
#include "native/python/run_from_python.h"
#include "native/runtimes/graph_layers.h"
#include "native/targets/targets.h"

namespace onegru {

namespace nb = nanobind;

using Activations = std::vector<std::tuple<int, double, double>>;

// Returns the items of a sequence. nanobind's conversion to a vector ends the process if memory runs out.
template <class T>
std::vector<T> Items(nb::handle sequence) {
  std::vector<T> items;
  for (const nb::handle item : nb::iter(sequence)) items.push_back(nb::cast<T>(item));
  return items;
}

// Rejects a number that this module does not know, because the Python code may be newer than the module.
[[noreturn]] inline void RefuseNumber(const char* what, std::int64_t number, const char* must) {
  throw std::invalid_argument(std::string(what) + ": " + std::to_string(number) + "; must be " + must);
}

inline PyArrayObject* Required(nb::handle object, int rank) {
  PyArrayObject* const array = AsArray(object);
  if (array == nullptr || PyArray_NDIM(array) != rank)
    throw std::invalid_argument("must be an array of the right rank");
  return array;
}

class Layer {
 public:
  // activations: (function, alpha, beta) of f and g for each direction. dtype: the NumPy dtype of X, h and Y.
  // planes, group: as in Spec; 1 and 0 except for int8. W [D, 3H, I], R [D, 3H, H] and B [D, 6H] are contiguous arrays
  // in the compute type.
  Layer(std::size_t I, std::size_t H, nb::handle reversed, bool linear_before_reset, int attention, double clip,
        nb::handle activations, int type, int storage, std::size_t planes, std::size_t group, bool flush_subnormals,
        nb::object dtype, nb::handle W, nb::handle R, nb::handle B)
      : spec_(MakeSpec(I, H, reversed, linear_before_reset, attention, clip, activations, type, storage, planes, group,
                       flush_subnormals)),
        dtype_(std::move(dtype)),
        descr_(reinterpret_cast<PyArray_Descr*>(dtype_.ptr())),
        packed_(PackForRuns(spec_, Checked(W), Checked(R), Checked(B))) {}

  // weights: for each direction W [3H, I], R [3H, H], Wb and Rb [3H] or None. They are contiguous arrays in the compute
  // type, which the layer keeps alive. order: the places of z, r and n among the gates. packs: whether to pack weights
  // for runs, or to recompute gates; gradients from saved gates need no packed weights.
  Layer(std::size_t I, std::size_t H, nb::handle reversed, bool linear_before_reset, int attention, double clip,
        nb::handle activations, int type, nb::object dtype, nb::handle weights, nb::handle places, bool packs)
      : spec_(MakeSpec(I, H, reversed, linear_before_reset, attention, clip, activations, type, type, 1, 0)),
        dtype_(std::move(dtype)),
        descr_(reinterpret_cast<PyArray_Descr*>(dtype_.ptr())),
        kept_(Items<nb::list>(weights)) {
    const auto order = Items<std::size_t>(places);
    if (kept_.size() != spec_.D || order.size() != 3) throw std::invalid_argument("weights");
    for (const std::size_t place : order) {
      if (place > 2 || std::count(order.begin(), order.end(), place) != 1) {
        RefuseNumber("order", static_cast<std::int64_t>(place), "each of 0, 1, 2 once");
      }
    }
    order_ = {order[0], order[1], order[2]};
    for (const nb::list& own : kept_) {
      const auto bias = [&](std::size_t i) { return own[i].is_none() ? nullptr : Checked(own[i]); };
      given_.push_back({Checked(own[0]), Checked(own[1]), bias(2), bias(3)});
    }
    const std::size_t target = ChosenTargetIndex();
    packed_ = std::make_shared<const Packed>(spec_, target, KernelFor(spec_, target).lanes,
                                             packs ? given_.data() : nullptr, order_);
  }

  // Throws if the layer has no packed weights, because it only computes gradients from saved gates.
  void RequirePacked() const {
    if (packed_->bytes() == 0) throw std::invalid_argument("no weights are packed");
  }
  const Packed& packed() const { return *packed_; }
  const std::shared_ptr<const Packed>& shared() const { return packed_; }
  const Spec& spec() const { return spec_; }
  PyArray_Descr* descr() const { return descr_; }
  std::size_t state_size() const { return ComputedSize(spec_.type); }

  // Runs a call, whose arrays the caller has checked. Lengths and the last axes of other arrays except attention must
  // be contiguous. wide_state: whether initial_h and Y_h have the compute type.
  void Run(nb::handle X, nb::handle initial_h, nb::handle lengths, nb::handle attention, nb::handle Y, nb::handle Y_h,
           bool wide_state, nb::handle gates) const {
    RequirePacked();
    Call call{};
    PyArrayObject* const x = Required(X, 3);
    call.T = static_cast<std::size_t>(PyArray_DIM(x, 0));
    call.B = static_cast<std::size_t>(PyArray_DIM(x, 1));
    call.X = RowsOf(x, 0, -1, 1);
    if (!initial_h.is_none()) call.initial_h = RowsOf(Required(initial_h, 3), -1, 0, 1);
    if (!lengths.is_none()) call.lengths = reinterpret_cast<const std::int64_t*>(Data(Required(lengths, 1)));
    if (!attention.is_none()) call.attention = RowsOf(Required(attention, 2), 0, -1, 1);
    if (!Y.is_none()) call.Y = RowsOf(Required(Y, 4), 0, 1, 2);
    if (!Y_h.is_none()) call.Y_h = RowsOf(Required(Y_h, 3), -1, 0, 1);
    call.wide_state = wide_state;
    if (gates.is_none()) return Run(call);
    call.gates = RowsOf(Required(gates, 4), 0, 1, 2);
    const GilReleaser no_gil;
    RunSaving(packed_, call);
  }

  // Computes the gradients of a checked call, for a layer for training. resets: contiguous bytes [T, B]. by: for each
  // direction, the gradients of W, R, Wb and Rb, or None. The gradients of X, initial_h and attention are added to the
  // values in their arrays.
  void Gradients(nb::handle X, nb::handle initial_h, nb::handle lengths, nb::handle attention, nb::handle resets,
                 bool resets_to_initial, nb::handle Y, nb::handle gates, nb::handle dY, nb::handle dY_h, nb::handle dX,
                 nb::handle gradients, nb::handle d_initial_h, nb::handle d_attention) const {
    if (gates.is_none()) RequirePacked();
    GradientCall call{};
    PyArrayObject* const x = Required(X, 3);
    call.T = static_cast<std::size_t>(PyArray_DIM(x, 0));
    call.B = static_cast<std::size_t>(PyArray_DIM(x, 1));
    const auto rows = [](nb::handle array, int rank, int time, int direction, int row) {
      return array.is_none() ? Rows{} : RowsOf(Required(array, rank), time, direction, row);
    };
    const auto data = [](nb::handle array, int rank) -> char* {
      return array.is_none() ? nullptr : Data(Required(array, rank));
    };
    call.X = RowsOf(x, 0, -1, 1);
    call.initial_h = rows(initial_h, 3, -1, 0, 1);
    call.lengths = reinterpret_cast<const std::int64_t*>(data(lengths, 1));
    call.attention = rows(attention, 2, 0, -1, 1);
    call.resets = reinterpret_cast<const std::uint8_t*>(data(resets, 2));
    call.resets_to_initial = resets_to_initial;
    call.Y = rows(Y, 4, 0, 1, 2);
    call.gates = rows(gates, 4, 0, 1, 2);
    call.dY = rows(dY, 4, 0, 1, 2);
    call.dY_h = rows(dY_h, 3, -1, 0, 1);
    call.dX = rows(dX, 3, 0, -1, 1);
    const auto by = Items<nb::list>(gradients);
    if (given_.empty() || by.size() != spec_.D) throw std::invalid_argument("by: must have a list for each direction");
    for (std::size_t d = 0; d < spec_.D; ++d) {
      call.weights[d] = given_[d];
      call.d_weights[d] = {data(by[d][0], 2), data(by[d][1], 2), data(by[d][2], 1), data(by[d][3], 1)};
    }
    call.order = order_;
    call.d_initial_h = rows(d_initial_h, 3, -1, 0, 1);
    call.d_attention = rows(d_attention, 2, 0, -1, 1);
    const GilReleaser no_gil;
    onegru::Gradients(*packed_, call);
  }

  nb::object Try(const CallArguments& given) const {
    const bool batch_first = given.layout == 1;
    const int time = batch_first ? 1 : 0, row = 1 - time;
    const auto D = static_cast<npy_intp>(spec_.D), H = static_cast<npy_intp>(spec_.H);
    PyArrayObject* const x = AsInput(given.X, descr_, 3);
    if (x == nullptr || PyArray_DIM(x, 2) != static_cast<npy_intp>(spec_.I)) return {};
    const npy_intp T = PyArray_DIM(x, time), B = PyArray_DIM(x, row);
    const Shape y_shape = batch_first ? Shape{4, {B, T, D, H}} : Shape{4, {T, D, B, H}};
    const Shape h_shape = batch_first ? Shape{3, {B, D, H}} : Shape{3, {D, B, H}};
    const auto y_rows = [&](PyArrayObject* y) { return batch_first ? RowsOf(y, 1, 2, 0) : RowsOf(y, 0, 1, 2); };
    const auto h_rows = [&](PyArrayObject* h) { return batch_first ? RowsOf(h, -1, 1, 0) : RowsOf(h, -1, 0, 1); };

    Call call{};
    call.T = static_cast<std::size_t>(T);
    call.B = static_cast<std::size_t>(B);
    call.X = RowsOf(x, time, -1, row);
    PyArrayObject* h = nullptr;
    if (IsGiven(given.initial_h)) {
      if ((h = AsInput(given.initial_h, descr_, h_shape)) == nullptr) return {};
      call.initial_h = h_rows(h);
    }
    PyArrayObject* scores = nullptr;
    if (IsGiven(given.attention) != spec_.attention) return {};
    if (spec_.attention) {
      if ((scores = AsScores(given.attention, descr_, {2, {PyArray_DIM(x, 0), PyArray_DIM(x, 1)}})) == nullptr)
        return {};
      call.attention = RowsOf(scores, time, -1, row);
    }
    Integers<std::int64_t> lengths;
    if (IsGiven(given.sequence_lens)) {
      if (!lengths.Read(given.sequence_lens, T) || lengths.size() != call.B) return {};
      call.lengths = lengths.data();
    }

    PyArrayObject* y = IsGiven(given.Y) ? AsOutput(given.Y, descr_, y_shape) : nullptr;
    PyArrayObject* y_h = IsGiven(given.Y_h) ? AsOutput(given.Y_h, descr_, h_shape) : nullptr;
    if ((IsGiven(given.Y) && y == nullptr) || (IsGiven(given.Y_h) && y_h == nullptr)) return {};
    const bool in_place = h != nullptr && y_h != nullptr && Data(h) == Data(y_h) && PyArray_IS_C_CONTIGUOUS(h);
    if (y != nullptr || y_h != nullptr) {
      const Span y_span = SpanOf(y), y_h_span = SpanOf(y_h), h_span = SpanOf(h);
      if (y_span.Overlaps(y_h_span) || (y_h_span.Overlaps(h_span) && !in_place) || y_span.Overlaps(h_span)) return {};
      for (const Span& in : {SpanOf(x), SpanOf(scores)}) {
        if (y_span.Overlaps(in) || y_h_span.Overlaps(in)) return {};
      }
    }

    nb::object Y, Y_h;
    if (y == nullptr) {
      if (!(Y = NewArray(descr_, y_shape)).is_valid()) return {};
      y = AsArray(Y);
    }
    if (y_h == nullptr) {
      if (!(Y_h = NewArray(descr_, h_shape)).is_valid()) return {};
      y_h = AsArray(Y_h);
    }
    call.Y = y_rows(y);
    call.Y_h = h_rows(y_h);
    Run(call);
    if (given.out != nullptr && !Y.is_valid() && !Y_h.is_valid()) return nb::borrow(given.out);
    return nb::steal(PyTuple_Pack(2, y, y_h));
  }

  void Run(const Call& call) const {
    RequirePacked();
    RunFromPython(packed_, call);
  }

 private:
  static Spec MakeSpec(std::size_t I, std::size_t H, nb::handle directions, bool linear_before_reset, int attention,
                       double clip, nb::handle functions, int type, int storage, std::size_t planes, std::size_t group,
                       bool flush_subnormals = false) {
    const auto reversed = Items<bool>(directions);
    const Activations activations = Items<Activations::value_type>(functions);
    if (reversed.empty() || reversed.size() > 2 || activations.size() != 2 * reversed.size()) {
      throw std::invalid_argument("reversed: " + std::to_string(reversed.size()) + " directions, activations: " +
                                  std::to_string(activations.size()) + "; must be 1 or 2, and two for each");
    }
    const auto word = [](std::size_t size) {
      return static_cast<std::uint32_t>(std::min<std::size_t>(size, UINT32_MAX));
    };
    onegru_spec spec{sizeof(spec), word(I), word(H), type};
    spec.direction = reversed.size() == 2 ? ONEGRU_BIDIRECTIONAL : reversed[0] ? ONEGRU_REVERSE : ONEGRU_FORWARD;
    spec.linear_before_reset = linear_before_reset ? 1 : 0;
    spec.attention = attention;
    const bool has_bits = storage == ONEGRU_INT8 || planes != 1;
    spec.storage = {storage, has_bits ? static_cast<std::int32_t>(8 * word(planes)) : 0, word(group)};
    spec.clip = clip;
    spec.flush_subnormals = flush_subnormals ? 1 : 0;
    for (std::size_t i = 0; i < activations.size(); ++i) {
      const auto& [function, alpha, beta] = activations[i];
      spec.activations[i] = {function, 0, alpha, beta};
    }
    return CheckedSpec(spec);
  }

  const void* Checked(nb::handle object) const {
    PyArrayObject* const array = AsArray(object);
    if (array == nullptr || !PyArray_IS_C_CONTIGUOUS(array) ||
        static_cast<std::size_t>(PyArray_ITEMSIZE(array)) != state_size()) {
      throw std::invalid_argument("weights must be contiguous arrays in the compute type");
    }
    return Data(array);
  }

  Spec spec_;
  nb::object dtype_;
  PyArray_Descr* descr_;
  std::shared_ptr<const Packed> packed_;
  std::vector<nb::list> kept_;  // owns the memory of given_
  std::vector<GivenWeights> given_;
  GateOrder order_;
};

}  // namespace onegru

#endif
