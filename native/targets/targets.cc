// Collects the kernels of all SIMD targets. Compiled once for each SIMD target: foreach_target.h includes this file
// repeatedly with another HWY_TARGET. The part after HWY_ONCE is compiled once, at the end.

#include "native/targets/targets.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <initializer_list>
#include <stdexcept>

#undef HWY_TARGET_INCLUDE
// Without the folder, foreach_target.h would find Highway's targets.cc first.
#define HWY_TARGET_INCLUDE "native/targets/targets.cc"
#include "hwy/foreach_target.h"  // before highway.h: it chooses the target that highway.h sets up

#include "hwy/highway.h"

// In this block, the compiler may use the target's instructions anywhere. An initializer would run at load time on
// every CPU, so the block has only constexpr objects and plain functions.
HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {

constexpr bool kNativeFma = HWY_NATIVE_FMA != 0;

std::size_t VectorBytes() {
  namespace hn = hwy::HWY_NAMESPACE;
  return hn::Lanes(hn::ScalableTag<std::uint8_t>());
}

}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#if HWY_ARCH_X86 && defined(_MSC_VER)
#include <intrin.h>
#elif HWY_ARCH_X86
#include <cpuid.h>
#endif
#if HWY_ARCH_ARM_A64 && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "native/system/system.h"
#include "native/targets/target_list.h"

namespace onegru {
namespace {

#define ONEGRU_ENTRY(ns, bit, name) {name, bit, ns::kNativeFma, &ns::VectorBytes},
constexpr Target kTargets[] = {ONEGRU_FOR_EACH_TARGET(ONEGRU_ENTRY)};
#undef ONEGRU_ENTRY

constexpr std::int64_t AllBits() {
  std::int64_t bits = 0;
  for (const Target& target : kTargets) bits |= target.bit;
  return bits;
}
static_assert((AllBits() & HWY_STATIC_TARGET) != 0, "target_list.h must list the target that every CPU can run");

#if HWY_ARCH_X86
// Returns EAX, EBX, ECX and EDX.
[[maybe_unused]] std::array<unsigned, 4> Cpuid(unsigned leaf, unsigned subleaf = 0) {
  std::array<unsigned, 4> registers{};
#if defined(_MSC_VER)
  __cpuidex(reinterpret_cast<int*>(registers.data()), static_cast<int>(leaf), static_cast<int>(subleaf));
#else
  __get_cpuid_count(leaf, subleaf, &registers[0], &registers[1], &registers[2], &registers[3]);
#endif
  return registers;
}
#endif

// Returns the targets that the CPU supports. On Linux, it uses the rules of hwy/targets.cc, because programs would need
// the distribution's shared libhwy only for this function.
std::int64_t CpuTargets() {
#if defined(__linux__) && HWY_ARCH_X86
  const auto has = [](unsigned word, std::initializer_list<int> bits) {
    return std::all_of(bits.begin(), bits.end(), [&](int bit) { return (word >> bit & 1) != 0; });
  };
  const unsigned first = Cpuid(1)[2], extended = Cpuid(0x80000001u)[2], seventh = Cpuid(7)[1];
  std::int64_t found = 0;
#if defined(HWY_SSE2)  // not in old versions of Highway
  found = HWY_SSE2;
#endif
  if (!has(first, {0, 1, 9, 19, 20, 25})) return found;  // SSE3, CLMUL, SSSE3, SSE4.1, SSE4.2, AES
  found |= HWY_SSE4;
  if (!has(first, {26, 27})) return found;  // XSAVE, OSXSAVE: xgetbv works
  unsigned saved, high;
  asm volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  // FMA, AVX, F16C; LZCNT; BMI, AVX2, BMI2
  if (!has(saved, {1, 2}) || !has(first, {12, 28, 29}) || !has(extended, {5}) || !has(seventh, {3, 5, 8})) return found;
  found |= HWY_AVX2;
  if (has(saved, {5, 6, 7}) && has(seventh, {16, 17, 28, 30, 31})) found |= HWY_AVX3;  // F, DQ, CD, BW, VL
  return found;
#elif defined(__linux__) && HWY_ARCH_ARM_A64
  constexpr unsigned long kAes = 1 << 3;
  std::int64_t found = (getauxval(AT_HWCAP) & kAes) != 0 ? HWY_NEON : 0;
#if defined(HWY_NEON_WITHOUT_AES)
  found |= HWY_NEON_WITHOUT_AES;
#endif
  return found;
#else
  return hwy::SupportedTargets();
#endif
}

// The first call detects the features below, without a lock: a child that is forked meanwhile would inherit a lock that
// no thread releases. Initializers do not detect them, because a program that links the static library may create a
// layer in an earlier initializer.

// Detected once, because another library may change Highway's answer later. In a build for every target, the rest of
// this file is compiled for the static target, so that this CPU must support it.
std::int64_t SupportedBits() {
  static constinit std::atomic<std::int64_t> known{0};
  std::int64_t bits = known.load(std::memory_order_relaxed);
  if (bits == 0) {
    bits = CpuTargets() | (kIsNative ? 0 : HWY_STATIC_TARGET);
    known.store(bits, std::memory_order_relaxed);
  }
  return bits;
}

std::size_t BestIndex() {
  std::size_t index = 0;
  while (index + 1 < std::size(kTargets) && !IsAvailable(kTargets[index])) ++index;
  return index;
}

constexpr std::size_t kNotChosen = SIZE_MAX;
constinit std::atomic<std::size_t> g_chosen{kNotChosen};

constinit std::atomic<Int8Products> g_most_int8_products{Int8Products::kAmx};

// The bits of targets with VNNI on this CPU, and with AMX for int8 and for bfloat16. IsAvailable checks the vectors,
// and whether the system saves their registers.
struct BitsOfInt8 {
  std::int64_t vnni = 0, amx = 0, amx_of_bfloat16 = 0;
};

BitsOfInt8 FindBitsOfInt8() {
  BitsOfInt8 bits;
#if HWY_ARCH_X86 && !ONEGRU_WITHOUT_VNNI
  const std::array<unsigned, 4> first = Cpuid(7);
  if ((first[2] >> 11 & 1) != 0) bits.vnni |= HWY_AVX3;
#if ONEGRU_EMULATED_AMX
  bits.amx = bits.amx_of_bfloat16 = bits.vnni;
#elif ONEGRU_AMX
  if ((first[3] >> 24 & 3) == 3) bits.amx = bits.vnni;  // tiles, and int8 products
  if ((first[3] >> 22 & 5) == 5) bits.amx_of_bfloat16 = HWY_AVX3;
#endif
#if ONEGRU_VNNI_AS_EVEX
  if ((bits.vnni & SupportedBits()) != 0) bits.vnni |= HWY_AVX2;
#elif ONEGRU_AVX_VNNI
  if (first[0] >= 1 && (Cpuid(7, 1)[0] >> 4 & 1) != 0) bits.vnni |= HWY_AVX2;
#endif
#endif
  return bits;
}

BitsOfInt8 KnownBitsOfInt8() {
  constexpr std::int64_t kUnknown = -1;
  static constinit std::atomic<std::int64_t> vnni{kUnknown}, amx{0}, amx_of_bfloat16{0};
  if (const std::int64_t known = vnni.load(std::memory_order_acquire); known != kUnknown) {
    return {known, amx.load(std::memory_order_relaxed), amx_of_bfloat16.load(std::memory_order_relaxed)};
  }
  const BitsOfInt8 found = FindBitsOfInt8();
  amx.store(found.amx, std::memory_order_relaxed);
  amx_of_bfloat16.store(found.amx_of_bfloat16, std::memory_order_relaxed);
  vnni.store(found.vnni, std::memory_order_release);
  return found;
}

// Requests AMX only when needed, because the system then rejects small signal stacks. Thread-safe.
bool MayUseTiles() {
#if ONEGRU_EMULATED_AMX
  return true;
#else
  enum Answer : int { kNone, kYes, kNo };
  static constinit std::atomic<Answer> known{kNone};
  Answer answer = known.load(std::memory_order_relaxed);
  if (answer == kNone) known.store(answer = system::AllowTiles() ? kYes : kNo, std::memory_order_relaxed);
  return answer == kYes;
#endif
}

[[noreturn]] void ThrowNoSuchTarget(std::string_view name, const char* reason) {
  std::string message = "SIMD target \"" + std::string(name) + "\" " + reason + "; available here:";
  const char* separator = " ";
  for (const Target& target : kTargets) {
    if (!IsAvailable(target)) continue;
    message.append(separator).append(target.name);
    separator = ", ";
  }
  throw std::invalid_argument(message);
}

std::size_t FindIndex(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kTargets); ++i) {
    if (name != kTargets[i].name) continue;
    if (!IsAvailable(kTargets[i])) ThrowNoSuchTarget(name, "cannot run on this CPU");
    return i;
  }
  ThrowNoSuchTarget(name, "is not in this build");
}

}  // namespace

void CheckCpu() {
  if constexpr (!kIsNative) return;
  constexpr Target target = kTargets[0];
  bool is_there = IsAvailable(target);
  std::string needed = target.name;
#if ONEGRU_ONLY_VNNI
  is_there &= (KnownBitsOfInt8().vnni & target.bit) != 0;
  needed += " with VNNI";
#endif
  if (is_there) return;
  throw Unsupported("onegru was built for the SIMD target " + needed + " only, which this CPU does not have; " +
                    "build it on this CPU: `make clean` before `make run` or `make test`; or for every CPU: " +
                    "`pip install .`, or CMake with -DONEGRU_TARGETS=all");
}

std::span<const Target> CompiledTargets() { return kTargets; }

bool IsAvailable(const Target& target) { return (SupportedBits() & target.bit) != 0; }

std::size_t ChosenTargetIndex() {
  std::size_t chosen = g_chosen.load(std::memory_order_relaxed);
  if (chosen != kNotChosen) return chosen;
  const std::size_t best = BestIndex();
  return g_chosen.compare_exchange_strong(chosen, best, std::memory_order_relaxed) ? best : chosen;
}

std::size_t SelectTarget(std::optional<std::string_view> name) {
  const std::size_t index = name ? FindIndex(*name) : BestIndex();
  g_chosen.store(index, std::memory_order_relaxed);
  return index;
}

const Target& FindTarget(std::string_view name) { return kTargets[FindIndex(name)]; }

Int8Products Int8ProductsOf(std::size_t target) {
  const BitsOfInt8 bits = KnownBitsOfInt8();
  const std::int64_t bit = kTargets[target].bit;
  const Int8Products most = g_most_int8_products.load(std::memory_order_relaxed);
  if (most == Int8Products::kAmx && (bits.amx & bit) != 0 && MayUseTiles()) return Int8Products::kAmx;
  return std::min((bits.vnni & bit) != 0 ? Int8Products::kVnni : Int8Products::kSimd, most);
}

bool MayUseAmx(std::size_t target, bool of_bfloat16) {
  if (!of_bfloat16) return Int8ProductsOf(target) == Int8Products::kAmx;
  return g_most_int8_products.load(std::memory_order_relaxed) == Int8Products::kAmx &&
         (KnownBitsOfInt8().amx_of_bfloat16 & kTargets[target].bit) != 0 && MayUseTiles();
}

void LimitInt8Products(Int8Products most) {
  if (most < kMinInt8Products) throw std::invalid_argument("most: simd; this build has only kernels that need VNNI");
  g_most_int8_products.store(most, std::memory_order_relaxed);
}

std::string HighwayVersion() {
  return std::to_string(HWY_MAJOR) + "." + std::to_string(HWY_MINOR) + "." + std::to_string(HWY_PATCH);
}

}  // namespace onegru

#endif  // HWY_ONCE
