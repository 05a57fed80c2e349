// OneGRU: an OpenVINO operator that runs a layer of onegru, which it finds by name. CMakeLists.txt builds it once for
// each OpenVINO release, with OpenVINO's headers but without its libraries. It contains no kernels (graph_layers.h).

#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>
#include <openvino/op/op.hpp>

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "native/runtimes/graph_layers.h"

namespace {

const OnegruGraphApi* g_api = nullptr;

// Runs tasks on OpenVINO's threads. Other threads would compete with them for the CPUs.
void RunTasks(void*, std::size_t count, void (*task)(void*, std::size_t), void* data) {
  tbb::parallel_for(std::size_t{0}, count, [&](std::size_t index) { task(data, index); }, tbb::static_partitioner());
}

template <typename T>
void FillWith(ov::Tensor& tensor, T value) {
  std::fill_n(static_cast<T*>(tensor.data()), tensor.get_size(), value);
}

// Fills a tensor with zeros or NaN.
void Fill(ov::Tensor& tensor, bool is_zero) {
  switch (tensor.get_element_type()) {
    case ov::element::Type_t::f64:
      return FillWith(tensor, is_zero ? 0.0 : std::numeric_limits<double>::quiet_NaN());
    case ov::element::Type_t::f32:
      return FillWith(tensor, is_zero ? 0.0f : std::numeric_limits<float>::quiet_NaN());
    case ov::element::Type_t::f16:
      return FillWith<std::uint16_t>(tensor, is_zero ? 0 : 0x7e00);
    default:
      return FillWith<std::uint16_t>(tensor, is_zero ? 0 : 0x7fc0);  // bf16
  }
}

// Inputs: X [batch, time, I], H [batch, D, hidden], optionally lengths [batch] and A [batch, time, 1]. Outputs: Y
// [batch, D, time, hidden] and Ho [batch, D, hidden]. A cell has no Y, and no axes for time and directions.
class OneGRU : public ov::op::Op {
 public:
  OPENVINO_OP("OneGRU", "extension");

  OneGRU() = default;

  bool visit_attributes(ov::AttributeVisitor& visitor) override {
    visitor.on_attribute("layer", attributes_.layer);
    visitor.on_attribute("is_watched", attributes_.is_watched);
    visitor.on_attribute("hidden_size", attributes_.hidden_size);
    visitor.on_attribute("num_directions", attributes_.num_directions);
    visitor.on_attribute("is_sequence", attributes_.is_sequence);
    visitor.on_attribute("has_lengths", attributes_.has_lengths);
    visitor.on_attribute("has_attention", attributes_.has_attention);
    return true;
  }

  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
    auto copy = std::make_shared<OneGRU>();
    copy->set_arguments(inputs);
    copy->attributes_ = attributes_;
    copy->layer_ = layer_;
    copy->constructor_validate_and_infer_types();
    return copy;
  }

  void validate_and_infer_types() override {
    const auto& [layer, is_watched, hidden_size, num_directions, is_sequence, has_lengths, has_attention] = attributes_;
    const std::size_t inputs = 2 + (has_lengths ? 1 : 0) + (has_attention ? 1 : 0);
    OPENVINO_ASSERT(get_input_size() == inputs, "OneGRU: must have ", inputs, " inputs");
    OPENVINO_ASSERT(hidden_size > 0 && (num_directions == 1 || num_directions == 2),
                    "OneGRU: hidden_size must be > 0, num_directions 1 or 2");
    if (layer_ == nullptr && g_api != nullptr) {
      if (void* const found = g_api->open(layer.c_str())) layer_ = {found, g_api->close};
    }
    OPENVINO_ASSERT(layer_ != nullptr,
                    "OneGRU: no such layer; a graph with layers of onegru "
                    "is valid only in the process that created it");
    const ov::PartialShape& X = get_input_partial_shape(0);
    const bool is_known = X.rank().is_static() && X.rank().get_length() == (is_sequence ? 3 : 2);
    ov::Dimension batch = is_known ? X[0] : ov::Dimension(), time = is_known ? X[1] : ov::Dimension();
    for (std::size_t i = 1; i < inputs; ++i) {  // merges the batch sizes of X, the state, lengths and scores
      const ov::PartialShape& other = get_input_partial_shape(i);
      if (other.rank().is_static() && other.size() > 0) ov::Dimension::merge(batch, batch, other[0]);
    }
    const ov::element::Type type = get_input_element_type(0);
    if (is_sequence) {
      set_output_size(2);
      set_output_type(0, type, ov::PartialShape{batch, num_directions, time, hidden_size});
      set_output_type(1, type, ov::PartialShape{batch, num_directions, hidden_size});
    } else {
      set_output_size(1);
      set_output_type(0, type, ov::PartialShape{batch, hidden_size});
    }
  }

  bool has_evaluate() const override { return true; }

  // On one thread, OpenVINO loses exceptions of synchronous runs. It then returns outputs of an earlier run, and leaves
  // the failed task in a queue. It may run that task again after the request has been destroyed.
  bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
    try {
      Compute(outputs, inputs);
    } catch (const std::exception& error) {
      const bool is_watched = attributes_.is_watched;
      if (g_api->fail(error.what(), is_watched, tbb::this_task_arena::max_concurrency()) != 0) throw;
      SetShapes(outputs, inputs[0].get_shape());
      for (ov::Tensor& output : outputs) Fill(output, is_watched);
    }
    return true;
  }

 private:
  void Compute(ov::TensorVector& outputs, const ov::TensorVector& inputs) const {
    const ov::Shape X = inputs[0].get_shape();
    if (X.size() != (attributes_.is_sequence ? 3 : 2)) Refuse("X: rank ", X.size());
    SetShapes(outputs, X);
    const ov::Shape state = outputs.back().get_shape();
    if (inputs[1].get_shape() != state) {
      Refuse("the state has shape ", inputs[1].get_shape(), "; must be ", state);
    }
    OnegruGraphCall call{};
    call.batch_size = X[0];
    call.seq_length = attributes_.is_sequence ? X[1] : 1;
    call.input_size = X.back();
    call.num_directions = static_cast<std::size_t>(attributes_.num_directions);
    call.hidden_size = static_cast<std::size_t>(attributes_.hidden_size);
    call.element_size = inputs[0].get_element_type().size();
    call.X = inputs[0].data();
    call.H = inputs[1].data();
    if (attributes_.has_lengths) {
      const ov::Shape wanted{call.batch_size}, lengths = inputs[2].get_shape();
      if (lengths != wanted) Refuse("sequence_lengths: shape ", lengths, "; must be ", wanted);
      const ov::element::Type type = inputs[2].get_element_type();
      if (type != ov::element::i32 && type != ov::element::i64) {
        Refuse("sequence_lengths: type ", type, "; must be i32 or i64");
      }
      call.length_size = type.size();
      call.lengths = inputs[2].data();
    }
    if (attributes_.has_attention) {
      if (inputs.back().get_size() != call.batch_size * call.seq_length) Refuse("A: shape ", inputs.back().get_shape());
      call.A = inputs.back().data();
    }
    if (attributes_.is_sequence) call.Y = outputs[0].data();
    call.Ho = outputs.back().data();
    call.run_tasks = &RunTasks;
    call.threads = static_cast<std::size_t>(tbb::this_task_arena::max_concurrency());
    if (const char* const wrong = g_api->run(layer_.get(), &call)) Refuse(wrong);
  }

  // Sets the shapes of the outputs from X. Missing axes of X count as 1.
  void SetShapes(ov::TensorVector& outputs, const ov::Shape& X) const {
    const auto D = static_cast<std::size_t>(attributes_.num_directions);
    const auto H = static_cast<std::size_t>(attributes_.hidden_size);
    const std::size_t batch = X.empty() ? 1 : X[0], time = X.size() < 2 ? 1 : X[1];
    if (attributes_.is_sequence) outputs[0].set_shape({batch, D, time, H});
    outputs.back().set_shape(attributes_.is_sequence ? ov::Shape{batch, D, H} : ov::Shape{batch, H});
  }

  template <typename... Words>
  [[noreturn]] void Refuse(const Words&... words) const {
    std::ostringstream message;
    message << "OneGRU node '" << get_friendly_name() << "': ";
    (message << ... << words);
    throw std::runtime_error(message.str());
  }

  struct Attributes {
    std::string layer;        // the name
    bool is_watched = false;  // whether the caller of the graph checks for failures
    std::int64_t hidden_size = 0;
    std::int64_t num_directions = 1;
    bool is_sequence = false;
    bool has_lengths = false;
    bool has_attention = false;
  };

  Attributes attributes_;
  std::shared_ptr<void> layer_;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) void onegru_connect(const OnegruGraphApi* api) { g_api = api; }

OPENVINO_CREATE_EXTENSIONS(std::vector<ov::Extension::Ptr>({std::make_shared<ov::OpExtension<OneGRU>>()}));
