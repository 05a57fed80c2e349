// Features of some operating systems. Their tests do nothing on other systems.

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

// WebAssembly, as built by `make wasm`, has one thread and 32 bits. An exception ends the process.
#if defined(__wasi__)
inline constexpr bool kHasThreads = false, kHasExceptions = false;
#else
inline constexpr bool kHasThreads = true, kHasExceptions = true;
#endif

// Runs body(0) … body(count - 1), each on a separate thread, and waits for them. On systems with one thread, runs them
// one after another.
void OnThreads(std::size_t count, const std::function<void(std::size_t)>& body);

// Runs a function in a forked child. Returns false if the function does, or if it runs for more than `seconds`, for
// example because it waits for a thread that a child lacks. Does nothing, and returns true, on systems without fork.
bool InChild(const std::function<bool()>& run, unsigned seconds = 60);

// Runs this program in a child with two arguments. There glibc maps each large block separately, so that an access to a
// freed block crashes. Returns whether it succeeds. Does nothing, and returns true, on systems other than Linux.
bool RunThisProgram(const char* option, const char* value);

// Makes this thread like one of an audio host: it runs on one CPU, with real-time priority if that is allowed. Only on
// Linux.
void BecomeAudioThread();

// Whether this thread is set up like a worker, regardless of the thread that started it: all signals except those of
// crashes are blocked, the priority is the usual one, and the affinity is the main thread's. True on other systems.
bool IsUsualWorker();

// With ThreadSanitizer, a child of a process with threads cannot start threads.
#if defined(__SANITIZE_THREAD__)
inline constexpr std::size_t kThreadsOfChildren = 1;
#else
inline constexpr std::size_t kThreadsOfChildren = 2;
#endif

// Returns a function that gives this thread the even, odd or all CPUs of its caller, by n % 3. Only on Linux.
std::function<void(std::size_t)> CpusOfThisThread();

}  // namespace onegru

#endif  // ONEGRU_NATIVE_TESTS_SYSTEM_H_
