// A layer and a stream as Python sees them: arrays in, arrays out, no arithmetic.
//
// Arrays come through NumPy's own C interface: looking at one costs some nanoseconds there, and a
// quarter of a microsecond by any protocol, as much as a step of a small GRU. float16 and bfloat16 arrays are
// known by the dtype object that the layer was made with.

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include "native/layer.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <numpy/arrayobject.h>

#include <unistd.h>

#include <chrono>
#include <cstring>
#include <cxxabi.h>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "native/kernel.h"
#include "native/targets.h"

namespace nb = nanobind;

namespace onegru {
namespace {

// Below this many FLOPs a call is over sooner than the interpreter's lock changes hands.
constexpr double kFlopsToRelease = 1.0e6;
// Below this many it is over before anybody waits for it, even without SIMD: it is not watched for signals.
constexpr double kFlopsToWatch = 1.0e7;
// Between two looks at the clock: some 50 µs of a core, milliseconds without SIMD.
constexpr std::int64_t kProductsPerLook = std::int64_t{1} << 22;
// Between two looks for signals. To look takes the interpreter's lock, which others may hold for 5 ms.
constexpr std::chrono::milliseconds kSignalsEvery{50};

using Activations = std::vector<std::tuple<int, double, double>>;

PyArrayObject* AsArray(nb::handle object) {
  return PyArray_CheckExact(object.ptr()) ? reinterpret_cast<PyArrayObject*>(object.ptr()) : nullptr;
}

char* Data(PyArrayObject* array) { return static_cast<char*>(PyArray_DATA(array)); }

struct Shape {
  int rank;
  npy_intp sizes[4];
};

// Whether an object is a contiguous array of this type and shape.
bool Is(nb::handle object, PyArray_Descr* descr, const Shape& shape, bool writeable) {
  PyArrayObject* const array = AsArray(object);
  if (array == nullptr || PyArray_DESCR(array) != descr || PyArray_NDIM(array) != shape.rank) return false;
  const int wanted = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED | (writeable ? NPY_ARRAY_WRITEABLE : 0);
  if ((PyArray_FLAGS(array) & wanted) != wanted) return false;
  return std::memcmp(PyArray_DIMS(array), shape.sizes, static_cast<std::size_t>(shape.rank) * sizeof(npy_intp)) ==
         0;
}

bool Overlap(const char* a, std::size_t a_bytes, const char* b, std::size_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

// Gives the interpreter's lock away while this lives.
class Unlocked {
 public:
  Unlocked() { Release(); }
  ~Unlocked() { Take(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

  void Release() { state_ = PyEval_SaveThread(); }
  // When Python ends, it ends every other thread that asks for the lock: before 3.14 by unwinding the stack, and
  // that ends the process where a function may not throw. Such a thread stops here instead, as it does since.
  void Take() {
    try {
      PyEval_RestoreThread(state_);
#if defined(__GLIBCXX__)
    } catch (const abi::__forced_unwind&) {
#else
    } catch (...) {
#endif
      for (;;) pause();
    }
  }

 private:
  PyThreadState* state_;
};

// Stops a call when a signal's handler raises an exception, which is then set.
class SignalWatch final : public Watch {
 public:
  explicit SignalWatch(Unlocked& unlocked) : Watch(kProductsPerLook), unlocked_(unlocked) {}

 private:
  bool ShouldStop() override {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_) return false;
    unlocked_.Take();
    const bool raised = PyErr_CheckSignals() != 0;
    // Handlers run on the main thread alone: others need not ask again.
    const bool again = !raised && IsMainThread();
    unlocked_.Release();
    next_ = again ? std::chrono::steady_clock::now() + kSignalsEvery : Time::max();
    return raised;
  }

  static bool IsMainThread() {
    try {
      const nb::object main = nb::module_::import_("threading").attr("main_thread")();
      return nb::cast<unsigned long>(main.attr("ident")) == PyThread_get_thread_ident();
    } catch (const std::exception&) {
      return false;  // nothing may be thrown through the kernels, beside which other threads run
    }
  }

  using Time = std::chrono::steady_clock::time_point;
  Unlocked& unlocked_;
  Time next_ = std::chrono::steady_clock::now() + kSignalsEvery;
};

class Layer {
 public:
  // activations: (function, alpha, beta) of f and g for each direction. dtype: the NumPy dtype of X, h and Y.
  // W [D, 3H, I], R [D, 3H, H] and B [D, 6H] are contiguous, of the type that is computed in.
  Layer(std::size_t I, std::size_t H, const std::vector<bool>& reversed, bool linear_before_reset, bool attention,
        double clip, const Activations& activations, int type, int storage, nb::object dtype, nb::handle W,
        nb::handle R, nb::handle B)
      : spec_(MakeSpec(I, H, reversed, linear_before_reset, attention, clip, activations, type, storage)),
        dtype_(std::move(dtype)),
        descr_(reinterpret_cast<PyArray_Descr*>(dtype_.ptr())),
        packed_(std::make_shared<const Packed>(
            spec_, ChosenTargetIndex(), KernelFor(spec_.storage, linear_before_reset, ChosenTargetIndex()).lanes,
            Checked(W), Checked(R), Checked(B))) {}

  const Packed& packed() const { return *packed_; }
  const Spec& spec() const { return spec_; }
  PyArray_Descr* descr() const { return descr_; }
  std::size_t size() const { return SizeOf(spec_.type); }
  std::size_t state_size() const { return spec_.type == ElementType::kFloat64 ? 8 : 4; }

  // Arrays in canonical axes, checked by the caller; only lengths need be contiguous, and the last axes of the
  // others but attention. wide_state: initial_h and Y_h are of the type that is computed in.
  void Run(nb::handle X, nb::handle initial_h, nb::handle lengths, nb::handle attention, nb::handle Y,
           nb::handle Y_h, bool wide_state) const {
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
    Run(call);
  }

  // The common call without a detour: no lengths, no attention, everything an array of the layer's type,
  // contiguous, of the right shape, and outputs apart from inputs (Y_h may be initial_h). Otherwise nothing is
  // done and the answer is False: the caller then finds what is wrong, or goes the longer way.
  bool TryCall(nb::handle X, nb::handle initial_h, nb::handle Y, nb::handle Y_h) const {
    PyArrayObject* const x = AsArray(X);
    if (x == nullptr || PyArray_NDIM(x) != 3 || spec_.attention) return false;
    const npy_intp T = PyArray_DIM(x, 0), B = PyArray_DIM(x, 1);
    const auto D = static_cast<npy_intp>(spec_.D), H = static_cast<npy_intp>(spec_.H);
    const Shape state{3, {D, B, H}};
    if (!Is(X, descr_, {3, {T, B, static_cast<npy_intp>(spec_.I)}}, false) ||
        !Is(Y, descr_, {4, {T, D, B, H}}, true) || !Is(Y_h, descr_, state, true) ||
        !(initial_h.is_none() || Is(initial_h, descr_, state, false))) {
      return false;
    }
    const std::size_t row = spec_.H * size(), rows = spec_.D * static_cast<std::size_t>(B);
    const std::size_t y_bytes = static_cast<std::size_t>(T) * rows * row, h_bytes = rows * row;
    const std::size_t x_bytes = static_cast<std::size_t>(T * B) * spec_.I * size();
    char* const y = Data(AsArray(Y));
    char* const y_h = Data(AsArray(Y_h));
    char* const h = initial_h.is_none() ? nullptr : Data(AsArray(initial_h));
    if (Overlap(y, y_bytes, Data(x), x_bytes) || Overlap(y_h, h_bytes, Data(x), x_bytes) ||
        Overlap(y, y_bytes, y_h, h_bytes) ||
        (h != nullptr && (Overlap(y, y_bytes, h, h_bytes) || (h != y_h && Overlap(y_h, h_bytes, h, h_bytes))))) {
      return false;
    }
    const auto b_row = static_cast<std::ptrdiff_t>(row);
    const std::ptrdiff_t direction = b_row * B;
    const auto x_row = static_cast<std::ptrdiff_t>(spec_.I * size());
    Call call{};
    call.T = static_cast<std::size_t>(T);
    call.B = static_cast<std::size_t>(B);
    call.X = {Data(x), x_row * B, 0, x_row};
    call.initial_h = {h, 0, direction, b_row};
    call.Y = {y, direction * D, direction, b_row};
    call.Y_h = {y_h, 0, direction, b_row};
    Run(call);
    return true;
  }

  // Throws what a signal's handler raised meanwhile.
  void Run(const Call& call) const {
    const double flops = Flops(call);
    if (flops < kFlopsToRelease) return onegru::Run(packed_, call);
    bool stopped = false;
    {
      Unlocked unlocked;
      if (flops < kFlopsToWatch) {
        onegru::Run(packed_, call);
      } else {
        SignalWatch watch(unlocked);
        Call watched = call;
        watched.watch = &watch;
        onegru::Run(packed_, watched);
        stopped = watch.stopped();
      }
    }
    if (stopped) throw nb::python_error();
  }

  bool IsWatched(const Call& call) const { return Flops(call) >= kFlopsToWatch; }

 private:
  double Flops(const Call& call) const {
    return 6.0 * static_cast<double>(spec_.D * spec_.H * (spec_.I + spec_.H)) * static_cast<double>(call.T) *
           static_cast<double>(call.B);
  }

  static Spec MakeSpec(std::size_t I, std::size_t H, const std::vector<bool>& reversed, bool linear_before_reset,
                       bool attention, double clip, const Activations& activations, int type, int storage) {
    Spec spec{};
    spec.I = I;
    spec.H = H;
    spec.D = reversed.size();
    if (spec.D < 1 || spec.D > 2 || activations.size() != 2 * spec.D) throw std::invalid_argument("directions");
    spec.linear_before_reset = linear_before_reset;
    spec.attention = attention;
    spec.clip = clip;
    const auto read = [&](std::size_t i) {
      const auto& [function, alpha, beta] = activations[i];
      return Activation{static_cast<Function>(function), alpha, beta};
    };
    for (std::size_t d = 0; d < spec.D; ++d) {
      spec.reversed[d] = reversed[d];
      spec.f[d] = read(2 * d);
      spec.g[d] = read(2 * d + 1);
    }
    spec.type = static_cast<ElementType>(type);
    spec.storage = static_cast<ElementType>(storage);
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

  static PyArrayObject* Required(nb::handle object, int rank) {
    PyArrayObject* const array = AsArray(object);
    if (array == nullptr || PyArray_NDIM(array) != rank) throw std::invalid_argument("not an array of this rank");
    return array;
  }

  static Rows RowsOf(PyArrayObject* array, int time, int direction, int row) {
    const auto stride = [&](int axis) -> std::ptrdiff_t { return axis < 0 ? 0 : PyArray_STRIDE(array, axis); };
    return {Data(array), stride(time), stride(direction), stride(row)};
  }

  Spec spec_;
  nb::object dtype_;
  PyArray_Descr* descr_;
  std::shared_ptr<const Packed> packed_;
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

  // One step without a detour: x [B, I] and out [B, H] are arrays of the layer's type, contiguous and apart. False
  // if it is not so; nothing is done then.
  bool TryStep(nb::handle x, nb::handle out) {
    const Spec& spec = layer_.spec();
    const auto B = static_cast<npy_intp>(call_.B);
    if (spec.attention || !Is(x, layer_.descr(), {2, {B, static_cast<npy_intp>(spec.I)}}, false) ||
        !Is(out, layer_.descr(), {2, {B, static_cast<npy_intp>(spec.H)}}, true)) {
      return false;
    }
    const std::size_t x_row = spec.I * layer_.size(), y_row = spec.H * layer_.size();
    char* const x_data = Data(AsArray(x));
    char* const y = Data(AsArray(out));
    if (Overlap(x_data, x_row * call_.B, y, y_row * call_.B) ||
        Overlap(y, y_row * call_.B, call_.Y_h.data, spec.H * layer_.state_size() * call_.B)) {
      return false;
    }
    Call call = call_;  // a copy: other threads may use this stream, against the rules, without harm to memory
    call.X = {x_data, 0, 0, static_cast<std::ptrdiff_t>(x_row)};
    call.Y = {y, 0, 0, static_cast<std::ptrdiff_t>(y_row)};
    RunOrRestore(call);
    return true;
  }

  // Any number of steps of some rows: X [T, n, I], attention [T, n] or None, rows [n] int32 (each at most once) or
  // None for all, Y [T, 1, n, H]; checked by the caller.
  void Run(nb::handle X, nb::handle attention, nb::handle rows, nb::handle Y) const {
    PyArrayObject* const x = AsArray(X);
    PyArrayObject* const y = AsArray(Y);
    if (x == nullptr || y == nullptr) throw std::invalid_argument("not arrays");
    Call call = call_;
    call.T = static_cast<std::size_t>(PyArray_DIM(x, 0));
    call.B = static_cast<std::size_t>(PyArray_DIM(x, 1));
    if (call.T == 0) return;  // a stream keeps its state over an empty chunk
    call.X = {Data(x), PyArray_STRIDE(x, 0), 0, PyArray_STRIDE(x, 1)};
    call.Y = {Data(y), PyArray_STRIDE(y, 0), 0, PyArray_STRIDE(y, 2)};
    if (!attention.is_none()) {
      PyArrayObject* const a = AsArray(attention);
      call.attention = {Data(a), PyArray_STRIDE(a, 0), 0, PyArray_STRIDE(a, 1)};
    }
    if (!rows.is_none()) call.state_rows = reinterpret_cast<const std::int32_t*>(Data(AsArray(rows)));
    RunOrRestore(call);
  }

 private:
  // A call that is stopped leaves the state as it was: some rows may have theirs already, others not.
  void RunOrRestore(const Call& call) const {
    if (!layer_.IsWatched(call)) return layer_.Run(call);
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

bool ImportNumpy() {
  import_array1(false);
  return true;
}

}  // namespace

void BindLayer(nb::module_& m) {
  if (!ImportNumpy()) throw nb::python_error();
  nb::class_<Layer>(m, "Layer")
      .def(nb::init<std::size_t, std::size_t, const std::vector<bool>&, bool, bool, double, const Activations&,
                    int, int, nb::object, nb::handle, nb::handle, nb::handle>(),
           nb::arg("input_size"), nb::arg("hidden_size"), nb::arg("reversed"), nb::arg("linear_before_reset"),
           nb::arg("attention"), nb::arg("clip"), nb::arg("activations"), nb::arg("type"), nb::arg("storage"),
           nb::arg("dtype"), nb::arg("W"), nb::arg("R"), nb::arg("B"), "A layer, its weights packed.")
      .def("run",
           nb::overload_cast<nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, bool>(
               &Layer::Run, nb::const_),
           nb::arg("X"), nb::arg("initial_h").none(), nb::arg("lengths").none(), nb::arg("attention").none(),
           nb::arg("Y").none(), nb::arg("Y_h").none(), nb::arg("wide_state"), "Runs a checked call.")
      .def("try_call", &Layer::TryCall, nb::arg("X").none(), nb::arg("initial_h").none(), nb::arg("Y").none(),
           nb::arg("Y_h").none(), "Runs a call of the plainest kind, or does nothing and returns False.")
      .def(
          "unpack",
          [](const Layer& layer, nb::handle W, nb::handle R) {
            layer.packed().Unpack(Data(AsArray(W)), Data(AsArray(R)));
          },
          nb::arg("W"), nb::arg("R"), "Writes the matrices as they came.")
      .def(
          "scratch_bound",
          [](const Layer& layer, std::size_t batch_size) { return ScratchBound(layer.packed(), batch_size); },
          nb::arg("batch_size"), "The most scratch in bytes that a call may take.")
      .def_prop_ro(
          "bytes", [](const Layer& layer) { return layer.packed().bytes(); }, "What the packed weights take.")
      .def_prop_ro(
          "target",
          [](const Layer& layer) { return std::string(CompiledTargets()[layer.packed().target()].name); },
          "The SIMD target that the layer was packed for and runs on.");
  nb::class_<Stream>(m, "Stream")
      .def(nb::init<nb::object, nb::object>(), nb::arg("layer"), nb::arg("state"), "A state that goes on.")
      .def("try_step", &Stream::TryStep, nb::arg("x").none(), nb::arg("out").none(),
           "Runs a step of the plainest kind, or does nothing and returns False.")
      .def("run", &Stream::Run, nb::arg("X"), nb::arg("attention").none(), nb::arg("rows").none(), nb::arg("Y"),
           "Runs checked steps.");
  m.def(
      "activate",
      [](int function, double alpha, double beta, nb::handle x, nb::handle y) {
        PyArrayObject* const from = AsArray(x);
        PyArrayObject* const to = AsArray(y);
        const auto storage = PyArray_ITEMSIZE(from) == 8 ? ElementType::kFloat64 : ElementType::kFloat32;
        const Kernel& kernel = KernelFor(storage, true, ChosenTargetIndex());
        const auto count = static_cast<std::size_t>(PyArray_SIZE(from));
        if (count % kernel.lanes != 0) throw std::invalid_argument("the size must be a multiple of a vector");
        kernel.activate({static_cast<Function>(function), alpha, beta}, count, Data(from), Data(to));
      },
      nb::arg("function"), nb::arg("alpha"), nb::arg("beta"), nb::arg("x"), nb::arg("y"),
      "y = function(x), for tests of accuracy.");
}

}  // namespace onegru
