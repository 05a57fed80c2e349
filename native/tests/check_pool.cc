#include "native/tests/check_pool.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "native/memory_pool.h"
#include "native/tests/problems.h"
#include "native/tests/system.h"

namespace onegru {
namespace {

constexpr std::size_t kMiB = 1 << 20;

bool Holds(const void* data, unsigned char value, std::size_t bytes) {
  const auto* const at = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < bytes; ++i) {
    if (at[i] != value) return false;
  }
  return true;
}

// Allocates, fills, checks, resizes and frees memory. Returns false if another thread wrote to it.
bool UseAtRandom(MemoryPool& pool, std::uint32_t seed, int turns) {
  struct Piece {
    void* data = nullptr;
    std::size_t bytes = 0;
  };
  std::vector<Piece> pieces(8);
  const auto mark = static_cast<unsigned char>(seed);
  bool good = true;
  for (int turn = 0; turn < turns; ++turn) {
    seed = seed * 1664525 + 1013904223;
    Piece& piece = pieces[seed >> 16 & 7];
    const std::size_t bytes = 64 * 1024 + (seed >> 8) % (128 * 1024);
    good = good && Holds(piece.data, mark, piece.bytes);
    const bool resizes = piece.data != nullptr && (seed >> 30) == 0;
    if (!resizes) pool.Free(piece.data);
    void* const data = resizes ? pool.Reallocate(piece.data, bytes) : pool.Allocate(bytes);
    if (data == nullptr) return false;
    good = good && reinterpret_cast<std::uintptr_t>(data) % MemoryPool::kAlignment == 0;
    if (resizes) good = good && Holds(data, mark, piece.bytes < bytes ? piece.bytes : bytes);
    std::memset(data, mark, bytes);
    piece = {data, bytes};
  }
  for (const Piece& piece : pieces) pool.Free(piece.data);
  return good;
}

void CheckSizes() {
  MemoryPool pool;
  void* const first = pool.Allocate(kMiB);
  pool.Free(first);
  const std::size_t kept = pool.bytes_kept();
  Check(kept >= kMiB && kept < kMiB + 8192, "keeps freed memory");
  Check(pool.Allocate(kMiB) == first && pool.bytes_kept() == 0, "reuses kept memory");
  pool.Free(first);
  void* const smaller = pool.Allocate(kMiB * 9 / 10);
  Check(smaller == first, "reuses it for a slightly smaller size");
  pool.Free(smaller);
  void* const small = pool.Allocate(kMiB / 2);
  Check(small != first && pool.bytes_kept() == kept, "does not waste more than a quarter");
  void* const large = pool.Allocate(kMiB * 2);
  Check(large != first && pool.bytes_kept() == kept, "does not reuse it for a larger size");
  pool.Free(small);
  pool.Free(large);
  Check(pool.Allocate(kMiB / 2) == small && pool.Allocate(2 * kMiB) == large, "the best fit");
  pool.Free(small);
  pool.Free(large);
  Check(pool.Release() >= 3 * kMiB + kMiB / 2 && pool.bytes_kept() == 0, "releases all kept memory");
  Check(pool.Allocate(SIZE_MAX - 64) == nullptr, "sizes beyond all memory");
}

void CheckBounds() {
  MemoryPool pool;
  std::vector<void*> all;
  for (std::size_t i = 0; i < 2 * MemoryPool::kMaxBlocksKept; ++i) all.push_back(pool.Allocate(64 * 1024));
  for (void* data : all) pool.Free(data);
  const std::size_t most = MemoryPool::kMaxBlocksKept * (64 * 1024 + 4096);
  Check(pool.bytes_kept() >= MemoryPool::kMaxBlocksKept * 64 * 1024 && pool.bytes_kept() <= most, "limits blocks");
  all.clear();
  for (int i = 0; i < 5; ++i) all.push_back(pool.Allocate(20 * kMiB));
  for (void* data : all) {
    pool.Free(data);
    Check(pool.bytes_kept() <= MemoryPool::kMaxBytesKept, "limits bytes");
  }
  Check(pool.Allocate(20 * kMiB) == all.back(), "keeps the latest blocks");
  pool.Free(all.back());
  const std::size_t kept = pool.bytes_kept();
  pool.Free(pool.Allocate(MemoryPool::kMaxBytesKept + 1));
  Check(pool.bytes_kept() == kept, "does not keep larger blocks");

  MemoryPool forgetful(std::chrono::milliseconds(1));
  forgetful.Free(forgetful.Allocate(kMiB));
  for (const auto begin = MemoryPool::Clock::now(); MemoryPool::Clock::now() - begin < std::chrono::milliseconds(5);) {
  }
  forgetful.Free(forgetful.Allocate(2 * kMiB));
  Check(forgetful.bytes_kept() >= 2 * kMiB && forgetful.bytes_kept() < 3 * kMiB, "releases unused blocks after a time");
}

void CheckResizing() {
  MemoryPool pool;
  void* data = pool.Reallocate(nullptr, kMiB);
  std::memset(data, 7, kMiB);
  void* const grown = pool.Reallocate(data, 3 * kMiB);
  Check(grown != data && Holds(grown, 7, kMiB), "growing keeps the contents");
  void* const same = pool.Reallocate(grown, 2 * kMiB);
  Check(same == grown, "a slightly smaller size does not move");
  void* const shrunk = pool.Reallocate(same, 1000);
  Check(shrunk != grown && Holds(shrunk, 7, 1000), "a much smaller size releases the rest");
  Check(pool.Reallocate(shrunk, SIZE_MAX - 64) == nullptr && Holds(shrunk, 7, 1000), "does not change without memory");
  pool.Free(shrunk);
  pool.Free(nullptr);
}

#if !defined(__wasi__)
// Several threads use the process's pool while the process forks.
void CheckSharing() {
  std::atomic<int> good{0};
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (std::uint32_t seed = 1; seed <= 4; ++seed) {
    threads.emplace_back([&, seed] {
      bool all = true;
      do {
        all = all && UseAtRandom(ThePool(), seed, 50);
      } while (!over.load());
      good += all;
    });
  }
  int children = 0;
  for (int i = 0; i < 10; ++i) children += InChild([] { return UseAtRandom(ThePool(), 9, 50); });
  over = true;
  for (std::thread& thread : threads) thread.join();
  Check(good == 4, "several threads");
  Check(children == 10, "the children of forks");
  ThePool().Release();
  Check(ThePool().bytes_kept() == 0, "keeps nothing after a release");
}
#else
void CheckSharing() { Check(UseAtRandom(ThePool(), 1, 50), "one thread"); }
#endif

}  // namespace

void CheckPool() {
  CheckSizes();
  CheckBounds();
  CheckResizing();
  CheckSharing();
}

}  // namespace onegru
