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

// Programs that do not know flush_subnormals give less.
inline constexpr std::uint32_t kSmallestSpec = 144;

// Throws IllegalGru if a structure is null or too small, and Unsupported if a program that knows more of it than
// this library has set what this library does not know.
void CheckSize(const char* name, const void* given, std::uint32_t smallest, std::uint32_t known);

// A structure of a program that may know less of it, which is then 0, or more.
template <class Structure>
Structure Known(const char* name, const Structure* given, std::uint32_t smallest) {
  CheckSize(name, given, smallest, sizeof(Structure));
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
