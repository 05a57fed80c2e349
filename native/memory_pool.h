// Memory that is used again: for large arrays that calls make, as fresh pages cost more than the arithmetic.
//
// What is freed is kept, up to a bound, for the next array of about that size. What nobody has asked for in a
// while goes back to the system when memory is next asked for or freed, or at once by Release.

#ifndef ONEGRU_NATIVE_MEMORY_POOL_H_
#define ONEGRU_NATIVE_MEMORY_POOL_H_

#include <chrono>
#include <cstddef>
#include <mutex>

namespace onegru {

class MemoryPool {
 public:
  static constexpr std::size_t kMostBytesKept = 64 << 20;
  static constexpr std::size_t kMostBlocksKept = 32;
  static constexpr std::size_t kAlignment = 64;

  using Clock = std::chrono::steady_clock;

  explicit MemoryPool(Clock::duration kept_for = std::chrono::seconds(10)) : kept_for_(kept_for) {}
  ~MemoryPool() { Release(); }
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // As malloc, realloc and free; aligned. Null if there is no memory.
  void* Allocate(std::size_t bytes) noexcept;
  void* Reallocate(void* data, std::size_t bytes) noexcept;
  void Free(void* data) noexcept;

  // Gives back all that is kept, and tells how many bytes that was.
  std::size_t Release() noexcept;
  std::size_t bytes_kept() noexcept;

  // Held while the process forks, so that the child finds the pool whole.
  std::mutex& mutex() { return mutex_; }

 private:
  // Its data come kAlignment bytes after it.
  struct Block {
    std::size_t size;  // of the data
    Clock::time_point freed;

    void* data() { return reinterpret_cast<char*>(this) + kAlignment; }
  };
  static_assert(sizeof(Block) <= kAlignment);

  // Blocks that leave the pool; given back when nobody waits for it.
  class Leaving;

  static Block* BlockOf(void* data) { return reinterpret_cast<Block*>(static_cast<char*>(data) - kAlignment); }
  static Block* NewBlock(std::size_t bytes) noexcept;

  Block* Remove(std::size_t index);
  void RemoveOld(Clock::time_point now, Leaving& leaving);

  const Clock::duration kept_for_;
  std::mutex mutex_;
  Block* blocks_[kMostBlocksKept];  // the longest kept first
  std::size_t count_ = 0;
  std::size_t bytes_ = 0;
};

// The pool of the process. It is never destroyed, as arrays may outlive everything.
MemoryPool& ThePool();

}  // namespace onegru

#endif  // ONEGRU_NATIVE_MEMORY_POOL_H_
