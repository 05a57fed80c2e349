// Threads and locks. WebAssembly has one thread, and its C++ library has neither threads nor locks.

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
// Gives the CPU to other threads of any priority. Disables cancellation of the sleeping thread, because noexcept
// functions call Nap, and other threads wait for it.
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

// Blocks this thread's signals for its lifetime. Threads that it starts meanwhile inherit this, so that signal handlers
// run on the program's threads. Signals that a thread causes itself are not blocked, so that crashes are reported.
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

// Starts a detached thread with blocked signals. Returns false if the system has no memory or cannot start a thread.
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
