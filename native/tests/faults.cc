// A library for LD_PRELOAD that makes the n-th allocation or thread start of onegru's libraries fail, and counts their
// allocated blocks. tests/contracts/faults.py builds and controls it. Only for Linux.
//
// An allocation belongs to a library if the library calls it, or the C++ library on its behalf.

#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

constexpr const char* kOurs[] = {"/onegru/_native.", "/onegru/_openvino_gru_", "/libonegru_execution_provider."};
constexpr const char* kRuntime = "/libstdc++.so";
constexpr int kFrames = 10;  // from the C++ library up to its caller
constexpr std::size_t kMaxPlaces = 32;

struct Place {
  std::uintptr_t begin, end;
  bool is_ours;
};
Place g_places[kMaxPlaces];
std::atomic<std::size_t> g_place_count{0};

enum Kind { kNothing, kAllocations, kThreads };
std::atomic<int> g_kind{kNothing};
std::atomic<long> g_left{0}, g_seen{0}, g_live{0};
thread_local bool t_busy = false;

int Look(dl_phdr_info* info, std::size_t, void*) {
  const char* const name = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  bool is_ours = false;
  for (const char* const part : kOurs) is_ours = is_ours || std::strstr(name, part) != nullptr;
  if (!is_ours && std::strstr(name, kRuntime) == nullptr) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    const std::size_t count = g_place_count;
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0 || count == kMaxPlaces) continue;
    const std::uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
    g_places[count] = {begin, begin + segment.p_memsz, is_ours};
    g_place_count = count + 1;
  }
  return 0;
}

const Place* PlaceOf(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  for (std::size_t i = 0; i < g_place_count; ++i) {
    if (at >= g_places[i].begin && at < g_places[i].end) return &g_places[i];
  }
  return nullptr;
}

// Whether an allocation or thread start of this caller belongs to onegru's libraries.
bool IsOurs(const void* caller) {
  if (t_busy) return false;
  const Place* const place = PlaceOf(caller);
  if (place == nullptr) return false;
  if (place->is_ours) return true;
  t_busy = true;
  void* frames[kFrames];
  const int count = backtrace(frames, kFrames);
  t_busy = false;
  bool is_past = false;
  for (int i = 0; i < count; ++i) {
    const Place* const above = PlaceOf(frames[i]);
    if (above != nullptr && above->is_ours) return true;
    if (above == nullptr && is_past) return false;  // another library's use of the C++ library
    is_past = is_past || above != nullptr;
  }
  return false;
}

// Whether this call fails.
bool Fails(int kind) {
  if (g_kind.load(std::memory_order_relaxed) != kind) return false;
  ++g_seen;
  if (--g_left != 0) return false;
  static const bool is_shown = std::getenv("FAULTS_SHOW") != nullptr;
  if (is_shown) {
    t_busy = true;
    void* frames[4 * kFrames];
    backtrace_symbols_fd(frames, backtrace(frames, 4 * kFrames), 2);
    t_busy = false;
  }
  return true;
}

// The allocated blocks of onegru's libraries, with open addressing.
constexpr std::size_t kSlots = std::size_t{1} << 16;
std::atomic<void*> g_blocks[kSlots];
void* const kGone = reinterpret_cast<void*>(1);

std::size_t SlotOf(void* block) { return reinterpret_cast<std::uintptr_t>(block) / 16 * 0x9e3779b1 % kSlots; }

void* Take(void* block) {
  if (block == nullptr) return block;
  for (std::size_t slot = SlotOf(block);; slot = (slot + 1) % kSlots) {
    void* there = g_blocks[slot].load();
    if ((there == nullptr || there == kGone) && g_blocks[slot].compare_exchange_strong(there, block)) break;
  }
  ++g_live;
  return block;
}

void Drop(void* block) {
  if (block == nullptr || g_place_count == 0) return;
  for (std::size_t slot = SlotOf(block);; slot = (slot + 1) % kSlots) {
    void* there = g_blocks[slot].load();
    if (there == nullptr) return;
    if (there == block && g_blocks[slot].compare_exchange_strong(there, kGone)) break;
  }
  --g_live;
}

template <class F>
F* Next(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

extern "C" void* __libc_malloc(std::size_t);
extern "C" void* __libc_calloc(std::size_t, std::size_t);
extern "C" void* __libc_realloc(void*, std::size_t);
extern "C" void* __libc_memalign(std::size_t, std::size_t);
extern "C" void __libc_free(void*);

#define CALLER __builtin_extract_return_addr(__builtin_return_address(0))

void* Allocate(std::size_t bytes, std::size_t alignment, const void* caller) {
  const bool ours = IsOurs(caller);
  if (ours && Fails(kAllocations)) {
    errno = ENOMEM;
    return nullptr;
  }
  void* const block = alignment == 0 ? __libc_malloc(bytes) : __libc_memalign(alignment, bytes);
  return ours ? Take(block) : block;
}

void* OrThrow(void* block) {
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

}  // namespace

#define EXPORTED __attribute__((visibility("default")))

extern "C" {
// Finds onegru's libraries, and counts their allocations from now on.
EXPORTED void faults_look() {
  void* frames[kFrames];
  backtrace(frames, kFrames);  // the first call loads a library
  g_place_count = 0;
  dl_iterate_phdr(Look, nullptr);
}
EXPORTED void faults_arm(int kind, long n) {
  g_seen = 0;
  g_left = n;
  g_kind = kind;
}
// Stops failures. Returns the number of calls of the kind.
EXPORTED long faults_disarm() {
  g_kind = kNothing;
  return g_seen;
}
EXPORTED long faults_live() { return g_live; }

EXPORTED void* malloc(std::size_t bytes) { return Allocate(bytes, 0, CALLER); }
EXPORTED void free(void* block) {
  Drop(block);
  __libc_free(block);
}
EXPORTED void* calloc(std::size_t count, std::size_t bytes) {
  const bool ours = IsOurs(CALLER);
  if (ours && Fails(kAllocations)) return nullptr;
  void* const block = __libc_calloc(count, bytes);
  return ours ? Take(block) : block;
}
EXPORTED void* realloc(void* block, std::size_t bytes) {
  const bool ours = IsOurs(CALLER);
  if (ours && Fails(kAllocations)) return nullptr;
  Drop(block);
  void* const other = __libc_realloc(block, bytes);
  return ours ? Take(other) : other;
}
EXPORTED int posix_memalign(void** block, std::size_t alignment, std::size_t bytes) {
  *block = Allocate(bytes, alignment, CALLER);
  return *block == nullptr ? ENOMEM : 0;
}
EXPORTED void* aligned_alloc(std::size_t alignment, std::size_t bytes) { return Allocate(bytes, alignment, CALLER); }

EXPORTED int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* data) {
  if (IsOurs(CALLER) && Fails(kThreads)) return EAGAIN;
  static auto* const next = Next<int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create");
  return next(thread, attributes, run, data);
}
}

EXPORTED void* operator new(std::size_t bytes) { return OrThrow(Allocate(bytes, 0, CALLER)); }
EXPORTED void* operator new[](std::size_t bytes) { return OrThrow(Allocate(bytes, 0, CALLER)); }
EXPORTED void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return Allocate(bytes, 0, CALLER); }
EXPORTED void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return Allocate(bytes, 0, CALLER); }
EXPORTED void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return OrThrow(Allocate(bytes, static_cast<std::size_t>(alignment), CALLER));
}
EXPORTED void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return Allocate(bytes, static_cast<std::size_t>(alignment), CALLER);
}
EXPORTED void operator delete(void* block) noexcept { free(block); }
EXPORTED void operator delete[](void* block) noexcept { free(block); }
EXPORTED void operator delete(void* block, std::size_t) noexcept { free(block); }
EXPORTED void operator delete[](void* block, std::size_t) noexcept { free(block); }
EXPORTED void operator delete(void* block, const std::nothrow_t&) noexcept { free(block); }
EXPORTED void operator delete(void* block, std::align_val_t) noexcept { free(block); }
EXPORTED void operator delete(void* block, std::size_t, std::align_val_t) noexcept { free(block); }
EXPORTED void operator delete(void* block, std::align_val_t, const std::nothrow_t&) noexcept { free(block); }
