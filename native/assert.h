// What no caller can cause, looked at all the same.
//
// ONEGRU_ASSERT stands in the builds of tests and of this machine alone (CMakeLists.txt), ONEGRU_REQUIRE in all: where
// memory beyond an array would be written, and a look costs nothing beside what follows. Both end the process with the
// place, as whatever came next would be worse.

#ifndef ONEGRU_NATIVE_ASSERT_H_
#define ONEGRU_NATIVE_ASSERT_H_

#include <cstdio>
#include <cstdlib>

namespace onegru {

[[noreturn]] inline void FailAssertion(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "onegru: %s:%d: not so: %s\n", file, line, condition);
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
