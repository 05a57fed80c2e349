// The specification of a layer as programs in C give it, checked.

#ifndef ONEGRU_NATIVE_C_SPEC_H_
#define ONEGRU_NATIVE_C_SPEC_H_

#include "native/c/onegru.h"
#include "native/problem.h"

namespace onegru {

// Throw IllegalGru.
Spec CheckedSpec(const onegru_spec& given);
Activation CheckedActivation(const onegru_activation& given);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_C_SPEC_H_
