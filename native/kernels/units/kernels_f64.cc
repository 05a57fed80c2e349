// The kernels for matrices stored as float64, once for each SIMD target.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "native/kernels/units/kernels_f64.cc"
#define ONEGRU_OWNS_STAGES
#define ONEGRU_COMPUTED double
#define ONEGRU_STORED double
#define ONEGRU_KERNEL Float64Kernel
#include "native/kernels/units/kernels-inl.h"
