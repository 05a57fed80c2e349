// oneDNN's GRU, trained, as a peer of benchmarks/onednn.py: one layer, forward, reset after. Weights come as PyTorch
// has them but for the gate order (update, reset, output), and are put into the layouts that oneDNN wants in every
// call, as training changes them; the gradients are put back into that order.

#include <omp.h>

#include <cstring>
#include <memory>
#include <unordered_map>

#include "dnnl.hpp"

using dnnl::memory;

namespace {

struct Layer {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::lbr_gru_forward::primitive_desc forward_desc;
  dnnl::lbr_gru_backward::primitive_desc backward_desc;
  dnnl::lbr_gru_forward forward_primitive;
  dnnl::lbr_gru_backward backward_primitive;
  std::unordered_map<int, memory> forward, backward;
  memory given_wl, given_wi, given_dwl, given_dwi;
};

memory::desc Desc(memory::dims dims, memory::format_tag tag) { return {dims, memory::data_type::f32, tag}; }

void Reorder(Layer& layer, memory& from, memory& to) { dnnl::reorder(from, to).execute(layer.stream, from, to); }

}  // namespace

extern "C" {

void* onednn_new(long T, long B, long I, long H) {
  omp_set_num_threads(1);
  auto layer = std::make_unique<Layer>();
  using tag = memory::format_tag;
  const auto x = Desc({T, B, I}, tag::tnc), h = Desc({1, 1, B, H}, tag::ldnc), y = Desc({T, B, H}, tag::tnc);
  const auto wl = Desc({1, 1, I, 3, H}, tag::any), wi = Desc({1, 1, H, 3, H}, tag::any);
  const auto bias = Desc({1, 1, 4, H}, tag::ldgo);
  const auto direction = dnnl::rnn_direction::unidirectional_left2right;
  layer->forward_desc = {layer->engine, dnnl::prop_kind::forward_training, direction, x, h, wl, wi, bias, y, h};
  layer->backward_desc = {
      layer->engine,      dnnl::prop_kind::backward, direction, x, h, wl, wi, bias, y, h, x, h, wl, wi, bias, y, h,
      layer->forward_desc};
  layer->forward_primitive = dnnl::lbr_gru_forward(layer->forward_desc);
  layer->backward_primitive = dnnl::lbr_gru_backward(layer->backward_desc);
  const auto make = [&](const memory::desc& desc) { return memory(desc, layer->engine); };
  const auto& f = layer->forward_desc;
  const auto& b = layer->backward_desc;
  layer->forward = {{DNNL_ARG_SRC_LAYER, make(x)},
                    {DNNL_ARG_SRC_ITER, make(h)},
                    {DNNL_ARG_WEIGHTS_LAYER, make(f.weights_layer_desc())},
                    {DNNL_ARG_WEIGHTS_ITER, make(f.weights_iter_desc())},
                    {DNNL_ARG_BIAS, make(bias)},
                    {DNNL_ARG_DST_LAYER, make(y)},
                    {DNNL_ARG_DST_ITER, make(h)},
                    {DNNL_ARG_WORKSPACE, make(f.workspace_desc())}};
  layer->backward = layer->forward;
  layer->backward[DNNL_ARG_WEIGHTS_LAYER] = make(b.weights_layer_desc());
  layer->backward[DNNL_ARG_WEIGHTS_ITER] = make(b.weights_iter_desc());
  layer->backward[DNNL_ARG_DIFF_SRC_LAYER] = make(x);
  layer->backward[DNNL_ARG_DIFF_SRC_ITER] = make(h);
  layer->backward[DNNL_ARG_DIFF_WEIGHTS_LAYER] = make(b.diff_weights_layer_desc());
  layer->backward[DNNL_ARG_DIFF_WEIGHTS_ITER] = make(b.diff_weights_iter_desc());
  layer->backward[DNNL_ARG_DIFF_BIAS] = make(bias);
  layer->backward[DNNL_ARG_DIFF_DST_LAYER] = make(y);
  layer->backward[DNNL_ARG_DIFF_DST_ITER] = make(h);
  layer->given_wl = make(Desc({1, 1, I, 3, H}, tag::ldgoi)), layer->given_wi = make(Desc({1, 1, H, 3, H}, tag::ldgoi));
  layer->given_dwl = make(Desc({1, 1, I, 3, H}, tag::ldgoi)),
  layer->given_dwi = make(Desc({1, 1, H, 3, H}, tag::ldgoi));
  return layer.release();
}

void onednn_delete(void* layer) { delete static_cast<Layer*>(layer); }

// The memory of an argument: 0…5 are X, W, R, the biases [4, H], Y, dY; 6…9 dX, dW, dR, the gradients by the biases.
float* onednn_data(void* pointer, int which) {
  Layer& layer = *static_cast<Layer*>(pointer);
  auto& f = layer.forward;
  auto& b = layer.backward;
  memory* const of[] = {&f[DNNL_ARG_SRC_LAYER],      &layer.given_wl,        &layer.given_wi,
                        &f[DNNL_ARG_BIAS],           &f[DNNL_ARG_DST_LAYER], &b[DNNL_ARG_DIFF_DST_LAYER],
                        &b[DNNL_ARG_DIFF_SRC_LAYER], &layer.given_dwl,       &layer.given_dwi,
                        &b[DNNL_ARG_DIFF_BIAS]};
  return static_cast<float*>(of[which]->get_data_handle());
}

void onednn_train(void* pointer) {
  Layer& layer = *static_cast<Layer*>(pointer);
  auto& f = layer.forward;
  auto& b = layer.backward;
  const auto clear = [](memory& m) { std::memset(m.get_data_handle(), 0, m.get_desc().get_size()); };
  Reorder(layer, layer.given_wl, f[DNNL_ARG_WEIGHTS_LAYER]);
  Reorder(layer, layer.given_wi, f[DNNL_ARG_WEIGHTS_ITER]);
  clear(f[DNNL_ARG_SRC_ITER]);
  layer.forward_primitive.execute(layer.stream, f);
  Reorder(layer, layer.given_wl, b[DNNL_ARG_WEIGHTS_LAYER]);
  Reorder(layer, layer.given_wi, b[DNNL_ARG_WEIGHTS_ITER]);
  for (const int which :
       {DNNL_ARG_DIFF_WEIGHTS_LAYER, DNNL_ARG_DIFF_WEIGHTS_ITER, DNNL_ARG_DIFF_BIAS, DNNL_ARG_DIFF_DST_ITER})
    clear(b[which]);
  layer.backward_primitive.execute(layer.stream, b);
  Reorder(layer, b[DNNL_ARG_DIFF_WEIGHTS_LAYER], layer.given_dwl);
  Reorder(layer, b[DNNL_ARG_DIFF_WEIGHTS_ITER], layer.given_dwi);
  layer.stream.wait();
}

}  // extern "C"
