// Checks of internal invariants that no caller can violate.
//
// ONEGRU_ASSERT is compiled only into test builds and builds for one machine (CMakeLists.txt). ONEGRU_REQUIRE is
// always compiled: it guards against out-of-bounds writes, where the check costs nothing compared with the work. Both
// print the location and end the process.

#ifndef ONEGRU_NATIVE_ASSERT_H_
#define ONEGRU_NATIVE_ASSERT_H_

#include <cstdio>
#include <cstdlib>

namespace onegru {

[[noreturn]] inline void FailAssertion(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "onegru: %s:%d: assertion failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace onegru

#define ONEGRU_REQUIRE(condition) \
  ((condition) ? static_cast<void>(0) : ::onegru::FailAssertion(#condition, __FILE__, __LINE__))
#if ONEGRU_ASSERTIONS
#define ONEGRU_ASSERT(condition) ONEGRU_REQUIRE(condition)
#else
#define ONEGRU_ASSERT(condition) static_cast<void>(0)
#endif

#endif  // ONEGRU_NATIVE_ASSERT_H_
