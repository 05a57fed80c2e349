// What only some operating systems have: tests of it do nothing elsewhere.

#ifndef ONEGRU_NATIVE_TESTS_SYSTEM_H_
#define ONEGRU_NATIVE_TESTS_SYSTEM_H_

#include <cstddef>
#include <functional>

namespace onegru {

#if defined(_WIN32)
inline constexpr bool kForks = false;
#else
inline constexpr bool kForks = true;
#endif

// Runs this in a forked child: false if it says false there, or takes a minute, as one that waits for a thread that it
// does not have. Where processes do not fork, runs nothing and is true.
bool InChild(const std::function<bool()>& run);

// What lets this thread use the CPUs of the one that calls it that are even, odd, or all, by n % 3. Linux only.
std::function<void(std::size_t)> CpusOfThisThread();

}  // namespace onegru

#endif  // ONEGRU_NATIVE_TESTS_SYSTEM_H_
