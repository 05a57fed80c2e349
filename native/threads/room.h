// How many threads the CPUs have room for.

#ifndef ONEGRU_NATIVE_THREADS_ROOM_H_
#define ONEGRU_NATIVE_THREADS_ROOM_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace onegru {

// Looks in windows of time at how often the system has suspended a caller. A window in which it was too often leaves
// out twice as many threads as before, and more than there are, so that a busy machine is not tried again in each
// window; one in which it was not, half, so that a pause forgets.
class Room {
 public:
  // Of so many threads. preemptions() → how often the caller was suspended since it began; asked for once a window.
  template <class Count>
  std::size_t Of(std::size_t threads, std::chrono::steady_clock::time_point now, Count&& preemptions) {
    if (const auto passed = now - begin_; passed >= kWindow) {
      const std::size_t count = preemptions();
      // Fewer than before are another thread's: of the child of a fork.
      const std::size_t more = count < count_ ? 0 : count - count_;
      if (more * std::chrono::nanoseconds(kWindow) >= kMinPreemptions * passed) {
        left_out_ = std::min(2 * left_out_ + 1, kMaxLeftOut * threads);
      } else {
        left_out_ >>= std::min<std::int64_t>(passed / kWindow, kBits - 1);
      }
      begin_ = now;
      count_ = count;
    }
    return threads - std::min(left_out_, threads - 1);
  }

  // Measured on two CPUs: a caller is suspended 3 to 20 times a second where nothing else runs, 60 to 130 times beside
  // two or four busy processes.
  static constexpr std::chrono::milliseconds kWindow{100};
  static constexpr std::size_t kMinPreemptions = 5;

 private:
  static constexpr std::size_t kMaxLeftOut = 16;  // by threads
  static constexpr int kBits = std::numeric_limits<std::size_t>::digits;

  std::chrono::steady_clock::time_point begin_;
  std::size_t count_ = 0;
  std::size_t left_out_ = 0;
};

}  // namespace onegru

#endif  // ONEGRU_NATIVE_THREADS_ROOM_H_
