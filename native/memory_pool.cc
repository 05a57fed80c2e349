#include "native/memory_pool.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <mutex>
#include <new>

#include "native/assert.h"
#include "native/system/system.h"
#include "native/threads/threads.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(data, size) static_cast<void>(0)
#define ASAN_UNPOISON_MEMORY_REGION(data, size) static_cast<void>(0)
#endif

namespace onegru {
namespace {

constexpr std::size_t kPage = 4096;
// From this size on, huge pages are faster. NumPy uses the same threshold.
constexpr std::size_t kHugeFrom = 4 << 20;

}  // namespace

class MemoryPool::Leaving {
 public:
  ~Leaving() {
    for (std::size_t i = 0; i < count_; ++i) {
      ASAN_UNPOISON_MEMORY_REGION(blocks_[i]->data(), blocks_[i]->size);
      system::Free(blocks_[i]);
    }
  }
  void Add(Block* block) {
    ONEGRU_ASSERT(count_ < std::size(blocks_));
    blocks_[count_++] = block;
  }

 private:
  Block* blocks_[kMaxBlocksKept + 1];
  std::size_t count_ = 0;
};

void* MemoryPool::Allocate(std::size_t bytes) noexcept {
  Block* block = nullptr;
  {
    Leaving leaving;
    const std::lock_guard lock(mutex_);
    RemoveOld(Clock::now(), leaving);
    // The best fit that wastes at most a quarter. Of equal blocks, the most recent, which may still be in the cache.
    std::size_t best = count_;
    for (std::size_t i = count_; i-- > 0;) {
      const std::size_t size = blocks_[i]->size;
      if (size >= bytes && size - bytes <= bytes / 4 && (best == count_ || size < blocks_[best]->size)) best = i;
    }
    if (best != count_) block = Remove(best);
  }
  if (block != nullptr) {
    ASAN_UNPOISON_MEMORY_REGION(block->data(), block->size);
    return block->data();
  }
  block = NewBlock(bytes);
  if (block == nullptr && Release() != 0) block = NewBlock(bytes);
  return block == nullptr ? nullptr : block->data();
}

void* MemoryPool::Reallocate(void* data, std::size_t bytes) noexcept {
  if (data == nullptr) return Allocate(bytes);
  const std::size_t size = BlockOf(data)->size;
  if (bytes <= size && bytes >= size / 2) return data;
  void* const other = Allocate(bytes);
  if (other == nullptr) return nullptr;
  std::memcpy(other, data, std::min(size, bytes));
  Free(data);
  return other;
}

void MemoryPool::Free(void* data) noexcept {
  if (data == nullptr) return;
  Block* const block = BlockOf(data);
  Leaving leaving;
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  RemoveOld(now, leaving);
  if (block->size > kMaxBytesKept) return leaving.Add(block);
  while (count_ == kMaxBlocksKept || bytes_ + block->size > kMaxBytesKept) leaving.Add(Remove(0));
  block->freed = now;
  ASAN_POISON_MEMORY_REGION(block->data(), block->size);
  ONEGRU_ASSERT(count_ < kMaxBlocksKept);
  blocks_[count_++] = block;
  bytes_ += block->size;
}

std::size_t MemoryPool::Release() noexcept {
  Leaving leaving;
  const std::lock_guard lock(mutex_);
  const std::size_t bytes = bytes_;
  while (count_ != 0) leaving.Add(Remove(count_ - 1));
  return bytes;
}

std::size_t MemoryPool::bytes_kept() noexcept {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

MemoryPool::Block* MemoryPool::NewBlock(std::size_t bytes) noexcept {
  if (bytes > SIZE_MAX / 2) return nullptr;
  const std::size_t all = (bytes + kAlignment + kPage - 1) / kPage * kPage;
  const bool is_huge = all >= kHugeFrom;
  const std::size_t alignment = is_huge ? system::kHugePage : kAlignment;
  void* const memory = system::Allocate(all, alignment, is_huge ? all / alignment * alignment : 0);
  return memory == nullptr ? nullptr : new (memory) Block{all - kAlignment, {}};
}

MemoryPool::Block* MemoryPool::Remove(std::size_t index) {
  Block* const block = blocks_[index];
  std::copy(blocks_ + index + 1, blocks_ + count_, blocks_ + index);
  --count_;
  bytes_ -= block->size;
  return block;
}

void MemoryPool::RemoveOld(Clock::time_point now, Leaving& leaving) {
  while (count_ != 0 && now - blocks_[0]->freed > kept_for_) leaving.Add(Remove(0));
}

namespace {

constinit MemoryPool* g_pool = nullptr;

// Creates the pool when the library is loaded: a fork during its creation by another thread would deadlock the child.
// An initialiser of a program with the static library may request the pool earlier, but then there is only one thread.
[[maybe_unused]] const bool g_is_made = (ThePool(), true);

}  // namespace

MemoryPool& ThePool() {
  if (g_pool == nullptr) {
    g_pool = new MemoryPool;
    LockWhileForking(g_pool->mutex());
  }
  return *g_pool;
}

PooledBytes AllocatePooled(std::size_t bytes, bool zeroed) {
  void* const memory = ThePool().Allocate(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  if (zeroed) std::memset(memory, 0, bytes);
  return PooledBytes(static_cast<unsigned char*>(memory));
}

}  // namespace onegru
