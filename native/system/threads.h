// Threads and locks of the C++ library. WebAssembly has one thread, and its C++ library neither.

#ifndef ONEGRU_NATIVE_SYSTEM_THREADS_H_
#define ONEGRU_NATIVE_SYSTEM_THREADS_H_

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
// Leaves the CPU to others, of whatever priority.
inline void Nap(std::chrono::microseconds time) noexcept { std::this_thread::sleep_for(time); }
#endif

// Starts a thread that nobody joins; false if the system can start no more, or has no memory for it.
template <class Body>
bool StartThread([[maybe_unused]] Body&& body) noexcept {
#if defined(__wasi__)
  return false;
#else
  try {
    std::thread(std::forward<Body>(body)).detach();
    return true;
  } catch (const std::exception&) {
    return false;
  }
#endif
}

}  // namespace onegru::system

#endif  // ONEGRU_NATIVE_SYSTEM_THREADS_H_
