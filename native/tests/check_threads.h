// Tests of native/threads, part of check.cc. The bits must not depend on the threads that compute them or are
// suspended, and no thread may wait forever.

#ifndef ONEGRU_NATIVE_TESTS_CHECK_THREADS_H_
#define ONEGRU_NATIVE_TESTS_CHECK_THREADS_H_

#include <cstddef>

namespace onegru {

// For its lifetime, helpers pause briefly at random.
class Stalling {
 public:
  Stalling();
  ~Stalling();
  Stalling(const Stalling&) = delete;
  Stalling& operator=(const Stalling&) = delete;
};

// Forks at any moment of a process's first call. Run this test before all other calls.
void CheckFirstCalls();

// Makes a call, and another one in an exit handler, when the main thread's thread-local objects are destroyed. Returns
// the exit code.
int CallAtExit(std::size_t threads);

void CheckThreads(std::size_t target, std::size_t problems);

// Runs `calls` calls in each way: helpers that pause; another runtime's pool of one thread; tasks one after another; 8
// concurrent callers; changing numbers of threads and CPUs; forks. Ends the process if no call finishes for a minute.
void CheckCalls(std::size_t calls);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_TESTS_CHECK_THREADS_H_
