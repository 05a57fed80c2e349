// SIMD targets: those in this build, those that this CPU can run, and the one that the kernels use.
//
// A target is an instruction set ("avx3", "avx2", "sse4", "neon", ..., "scalar"). The same source is compiled for each
// target, one binary contains all, and the choice is made at run time.

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

// With ONEGRU_TARGETS=native, the binary has only one target, and only the int8 kernels with VNNI (ONEGRU_ONLY_VNNI) or
// those without (ONEGRU_WITHOUT_VNNI).
#if ONEGRU_ONLY_VNNI || ONEGRU_WITHOUT_VNNI
inline constexpr bool kIsNative = true;
#else
inline constexpr bool kIsNative = false;
#endif

// Thrown if this build or CPU does not support a request.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws Unsupported if this CPU cannot run the build, for example a native build from another machine. Call it before
// all other functions.
void CheckCpu();

// Returns all targets in the binary, best first. Indices are valid for every table of kernels (target_list.h).
std::span<const Target> CompiledTargets();

// Whether this CPU and operating system can run `target`. The result does not change.
bool IsAvailable(const Target& target);

// Returns the index of the target that the kernels use: the best available one, or that of SelectTarget. Fast enough
// for every call.
std::size_t ChosenTargetIndex();

// Makes the kernels use the target called `name`, or the best available one without a name, and returns its index.
// Throws std::invalid_argument, and changes nothing, if there is no such target or the CPU cannot run it. The message
// lists the available targets. Thread-safe, but running calls keep their target.
std::size_t SelectTarget(std::optional<std::string_view> name);

// Returns the available target called `name`. Throws like SelectTarget.
const Target& FindTarget(std::string_view name);

// The instructions of int8 products: those of the target; VNNI, of AVX-512 or AVX-VNNI; or VNNI, and AMX for several
// rows.
enum class Int8Products : std::uint8_t { kSimd, kVnni, kAmx };
inline constexpr const char* kInt8ProductsNames[] = {"simd", "vnni", "amx"};

#if ONEGRU_ONLY_VNNI
inline constexpr Int8Products kMinInt8Products = Int8Products::kVnni;
#else
inline constexpr Int8Products kMinInt8Products = Int8Products::kSimd;
#endif

// Returns the best instructions that the build, the CPU and the system support for a target, within the limit.
Int8Products Int8ProductsOf(std::size_t target);
// Whether AMX computes int8 products, or bfloat16 products.
bool MayUseAmx(std::size_t target, bool of_bfloat16);
// Limits the instructions, for tests. bfloat16 products use AMX only without a limit. Throws std::invalid_argument if
// the build has no kernels for the limit.
void LimitInt8Products(Int8Products most);

// Returns the version of the Highway headers that onegru was compiled with, "major.minor.patch".
std::string HighwayVersion();

}  // namespace onegru

#endif  // ONEGRU_NATIVE_TARGETS_TARGETS_H_
