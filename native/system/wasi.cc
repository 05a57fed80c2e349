// The functions of system.h for WebAssembly.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <typeinfo>

#include "native/system/system.h"

// Functions that the compiler calls, but that Zig's C++ library for WebAssembly lacks. It has no exceptions: a throw
// ends the process, or becomes a JavaScript error in a browser. The only thread ends with the process, so its objects
// are destroyed then.
extern "C" {
#if defined(ONEGRU_WEB)
[[clang::import_module("onegru"), clang::import_name("fail")]] void onegru_fail(const char* message);
void* __cxa_allocate_exception(std::size_t size) noexcept { return std::malloc(size); }
[[noreturn]] void __cxa_throw(void* thrown, std::type_info*, void (*)(void*)) {
  onegru_fail(static_cast<const std::exception*>(thrown)->what());  // the first base of all that is thrown
  std::abort();
}
#else
void* __cxa_allocate_exception(std::size_t) noexcept { std::abort(); }
[[noreturn]] void __cxa_throw(void*, std::type_info*, void (*)(void*)) { std::abort(); }
#endif
int __cxa_atexit(void (*)(void*), void*, void*);
int __cxa_thread_atexit(void (*destroy)(void*), void* object, void* library) {
  return __cxa_atexit(destroy, object, library);
}
}

namespace onegru::system {

void* Allocate(std::size_t bytes, std::size_t alignment, std::size_t) noexcept {
  if (bytes > PTRDIFF_MAX - alignment) return nullptr;  // the C library reads larger numbers as negative
  void* memory = nullptr;
  return posix_memalign(&memory, alignment, bytes) == 0 ? memory : nullptr;
}

void Free(void* memory) noexcept { std::free(memory); }

void AtFork(void (*)(), void (*)(), void (*)()) noexcept {}
void StayLoaded() noexcept {}
int CurrentCpu() noexcept { return -1; }
int CurrentThread() noexcept { return 0; }
void ScopedCpuExclusion::Begin(int, int) noexcept {}
void ScopedCpuExclusion::End() noexcept {}
std::size_t Preemptions() noexcept { return 0; }
void SetUpWorker() noexcept {}
bool AllowTiles() noexcept { return false; }

std::size_t SecondLevelCache() noexcept { return kUsualSecondLevelCache; }

}  // namespace onegru::system
