// A memory pool for the large arrays that calls return: fresh pages cost more than the arithmetic.
//
// Freed blocks are kept, up to a bound, for the next array of about that size. Blocks unused for a while go back to
// the system at the next allocation or deallocation, or at once by Release.

#ifndef ONEGRU_NATIVE_MEMORY_POOL_H_
#define ONEGRU_NATIVE_MEMORY_POOL_H_

#include <chrono>
#include <cstddef>
#include <memory>

#include "native/system/threads.h"

namespace onegru {

class MemoryPool {
 public:
  static constexpr std::size_t kMaxBytesKept = 64 << 20;
  static constexpr std::size_t kMaxBlocksKept = 32;
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

  // Gives all kept blocks back to the system; returns their bytes.
  std::size_t Release() noexcept;
  std::size_t bytes_kept() noexcept;

  // Held while the process forks, so that the child finds the pool consistent.
  system::Mutex& mutex() { return mutex_; }

 private:
  // Its data begin kAlignment bytes after it.
  struct Block {
    std::size_t size;  // of the data
    Clock::time_point freed;

    void* data() { return reinterpret_cast<char*>(this) + kAlignment; }
  };
  static_assert(sizeof(Block) <= kAlignment);

  // Blocks that leave the pool; given back once the mutex is released.
  class Leaving;

  static Block* BlockOf(void* data) { return reinterpret_cast<Block*>(static_cast<char*>(data) - kAlignment); }
  static Block* NewBlock(std::size_t bytes) noexcept;

  Block* Remove(std::size_t index);
  void RemoveOld(Clock::time_point now, Leaving& leaving);

  const Clock::duration kept_for_;
  system::Mutex mutex_;
  Block* blocks_[kMaxBlocksKept];  // the oldest first
  std::size_t count_ = 0;
  std::size_t bytes_ = 0;
};

// The pool of the process. It is never destroyed, as arrays may outlive everything.
MemoryPool& ThePool();

struct BackToThePool {
  void operator()(void* pointer) const { ThePool().Free(pointer); }
};
// Memory for the duration of a call, from the pool; zeros, or uninitialized.
using PooledBytes = std::unique_ptr<unsigned char, BackToThePool>;
PooledBytes AllocatePooled(std::size_t bytes, bool zeroed = true);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_MEMORY_POOL_H_
