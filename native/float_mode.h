// The floating-point mode of a thread.

#ifndef ONEGRU_NATIVE_FLOAT_MODE_H_
#define ONEGRU_NATIVE_FLOAT_MODE_H_

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace onegru {

// IEEE 754's default mode, whatever the caller has set: nearest, subnormals kept. Restored at the end.
class DefaultFloatMode {
 public:
#if defined(__x86_64__)
  DefaultFloatMode() : saved_(_mm_getcsr()) {
    if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(kDefault | (saved_ & kFlags));
  }
  ~DefaultFloatMode() {
    if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(saved_);
  }

 private:
  static constexpr unsigned kFlags = 0x3f;
  static constexpr unsigned kDefault = 0x1f80;
  unsigned saved_;
#elif defined(__aarch64__)
  DefaultFloatMode() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    if (saved_ != 0) asm volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}));
  }
  ~DefaultFloatMode() {
    if (saved_ != 0) asm volatile("msr fpcr, %0" : : "r"(saved_));
  }

 private:
  std::uint64_t saved_;
#endif
};

}  // namespace onegru

#endif  // ONEGRU_NATIVE_FLOAT_MODE_H_
