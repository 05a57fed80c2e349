// The float32 kernels for gradients and few steps, once for each SIMD target.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "native/kernels/units/gradients_f32.cc"
#define ONEGRU_COMPUTED float
#define ONEGRU_GRADIENT_KERNEL Float32GradientKernel
#define ONEGRU_FEW_STEPS_KERNEL Float32FewSteps
#include "native/kernels/units/gradients-inl.h"
