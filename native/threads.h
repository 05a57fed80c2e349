// Threads that stay: started when first needed, spinning for a moment after a call, then asleep.
//
// Several callers share them. A caller gets as many as are free, down to none: how many there are
// never changes a result. A forked child starts with none and makes its own.

#ifndef ONEGRU_NATIVE_THREADS_H_
#define ONEGRU_NATIVE_THREADS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace onegru {

// How many threads a call may use, its own included; at least 1.
std::size_t NumThreads();
void SetNumThreads(std::size_t count);

// A function for each rank of a team.
class Work {
 public:
  virtual void Run(std::size_t rank) = 0;
  // Called now and then by rank 0 while it waits for the others.
  virtual void WhileWaiting() = 0;

 protected:
  ~Work() = default;
};

// Threads lent to a caller, for as long as this lives.
class Team {
 public:
  enum class Sleepers {
    kWake,   // they take part
    kNudge,  // they are woken, but not waited for: the next call finds them awake
    kLeave,
  };
  // Asks for `wanted` threads, the caller's own included.
  Team(std::size_t wanted, Sleepers sleepers);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // The threads that there are, the caller's own included.
  std::size_t size() const { return size_; }

  // Runs work on each rank, the caller being rank 0, and returns when all are done.
  void Run(Work& work);

 private:
  std::size_t size_ = 1;
  struct Worker** workers_ = nullptr;
  void* pool_ = nullptr;
};

// A meeting point of a few threads, each at its own rank, again and again.
class Barrier {
 public:
  static constexpr std::size_t kMost = 64;

  void Reset(std::size_t count);
  // Returns when every rank has come as often as this one; what they wrote before is then visible.
  void Wait(std::size_t rank);

 private:
  struct alignas(64) Counter {
    std::atomic<std::uint32_t> value{0};
  };
  std::size_t count_ = 1;
  Counter counters_[kMost];
};

}  // namespace onegru

#endif  // ONEGRU_NATIVE_THREADS_H_
