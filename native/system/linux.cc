#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "native/system/system.h"

namespace onegru::system {
namespace {

struct Affinity {
  cpu_set_t set{};
  bool known = sched_getaffinity(0, sizeof(set), &set) == 0;
};
const Affinity g_first_affinity{};

}  // namespace

void* Allocate(std::size_t bytes, std::size_t alignment, std::size_t huge) noexcept {
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, bytes) != 0) return nullptr;
  if (huge != 0) madvise(memory, huge, MADV_HUGEPAGE);  // may be refused
  return memory;
}

void Free(void* memory) noexcept { std::free(memory); }

void AtFork(void (*before)(), void (*in_parent)(), void (*in_child)()) noexcept {
  pthread_atfork(before, in_parent, in_child);
}

void StayLoaded() noexcept {}

int CurrentCpu() noexcept { return sched_getcpu(); }

int CurrentThread() noexcept { return static_cast<int>(syscall(SYS_gettid)); }

void ScopedCpuExclusion::Begin(int thread, int cpu) noexcept {
  static_assert(sizeof(cpu_set_t) == sizeof(before_));
  auto* const before = reinterpret_cast<cpu_set_t*>(before_);
  auto* const during = reinterpret_cast<cpu_set_t*>(during_);
  if (under_way_.load(std::memory_order_acquire) || thread == 0 || cpu < 0 || cpu >= CPU_SETSIZE) return;
  if (sched_getaffinity(thread, sizeof(*before), before) != 0 || !CPU_ISSET(cpu, before)) return;
  *during = *before;
  CPU_CLR(cpu, during);
  if (CPU_COUNT(during) == 0 || sched_setaffinity(thread, sizeof(*during), during) != 0) return;
  under_way_.store(true, std::memory_order_release);
}

void ScopedCpuExclusion::End() noexcept {
  if (!under_way_.load(std::memory_order_acquire)) return;
  cpu_set_t now;
  if (sched_getaffinity(0, sizeof(now), &now) == 0 && std::memcmp(&now, during_, sizeof(now)) == 0) {
    sched_setaffinity(0, sizeof(now), reinterpret_cast<const cpu_set_t*>(before_));
  }
  under_way_.store(false, std::memory_order_release);
}

std::size_t Preemptions() noexcept {
  rusage used;
  return getrusage(RUSAGE_THREAD, &used) == 0 ? static_cast<std::size_t>(used.ru_nivcsw) : 0;
}

void TakeFirstCpus() noexcept {
  if (g_first_affinity.known) sched_setaffinity(0, sizeof(g_first_affinity.set), &g_first_affinity.set);
}

bool AllowTiles() noexcept {
#if defined(__x86_64__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // asm/prctl.h, asm/fpu/xstate.h
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

std::size_t SecondLevelCache() noexcept {
  std::size_t kilobytes = 0;
  if (std::FILE* const file = std::fopen("/sys/devices/system/cpu/cpu0/cache/index2/size", "r")) {
    if (std::fscanf(file, "%zuK", &kilobytes) != 1) kilobytes = 0;
    std::fclose(file);
  }
  return kilobytes != 0 && kilobytes < (1 << 20) ? kilobytes * 1024 : kUsualSecondLevelCache;
}

}  // namespace onegru::system
