// The kernels for matrices stored as int8 and inputs with two planes, with VNNI.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "native/kernels/units/kernels_i8_by_16_vnni.cc"
#define ONEGRU_STORED Int8<2>
#define ONEGRU_KERNEL Int8By16VnniKernel
#define ONEGRU_ELSE Int8By16Kernel
#include "native/kernels/units/vnni-inl.h"
