// The list of SIMD targets in this build, best first. All tables of kernels are built from it, so an index is valid for
// every table:
//
//   #define ENTRY(ns, bit, name) &ns::Step,
//   constexpr StepFunction kStep[] = {ONEGRU_FOR_EACH_TARGET(ENTRY)};
//   #undef ENTRY
//
// onegru does not use Highway's dispatch (HWY_EXPORT), which has one choice per process. Forcing a target would force
// it for all other libraries that share libhwy.
//
// Include this file after hwy/highway.h. If an older Highway lacks a target, the preprocessor reads its macro as 0 and
// omits the target.

#ifndef ONEGRU_NATIVE_TARGETS_TARGET_LIST_H_
#define ONEGRU_NATIVE_TARGETS_TARGET_LIST_H_

#include "hwy/highway.h"

// --- x86
#if HWY_TARGETS & HWY_AVX3
#define ONEGRU_IF_AVX3(X) X(N_AVX3, HWY_AVX3, "avx3")
#else
#define ONEGRU_IF_AVX3(X)
#endif
#if HWY_TARGETS & HWY_AVX2
#define ONEGRU_IF_AVX2(X) X(N_AVX2, HWY_AVX2, "avx2")
#else
#define ONEGRU_IF_AVX2(X)
#endif
#if HWY_TARGETS & HWY_SSE4
#define ONEGRU_IF_SSE4(X) X(N_SSE4, HWY_SSE4, "sse4")
#else
#define ONEGRU_IF_SSE4(X)
#endif
#if HWY_TARGETS & HWY_SSE2
#define ONEGRU_IF_SSE2(X) X(N_SSE2, HWY_SSE2, "sse2")
#else
#define ONEGRU_IF_SSE2(X)
#endif

// --- Arm
#if HWY_TARGETS & HWY_NEON
#define ONEGRU_IF_NEON(X) X(N_NEON, HWY_NEON, "neon")
#else
#define ONEGRU_IF_NEON(X)
#endif
#if HWY_TARGETS & HWY_NEON_WITHOUT_AES
#define ONEGRU_IF_NEON_WITHOUT_AES(X) X(N_NEON_WITHOUT_AES, HWY_NEON_WITHOUT_AES, "neon_without_aes")
#else
#define ONEGRU_IF_NEON_WITHOUT_AES(X)
#endif

// --- WebAssembly
#if HWY_TARGETS & HWY_WASM
#define ONEGRU_IF_WASM(X) X(N_WASM, HWY_WASM, "wasm")
#else
#define ONEGRU_IF_WASM(X)
#endif

// --- fallbacks
#if HWY_TARGETS & HWY_EMU128
#define ONEGRU_IF_EMU128(X) X(N_EMU128, HWY_EMU128, "emu128")
#else
#define ONEGRU_IF_EMU128(X)
#endif
#if HWY_TARGETS & HWY_SCALAR
#define ONEGRU_IF_SCALAR(X) X(N_SCALAR, HWY_SCALAR, "scalar")
#else
#define ONEGRU_IF_SCALAR(X)
#endif

#define ONEGRU_FOR_EACH_TARGET(X) \
  ONEGRU_IF_AVX3(X)               \
  ONEGRU_IF_AVX2(X)               \
  ONEGRU_IF_SSE4(X)               \
  ONEGRU_IF_SSE2(X)               \
  ONEGRU_IF_NEON(X)               \
  ONEGRU_IF_NEON_WITHOUT_AES(X)   \
  ONEGRU_IF_WASM(X)               \
  ONEGRU_IF_EMU128(X)             \
  ONEGRU_IF_SCALAR(X)

#endif  // ONEGRU_NATIVE_TARGETS_TARGET_LIST_H_
