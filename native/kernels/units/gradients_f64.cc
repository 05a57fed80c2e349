// The float64 kernels for gradients and few steps, once for each SIMD target.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "native/kernels/units/gradients_f64.cc"
#define ONEGRU_COMPUTED double
#define ONEGRU_GRADIENT_KERNEL Float64GradientKernel
#define ONEGRU_FEW_STEPS_KERNEL Float64FewSteps
#include "native/kernels/units/gradients-inl.h"
