// Tests of native/threads, part of check.cc: whichever thread computes what, and whichever is suspended meanwhile, the
// bits are the same, and nobody waits forever.

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

// Forks at any moment of a process's first call. Before all other calls, which would be the first.
void CheckFirstCalls();

void CheckThreads(std::size_t target, std::size_t problems);

// This many calls of each kind: helpers that pause; another runtime's pool of one thread; tasks one after another; 8
// callers at once; changing numbers of threads and CPUs; forks. Ends the process if no call finishes for a minute.
void CheckCalls(std::size_t calls);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_TESTS_CHECK_THREADS_H_
