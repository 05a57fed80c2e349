// What each operating system does in its own way: linux.cc, macos.cc, windows.cc and wasi.cc, of
// which CMake compiles one. wasi.cc is WebAssembly, for the tests of the kernels.

#ifndef ONEGRU_NATIVE_SYSTEM_SYSTEM_H_
#define ONEGRU_NATIVE_SYSTEM_SYSTEM_H_

#include <atomic>
#include <cstddef>

namespace onegru::system {

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Memory, not initialized; null if there is none. `alignment` is a power of two. The system is asked to back the first
// `huge` bytes, a multiple of kHugePage, with huge pages, where it lets a program ask; they should be aligned to one.
void* Allocate(std::size_t bytes, std::size_t alignment, std::size_t huge) noexcept;
void Free(void* memory) noexcept;

// Calls these whenever the process forks: `before` on the thread that forks, the others after it. Nothing where
// processes do not fork.
void AtFork(void (*before)(), void (*in_parent)(), void (*in_child)()) noexcept;

// Keeps this library, or the one that it is linked into, in memory until the process ends: its threads run that long.
void StayLoaded() noexcept;

// The CPU of this thread; -1 if the system does not say, or lets no thread choose its CPUs.
int CurrentCpu() noexcept;

// A thread, for ScopedCpuExclusion; 0 where threads do not choose their CPUs.
int CurrentThread() noexcept;

// Keeps a thread off a CPU for a while, if it may use another. If somebody else changes the thread's CPUs meanwhile,
// theirs stay.
class ScopedCpuExclusion {
 public:
  void Begin(int thread, int cpu) noexcept;  // does nothing while one is under way
  void End() noexcept;                       // on the thread itself

 private:
  std::atomic<bool> under_way_{false};
  [[maybe_unused]] alignas(8) unsigned char before_[128], during_[128];  // CPUs, as the system has them
};

// How often the system has preempted this thread; 0 if the system does not report it.
std::size_t Preemptions() noexcept;

// Prepares a worker thread, on the thread itself. It inherits from the thread whose call started it, which may be
// another runtime's, pinned to a CPU, or an audio host's of real-time priority. The worker lives longer than that call
// and serves every thread, so it runs on the CPUs of the process's main thread, as they are now, at the usual priority,
// and is called "onegru" in tools. Nothing where threads inherit none of this.
void SetUpWorker() noexcept;

// Requests permission to use AMX tiles in this process; true if granted. Only on Linux.
bool AllowTiles() noexcept;

// The bytes of a core's second-level cache, of the first core if they differ; a common size if the system does not
// report it.
std::size_t SecondLevelCache() noexcept;
inline constexpr std::size_t kUsualSecondLevelCache = std::size_t{1} << 20;

}  // namespace onegru::system

#endif  // ONEGRU_NATIVE_SYSTEM_SYSTEM_H_
