// Calls of few steps and few rows, on weights in PyTorch's row-major layout. Calls do not pay for packing, and
// no packed copy can become stale.

#ifndef ONEGRU_NATIVE_FEW_STEPS_H_
#define ONEGRU_NATIVE_FEW_STEPS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "native/problem.h"

namespace onegru {

// The order of the gates in weights, products and gradients. FewSteps::gates: the arguments of r, z, n; q; the state.
enum FewStepsGate : std::size_t { kFewStepsR, kFewStepsZ, kFewStepsN, kFewStepsQ, kFewStepsState };

// One direction of a call. Null data are absent; Y and Y_h are required.
struct FewSteps {
  std::size_t T, B, I, H;
  std::size_t threads;  // at most; fewer if there is too little work to share
  bool linear_before_reset;
  bool reverse;
  Activation f, g;
  double clip;        // infinity: no clipping
  const void *W, *R;  // [3H, I], [3H, H]
  const void *Wb, *Rb;
  Rows X;                       // [T, B] rows of I
  Rows initial_h;               // [B] rows of H
  Rows attention;               // [T, B] single elements
  const std::int64_t* lengths;  // [B], each in 0…T
  const std::uint8_t* resets;   // [T, B]: whether the state is reset before the step
  bool resets_to_initial;       // to initial_h; otherwise to zero
  bool has_dien_attention;      // see Spec
  Rows Y;                       // [T, B] rows of H
  Rows Y_h;                     // [B] rows of H
  Rows gates;                   // [T, B] rows of [FewStepsGate][H], saved for the gradients
};

// The gradients of the loss with respect to the inputs and weights of a direction, given those with respect to Y and
// Y_h. Null data are absent: gradients that are zero or not requested. The results are overwritten. With `adds`, dX and
// d_attention are accumulated instead, because they contain the other direction's gradients.
struct FewStepsGradients {
  FewSteps call;
  Rows dY;           // [T, B] rows of H
  Rows dY_h;         // [B] rows of H
  Rows dX;           // [T, B] rows of I
  Rows d_initial_h;  // [B] rows of H
  Rows d_attention;  // [T, B] single elements
  bool adds;         // accumulates into dX and d_attention
  void *dW, *dR, *dWb, *dRb;
};

struct FewStepsKernel {
  void (*run)(const FewSteps& steps);
  void (*gradients)(const FewStepsGradients& steps);
};

// Returns the kernel for a type. Throws Unsupported if this build has none.
const FewStepsKernel& FewStepsFor(ElementType type, std::size_t target);
const FewStepsKernel& Float32FewSteps(std::size_t target);
const FewStepsKernel& Float64FewSteps(std::size_t target);

// Runs the directions of a call, sequentially or in parallel, whichever is faster. The results are bitwise identical.
void RunDirections(const FewStepsKernel& kernel, std::span<const FewSteps> directions);
void RunDirections(const FewStepsKernel& kernel, bool is_double, std::span<const FewStepsGradients> directions);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_FEW_STEPS_H_
