// The functions of system.h for Windows.

#include <malloc.h>
#include <windows.h>

#include "native/system/system.h"

namespace onegru::system {

void* Allocate(std::size_t bytes, std::size_t alignment, std::size_t) noexcept {
  return _aligned_malloc(bytes, alignment);
}

void Free(void* memory) noexcept { _aligned_free(memory); }

void AtFork(void (*)(), void (*)(), void (*)()) noexcept {}

void StayLoaded() noexcept {
  constexpr DWORD kFlags = GET_MODULE_HANDLE_EX_FLAG_PIN | GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS;
  HMODULE own = nullptr;
  GetModuleHandleExW(kFlags, reinterpret_cast<LPCWSTR>(&StayLoaded), &own);
}

// A thread inherits the affinity of the process, not of the thread that starts it, and the scheduler may move it.
int CurrentCpu() noexcept { return -1; }
int CurrentThread() noexcept { return 0; }
void ScopedCpuExclusion::Begin(int, int) noexcept {}
void ScopedCpuExclusion::End() noexcept {}
std::size_t Preemptions() noexcept { return 0; }
void SetUpWorker() noexcept {}

bool AllowTiles() noexcept { return false; }

std::size_t SecondLevelCache() noexcept { return kUsualSecondLevelCache; }

}  // namespace onegru::system
