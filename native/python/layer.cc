// A layer and a stream as Python sees them: arrays in, arrays out, no arithmetic.
//
// The arguments of Try… may be anything: they are inspected, and the fast path is taken if it applies. Those of Run
// are checked by the caller.

#include "native/python/layer.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "native/gradients.h"
#include "native/kernel.h"
#include "native/python/arrays.h"
#include "native/python/bindings.h"
#include "native/python/run_from_python.h"
#include "native/runtimes/graph_layers.h"
#include "native/targets/targets.h"

namespace nb = nanobind;

namespace onegru {
namespace {

using Activations = std::vector<std::tuple<int, double, double>>;

// The items of a sequence. nanobind's own conversion to a vector ends the process where there is no memory for it.
template <class T>
std::vector<T> Items(nb::handle sequence) {
  std::vector<T> items;
  for (const nb::handle item : nb::iter(sequence)) items.push_back(nb::cast<T>(item));
  return items;
}

// What Python's side may name and this module may not know, as in a tree that is newer than the module.
[[noreturn]] void RefuseNumber(const char* what, std::int64_t number, const char* must) {
  throw std::invalid_argument(std::string(what) + ": " + std::to_string(number) + "; must be " + must);
}
Function FunctionOf(int number) {
  if (number < 0 || static_cast<std::size_t>(number) >= kFunctions) {
    const std::string must = "a function of this module, 0…" + std::to_string(kFunctions - 1);
    RefuseNumber("activations", number, must.c_str());
  }
  return static_cast<Function>(number);
}
ElementType TypeOf(const char* what, int number, ElementType last, const char* must) {
  if (number < 0 || number > static_cast<int>(last)) RefuseNumber(what, number, must);
  return static_cast<ElementType>(number);
}

PyArrayObject* Required(nb::handle object, int rank) {
  PyArrayObject* const array = AsArray(object);
  if (array == nullptr || PyArray_NDIM(array) != rank) throw std::invalid_argument("not an array of this rank");
  return array;
}

}  // namespace

class Layer {
 public:
  // activations: (function, alpha, beta) of f and g for each direction. dtype: the NumPy dtype of X, h and Y.
  // planes, group: as in Spec, 1 and 0 but for matrices in int8. W [D, 3H, I], R [D, 3H, H] and B [D, 6H] are
  // contiguous, of the type that is computed in.
  Layer(std::size_t I, std::size_t H, nb::handle reversed, bool linear_before_reset, bool attention, double clip,
        nb::handle activations, int type, int storage, std::size_t planes, std::size_t group, nb::object dtype,
        nb::handle W, nb::handle R, nb::handle B)
      : spec_(
            MakeSpec(I, H, reversed, linear_before_reset, attention, clip, activations, type, storage, planes, group)),
        dtype_(std::move(dtype)),
        descr_(reinterpret_cast<PyArray_Descr*>(dtype_.ptr())),
        packed_(std::make_shared<const Packed>(spec_, ChosenTargetIndex(), KernelFor(spec_, ChosenTargetIndex()).lanes,
                                               Checked(W), Checked(R), Checked(B))) {}

  // weights: for each direction W [3H, I], R [3H, H], Wb and Rb [3H] or None, contiguous, of the type that is computed
  // in, which are kept. order: where z, r and n are among their gates. packs: whether it is to run, or to compute gates
  // again; gradients from saved gates need no packed weights.
  Layer(std::size_t I, std::size_t H, nb::handle reversed, bool linear_before_reset, bool attention, double clip,
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

  // A layer for gradients from saved gates alone has none.
  void RequirePacked() const {
    if (packed_->bytes() == 0) throw std::invalid_argument("no weights are packed");
  }
  const Packed& packed() const { return *packed_; }
  const std::shared_ptr<const Packed>& shared() const { return packed_; }
  const Spec& spec() const { return spec_; }
  PyArray_Descr* descr() const { return descr_; }
  std::size_t state_size() const { return ComputedSize(spec_.type); }

  // Arrays in canonical axes, checked by the caller; only lengths need be contiguous, and the last axes of the
  // others but attention. wide_state: initial_h and Y_h are of the type that is computed in.
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
    const Unlocked unlocked;
    RunSaving(packed_, call);
  }

  // The gradients of a checked call, of a layer that was given its weights gate by gate. resets [T, B] is of bytes,
  // contiguous. by: for each direction W, R, Wb and Rb, of the weights' shapes, or None. The gradients by X, initial_h
  // and attention are added to what is there.
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
    if (given_.empty() || by.size() != spec_.D) throw std::invalid_argument("by: must be of each direction");
    for (std::size_t d = 0; d < spec_.D; ++d) {
      call.weights[d] = given_[d];
      call.by[d] = {data(by[d][0], 2), data(by[d][1], 2), data(by[d][2], 1), data(by[d][3], 1)};
    }
    call.order = order_;
    call.d_initial_h = rows(d_initial_h, 3, -1, 0, 1);
    call.d_attention = rows(d_attention, 2, 0, -1, 1);
    const Unlocked unlocked;
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
  static Spec MakeSpec(std::size_t I, std::size_t H, nb::handle directions, bool linear_before_reset, bool attention,
                       double clip, nb::handle functions, int type, int storage, std::size_t planes,
                       std::size_t group) {
    const auto reversed = Items<bool>(directions);
    const Activations activations = Items<Activations::value_type>(functions);
    Spec spec{};
    spec.I = I;
    spec.H = H;
    spec.D = reversed.size();
    if (spec.D < 1 || spec.D > 2 || activations.size() != 2 * spec.D) {
      throw std::invalid_argument("reversed: " + std::to_string(spec.D) + " directions, activations: " +
                                  std::to_string(activations.size()) + "; must be 1 or 2, and two for each");
    }
    spec.linear_before_reset = linear_before_reset;
    spec.attention = attention;
    spec.clip = clip;
    const auto read = [&](std::size_t i) {
      const auto& [function, alpha, beta] = activations[i];
      return Activation{FunctionOf(function), alpha, beta};
    };
    for (std::size_t d = 0; d < spec.D; ++d) {
      spec.reversed[d] = reversed[d];
      spec.f[d] = read(2 * d);
      spec.g[d] = read(2 * d + 1);
    }
    spec.type = TypeOf("type", type, ElementType::kFloat64, "of float16, bfloat16, float32, float64, 0…3");
    spec.storage = TypeOf("storage", storage, ElementType::kInt8, "of those or int8, 0…4");
    if ((spec.type == ElementType::kFloat64) != (spec.storage == ElementType::kFloat64)) {
      RefuseNumber("storage", storage, "float64, 3, with float64 and only there");
    }
    const bool is_int8 = spec.storage == ElementType::kInt8;
    if (planes < 1 || planes > (is_int8 ? 2 : 1)) {
      RefuseNumber("planes", static_cast<std::int64_t>(planes), is_int8 ? "1 or 2" : "1 unless W and R are int8");
    }
    if (group % kQuad != 0 || (group != 0 && !is_int8)) {
      RefuseNumber("group", static_cast<std::int64_t>(group),
                   is_int8 ? "a multiple of 4" : "0 unless W and R are int8");
    }
    spec.planes = planes;
    spec.group = group;
    return spec;
  }

  const void* Checked(nb::handle object) const {
    PyArrayObject* const array = AsArray(object);
    if (array == nullptr || !PyArray_IS_C_CONTIGUOUS(array) ||
        static_cast<std::size_t>(PyArray_ITEMSIZE(array)) != state_size()) {
      throw std::invalid_argument("weights must be contiguous, of the type that is computed in");
    }
    return Data(array);
  }

  Spec spec_;
  nb::object dtype_;
  PyArray_Descr* descr_;
  std::shared_ptr<const Packed> packed_;
  std::vector<nb::list> kept_;  // what `given_` lies in
  std::vector<GivenWeights> given_;
  GateOrder order_;
};

// The state of some rows, from step to step, in the type that is computed in.
class Stream {
 public:
  // state: a contiguous array [B, H] of that type, which this changes in place.
  Stream(nb::object layer, nb::object state)
      : layer_object_(std::move(layer)),
        state_object_(std::move(state)),
        layer_(nb::cast<const Layer&>(layer_object_)) {
    PyArrayObject* const state_array = AsArray(state_object_);
    const Spec& spec = layer_.spec();
    if (state_array == nullptr || PyArray_NDIM(state_array) != 2 || !PyArray_IS_C_CONTIGUOUS(state_array) ||
        static_cast<std::size_t>(PyArray_ITEMSIZE(state_array)) != layer_.state_size() ||
        static_cast<std::size_t>(PyArray_DIM(state_array, 1)) != spec.H) {
      throw std::invalid_argument("state");
    }
    call_.B = static_cast<std::size_t>(PyArray_DIM(state_array, 0));
    const auto row = static_cast<std::ptrdiff_t>(spec.H * layer_.state_size());
    call_.initial_h = {Data(state_array), 0, 0, row};
    call_.Y_h = call_.initial_h;
    call_.wide_state = true;
    call_.T = 1;
  }

  nb::object Try(const StepArguments& given) {
    const Spec& spec = layer_.spec();
    PyArray_Descr* const descr = layer_.descr();
    const int rank = given.is_one_step ? 2 : 3;
    PyArrayObject* const x = AsInput(given.X, descr, rank);
    if (x == nullptr || PyArray_DIM(x, rank - 1) != static_cast<npy_intp>(spec.I)) return {};
    Call call = call_;  // a copy: concurrent use, though not allowed, must not corrupt memory
    Integers<std::int32_t> rows;
    if (IsGiven(given.rows)) {
      const auto last = static_cast<std::int64_t>(call.B) - 1;
      if (!rows.Read(given.rows, last) || !rows.AreDistinct(last)) return {};
      call.B = rows.size();
      call.state_rows = rows.data();
    }
    const auto n = static_cast<npy_intp>(call.B), H = static_cast<npy_intp>(spec.H);
    if (PyArray_DIM(x, rank - 2) != n) return {};
    const npy_intp T = given.is_one_step ? 1 : PyArray_DIM(x, 0);
    // A step's arrays have no axis of time.
    const auto without_time = [&](const Shape& shape) {
      return given.is_one_step ? Shape{shape.rank - 1, {shape.sizes[1], shape.sizes[2]}} : shape;
    };
    const auto rows_of = [&](PyArrayObject* array) {
      return given.is_one_step ? RowsOf(array, -1, -1, 0) : RowsOf(array, 0, -1, 1);
    };
    call.T = static_cast<std::size_t>(T);
    call.X = rows_of(x);
    PyArrayObject* scores = nullptr;
    if (IsGiven(given.attention) != spec.attention) return {};
    if (spec.attention) {
      if ((scores = AsScores(given.attention, descr, without_time({2, {T, n}}))) == nullptr) return {};
      call.attention = rows_of(scores);
    }
    nb::object out;
    const Shape shape = without_time({3, {T, n, H}});
    if (IsGiven(given.out)) {
      PyArrayObject* const y = AsOutput(given.out, descr, shape);
      const Span span = SpanOf(y);
      if (y == nullptr || span.Overlaps(SpanOf(x)) || span.Overlaps(SpanOf(scores)) ||
          span.Overlaps(SpanOf(AsArray(state_object_)))) {
        return {};
      }
      out = nb::borrow(given.out);
    } else if (!(out = NewArray(descr, shape)).is_valid()) {
      return {};
    }
    call.Y = rows_of(AsArray(out));
    if (T != 0) RunOrRestore(call);  // a stream keeps its state over an empty chunk
    return out;
  }

  // Any number of steps of some rows: X [T, n, I], attention [T, n] or None, rows [n] int32 (each at most once) or
  // None for all, Y [T, 1, n, H]; checked by the caller.
  void Run(nb::handle X, nb::handle attention, nb::handle rows, nb::handle Y) const {
    Call call = call_;
    PyArrayObject* const x = Required(X, 3);
    call.T = static_cast<std::size_t>(PyArray_DIM(x, 0));
    call.B = static_cast<std::size_t>(PyArray_DIM(x, 1));
    if (call.T == 0) return;  // a stream keeps its state over an empty chunk
    call.X = RowsOf(x, 0, -1, 1);
    call.Y = RowsOf(Required(Y, 4), 0, -1, 2);
    if (!attention.is_none()) call.attention = RowsOf(Required(attention, 2), 0, -1, 1);
    if (!rows.is_none()) call.state_rows = reinterpret_cast<const std::int32_t*>(Data(Required(rows, 1)));
    RunOrRestore(call);
  }

 private:
  // A stopped call leaves the state as it was: some rows may already have a new one.
  void RunOrRestore(const Call& call) const {
    if (!IsWatched(layer_.spec(), call)) return layer_.Run(call);
    char* const state = call_.Y_h.data;
    const std::vector<char> before(state, state + call_.B * static_cast<std::size_t>(call_.Y_h.row));
    try {
      layer_.Run(call);
    } catch (const nb::python_error&) {
      std::memcpy(state, before.data(), before.size());
      throw;
    }
  }

  nb::object layer_object_;
  nb::object state_object_;
  const Layer& layer_;
  Call call_{};
};

nb::object TryCall(const Layer& layer, const CallArguments& given) { return layer.Try(given); }
nb::object TrySteps(Stream& stream, const StepArguments& given) { return stream.Try(given); }

// Memory of another library's tensor as an array, which keeps the owner. The strides count elements.
nb::object ArrayAt(nb::handle owner, std::uintptr_t address, nb::tuple shape, nb::tuple strides, nb::object dtype) {
  PyArray_Descr* const descr = reinterpret_cast<PyArray_Descr*>(dtype.ptr());
  const auto rank = static_cast<int>(nb::len(shape));
  if (rank > 4 || nb::len(strides) != nb::len(shape) || !PyArray_DescrCheck(dtype.ptr())) {
    throw std::invalid_argument("an array has a type, at most 4 axes, and a stride for each");
  }
  npy_intp sizes[4], steps[4];
  npy_intp count = 1;
  for (int axis = 0; axis < rank; ++axis) {
    sizes[axis] = PyNumber_AsSsize_t(nb::object(shape[axis]).ptr(), PyExc_OverflowError);
    steps[axis] = PyNumber_AsSsize_t(nb::object(strides[axis]).ptr(), PyExc_OverflowError) * PyDataType_ELSIZE(descr);
    count *= sizes[axis];
  }
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  if (address == 0 && count != 0) throw std::invalid_argument("no memory belongs to the elements");
  Py_INCREF(dtype.ptr());  // the new array's
  // Null would have NumPy allocate, for no elements.
  nb::object array = nb::steal(PyArray_NewFromDescr(&PyArray_Type, descr, rank, sizes, steps,
                                                    reinterpret_cast<void*>(address), NPY_ARRAY_WRITEABLE, nullptr));
  if (!array.is_valid()) throw nb::python_error();
  if (PyArray_SetBaseObject(AsArray(array), owner.inc_ref().ptr()) != 0) throw nb::python_error();
  return array;
}

const Layer* LayerIn(nb::handle object) { return object.is_none() ? nullptr : nb::cast<const Layer*>(object); }
Stream* StreamIn(nb::handle object) { return object.is_none() ? nullptr : nb::cast<Stream*>(object); }

void BindLayer(nb::module_& m) {
  ImportNumpy();
  nb::class_<Layer>(m, "Layer")
      .def(nb::init<std::size_t, std::size_t, nb::handle, bool, bool, double, nb::handle, int, int, std::size_t,
                    std::size_t, nb::object, nb::handle, nb::handle, nb::handle>(),
           nb::arg("input_size"), nb::arg("hidden_size"), nb::arg("reversed"), nb::arg("linear_before_reset"),
           nb::arg("attention"), nb::arg("clip"), nb::arg("activations"), nb::arg("type"), nb::arg("storage"),
           nb::arg("planes"), nb::arg("group"), nb::arg("dtype"), nb::arg("W"), nb::arg("R"), nb::arg("B"),
           "A layer, its weights packed.")
      .def("run",
           nb::overload_cast<nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, bool, nb::handle>(
               &Layer::Run, nb::const_),
           nb::arg("X"), nb::arg("initial_h").none(), nb::arg("lengths").none(), nb::arg("attention").none(),
           nb::arg("Y").none(), nb::arg("Y_h").none(), nb::arg("wide_state"), nb::arg("gates") = nb::none(),
           "Runs a checked call.")
      .def(nb::init<std::size_t, std::size_t, nb::handle, bool, bool, double, nb::handle, int, nb::object, nb::handle,
                    nb::handle, bool>(),
           nb::arg("input_size"), nb::arg("hidden_size"), nb::arg("reversed"), nb::arg("linear_before_reset"),
           nb::arg("attention"), nb::arg("clip"), nb::arg("activations"), nb::arg("type"), nb::arg("dtype"),
           nb::arg("weights"), nb::arg("order"), nb::arg("packs"), "A layer to be trained.")
      .def("gradients", &Layer::Gradients, nb::arg("X"), nb::arg("initial_h").none(), nb::arg("lengths").none(),
           nb::arg("attention").none(), nb::arg("resets").none(), nb::arg("resets_to_initial"), nb::arg("Y"),
           nb::arg("gates").none(), nb::arg("dY").none(), nb::arg("dY_h").none(), nb::arg("dX").none(), nb::arg("by"),
           nb::arg("d_initial_h").none(), nb::arg("d_attention").none(), "The gradients of a checked call.")
      .def(
          "unpack",
          [](const Layer& layer, nb::handle W, nb::handle R) {
            layer.RequirePacked();
            layer.packed().Unpack(Data(AsArray(W)), Data(AsArray(R)));
          },
          nb::arg("W"), nb::arg("R"), "Writes the matrices as they came.")
      .def(
          "scratch_bound",
          [](const Layer& layer, std::size_t batch_size) { return ScratchBound(layer.packed(), batch_size); },
          nb::arg("batch_size"), "The most scratch in bytes that a call may take.")
      .def(
          "set_name",
          [](const Layer& layer, const char* name) {
            layer.RequirePacked();
            NameLayer(name, layer.shared());
          },
          nb::arg("name"), "Lets nodes of other runtimes' graphs find the layer, as long as anybody has it.")
      .def_prop_ro(
          "saved_size", [](const Layer& layer) { return kSavedGates * layer.packed().geometry().padded(); },
          "How many numbers a call saves of a step of a row.")
      .def_prop_ro(
          "bytes", [](const Layer& layer) { return layer.packed().bytes(); }, "What the packed weights take.")
      .def_prop_ro(
          "target", [](const Layer& layer) { return std::string(CompiledTargets()[layer.packed().target()].name); },
          "The SIMD target that the layer was packed for and runs on.");
  nb::class_<Stream>(m, "Stream")
      .def(nb::init<nb::object, nb::object>(), nb::arg("layer"), nb::arg("state"), "A state that goes on.")
      .def("run", &Stream::Run, nb::arg("X"), nb::arg("attention").none(), nb::arg("rows").none(), nb::arg("Y"),
           "Runs checked steps.");
  m.def("array_at", &ArrayAt, nb::arg("owner"), nb::arg("address"), nb::arg("shape"), nb::arg("strides"),
        nb::arg("dtype"), "Memory of another library's tensor as an array.");
  m.def(
      "graph_api", [] { return reinterpret_cast<std::uintptr_t>(&GraphApi()); },
      "The address of the functions that run layers in other runtimes' graphs.");
  m.def(
      "graph_fail",
      [](const char* message, bool is_watched, int threads) {
        return GraphApi().fail(message, is_watched, threads) != 0;
      },
      nb::arg("message"), nb::arg("is_watched"), nb::arg("threads"),
      "Takes the message of a node's run that failed; whether the node shall raise it.");
  m.def("watch_failures", &WatchFailures, "Keeps the failures of watched nodes in this thread, which raise none.");
  m.def("watched_failure", &WatchedFailure, "Ends that, and returns the first message, or nothing.");
  m.def("take_lost_errors", &TakeLostErrors, "The messages of failures that nobody raised, which are forgotten.");
  m.def(
      "activate",
      [](int function, double alpha, double beta, nb::handle x, nb::handle y) {
        PyArrayObject* const from = AsArray(x);
        PyArrayObject* const to = AsArray(y);
        const auto storage = PyArray_ITEMSIZE(from) == 8 ? ElementType::kFloat64 : ElementType::kFloat32;
        Spec spec{};
        spec.storage = storage;
        const Kernel& kernel = KernelFor(spec, ChosenTargetIndex());
        const auto count = static_cast<std::size_t>(PyArray_SIZE(from));
        if (count % kernel.lanes != 0) throw std::invalid_argument("the size must be a multiple of a vector");
        kernel.activate({FunctionOf(function), alpha, beta}, count, Data(from), Data(to));
      },
      nb::arg("function"), nb::arg("alpha"), nb::arg("beta"), nb::arg("x"), nb::arg("y"),
      "y = function(x), for tests of accuracy.");
}

}  // namespace onegru
