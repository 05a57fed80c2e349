// Tests of native/gradients.h, part of check.cc.

#ifndef ONEGRU_NATIVE_TESTS_CHECK_GRADIENTS_H_
#define ONEGRU_NATIVE_TESTS_CHECK_GRADIENTS_H_

#include <cstddef>

namespace onegru {

// Checks the gradients of problems in a compute type on a target. They must be near the difference quotients of plain
// loops, and have the same bits with 1…3 threads.
void CheckGradients(std::size_t target, std::size_t problems);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_TESTS_CHECK_GRADIENTS_H_
