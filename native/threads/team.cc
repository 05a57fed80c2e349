#include "native/threads/team.h"

namespace onegru {

void Epoch::Begin(std::size_t count) {
  ONEGRU_REQUIRE(count <= kMaxThreads);
  members = count;
  end_step.store(SIZE_MAX, std::memory_order_relaxed);
  over_.store(false, std::memory_order_relaxed);
  users_.store(count - 1, std::memory_order_relaxed);
  for (std::size_t i = 0; i < count; ++i) arrivals_[i].value.store(0, std::memory_order_relaxed);
}

bool Epoch::ArriveAndWait(std::size_t member) {
  MayStall();
  const std::uint32_t arrivals = CountArrival(member);
  std::size_t arrived = 0;
  for (Spin spin; !AllArrived(arrivals, arrived); spin.Once()) {
    if (over_.load(std::memory_order_acquire)) return false;
  }
  return !over_.load(std::memory_order_acquire);
}

void Crew::Reset(std::size_t seats, std::size_t most_members, std::size_t epochs, unsigned char* scratch,
                 std::size_t each) {
  ONEGRU_REQUIRE(seats <= kMaxThreads && most_members <= kMaxThreads && epochs <= kMaxEpochs);
  seat_count_ = seats;
  most_members_ = most_members;
  epochs_ = epochs;
  for (std::size_t i = 0; i < epochs; ++i) epoch_[i].scratch = scratch + i * each;
  closed_.store(false, std::memory_order_relaxed);
}

Epoch* Crew::FreeEpoch() const {
  for (std::size_t i = 0; i < epochs_; ++i) {
    if (epoch_[i].users_.load(std::memory_order_acquire) == 0) return &epoch_[i];
  }
  return nullptr;
}

Epoch* Crew::FormEpoch() {
  Epoch* const free = FreeEpoch();
  if (free == nullptr) return nullptr;
  std::size_t members = 1;
  for (std::size_t i = 0; i < seat_count_ && members < most_members_ && waiting() != 0; ++i) {
    std::uint32_t expected = kWaiting;
    if (!seats_[i].state.compare_exchange_strong(expected, kAssigned, std::memory_order_acquire)) continue;
    waiting_.fetch_sub(1, std::memory_order_relaxed);
    seats_[i].epoch = free;
    seats_[i].member = members++;
  }
  if (members == 1) return nullptr;
  free->Begin(members);
  return free;
}

void Crew::Start() {
  for (std::size_t i = 0; i < seat_count_; ++i) {
    std::atomic<std::uint32_t>& state = seats_[i].state;
    if (state.load(std::memory_order_relaxed) == kAssigned) state.store(kActive, std::memory_order_release);
  }
}

}  // namespace onegru
