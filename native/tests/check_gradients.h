// Tests of native/gradients.h, part of check.cc.

#ifndef ONEGRU_NATIVE_TESTS_CHECK_GRADIENTS_H_
#define ONEGRU_NATIVE_TESTS_CHECK_GRADIENTS_H_

#include <cstddef>

namespace onegru {

// On a target, those of the problems that are of a type that is computed in: near differences of the plain loops, and
// the same bits with 1…3 threads.
void CheckGradients(std::size_t target, std::size_t problems);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_TESTS_CHECK_GRADIENTS_H_
