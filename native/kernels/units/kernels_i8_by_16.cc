// The kernels for matrices stored as int8 and inputs with two planes, once for each SIMD target.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "native/kernels/units/kernels_i8_by_16.cc"
#define ONEGRU_ARITHMETIC separate
#define ONEGRU_COMPUTED float
#define ONEGRU_STORED Int8<2>
#define ONEGRU_KERNEL Int8By16Kernel
#include "native/kernels/units/kernels-inl.h"
