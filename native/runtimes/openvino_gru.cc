// OneGRU: an operator for OpenVINO's graphs that is a layer of onegru, known by a number. Built against OpenVINO's
// headers alone and linked to none of its libraries, once for each release (CMakeLists.txt); it holds no kernels
// (graph_layers.h).

#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>
#include <openvino/op/op.hpp>

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "native/runtimes/graph_layers.h"

namespace {

const OnegruGraphApi* g_api = nullptr;

// On OpenVINO's own threads: others would compete for their CPUs.
void RunTasks(void*, std::size_t count, void (*task)(void*, std::size_t), void* data) {
  tbb::parallel_for(std::size_t{0}, count, [&](std::size_t index) { task(data, index); }, tbb::static_partitioner());
}

// X [batch, time, I], H [batch, D, hidden], then lengths [batch] and A [batch, time, 1] if there are some, to Y
// [batch, D, time, hidden] and Ho [batch, D, hidden]; a cell has no axes of time and directions, and no Y.
class OneGRU : public ov::op::Op {
 public:
  OPENVINO_OP("OneGRU", "extension");

  OneGRU() = default;

  bool visit_attributes(ov::AttributeVisitor& visitor) override {
    visitor.on_attribute("number", attributes_.number);
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
    const auto& [number, hidden_size, num_directions, is_sequence, has_lengths, has_attention] = attributes_;
    const std::size_t inputs = 2 + (has_lengths ? 1 : 0) + (has_attention ? 1 : 0);
    OPENVINO_ASSERT(get_input_size() == inputs, "OneGRU: must have ", inputs, " inputs");
    OPENVINO_ASSERT(hidden_size > 0 && (num_directions == 1 || num_directions == 2), "OneGRU: sizes");
    if (layer_ == nullptr && g_api != nullptr) {
      if (void* const layer = g_api->open(number)) layer_ = {layer, g_api->close};
    }
    OPENVINO_ASSERT(layer_ != nullptr,
                    "OneGRU: there is no layer of this number; a graph with layers of onegru "
                    "lives in the process that made it alone");
    const ov::PartialShape& X = get_input_partial_shape(0);
    const bool is_known = X.rank().is_static() && X.rank().get_length() == (is_sequence ? 3 : 2);
    const ov::Dimension batch = is_known ? X[0] : ov::Dimension(), time = is_known ? X[1] : ov::Dimension();
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

  bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
    const auto& [number, hidden_size, num_directions, is_sequence, has_lengths, has_attention] = attributes_;
    const ov::Shape X = inputs[0].get_shape();
    const std::size_t batch = X.at(0), time = is_sequence ? X.at(1) : 1, D = static_cast<std::size_t>(num_directions);
    const auto H = static_cast<std::size_t>(hidden_size);
    OPENVINO_ASSERT(X.size() == (is_sequence ? 3 : 2), Place(), "X: rank ", X.size());
    const ov::Shape state = is_sequence ? ov::Shape{batch, D, H} : ov::Shape{batch, H};
    OPENVINO_ASSERT(inputs[1].get_shape() == state, Place(), "the state has shape ", inputs[1].get_shape(),
                    "; must be ", state);
    OnegruGraphCall call{};
    call.batch_size = batch;
    call.seq_length = time;
    call.input_size = X.back();
    call.num_directions = D;
    call.hidden_size = H;
    call.element_size = inputs[0].get_element_type().size();
    call.X = inputs[0].data();
    call.H = inputs[1].data();
    if (has_lengths) {
      OPENVINO_ASSERT(inputs[2].get_shape() == ov::Shape{batch}, Place(), "sequence_lengths: shape ",
                      inputs[2].get_shape());
      call.length_size = inputs[2].get_element_type().size();
      call.lengths = inputs[2].data();
    }
    if (has_attention) {
      OPENVINO_ASSERT(inputs.back().get_size() == batch * time, Place(), "A: shape ", inputs.back().get_shape());
      call.A = inputs.back().data();
    }
    if (is_sequence) {
      outputs[0].set_shape({batch, D, time, H});
      call.Y = outputs[0].data();
    }
    ov::Tensor& last = outputs.back();
    last.set_shape(state);
    call.Ho = last.data();
    call.run_tasks = &RunTasks;
    call.threads = static_cast<std::size_t>(tbb::this_task_arena::max_concurrency());
    if (const char* const wrong = g_api->run(layer_.get(), &call)) {
      OPENVINO_THROW(Place(), wrong);
    }
    return true;
  }

 private:
  struct Attributes {
    std::int64_t number = 0;
    std::int64_t hidden_size = 0;
    std::int64_t num_directions = 1;
    bool is_sequence = false;
    bool has_lengths = false;
    bool has_attention = false;
  };

  // The prefix of messages.
  std::string Place() const { return "OneGRU node '" + get_friendly_name() + "': "; }

  Attributes attributes_;
  std::shared_ptr<void> layer_;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) void onegru_connect(const OnegruGraphApi* api) { g_api = api; }

OPENVINO_CREATE_EXTENSIONS(std::vector<ov::Extension::Ptr>({std::make_shared<ov::OpExtension<OneGRU>>()}));
