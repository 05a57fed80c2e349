// The specification of a layer as programs in C give it, checked.

#ifndef ONEGRU_NATIVE_C_SPEC_H_
#define ONEGRU_NATIVE_C_SPEC_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "native/c/onegru.h"
#include "native/problem.h"

namespace onegru {

// The size of a structure as its first version had it: no program gives less.
template <class Structure>
inline constexpr std::uint32_t kSmallest = 0;
template <>
inline constexpr std::uint32_t kSmallest<onegru_spec> =
    offsetof(onegru_spec, activations) + 4 * sizeof(onegru_activation);
template <>
inline constexpr std::uint32_t kSmallest<onegru_options> = offsetof(onegru_options, reserved) + sizeof(std::int32_t);
template <>
inline constexpr std::uint32_t kSmallest<onegru_call> = offsetof(onegru_call, Y_h) + sizeof(void*);

// No version's structure is larger, so that a size that was never set is refused before such memory is read.
inline constexpr std::uint32_t kLargestSize = 4096;

// Throws IllegalGru if a structure is null or has a wrong size, and Unsupported if a newer program has set a field that
// this library does not know.
void CheckSize(const char* name, const void* given, std::uint32_t smallest, std::uint32_t known);

// A program's structure as this library knows it. Fields that the program does not know are 0.
template <class Structure>
Structure Known(const char* name, const Structure* given) {
  CheckSize(name, given, kSmallest<Structure>, sizeof(Structure));
  Structure known{};
  std::memcpy(&known, given, std::min<std::size_t>(given->size, sizeof(known)));
  known.size = sizeof(known);
  return known;
}

// Throw IllegalGru.
Spec CheckedSpec(const onegru_spec& given);
void CheckOptions(const onegru_options& given);
Activation CheckedActivation(const onegru_activation& given);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_C_SPEC_H_
