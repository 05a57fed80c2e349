// Functions that depend on the operating system. CMake compiles one of linux.cc, macos.cc, windows.cc and wasi.cc,
// which is for WebAssembly.

#ifndef ONEGRU_NATIVE_SYSTEM_SYSTEM_H_
#define ONEGRU_NATIVE_SYSTEM_SYSTEM_H_

#include <atomic>
#include <cstddef>

namespace onegru::system {

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Returns uninitialized memory, or null on failure. `alignment` is a power of two. If the system supports it, requests
// huge pages for the first `huge` bytes, a multiple of kHugePage. The memory should then be aligned to kHugePage.
void* Allocate(std::size_t bytes, std::size_t alignment, std::size_t huge) noexcept;
void Free(void* memory) noexcept;

// Registers functions that each fork of the process calls: `before` on the forking thread before it, the others after
// it. Does nothing on systems without fork.
void AtFork(void (*before)(), void (*in_parent)(), void (*in_child)()) noexcept;

// Keeps this library, or the one that contains it, loaded until the process ends, because its threads run until then.
void StayLoaded() noexcept;

// Returns the CPU of this thread, or -1 if the system does not report it or has no thread affinity.
int CurrentCpu() noexcept;

// Returns the ID of this thread for ScopedCpuExclusion, or 0 on systems without thread affinity.
int CurrentThread() noexcept;

// Excludes a CPU from a thread's affinity until End, if the thread may use another CPU. If other code changes the
// affinity in between, End leaves that change.
class ScopedCpuExclusion {
 public:
  void Begin(int thread, int cpu) noexcept;  // does nothing between Begin and End
  void End() noexcept;                       // call it on the thread itself

 private:
  std::atomic<bool> under_way_{false};
  [[maybe_unused]] alignas(8) unsigned char before_[128], during_[128];  // CPU sets of the system
};

// Returns how often the system has preempted this thread, or 0 if the system does not report it.
std::size_t Preemptions() noexcept;

// Prepares the calling worker thread. It has inherited the affinity and priority of the thread that started it, which
// another runtime may have pinned to a CPU, or an audio host may have given real-time priority. The worker serves every
// thread, so it gets the main thread's current affinity, the usual priority, and the name "onegru". Does nothing on
// systems where threads do not inherit these.
void SetUpWorker() noexcept;

// Requests permission to use AMX tiles in this process. Returns true if granted, which only Linux does.
bool AllowTiles() noexcept;

// Returns the size of the first core's second-level cache in bytes, or a common size if the system does not report it.
std::size_t SecondLevelCache() noexcept;
inline constexpr std::size_t kUsualSecondLevelCache = std::size_t{1} << 20;

}  // namespace onegru::system

#endif  // ONEGRU_NATIVE_SYSTEM_SYSTEM_H_
