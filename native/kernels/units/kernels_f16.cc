// The kernels for matrices stored as float16, once for each SIMD target.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "native/kernels/units/kernels_f16.cc"
#define ONEGRU_COMPUTED float
#define ONEGRU_STORED StoredFloat16
#define ONEGRU_KERNEL Float16Kernel
#include "native/kernels/units/kernels-inl.h"
