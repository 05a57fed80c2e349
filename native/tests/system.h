// What only some operating systems have: tests of it do nothing elsewhere.

#ifndef ONEGRU_NATIVE_TESTS_SYSTEM_H_
#define ONEGRU_NATIVE_TESTS_SYSTEM_H_

#include <cstddef>
#include <functional>

namespace onegru {

#if defined(_WIN32) || defined(__wasi__)
inline constexpr bool kForks = false;
#else
inline constexpr bool kForks = true;
#endif

// WebAssembly, as `make wasm` builds for it, has one thread, and 32 bits; what is thrown there ends the process.
#if defined(__wasi__)
inline constexpr bool kHasThreads = false, kHasExceptions = false;
#else
inline constexpr bool kHasThreads = true, kHasExceptions = true;
#endif

// Runs body(0) … body(count - 1), each on a thread of its own, and waits for them; one after another where there is one
// thread.
void OnThreads(std::size_t count, const std::function<void(std::size_t)>& body);

// Runs this in a forked child: false if it says false there, or takes so long, as one that waits for a thread that it
// does not have. Where processes do not fork, runs nothing and is true.
bool InChild(const std::function<bool()>& run, unsigned seconds = 60);

// Makes this thread like one of an audio host: it runs on one CPU, with real-time priority where that is allowed.
// Linux only.
void BecomeAudioThread();

// Whether this thread is set up as a worker must be, no matter which thread started it: all signals are blocked but
// those of crashes, the priority is the usual one, and the CPUs are those of the main thread. True elsewhere.
bool IsUsualWorker();

// ThreadSanitizer lets no child of a process with threads start any.
#if defined(__SANITIZE_THREAD__)
inline constexpr std::size_t kThreadsOfChildren = 1;
#else
inline constexpr std::size_t kThreadsOfChildren = 2;
#endif

// What lets this thread use the CPUs of the one that calls it that are even, odd, or all, by n % 3. Linux only.
std::function<void(std::size_t)> CpusOfThisThread();

}  // namespace onegru

#endif  // ONEGRU_NATIVE_TESTS_SYSTEM_H_
