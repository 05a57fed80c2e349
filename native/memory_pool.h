// A memory pool for the large arrays that calls return, because fresh pages cost more than the arithmetic.
//
// The pool keeps freed blocks, up to a limit, for the next array of similar size. It returns blocks that were unused
// for a while to the system, at the next allocation or deallocation. Release returns all at once.

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

  // Like malloc, realloc and free, but aligned. Return null if memory is exhausted.
  void* Allocate(std::size_t bytes) noexcept;
  void* Reallocate(void* data, std::size_t bytes) noexcept;
  void Free(void* data) noexcept;

  // Returns all kept blocks to the system, and their total bytes to the caller.
  std::size_t Release() noexcept;
  std::size_t bytes_kept() noexcept;

  // Locked while the process forks, so that the pool is consistent in the child.
  system::Mutex& mutex() { return mutex_; }

 private:
  // The header of a block. The data begin kAlignment bytes after it.
  struct Block {
    std::size_t size;  // of the data
    Clock::time_point freed;

    void* data() { return reinterpret_cast<char*>(this) + kAlignment; }
  };
  static_assert(sizeof(Block) <= kAlignment);

  // Blocks that leave the pool, which are freed after the mutex is released.
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

// Returns the pool of the process, which is never destroyed, because arrays may outlive everything else.
MemoryPool& ThePool();

struct BackToThePool {
  void operator()(void* pointer) const { ThePool().Free(pointer); }
};
// Memory from the pool for the duration of a call, zeroed or uninitialized.
using PooledBytes = std::unique_ptr<unsigned char, BackToThePool>;
PooledBytes AllocatePooled(std::size_t bytes, bool zeroed = true);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_MEMORY_POOL_H_
