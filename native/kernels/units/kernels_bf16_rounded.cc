// The kernels for matrices stored as bfloat16 and inputs rounded to bfloat16, once for each SIMD target.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "native/kernels/units/kernels_bf16_rounded.cc"
#define ONEGRU_COMPUTED float
#define ONEGRU_STORED StoredRoundedBFloat16
#define ONEGRU_KERNEL RoundedBFloat16Kernel
#include "native/kernels/units/kernels-inl.h"
