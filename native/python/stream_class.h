// The Python class of a stream.

#ifndef ONEGRU_NATIVE_PYTHON_STREAM_CLASS_H_
#define ONEGRU_NATIVE_PYTHON_STREAM_CLASS_H_

#include <nanobind/nanobind.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "native/kernel.h"
#include "native/python/arrays.h"
#include "native/python/bindings.h"
#include "native/python/layer_class.h"
#include "native/python/run_from_python.h"

namespace onegru {

namespace nb = nanobind;

// The state of a batch between steps, in the compute type.
class Stream {
 public:
  // state: a contiguous array [B, H], which the stream changes in place.
  Stream(nb::object layer, nb::object state)
      : layer_object_(std::move(layer)),
        state_object_(std::move(state)),
        layer_(nb::cast<const Layer&>(layer_object_)) {
    PyArrayObject* const state_array = AsArray(state_object_);
    const Spec& spec = layer_.spec();
    if (state_array == nullptr || PyArray_NDIM(state_array) != 2 || !PyArray_IS_C_CONTIGUOUS(state_array) ||
        static_cast<std::size_t>(PyArray_ITEMSIZE(state_array)) != layer_.state_size() ||
        static_cast<std::size_t>(PyArray_DIM(state_array, 1)) != spec.H) {
      throw std::invalid_argument("state: must be a contiguous array [B, H] in the compute type");
    }
    call_.B = static_cast<std::size_t>(PyArray_DIM(state_array, 0));
    const auto row = static_cast<std::ptrdiff_t>(spec.H * layer_.state_size());
    call_.initial_h = {Data(state_array), 0, 0, row};
    call_.Y_h = call_.initial_h;
    call_.wide_state = true;
    call_.T = 1;
  }

  const Layer& layer() const { return layer_; }
  // Returns a call with the states of all rows, and without other arrays.
  const Call& call() const { return call_; }

  nb::object Try(const StepArguments& given) {
    const Spec& spec = layer_.spec();
    PyArray_Descr* const descr = layer_.descr();
    const int rank = given.is_one_step ? 2 : 3;
    PyArrayObject* const x = AsInput(given.X, descr, rank);
    if (x == nullptr || PyArray_DIM(x, rank - 1) != static_cast<npy_intp>(spec.I)) return {};
    Call call = call_;  // a copy, which RunShortCall changes
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
    // The arrays of one step have no time axis.
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
    if (T != 0) RunOrRestore(call);  // an empty chunk does not change the state
    return out;
  }

  // Runs T steps of n rows: X [T, n, I], attention [T, n] or None, rows [n] int32 (each at most once) or None for all,
  // and Y [T, 1, n, H]. The caller has checked the arguments.
  void Run(nb::handle X, nb::handle attention, nb::handle rows, nb::handle Y) {
    Call call = call_;
    PyArrayObject* const x = Required(X, 3);
    call.T = static_cast<std::size_t>(PyArray_DIM(x, 0));
    call.B = static_cast<std::size_t>(PyArray_DIM(x, 1));
    if (call.T == 0) return;  // an empty chunk does not change the state
    call.X = RowsOf(x, 0, -1, 1);
    call.Y = RowsOf(Required(Y, 4), 0, -1, 2);
    if (!attention.is_none()) call.attention = RowsOf(Required(attention, 2), 0, -1, 1);
    if (!rows.is_none()) call.state_rows = reinterpret_cast<const std::int32_t*>(Data(Required(rows, 1)));
    RunOrRestore(call);
  }

 private:
  void RunOrRestore(Call& call) {
    const double flops = Flops(layer_.spec(), call);
    if (flops < kFlopsToShareCall && RunShortCall(call)) return;
    if (!IsWatched(flops)) return layer_.Run(call);
    // Restores the state after a stopped call, because rows may already have a new state.
    char* const state = call_.Y_h.data;
    const std::vector<char> before(state, state + call_.B * static_cast<std::size_t>(call_.Y_h.row_stride));
    try {
      layer_.Run(call);
    } catch (const nb::python_error&) {
      std::memcpy(state, before.data(), before.size());
      throw;
    }
  }

  // Runs a call in the stream's memory, because its set-up would take longer than its steps. Returns false if another
  // thread does so. Concurrent use is not allowed, but must not corrupt memory.
  bool RunShortCall(Call& call) {
    if (is_busy_.exchange(true, std::memory_order_acquire)) return false;
    const std::unique_ptr<std::atomic<bool>, Leave> leave(&is_busy_);
    if (calls_ == nullptr) SetUpShortCalls();
    call.sweep_parity = turn_++;
    calls_->next() = call;
    calls_->Run();
    return true;
  }
  struct Leave {
    void operator()(std::atomic<bool>* is_busy) const { is_busy->store(false, std::memory_order_release); }
  };

  // Allocates memory for the maximum number of rows of a short call.
  void SetUpShortCalls() {
    layer_.RequirePacked();
    Call step{};
    step.T = step.B = 1;
    const auto most = static_cast<std::size_t>(kFlopsToShareCall / Flops(layer_.spec(), step));
    memory_ = AllocateAligned(StreamCalls::Bytes(layer_.packed(), std::min(call_.B, most)));
    calls_ = std::make_unique<StreamCalls>(layer_.packed(), memory_.get());
  }

  nb::object layer_object_;
  nb::object state_object_;
  const Layer& layer_;
  Call call_{};
  AlignedBytes memory_;
  std::unique_ptr<StreamCalls> calls_;  // for short calls
  std::atomic<bool> is_busy_{false};
  unsigned turn_ = 0;
};

}  // namespace onegru

#endif
