// What only some operating systems have: tests of it do nothing elsewhere.

#ifndef ONEGRU_NATIVE_TESTS_SYSTEM_H_
#define ONEGRU_NATIVE_TESTS_SYSTEM_H_

#include <cstddef>
#include <functional>

namespace onegru {

// Runs this in a forked child: false if it says false there, or takes a minute, as one that waits for a thread that it
// does not have. Where processes do not fork, runs nothing and is true.
bool InChild(const std::function<bool()>& run);

// The thread that makes it.
class ThisThread {
 public:
  ThisThread();
  // Leaves it the CPUs of the calling thread that are even, odd, or all, by n % 3. Linux only.
  void UseCpus(std::size_t n) const;

 private:
  unsigned long id_ = 0;
};

}  // namespace onegru

#endif  // ONEGRU_NATIVE_TESTS_SYSTEM_H_
