#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <cstdlib>

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

// The system may wake a thread on the CPU of the one that waits for it, and leave both there for milliseconds,
// switching at a higher cost than that of the work. (A very short sleep does not help.) If somebody else changes the
// thread's CPUs meanwhile, theirs stay.
void LeaveCpu(int cpu) noexcept {
  cpu_set_t allowed, now;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
  cpu_set_t others = allowed;
  CPU_CLR(cpu, &others);
  if (sched_setaffinity(0, sizeof(others), &others) != 0) return;
  if (sched_getaffinity(0, sizeof(now), &now) == 0 && CPU_EQUAL(&now, &others)) {
    sched_setaffinity(0, sizeof(allowed), &allowed);
  }
}

void TakeFirstCpus() noexcept {
  if (g_first_affinity.known) sched_setaffinity(0, sizeof(g_first_affinity.set), &g_first_affinity.set);
}

}  // namespace onegru::system
