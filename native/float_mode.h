// The floating-point mode of a thread.

#ifndef ONEGRU_NATIVE_FLOAT_MODE_H_
#define ONEGRU_NATIVE_FLOAT_MODE_H_

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace onegru {

// A mode consists of the rounding, the treatment of subnormals and the exception masks, without the sticky flags. In
// the flushing mode, subnormal operands and results are zero.
#if defined(__x86_64__)
inline constexpr std::uint32_t kDefaultFloatMode = 0x1f80;
inline constexpr std::uint32_t kFlushingFloatMode = kDefaultFloatMode | 0x8040;
inline constexpr std::uint32_t kFloatFlags = 0x3f;
inline std::uint32_t GetFloatMode() { return _mm_getcsr() & ~kFloatFlags; }
inline void SetFloatMode(std::uint32_t mode) { _mm_setcsr((mode & ~kFloatFlags) | (_mm_getcsr() & kFloatFlags)); }
#elif defined(__aarch64__)
inline constexpr std::uint32_t kDefaultFloatMode = 0;
inline constexpr std::uint32_t kFlushingFloatMode = 1 << 24;
inline std::uint32_t GetFloatMode() {
  std::uint64_t mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return static_cast<std::uint32_t>(mode);
}
inline void SetFloatMode(std::uint32_t mode) { asm volatile("msr fpcr, %0" : : "r"(std::uint64_t{mode})); }
#elif defined(__wasm__)  // has only the default mode
inline constexpr std::uint32_t kDefaultFloatMode = 0, kFlushingFloatMode = 0;
inline std::uint32_t GetFloatMode() { return kDefaultFloatMode; }
inline void SetFloatMode(std::uint32_t) {}
#endif

// Sets the default mode of IEEE 754: round to nearest, keep subnormals. The destructor restores the caller's mode.
class DefaultFloatMode {
 public:
  DefaultFloatMode() : saved_(GetFloatMode()) {
    if (saved_ != kDefaultFloatMode) SetFloatMode(kDefaultFloatMode);
  }
  ~DefaultFloatMode() {
    if (saved_ != kDefaultFloatMode) SetFloatMode(saved_);
  }
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
  const std::uint32_t saved_;
};

}  // namespace onegru

#endif  // ONEGRU_NATIVE_FLOAT_MODE_H_
