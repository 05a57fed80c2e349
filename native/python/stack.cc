// Runs the streams of a stack as a pipeline.

#include <cstring>
#include <vector>

#include "native/pipeline.h"
#include "native/python/layer.h"
#include "native/python/run_from_python.h"
#include "native/python/stream_class.h"

namespace nb = nanobind;

namespace onegru {
namespace {

// Returns the layers with their calls of T steps, without X and Y. Empty if the layers do not fit X [T, B, I].
std::vector<StackedLayer> LayersOf(const std::vector<const Stream*>& streams, npy_intp T, npy_intp B, npy_intp I) {
  std::vector<StackedLayer> layers;
  for (const Stream* const stream : streams) {
    const Layer& layer = stream->layer();
    layer.RequirePacked();
    const Spec& spec = layer.spec();
    const bool fits = static_cast<npy_intp>(spec.I) == I && static_cast<npy_intp>(stream->call().B) == B;
    if (!fits || spec.attention || layer.descr() != streams.front()->layer().descr()) return {};
    layers.push_back({layer.shared(), stream->call()});
    layers.back().call.T = static_cast<std::size_t>(T);
    I = static_cast<npy_intp>(spec.H);
  }
  return layers;
}

// A copy of the layers' states, because a stopped call must not change them.
class SavedStates {
 public:
  explicit SavedStates(const std::vector<StackedLayer>& layers) : layers_(layers) {
    for (const StackedLayer& layer : layers) states_.emplace_back(layer.call.Y_h.data, End(layer));
  }
  void Restore() const {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      std::memcpy(layers_[i].call.Y_h.data, states_[i].data(), states_[i].size());
    }
  }

 private:
  static char* End(const StackedLayer& layer) { return layer.call.Y_h.at(0, 0, layer.call.B); }

  const std::vector<StackedLayer>& layers_;
  std::vector<std::vector<char>> states_;
};

}  // namespace

nb::object TryStack(const std::vector<const Stream*>& streams, nb::handle X, bool batch_first, nb::handle out) {
  PyArray_Descr* const descr = streams.front()->layer().descr();
  PyArrayObject* const x = AsInput(X.ptr(), descr, 3);
  if (x == nullptr) return {};
  const int time = batch_first ? 1 : 0, row = 1 - time;
  const npy_intp T = PyArray_DIM(x, time), B = PyArray_DIM(x, row);
  std::vector<StackedLayer> layers = LayersOf(streams, T, B, PyArray_DIM(x, 2));
  const std::size_t threads = layers.empty() ? 1 : PipelineThreads(layers);
  if (threads == 1) return {};
  double flops = 0;
  for (const StackedLayer& layer : layers) flops += Flops(layer.packed->spec(), layer.call);
  const auto H = static_cast<npy_intp>(layers.back().packed->spec().H);
  const Shape shape = batch_first ? Shape{4, {B, T, 1, H}} : Shape{4, {T, 1, B, H}};
  const auto given = reinterpret_cast<PyObject*>(out.is_none() ? nullptr : AsOutput(out.ptr(), descr, shape));
  const nb::object output = out.is_none() ? NewArray(descr, shape) : nb::borrow(given);
  if (!output.is_valid()) return {};
  layers.front().call.X = RowsOf(x, time, -1, row);
  layers.back().call.Y = batch_first ? RowsOf(AsArray(output), 1, -1, 0) : RowsOf(AsArray(output), 0, -1, 2);
  const SavedStates states(layers);
  try {
    RunWithoutGil(IsWatched(flops), [&](CancellationToken* token) { RunPipeline(layers, threads, token); });
  } catch (const nb::python_error&) {
    states.Restore();
    throw;
  }
  return output;
}

}  // namespace onegru
