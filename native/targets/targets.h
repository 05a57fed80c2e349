// Which SIMD targets this build has, which this CPU can run, and which one the kernels use.
//
// A target is an instruction set the same source was compiled for ("avx3", "avx2", "sse4", "neon",
// ..., "scalar"). All of them live in one binary; the choice is made at run time.

#ifndef ONEGRU_NATIVE_TARGETS_TARGETS_H_
#define ONEGRU_NATIVE_TARGETS_TARGETS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace onegru {

struct Target {
  const char* name;
  std::int64_t bit;               // Highway's HWY_* bit
  bool native_fma;                // a multiply-add is one instruction with one rounding
  std::size_t (*vector_bytes)();  // runs the target's instructions: call on available targets only
};

// ONEGRU_TARGETS=native: one target alone is in the binary, and in int8 the kernels by VNNI (ONEGRU_ONLY_VNNI) or those
// without (ONEGRU_WITHOUT_VNNI).
#if ONEGRU_ONLY_VNNI || ONEGRU_WITHOUT_VNNI
inline constexpr bool kIsNative = true;
#else
inline constexpr bool kIsNative = false;
#endif

// What this build or this CPU cannot do.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws Unsupported if this CPU cannot run what was built, as a native build on another machine may not. Ask before
// anything else.
void CheckCpu();

// Every target in the binary, best first. Indices are those of every per-target table
// (target_list.h).
std::span<const Target> CompiledTargets();

// Whether this CPU and operating system can run `target`. The same answer for the life of the
// process.
bool IsAvailable(const Target& target);

// Index of the target the kernels use: the best available one until SelectTarget says otherwise.
// Cheap enough for every call.
std::size_t ChosenTargetIndex();

// Makes the kernels use the target called `name`, or the best available one without a name, and
// returns its index. Throws std::invalid_argument, listing the available targets, if there is no
// such target or the CPU cannot run it; the choice is then unchanged.
// Thread-safe, but a call that is already running keeps the target it started with.
std::size_t SelectTarget(std::optional<std::string_view> name);

// The available target called `name`; throws as SelectTarget does.
const Target& FindTarget(std::string_view name);

// What multiplies in int8: the target's own instructions; VNNI, AVX-512's or AVX-VNNI; besides VNNI, for several rows,
// AMX.
enum class Int8Products : std::uint8_t { kSimd, kVnni, kAmx };
inline constexpr const char* kInt8ProductsNames[] = {"simd", "vnni", "amx"};

#if ONEGRU_ONLY_VNNI
inline constexpr Int8Products kMinInt8Products = Int8Products::kVnni;
#else
inline constexpr Int8Products kMinInt8Products = Int8Products::kSimd;
#endif

// The best that the build, the CPU and the system have for a target, within the limit.
Int8Products Int8ProductsOf(std::size_t target);
// Whether AMX multiplies in int8, or in bfloat16.
bool MayUseAmx(std::size_t target, bool of_bfloat16);
// For tests of the same kernels by less; bfloat16 has AMX only with no limit. Throws std::invalid_argument if the build
// has no kernels for it.
void LimitInt8Products(Int8Products most);

// Version of the Highway headers this was compiled with, "major.minor.patch".
std::string HighwayVersion();

}  // namespace onegru

#endif  // ONEGRU_NATIVE_TARGETS_TARGETS_H_
