// A few steps of a few rows on weights as PyTorch has them: row-major, not packed, so that no call pays for packing and
// nothing goes stale.

#ifndef ONEGRU_NATIVE_FEW_STEPS_H_
#define ONEGRU_NATIVE_FEW_STEPS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "native/problem.h"

namespace onegru {

// A direction of a call. The gates of the weights are r, z, n. Null data are absent; Y and Y_h must be there.
struct FewSteps {
  std::size_t T, B, I, H;
  std::size_t threads;  // that share the work, if it is enough
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
  Rows gates;                   // [T, B] rows of [5][H] for the gradients: the arguments of r, z and n; h·Rnᵀ + Rbn;
                                // the state
};

// The gradients of a loss by what a direction was given, from those by Y and Y_h. Null data are absent: gradients that
// are zero or not wanted. Those by weights are written, and those by inputs: or added to, as another direction's are
// there.
struct FewStepsGradients {
  FewSteps call;
  Rows dY;           // [T, B] rows of H
  Rows dY_h;         // [B] rows of H
  Rows dX;           // [T, B] rows of I
  Rows d_initial_h;  // [B] rows of H
  Rows d_attention;  // [T, B] single elements
  bool adds;         // to dX and d_attention
  void *dW, *dR, *dWb, *dRb;
};

struct FewStepsKernel {
  void (*run)(const FewSteps& steps);
  void (*gradients)(const FewStepsGradients& steps);
};

// Throws Unsupported if this build has none.
const FewStepsKernel& FewStepsFor(ElementType type, std::size_t target);
const FewStepsKernel& Float32FewSteps(std::size_t target);
const FewStepsKernel& Float64FewSteps(std::size_t target);

// The directions of a call, one after the other, or at the same time if that pays; the bits are the same.
void RunDirections(const FewStepsKernel& kernel, std::span<const FewSteps> directions);
void RunDirections(const FewStepsKernel& kernel, bool is_double, std::span<const FewStepsGradients> directions);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_FEW_STEPS_H_
