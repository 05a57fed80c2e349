// Runs few steps on PyTorch tensors. Uses addresses and strides in bytes, because an array for each tensor is slower.

#include <nanobind/nanobind.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "native/few_steps.h"
#include "native/float_mode.h"
#include "native/python/bindings.h"
#include "native/python/tensor_memory.h"
#include "native/targets/targets.h"

namespace nb = nanobind;

namespace onegru {
namespace {

using Address = std::uintptr_t;

Activation ActivationOf(nb::handle item) {
  const auto function = nb::cast<std::size_t>(item[0]);
  if (function >= kFunctions) throw std::invalid_argument("activations: must be a function of this module");
  return {static_cast<Function>(function), nb::cast<double>(item[1]), nb::cast<double>(item[2])};
}

Rows RowsOf(const nb::tuple& given) {
  return {reinterpret_cast<char*>(nb::cast<Address>(given[0])), nb::cast<std::ptrdiff_t>(given[1]), 0,
          nb::cast<std::ptrdiff_t>(given[2])};
}

void* At(nb::handle address) { return reinterpret_cast<void*>(nb::cast<Address>(address)); }

// A copy of the lengths for all directions, because another thread may change the caller's.
class OwnLengths {
 public:
  void Take(FewSteps* s) {
    if (s->lengths == nullptr) return;
    if (lengths_.empty()) {
      lengths_.assign(s->lengths, s->lengths + s->B);
      for (std::int64_t& length : lengths_) {
        length = std::clamp<std::int64_t>(length, 0, static_cast<std::int64_t>(s->T));
      }
    }
    s->lengths = lengths_.data();
  }

 private:
  std::vector<std::int64_t> lengths_;
};

// Reads the options of a direction.
void TakeForm(const nb::tuple& form, FewSteps* s) {
  if (form.size() != 7) throw std::invalid_argument("form: must have 7 values");
  s->linear_before_reset = nb::cast<bool>(form[0]);
  s->reverse = nb::cast<bool>(form[1]);
  s->clip = nb::cast<double>(form[2]);
  s->f = ActivationOf(form[3]);
  s->g = ActivationOf(form[4]);
  s->resets_to_initial = nb::cast<bool>(form[5]);
  s->has_dien_attention = nb::cast<bool>(form[6]);
}

void TakeSizes(const nb::tuple& sizes, FewSteps* s) {
  if (sizes.size() != 5) throw std::invalid_argument("sizes: must have 5 numbers");
  s->T = nb::cast<std::size_t>(sizes[0]);
  s->B = nb::cast<std::size_t>(sizes[1]);
  s->I = nb::cast<std::size_t>(sizes[2]);
  s->H = nb::cast<std::size_t>(sizes[3]);
  s->threads = nb::cast<std::size_t>(sizes[4]);
}

// Reads a direction's form, weights, X, initial_h, attention, lengths, resets and gates, of `count` values.
FewSteps CallOf(const nb::tuple& sizes, const nb::tuple& given, std::size_t count) {
  if (given.size() != count) throw std::invalid_argument("directions: size must be " + std::to_string(count));
  const auto item = [&](std::size_t i) { return nb::cast<nb::tuple>(given[i]); };
  const nb::tuple weights = item(1);
  if (weights.size() != 4) throw std::invalid_argument("weights: must have 4 values");
  FewSteps s{};
  TakeSizes(sizes, &s);
  TakeForm(item(0), &s);
  s.W = At(weights[0]);
  s.R = At(weights[1]);
  s.Wb = At(weights[2]);
  s.Rb = At(weights[3]);
  if (s.R == nullptr || (s.W == nullptr && s.I != 0)) throw std::invalid_argument("weights: W and R must not be null");
  s.X = RowsOf(item(2));
  s.initial_h = RowsOf(item(3));
  s.attention = RowsOf(item(4));
  s.lengths = static_cast<const std::int64_t*>(At(given[5]));
  s.resets = static_cast<const std::uint8_t*>(At(given[6]));
  s.gates = RowsOf(item(7));
  return s;
}

const FewStepsKernel& KernelOf(bool is_double) {
  return FewStepsFor(is_double ? ElementType::kFloat64 : ElementType::kFloat32, ChosenTargetIndex());
}

// The inputs of a call, read from tensors: those of all directions, then the weights of each direction.
struct TensorCall {
  TensorRows X, initial_h, attention, lengths, resets;
  std::vector<TensorRows> weights;

  // Reads the inputs. Returns false if a tensor is not plain memory with its shape.
  bool Read(const ExchangeApi& exchange, const nb::tuple& tensors, const nb::tuple& room, const FewSteps& s,
            bool is_cell, bool is_double, std::size_t directions) {
    if (tensors.size() != 5 + 4 * directions || room.size() != 2 * tensors.size()) return false;
    const auto [T, B, I, H] = std::array{s.T, s.B, s.I, s.H};
    std::size_t place = 0;
    const auto read = [&](Kind kind, std::initializer_list<std::size_t> shape, TensorRows* rows) {
      std::int64_t sizes[3];
      std::copy(shape.begin(), shape.end(), sizes);
      const std::size_t at = place++;
      return ReadTensor(exchange, tensors[at], kind, is_double, {sizes, shape.size()},
                        nb::cast<std::uintptr_t>(room[2 * at]), nb::cast<std::uintptr_t>(room[2 * at + 1]), rows);
    };
    const bool has_inputs = is_cell ? read(Kind::kRows, {B, I}, &X) && read(Kind::kRows, {B, H}, &initial_h) &&
                                          read(Kind::kSingle, {B}, &attention)
                                    : read(Kind::kRows, {T, B, I}, &X) &&
                                          read(Kind::kRows, {directions, B, H}, &initial_h) &&
                                          read(Kind::kSingle, {T, B}, &attention);
    if (!has_inputs || !read(Kind::kLengths, {B}, &lengths) || !read(Kind::kMask, {T, B}, &resets)) return false;
    weights.resize(4 * directions);
    for (std::size_t d = 0; d < directions; ++d) {
      TensorRows* const of_d = weights.data() + 4 * d;
      if (!read(Kind::kContiguous, {3 * H, I}, of_d) || !read(Kind::kContiguous, {3 * H, H}, of_d + 1) ||
          !read(Kind::kContiguous, {3 * H}, of_d + 2) || !read(Kind::kContiguous, {3 * H}, of_d + 3)) {
        return false;
      }
      if (of_d[1].data == nullptr || (of_d[0].data == nullptr && I != 0)) return false;
    }
    if (is_cell) {  // the first axis is the batch
      for (TensorRows* const rows : {&X, &initial_h, &attention}) {
        rows->strides[1] = rows->strides[0];
        rows->strides[0] = 0;
      }
    }
    return true;
  }

  void Take(std::size_t d, FewSteps* s) const {
    const auto rows = [](const TensorRows& r, std::ptrdiff_t offset = 0) {
      return Rows{static_cast<char*>(r.data) + offset, r.strides[0], 0, r.strides[1]};
    };
    s->X = rows(X);
    if (initial_h.data != nullptr)
      s->initial_h = rows(initial_h, static_cast<std::ptrdiff_t>(d) * initial_h.strides[0]);
    s->attention = rows(attention);
    s->lengths = static_cast<const std::int64_t*>(lengths.data);
    s->resets = static_cast<const std::uint8_t*>(resets.data);
    const TensorRows* const of_d = weights.data() + 4 * d;
    s->W = of_d[0].data;
    s->R = of_d[1].data;
    s->Wb = of_d[2].data;
    s->Rb = of_d[3].data;
  }
};

}  // namespace

void BindFewSteps(nb::module_& m) {
  m.def(
      "few_steps_of_tensors",
      [](nb::capsule api, nb::tuple tensors, nb::tuple room, nb::tuple sizes, nb::tuple forms, bool is_cell,
         bool is_double, Address Y, Address Y_h) {
        const ExchangeApi* const exchange = ExchangeOf(api);
        FewSteps s{};
        TakeSizes(sizes, &s);
        TensorCall call;
        const std::size_t D = forms.size();
        if (exchange == nullptr || !call.Read(*exchange, tensors, room, s, is_cell, is_double, D)) return false;
        std::vector<FewSteps> steps;
        OwnLengths lengths;
        const auto bytes = static_cast<std::ptrdiff_t>(s.H * (is_double ? sizeof(double) : sizeof(float)));
        const auto count = static_cast<std::ptrdiff_t>(D), B = static_cast<std::ptrdiff_t>(s.B);
        for (std::ptrdiff_t d = 0; d < count; ++d) {
          TakeForm(nb::cast<nb::tuple>(forms[static_cast<std::size_t>(d)]), &s);
          call.Take(static_cast<std::size_t>(d), &s);
          s.Y = {reinterpret_cast<char*>(Y) + d * bytes, B * count * bytes, 0, count * bytes};
          s.Y_h = {reinterpret_cast<char*>(Y_h) + d * B * bytes, 0, 0, bytes};
          lengths.Take(&s);
          steps.push_back(s);
        }
        const nb::gil_scoped_release release;
        const DefaultFloatMode mode;
        for (const FewSteps& direction : steps) KernelOf(is_double).run(direction);
        return true;
      },
      nb::arg("api"), nb::arg("tensors"), nb::arg("room"), nb::arg("sizes"), nb::arg("forms"), nb::arg("is_cell"),
      nb::arg("is_double"), nb::arg("Y"), nb::arg("Y_h"),
      "Runs few steps of a layer on PyTorch tensors, in all directions, without gradients. Returns False if a tensor "
      "is not plain memory with its shape.");
  m.def(
      "few_steps",
      [](bool is_double, nb::tuple sizes, nb::tuple directions) {
        if (directions.size() - 1 > 1) throw std::invalid_argument("directions: must be 1 or 2");
        std::vector<FewSteps> steps;
        OwnLengths lengths;
        for (nb::handle direction : directions) {
          const auto given = nb::cast<nb::tuple>(direction);
          FewSteps& s = steps.emplace_back(CallOf(sizes, given, 10));
          lengths.Take(&s);
          s.Y = RowsOf(nb::cast<nb::tuple>(given[8]));
          s.Y_h = RowsOf(nb::cast<nb::tuple>(given[9]));
        }
        const nb::gil_scoped_release release;
        const DefaultFloatMode mode;
        RunDirections(KernelOf(is_double), steps);
      },
      nb::arg("is_double"), nb::arg("sizes"), nb::arg("directions"),
      "Runs few steps with unpacked weights. directions: for each direction, its form, weights, X, initial_h, "
      "attention, lengths, resets, gates, Y and Y_h. Arrays are addresses with strides in bytes, (address, time, "
      "row), or 0 if absent.");
  m.def(
      "few_steps_gradients",
      [](bool is_double, nb::tuple sizes, nb::tuple directions) {
        if (directions.size() - 1 > 1) throw std::invalid_argument("directions: must be 1 or 2");
        std::vector<FewStepsGradients> gradients;
        OwnLengths lengths;
        for (nb::handle direction : directions) {
          const auto given = nb::cast<nb::tuple>(direction);
          FewStepsGradients g{};
          g.call = CallOf(sizes, given, 12);
          lengths.Take(&g.call);
          const auto by_outputs = nb::cast<nb::tuple>(given[8]), by_inputs = nb::cast<nb::tuple>(given[9]),
                     by_weights = nb::cast<nb::tuple>(given[11]);
          if (by_outputs.size() != 2 || by_inputs.size() != 3 || by_weights.size() != 4 ||
              g.call.gates.data == nullptr) {
            throw std::invalid_argument("by_outputs, by_inputs, by_weights: must be 2, 3 and 4; gates must be given");
          }
          g.dY = RowsOf(nb::cast<nb::tuple>(by_outputs[0]));
          g.dY_h = RowsOf(nb::cast<nb::tuple>(by_outputs[1]));
          g.dX = RowsOf(nb::cast<nb::tuple>(by_inputs[0]));
          g.d_initial_h = RowsOf(nb::cast<nb::tuple>(by_inputs[1]));
          g.d_attention = RowsOf(nb::cast<nb::tuple>(by_inputs[2]));
          g.adds = nb::cast<bool>(given[10]);
          g.dW = At(by_weights[0]);
          g.dR = At(by_weights[1]);
          g.dWb = At(by_weights[2]);
          g.dRb = At(by_weights[3]);
          gradients.push_back(g);
        }
        const nb::gil_scoped_release release;
        const DefaultFloatMode mode;
        RunDirections(KernelOf(is_double), is_double, gradients);
      },
      nb::arg("is_double"), nb::arg("sizes"), nb::arg("directions"),
      "Computes the gradients of few steps. directions: as for few_steps up to gates, then gradients of outputs (Y, "
      "Y_h), of inputs (X, initial_h, attention), whether to add to these, and of weights.");
}

}  // namespace onegru
