// The kernels for matrices stored as int8 and inputs with one plane, with VNNI.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "native/kernels/units/kernels_i8_vnni.cc"
#define ONEGRU_OWNS_STAGES
#define ONEGRU_STORED Int8<1>
#define ONEGRU_KERNEL Int8VnniKernel
#define ONEGRU_ELSE Int8Kernel
#include "native/kernels/units/vnni-inl.h"
