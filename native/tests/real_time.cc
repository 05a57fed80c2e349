// Checks whether the steps of a stream allocate memory, lock mutexes or make system calls, and measures their duration.
// Usage: onegru_real_time LIBRARY FILE [STEPS]; FILE: a path for onegru_layer_open.
//
// This program replaces malloc, similar functions and pthread_mutex_lock, and counts their calls. While steps run,
// Linux ends the process at any system call (seccomp). Reading the clock needs none.

#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <thread>
#include <vector>

#include "onegru.h"

namespace {

std::size_t g_allocations, g_locks;

int Fail(const char* what) {
  std::fprintf(stderr, "onegru_real_time: %s\n", what);
  return 1;
}

}  // namespace

extern "C" {
#if defined(__GLIBC__)  // other libraries have no second names for the replaced functions
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* memory, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);
void __libc_free(void* memory);
void* malloc(std::size_t size) { return ++g_allocations, __libc_malloc(size); }
void* calloc(std::size_t count, std::size_t size) { return ++g_allocations, __libc_calloc(count, size); }
void* realloc(void* memory, std::size_t size) { return ++g_allocations, __libc_realloc(memory, size); }
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  return ++g_allocations, __libc_memalign(alignment, size);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t size) {
  ++g_allocations;
  return (*memory = __libc_memalign(alignment, size)) != nullptr ? 0 : ENOMEM;
}
void free(void* memory) { ++g_allocations, __libc_free(memory); }
#endif

int pthread_mutex_lock(pthread_mutex_t* mutex) {
  static auto* const lock = reinterpret_cast<int (*)(pthread_mutex_t*)>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  return ++g_locks, lock(mutex);
}
}

namespace {

int Run(void* library, const char* file, std::size_t steps) {
#define ONEGRU_FIND(name) auto* const name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name))
  ONEGRU_FIND(onegru_layer_open);
  ONEGRU_FIND(onegru_layer_spec);
  ONEGRU_FIND(onegru_layer_destroy);
  ONEGRU_FIND(onegru_error_message);
  ONEGRU_FIND(onegru_stream_create);
  ONEGRU_FIND(onegru_stream_step);
  ONEGRU_FIND(onegru_stream_run);
  ONEGRU_FIND(onegru_stream_get_state);
  ONEGRU_FIND(onegru_stream_set_state);
  ONEGRU_FIND(onegru_stream_reset);
#undef ONEGRU_FIND
  onegru_layer* layer = nullptr;
  onegru_stream* stream = nullptr;
  onegru_spec spec{};
  spec.size = sizeof(spec);
  if (onegru_layer_open(file, 0, nullptr, &layer) != ONEGRU_OK || onegru_layer_spec(layer, &spec) != ONEGRU_OK ||
      onegru_stream_create(layer, 1, &stream) != ONEGRU_OK) {
    return Fail(onegru_error_message());
  }
  onegru_layer_destroy(layer);
  // Zeros in every type. All memory is allocated before the first step.
  const std::vector<double> X(spec.input_size + 1), score(1);
  std::vector<double> Y(spec.hidden_size), h(spec.hidden_size);
  const void* const attention = spec.attention != ONEGRU_NO_ATTENTION ? score.data() : nullptr;
  std::vector<unsigned> took(steps);
  const auto now = [] { return std::chrono::steady_clock::now(); };
  now();
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 1, 0),  // for the result
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  const sock_fprog filter = {std::size(rules), rules};
  int status = ONEGRU_OK;
  std::thread([&] {
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
      _exit(Fail("seccomp is not available"));
    }
    g_allocations = g_locks = 0;
    for (unsigned& each : took) {
      const auto before = now();
      status |= onegru_stream_step(stream, X.data(), attention, Y.data());
      each = static_cast<unsigned>(std::chrono::nanoseconds(now() - before).count());
    }
    status |= onegru_stream_run(stream, 1, nullptr, 0, X.data(), attention, Y.data());
    status |= onegru_stream_get_state(stream, h.data());
    status |= onegru_stream_set_state(stream, h.data()) | onegru_stream_reset(stream, 0);
    const std::size_t allocations = g_allocations, locks = g_locks;

    std::sort(took.begin(), took.end());
    char text[200];
    const int length = std::snprintf(
        text, sizeof(text), "%zu steps: %zu allocations, %zu locks; ns: median %u, 99.9 %% %u, longest %u\n", steps,
        allocations, locks, took[steps / 2], took[steps - steps / 1000 - 1], took[steps - 1]);
    if (write(1, text, static_cast<std::size_t>(length)) != length) status |= 1;
    syscall(SYS_exit_group, status != ONEGRU_OK || allocations != 0 || locks != 0);
  }).join();
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return Fail("usage: onegru_real_time LIBRARY FILE [STEPS]");
  const std::size_t steps = argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 1000000;
  if (steps == 0) return Fail("STEPS: must be at least 1");
  void* const library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Fail(dlerror());
  return Run(library, argv[2], steps);
}
