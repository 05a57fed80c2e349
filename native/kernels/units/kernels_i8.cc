// The kernels for matrices stored as int8 and inputs with one plane, once for each SIMD target.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "native/kernels/units/kernels_i8.cc"
#define ONEGRU_ARITHMETIC separate
#define ONEGRU_OWNS_STAGES
#define ONEGRU_COMPUTED float
#define ONEGRU_STORED Int8<1>
#define ONEGRU_KERNEL Int8Kernel
#include "native/kernels/units/kernels-inl.h"
