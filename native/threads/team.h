// Several threads work on one call, and none waits for a thread that the system does not run.
//
// Shares of a call (directions, groups of rows) are claimed. A helper touches the caller's memory only in windows:
// short periods between chunks of steps in which it reads the next inputs, and hands over the outputs and states of
// the steps that are done. The caller can take the share back at any time except in a window, and continues from the
// last hand-over; until it notices, the late helper writes to memory that nobody reads.
//
// Where the units of a step are split, one thread leads: it alone touches the caller's memory. Others join it for an
// epoch, in which all synchronize after each step, in memory of the epoch's own. If one is late, the leader ends the
// epoch, returns to the states before the step, and begins the next epoch with the threads that are there. The late
// one keeps writing to the old epoch's memory, up to one step ahead of the leader: so an epoch has four buffers for
// states, not two. It joins again when it is back.

#ifndef ONEGRU_NATIVE_THREADS_TEAM_H_
#define ONEGRU_NATIVE_THREADS_TEAM_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "native/assert.h"
#include "native/threads/threads.h"

namespace onegru {

// Who owns a share, and how far a helper has handed it over.
class Claim {
 public:
  // Where to continue: all rows before `begin` are done, those from there on up to `step`. `states` are theirs; null:
  // the initial ones, at step 0.
  struct Place {
    std::size_t begin = 0;
    std::size_t step = 0;
    const void* states = nullptr;
  };

  void Reset() {
    phase_.store(kFree, std::memory_order_relaxed);
    windows_.store(0, std::memory_order_relaxed);
    place_ = {};
  }

  // Claims the share if it is free.
  bool ByCaller() { return Change(kFree, kDone); }
  bool ByHelper() { return Change(kFree, kHelped); }

  // The helper's windows. False: the caller has taken the share back.
  bool Open() {
    MayStall();
    Window::Open();
    if (Change(kHelped, kOpen)) return true;
    Window::Close();
    return false;
  }
  void HandOver(const Place& place) { place_ = place; }
  void Close(bool done) {
    ONEGRU_COUNT(handed_over);
    windows_.fetch_add(1, std::memory_order_relaxed);
    phase_.store(done ? kDone : kHelped, std::memory_order_release);
    Window::Close();
    MayStall();
  }

  // The caller's side. The number of windows closed shows whether the helper makes progress.
  bool IsDone() const { return phase_.load(std::memory_order_acquire) == kDone; }
  std::uint32_t windows() const { return windows_.load(std::memory_order_relaxed); }
  // False: it is done. Otherwise place() is where to continue.
  bool TakeBack() {
    for (Spin spin; !Change(kHelped, kTaken); spin.OnceOrNap()) {
      if (IsDone()) return false;
    }
    ONEGRU_COUNT(taken_back);
    return true;
  }
  const Place& place() const { return place_; }

 private:
  enum Phase : std::uint32_t { kFree, kHelped, kOpen, kTaken, kDone };

  bool Change(std::uint32_t from, std::uint32_t to) {
    return phase_.compare_exchange_strong(from, to, std::memory_order_acq_rel);
  }

  alignas(64) std::atomic<std::uint32_t> phase_{kFree};
  std::atomic<std::uint32_t> windows_{0};
  Place place_;
};

// A run of steps that members take together.
class Epoch {
 public:
  unsigned char* scratch = nullptr;
  std::size_t begin = 0;  // the first of its rows
  std::size_t step = 0;   // where it begins
  std::size_t members = 1;
  // The step before which all leave, as others have come. The leader sets it before the last barrier.
  std::atomic<std::size_t> end_step{SIZE_MAX};

  // A barrier: returns when every member has arrived as often as this one, and makes what they wrote visible. False:
  // the epoch is over.
  bool ArriveAndWait(std::size_t member);
  // The leader's, member 0: false if a member is late, which ends the epoch.
  template <class Most>  // most() → how long to wait for them
  bool ArriveAndWaitAsLeader(Most&& most) {
    const std::uint32_t turn = NextTurn(0);
    std::size_t come = 0;
    for (int spins = 0; spins < kSpinsWithoutClock; ++spins) {
      if (AllHaveCome(turn, come)) return true;
      Spin::Pause();
    }
    for (SpinDeadline patience(most()); patience.Wait();) {
      if (AllHaveCome(turn, come)) return true;
    }
    ONEGRU_COUNT(late);
    End();
    return false;
  }
  void End() { over_.store(true, std::memory_order_release); }

 private:
  friend class Crew;
  static constexpr int kSpinsWithoutClock = 32;
  struct alignas(64) Turn {
    std::atomic<std::uint32_t> value{0};
  };

  void Begin(std::size_t count);
  std::uint32_t NextTurn(std::size_t member) {
    ONEGRU_ASSERT(member < members);
    const std::uint32_t turn = turns_[member].value.load(std::memory_order_relaxed) + 1;
    turns_[member].value.store(turn, std::memory_order_release);
    return turn;
  }
  // `come`: how many have been seen there, 0 at first. They are not looked at again, so that each member reads the line
  // of each other about once.
  bool AllHaveCome(std::uint32_t turn, std::size_t& come) const {
    for (; come < members; ++come) {
      if (static_cast<std::int32_t>(turns_[come].value.load(std::memory_order_acquire) - turn) < 0) return false;
    }
    return true;
  }

  alignas(64) std::atomic<bool> over_{false};
  std::atomic<std::size_t> users_{0};  // members in it, except the leader
  Turn turns_[kMaxThreads];
};

// The threads that have come to help a leader.
class Crew {
 public:
  static constexpr std::size_t kMaxEpochs = 4;

  void Reset(std::size_t seats, std::size_t most_members, std::size_t epochs, unsigned char* scratch, std::size_t each);

  // --- the leader

  std::size_t here() const { return here_.load(std::memory_order_relaxed); }
  // An epoch with all who are here, for the leader to prepare; null if nobody is, or late helpers occupy all epochs.
  Epoch* Gather();
  bool HasMemory() const { return FreeEpoch() != nullptr; }
  // Lets them begin.
  void Start();
  void Close() { closed_.store(true, std::memory_order_release); }

  // --- a helper

  // Joins epochs until the crew is closed. join(epoch, member)
  template <class Join>
  void Serve(std::size_t seat, Join&& join) {
    ONEGRU_REQUIRE(seat < seat_count_);
    Seat& mine = seats_[seat];
    for (;;) {
      MayStall();
      here_.fetch_add(1, std::memory_order_relaxed);
      mine.state.store(kHere, std::memory_order_release);
      for (Spin spin; mine.state.load(std::memory_order_acquire) != kIn; spin.Once()) {
        if (!closed_.load(std::memory_order_acquire)) continue;
        std::uint32_t expected = kHere;
        if (mine.state.compare_exchange_strong(expected, kAway, std::memory_order_acq_rel)) {
          here_.fetch_sub(1, std::memory_order_relaxed);
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
  enum State : std::uint32_t { kAway, kHere, kCalled, kIn };
  struct alignas(64) Seat {
    std::atomic<std::uint32_t> state{kAway};
    Epoch* epoch = nullptr;
    std::size_t member = 0;
  };

  Epoch* FreeEpoch() const;

  std::size_t seat_count_ = 0;
  std::size_t most_members_ = 1;
  std::size_t epochs_ = 0;
  std::atomic<bool> closed_{false};
  alignas(64) std::atomic<std::size_t> here_{0};
  Seat seats_[kMaxThreads];
  mutable Epoch epoch_[kMaxEpochs];
};

}  // namespace onegru

#endif  // ONEGRU_NATIVE_THREADS_TEAM_H_
