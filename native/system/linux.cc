// The functions of system.h for Linux.

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "native/system/system.h"

namespace onegru::system {

void* Allocate(std::size_t bytes, std::size_t alignment, std::size_t huge) noexcept {
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, bytes) != 0) return nullptr;
  if (huge != 0) madvise(memory, huge, MADV_HUGEPAGE);  // may fail
  return memory;
}

void Free(void* memory) noexcept { std::free(memory); }

void AtFork(void (*before)(), void (*in_parent)(), void (*in_child)()) noexcept {
  pthread_atfork(before, in_parent, in_child);
}

// The linker marks onegru's shared libraries as NODELETE, but not a plug-in that contains the static library.
void StayLoaded() noexcept {
  Dl_info own;
  if (dladdr(reinterpret_cast<const void*>(&StayLoaded), &own) == 0) return;
  dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);  // finds nothing for the program itself
}

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

void SetUpWorker() noexcept {
  pthread_setname_np(pthread_self(), "onegru");
  const int policy = sched_getscheduler(0);
  const sched_param usual{};
  if (policy == SCHED_FIFO || policy == SCHED_RR) sched_setscheduler(0, SCHED_OTHER, &usual);
  cpu_set_t cpus;
  if (sched_getaffinity(getpid(), sizeof(cpus), &cpus) == 0) sched_setaffinity(0, sizeof(cpus), &cpus);
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
  const auto read = [](int index, const char* name) {
    char path[80];
    std::size_t number = 0;
    std::snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, name);
    if (std::FILE* const file = std::fopen(path, "r")) {
      if (std::fscanf(file, "%zu", &number) != 1) number = 0;
      std::fclose(file);
    }
    return number;
  };
  std::size_t bytes = 0;
  for (int index = 0; index < 8 && bytes == 0; ++index) {
    if (read(index, "level") == 2) bytes = read(index, "size") * 1024;
  }
#if defined(_SC_LEVEL2_CACHE_SIZE)
  if (bytes == 0) bytes = static_cast<std::size_t>(std::max(sysconf(_SC_LEVEL2_CACHE_SIZE), 0L));  // for containers
#endif
  return bytes != 0 && bytes < (std::size_t{1} << 30) ? bytes : kUsualSecondLevelCache;
}

}  // namespace onegru::system
