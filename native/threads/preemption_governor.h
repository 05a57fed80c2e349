// Reduces the number of threads while other processes compete for the CPUs.

#ifndef ONEGRU_NATIVE_THREADS_PREEMPTION_GOVERNOR_H_
#define ONEGRU_NATIVE_THREADS_PREEMPTION_GOVERNOR_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace onegru {

// Counts in time intervals how often the system has suspended a caller. After an interval with too many preemptions,
// calls use fewer threads: the number of unused threads doubles, and may exceed the number of threads, so that onegru
// does not try again in each interval. After an interval with few preemptions, it halves.
class PreemptionGovernor {
 public:
  // Returns how many of `threads` to use. preemptions() returns how often the caller was suspended since it began, and
  // is called once per interval.
  template <class Count>
  std::size_t UsableThreads(std::size_t threads, std::chrono::steady_clock::time_point now, Count&& preemptions) {
    if (const auto passed = now - begin_; passed >= kInterval) {
      const std::size_t count = preemptions();
      // The count falls only in the child of a fork, where another thread is the caller.
      const std::size_t more = count < count_ ? 0 : count - count_;
      if (more * std::chrono::nanoseconds(kInterval) >= kMinPreemptions * passed) {
        unused_ = std::min(2 * unused_ + 1, kMaxUnused * threads);
      } else {
        unused_ >>= std::min<std::int64_t>(passed / kInterval, kBits - 1);
      }
      begin_ = now;
      count_ = count;
    }
    return threads - std::min(unused_, threads - 1);
  }

  // Measured on two CPUs: a caller is suspended 3 to 20 times a second if nothing else runs, and 60 to 130 times if two
  // or four other processes are busy.
  static constexpr std::chrono::milliseconds kInterval{100};
  static constexpr std::size_t kMinPreemptions = 5;

 private:
  static constexpr std::size_t kMaxUnused = 16;  // times the number of threads
  static constexpr int kBits = std::numeric_limits<std::size_t>::digits;

  std::chrono::steady_clock::time_point begin_;
  std::size_t count_ = 0;
  std::size_t unused_ = 0;
};

}  // namespace onegru

#endif  // ONEGRU_NATIVE_THREADS_PREEMPTION_GOVERNOR_H_
