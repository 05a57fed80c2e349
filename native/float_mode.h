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
  DefaultFloatMode() : saved_(_mm_getcsr()) { SetFrom(saved_); }
  ~DefaultFloatMode() {
    if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(saved_);
  }
  // The mode, again, after code that may have changed it.
  static void Set() { SetFrom(_mm_getcsr()); }

 private:
  static void SetFrom(unsigned now) {
    if ((now & ~kFlags) != kDefault) _mm_setcsr(kDefault | (now & kFlags));
  }
  static constexpr unsigned kFlags = 0x3f;
  static constexpr unsigned kDefault = 0x1f80;
  unsigned saved_;
#elif defined(__aarch64__)
  DefaultFloatMode() : saved_(Get()) { SetFrom(saved_); }
  ~DefaultFloatMode() {
    if (saved_ != 0) asm volatile("msr fpcr, %0" : : "r"(saved_));
  }
  static void Set() { SetFrom(Get()); }

 private:
  static void SetFrom(std::uint64_t now) {
    if (now != 0) asm volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}));
  }
  static std::uint64_t Get() {
    std::uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  std::uint64_t saved_;
#endif
};

}  // namespace onegru

#endif  // ONEGRU_NATIVE_FLOAT_MODE_H_
