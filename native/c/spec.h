// Checks the structures that a C program passes: the specification of a layer, and options.

#ifndef ONEGRU_NATIVE_C_SPEC_H_
#define ONEGRU_NATIVE_C_SPEC_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "native/c/onegru.h"
#include "native/problem.h"

namespace onegru {

// The size of a structure in the first version of onegru.h. No program passes a smaller one.
template <class Structure>
inline constexpr std::uint32_t kSmallest = 0;
template <>
inline constexpr std::uint32_t kSmallest<onegru_spec> =
    offsetof(onegru_spec, activations) + 4 * sizeof(onegru_activation);
template <>
inline constexpr std::uint32_t kSmallest<onegru_options> = offsetof(onegru_options, reserved) + sizeof(std::int32_t);
template <>
inline constexpr std::uint32_t kSmallest<onegru_call> = offsetof(onegru_call, Y_h) + sizeof(void*);

// No structure is larger. The limit rejects uninitialized sizes before CheckSize reads memory after the structure.
inline constexpr std::uint32_t kLargestSize = 4096;

// Throws InvalidArgument if a structure is null or has a wrong size, and Unsupported if a newer program has set a field
// that this library does not know.
void CheckSize(const char* name, const void* given, std::uint32_t smallest, std::uint32_t known);

// Returns the program's structure in this library's version. Fields that the program does not know are 0.
template <class Structure>
Structure Known(const char* name, const Structure* given) {
  CheckSize(name, given, kSmallest<Structure>, sizeof(Structure));
  Structure known{};
  std::memcpy(&known, given, std::min<std::size_t>(given->size, sizeof(known)));
  known.size = sizeof(known);
  return known;
}

// Throw InvalidArgument if a value is invalid.
Spec CheckedSpec(const onegru_spec& given);
void CheckOptions(const onegru_options& given);
Activation CheckedActivation(const onegru_activation& given);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_C_SPEC_H_
