// The tests of native/threads/threads.h and native/threads/team.h, a part of check.cc: whoever computes what, and
// whoever stops meanwhile, the bits are the same, and nobody waits for ever.

#ifndef ONEGRU_NATIVE_TESTS_CHECK_THREADS_H_
#define ONEGRU_NATIVE_TESTS_CHECK_THREADS_H_

#include <cstddef>

namespace onegru {

// While it lives, helpers stop for a moment at random.
class Stalling {
 public:
  Stalling();
  ~Stalling();
  Stalling(const Stalling&) = delete;
  Stalling& operator=(const Stalling&) = delete;
};

void CheckThreads(std::size_t target, std::size_t problems);

// So many calls of each kind: helpers that stop; a foreign pool of one thread; tasks one after another; 8 callers
// at once; other numbers of threads and other CPUs meanwhile; forks meanwhile. Ends the process if none comes to
// its end for a minute.
void CheckCalls(std::size_t calls);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_TESTS_CHECK_THREADS_H_
