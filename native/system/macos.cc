// The functions of system.h for macOS.

#include <dlfcn.h>
#include <pthread.h>

#include <cstdlib>

#include "native/system/system.h"

namespace onegru::system {

void* Allocate(std::size_t bytes, std::size_t alignment, std::size_t) noexcept {
  void* memory = nullptr;
  return posix_memalign(&memory, alignment, bytes) == 0 ? memory : nullptr;
}

void Free(void* memory) noexcept { std::free(memory); }

void AtFork(void (*before)(), void (*in_parent)(), void (*in_child)()) noexcept {
  StayLoaded();  // the system calls the handlers even after the library is unloaded
  pthread_atfork(before, in_parent, in_child);
}

void StayLoaded() noexcept {
  Dl_info own;
  if (dladdr(reinterpret_cast<const void*>(&StayLoaded), &own) != 0) dlopen(own.dli_fname, RTLD_LAZY | RTLD_NODELETE);
}

int CurrentCpu() noexcept { return -1; }
int CurrentThread() noexcept { return 0; }
void ScopedCpuExclusion::Begin(int, int) noexcept {}
void ScopedCpuExclusion::End() noexcept {}
std::size_t Preemptions() noexcept { return 0; }
void SetUpWorker() noexcept { pthread_setname_np("onegru"); }

bool AllowTiles() noexcept { return false; }

std::size_t SecondLevelCache() noexcept { return kUsualSecondLevelCache; }

}  // namespace onegru::system
