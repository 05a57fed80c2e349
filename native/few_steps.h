// A few steps of a few rows on weights as PyTorch has them: row-major, not packed, so that no call pays for packing and
// nothing goes stale.

#ifndef ONEGRU_NATIVE_FEW_STEPS_H_
#define ONEGRU_NATIVE_FEW_STEPS_H_

#include <cstddef>
#include <cstdint>

#include "native/problem.h"

namespace onegru {

// A direction of a call. The gates of the weights are r, z, n. Null data are absent.
struct FewSteps {
  std::size_t T, B, I, H;
  bool linear_before_reset;
  bool reverse;
  Activation f, g;
  double clip;        // infinity: none
  const void *W, *R;  // [3H, I], [3H, H]
  const void *Wb, *Rb;
  Rows X;                       // [T, B] rows of I
  Rows initial_h;               // [B] rows of H
  Rows attention;               // [T, B] single elements
  const std::int64_t* lengths;  // [B], each in 0…T
  const std::uint8_t* resets;   // [T, B]: whether the state is set back before the step
  bool resets_to_initial;       // to initial_h; else to zero
  bool of_dien;                 // see Spec
  Rows Y;                       // [T, B] rows of H
  Rows Y_h;                     // [B] rows of H
};

using FewStepsKernel = void (*)(const FewSteps& steps);

FewStepsKernel Float32FewSteps(std::size_t target);
FewStepsKernel Float64FewSteps(std::size_t target);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_FEW_STEPS_H_
