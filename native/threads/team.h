// How several threads work on one call. No thread waits for a thread that the system does not run.
//
// Threads claim work items of a call (directions, groups of rows). A helper accesses the caller's memory only in
// windows: short periods between chunks of steps, in which it reads the next inputs and commits the outputs and states
// of completed steps. The caller can reclaim the item at any time except in a window, and continues from the last
// checkpoint. Until the helper notices, it writes to memory that no other thread reads.
//
// If the units of a step are split, one thread is the leader, and only the leader accesses the caller's memory. Members
// join it for an epoch, in which all threads synchronize after each step, in the epoch's memory. If a member is late,
// the leader ends the epoch, returns to the states before the step, and forms the next epoch with the threads that are
// waiting. The late member keeps writing to the old epoch's memory, up to one step ahead of the leader, so an epoch has
// four buffers for states. It joins a later epoch.
//
//   Claim:  kFree → kDone                                   claimed and completed by the caller
//           kFree → kHelped ⇄ kOpen (a window) → kDone      claimed and completed by a helper
//                   kHelped → kReclaimed                    by the caller, outside windows
//   Seat:   kAbsent → kWaiting → kAssigned → kActive → kWaiting …     the leader assigns, then starts all at once
//           kWaiting → kAbsent                              when the crew is closed

#ifndef ONEGRU_NATIVE_THREADS_TEAM_H_
#define ONEGRU_NATIVE_THREADS_TEAM_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "native/assert.h"
#include "native/threads/threads.h"  // also MayStall and ONEGRU_COUNT, for tests

namespace onegru {

// The owner of a work item, and the last checkpoint of a helper.
class Claim {
 public:
  // Where to continue: all rows before `begin` are complete, and the selected rows from `begin` on up to `step`.
  // `states` are the states of these rows; null means the initial states, at step 0.
  struct Checkpoint {
    std::size_t begin = 0;
    std::size_t step = 0;
    const void* states = nullptr;
  };

  void Reset() {
    phase_.store(kFree, std::memory_order_relaxed);
    windows_.store(0, std::memory_order_relaxed);
    checkpoint_ = {};
  }

  // Claims the item if it is free.
  bool TryClaimForCaller() { return Change(kFree, kDone); }
  bool TryClaimForHelper() { return Change(kFree, kHelped); }

  // Opens a window of the helper. Returns false if the caller has reclaimed the item.
  bool OpenWindow() {
    MayStall();
    Window::Open();
    if (Change(kHelped, kOpen)) return true;
    Window::Close();
    return false;
  }
  void SetCheckpoint(const Checkpoint& checkpoint) { checkpoint_ = checkpoint; }
  void CloseWindow(bool done) {
    ONEGRU_COUNT(windows_closed);
    windows_.fetch_add(1, std::memory_order_relaxed);
    phase_.store(done ? kDone : kHelped, std::memory_order_release);
    Window::Close();
    MayStall();
  }

  // For the caller. The number of closed windows shows whether the helper makes progress.
  bool IsDone() const { return phase_.load(std::memory_order_acquire) == kDone; }
  std::uint32_t windows() const { return windows_.load(std::memory_order_relaxed); }
  // Returns false if the item is complete. Otherwise the caller continues from checkpoint().
  bool Reclaim() {
    for (Spin spin; !Change(kHelped, kReclaimed); spin.OnceOrNap()) {
      if (IsDone()) return false;
    }
    ONEGRU_COUNT(reclaimed);
    return true;
  }
  const Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  enum Phase : std::uint32_t { kFree, kHelped, kOpen, kReclaimed, kDone };

  bool Change(std::uint32_t from, std::uint32_t to) {
    return phase_.compare_exchange_strong(from, to, std::memory_order_acq_rel);
  }

  alignas(64) std::atomic<std::uint32_t> phase_{kFree};
  std::atomic<std::uint32_t> windows_{0};
  Checkpoint checkpoint_;
};

// A run of steps that the leader and its members compute together.
class Epoch {
 public:
  unsigned char* scratch = nullptr;
  std::size_t begin = 0;  // the first row
  std::size_t step = 0;   // the first step
  std::size_t members = 1;
  // The step before which the epoch ends, because more threads are waiting. The leader sets it before the last barrier.
  std::atomic<std::size_t> end_step{SIZE_MAX};

  // A barrier: returns when each member has arrived as often as this one, and makes their writes visible. Returns false
  // if the epoch is over.
  bool ArriveAndWait(std::size_t member);
  // The barrier for the leader, which is member 0. Returns false if a member is late, which ends the epoch.
  template <class Most>  // most() → the time to wait for members
  bool ArriveAndWaitAsLeader(Most&& most) {
    const std::uint32_t arrivals = CountArrival(0);
    std::size_t arrived = 0;
    for (int spins = 0; spins < kSpinsWithoutClock; ++spins) {
      if (AllArrived(arrivals, arrived)) return true;
      Spin::Pause();
    }
    for (SpinDeadline deadline(most()); deadline.Wait();) {
      if (AllArrived(arrivals, arrived)) return true;
    }
    ONEGRU_COUNT(late);
    End();
    return false;
  }
  void End() { over_.store(true, std::memory_order_release); }

 private:
  friend class Crew;
  static constexpr int kSpinsWithoutClock = 32;
  struct alignas(64) Arrivals {
    std::atomic<std::uint32_t> value{0};
  };

  void Begin(std::size_t count);
  std::uint32_t CountArrival(std::size_t member) {
    ONEGRU_ASSERT(member < members);
    const std::uint32_t arrivals = arrivals_[member].value.load(std::memory_order_relaxed) + 1;
    arrivals_[member].value.store(arrivals, std::memory_order_release);
    return arrivals;
  }
  // `arrived` counts the members that were seen, from 0. They are not checked again, so that each member reads the
  // cache line of each other member about once.
  bool AllArrived(std::uint32_t arrivals, std::size_t& arrived) const {
    for (; arrived < members; ++arrived) {
      if (static_cast<std::int32_t>(arrivals_[arrived].value.load(std::memory_order_acquire) - arrivals) < 0)
        return false;
    }
    return true;
  }

  alignas(64) std::atomic<bool> over_{false};
  std::atomic<std::size_t> users_{0};  // members in it, except the leader
  Arrivals arrivals_[kMaxThreads];
};

// The threads that help a leader.
class Crew {
 public:
  static constexpr std::size_t kMaxEpochs = 4;

  void Reset(std::size_t seats, std::size_t most_members, std::size_t epochs, unsigned char* scratch, std::size_t each);

  // --- the leader

  std::size_t waiting() const { return waiting_.load(std::memory_order_relaxed); }
  // Assigns all waiting threads to a new epoch, which the leader prepares. Null if none waits, or if late helpers
  // occupy all epochs.
  Epoch* FormEpoch();
  bool HasMemory() const { return FreeEpoch() != nullptr; }
  // Starts the assigned threads.
  void Start();
  void Close() { closed_.store(true, std::memory_order_release); }

  // --- a helper

  // Joins epochs until the crew is closed. join(epoch, member)
  template <class Join>
  void JoinEpochsUntilClosed(std::size_t seat, Join&& join) {
    ONEGRU_REQUIRE(seat < seat_count_);
    Seat& mine = seats_[seat];
    for (;;) {
      MayStall();
      waiting_.fetch_add(1, std::memory_order_relaxed);
      mine.state.store(kWaiting, std::memory_order_release);
      for (Spin spin; mine.state.load(std::memory_order_acquire) != kActive; spin.Once()) {
        if (!closed_.load(std::memory_order_acquire)) continue;
        std::uint32_t expected = kWaiting;
        if (mine.state.compare_exchange_strong(expected, kAbsent, std::memory_order_acq_rel)) {
          waiting_.fetch_sub(1, std::memory_order_relaxed);
          return;
        }
      }
      ONEGRU_COUNT(joined);
      Epoch& epoch = *mine.epoch;
      join(epoch, mine.member);
      epoch.users_.fetch_sub(1, std::memory_order_release);
    }
  }

 private:
  enum State : std::uint32_t { kAbsent, kWaiting, kAssigned, kActive };
  struct alignas(64) Seat {
    std::atomic<std::uint32_t> state{kAbsent};
    Epoch* epoch = nullptr;
    std::size_t member = 0;
  };

  Epoch* FreeEpoch() const;

  std::size_t seat_count_ = 0;
  std::size_t most_members_ = 1;
  std::size_t epochs_ = 0;
  std::atomic<bool> closed_{false};
  alignas(64) std::atomic<std::size_t> waiting_{0};
  Seat seats_[kMaxThreads];
  mutable Epoch epoch_[kMaxEpochs];
};

}  // namespace onegru

#endif  // ONEGRU_NATIVE_THREADS_TEAM_H_
