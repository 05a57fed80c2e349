// Threads and locks of the C++ library. WebAssembly has one thread, and its C++ library neither.

#ifndef ONEGRU_NATIVE_SYSTEM_THREADS_H_
#define ONEGRU_NATIVE_SYSTEM_THREADS_H_

#if !defined(_WIN32) && !defined(__wasi__)
#include <pthread.h>
#include <signal.h>
#endif

#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace onegru::system {

#if defined(__wasi__)
struct Mutex {
  void lock() noexcept {}
  void unlock() noexcept {}
};
inline void Yield() noexcept {}
inline void Nap(std::chrono::microseconds) noexcept {}
#else
using Mutex = std::mutex;
inline void Yield() noexcept { std::this_thread::yield(); }
// Lets other threads of any priority have the CPU. A thread that sleeps can be cancelled, and this one must not be: it
// is within functions that throw nothing, and others wait for it.
inline void Nap(std::chrono::microseconds time) noexcept {
#if !defined(_WIN32)
  int before = 0;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
#endif
  std::this_thread::sleep_for(time);
#if !defined(_WIN32)
  pthread_setcancelstate(before, &before);
#endif
}
#endif

// Blocks this thread's signals for its lifetime, and so those of the threads that it starts meanwhile: a program's
// handlers run on its own threads. Those that a thread causes itself stay, so that a crash is reported as one.
class SignalBlock {
#if !defined(_WIN32) && !defined(__wasi__)
 public:
  SignalBlock() noexcept {
    sigset_t most;
    sigfillset(&most);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) sigdelset(&most, own);
    pthread_sigmask(SIG_BLOCK, &most, &before_);
  }
  ~SignalBlock() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalBlock(const SignalBlock&) = delete;
  SignalBlock& operator=(const SignalBlock&) = delete;

 private:
  sigset_t before_;
#endif
};

// Starts a thread that nobody joins, its signals blocked; false if the system can start no more, or has no memory for
// it.
template <class Body>
bool StartThread([[maybe_unused]] Body&& body) noexcept {
#if defined(__wasi__)
  return false;
#else
  try {
    [[maybe_unused]] const SignalBlock block;
    std::thread(std::forward<Body>(body)).detach();
    return true;
  } catch (const std::exception&) {
    return false;
  }
#endif
}

}  // namespace onegru::system

#endif  // ONEGRU_NATIVE_SYSTEM_THREADS_H_
