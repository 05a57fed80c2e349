// A few steps on PyTorch's memory, by addresses and strides in bytes: an array for each tensor would take longer.

#include <nanobind/nanobind.h>

#include <cstdint>
#include <stdexcept>

#include "native/few_steps.h"
#include "native/float_mode.h"
#include "native/python/bindings.h"
#include "native/targets/targets.h"

namespace nb = nanobind;

namespace onegru {
namespace {

using Address = std::uintptr_t;

Rows RowsAt(Address address, std::ptrdiff_t time, std::ptrdiff_t row) {
  return {reinterpret_cast<char*>(address), time, 0, row};
}

Activation ActivationOf(nb::handle item) {
  const auto function = nb::cast<std::size_t>(item[0]);
  if (function >= kFunctions) throw std::invalid_argument("activations: not a function of this module");
  return {static_cast<Function>(function), nb::cast<double>(item[1]), nb::cast<double>(item[2])};
}

}  // namespace

void BindFewSteps(nb::module_& m) {
  m.def(
      "few_steps",
      [](bool is_double, nb::tuple sizes, nb::tuple form, nb::tuple weights, nb::tuple X, nb::tuple initial_h,
         nb::tuple attention, Address lengths, Address resets, nb::tuple Y, nb::tuple Y_h) {
        if (sizes.size() != 4 || form.size() != 7 || weights.size() != 4) {
          throw std::invalid_argument("sizes, form, weights: must be 4, 7 and 4");
        }
        FewSteps s{};
        s.T = nb::cast<std::size_t>(sizes[0]);
        s.B = nb::cast<std::size_t>(sizes[1]);
        s.I = nb::cast<std::size_t>(sizes[2]);
        s.H = nb::cast<std::size_t>(sizes[3]);
        s.linear_before_reset = nb::cast<bool>(form[0]);
        s.reverse = nb::cast<bool>(form[1]);
        s.clip = nb::cast<double>(form[2]);
        s.f = ActivationOf(form[3]);
        s.g = ActivationOf(form[4]);
        s.resets_to_initial = nb::cast<bool>(form[5]);
        s.of_dien = nb::cast<bool>(form[6]);
        const auto at = [](nb::handle address) { return reinterpret_cast<const void*>(nb::cast<Address>(address)); };
        s.W = at(weights[0]);
        s.R = at(weights[1]);
        s.Wb = at(weights[2]);
        s.Rb = at(weights[3]);
        if (s.R == nullptr || (s.W == nullptr && s.I != 0)) throw std::invalid_argument("weights: W or R is absent");
        const auto rows = [](const nb::tuple& given) {
          return RowsAt(nb::cast<Address>(given[0]), nb::cast<std::ptrdiff_t>(given[1]),
                        nb::cast<std::ptrdiff_t>(given[2]));
        };
        s.X = rows(X);
        s.initial_h = rows(initial_h);
        s.attention = rows(attention);
        s.lengths = reinterpret_cast<const std::int64_t*>(lengths);
        s.resets = reinterpret_cast<const std::uint8_t*>(resets);
        s.Y = rows(Y);
        s.Y_h = rows(Y_h);
        const std::size_t target = ChosenTargetIndex();
        const FewStepsKernel run = is_double ? Float64FewSteps(target) : Float32FewSteps(target);
        const nb::gil_scoped_release release;
        const DefaultFloatMode mode;
        run(s);
      },
      nb::arg("is_double"), nb::arg("sizes"), nb::arg("form"), nb::arg("weights"), nb::arg("X"), nb::arg("initial_h"),
      nb::arg("attention"), nb::arg("lengths"), nb::arg("resets"), nb::arg("Y"), nb::arg("Y_h"),
      "Steps of one direction on weights that are not packed. Addresses with strides in bytes, (address, time, row); "
      "0 for what is absent.");
}

}  // namespace onegru
