// The kernels for matrices stored as bfloat16, once for each SIMD target.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "native/kernels/units/kernels_bf16.cc"
#define ONEGRU_COMPUTED float
#define ONEGRU_STORED StoredBFloat16
#define ONEGRU_KERNEL BFloat16Kernel
#include "native/kernels/units/kernels-inl.h"
