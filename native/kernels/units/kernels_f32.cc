// The kernels for matrices stored as float32, once for each SIMD target.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "native/kernels/units/kernels_f32.cc"
#define ONEGRU_OWNS_STAGES
#define ONEGRU_COMPUTED float
#define ONEGRU_STORED float
#define ONEGRU_KERNEL Float32Kernel
#include "native/kernels/units/kernels-inl.h"
