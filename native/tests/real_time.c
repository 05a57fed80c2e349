/* What a thread of real time wants to know of a stream's steps: whether they allocate, lock, or call the system, and
 * how long the longest takes. Usage: onegru_real_time FILE [STEPS]; FILE: as onegru_layer_open takes it.
 *
 * malloc and its like, and pthread_mutex_lock, are counted in their place; and while steps run, Linux ends the process
 * at any call of the system (seccomp). The clock is read without one. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "onegru.h"

static size_t g_allocations, g_locks;

void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* memory, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
void __libc_free(void* memory);
void* malloc(size_t size) { return ++g_allocations, __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return ++g_allocations, __libc_calloc(count, size); }
void* realloc(void* memory, size_t size) { return ++g_allocations, __libc_realloc(memory, size); }
void* aligned_alloc(size_t alignment, size_t size) { return ++g_allocations, __libc_memalign(alignment, size); }
int posix_memalign(void** memory, size_t alignment, size_t size) {
  ++g_allocations;
  return (*memory = __libc_memalign(alignment, size)) != NULL ? 0 : ENOMEM;
}
void free(void* memory) { ++g_allocations, __libc_free(memory); }

int pthread_mutex_lock(pthread_mutex_t* mutex) {
  static int (*lock)(pthread_mutex_t*);
  if (lock == NULL) *(void**)&lock = dlsym(RTLD_NEXT, "pthread_mutex_lock");
  return ++g_locks, lock(mutex);
}

static int fail(const char* what) { return fprintf(stderr, "onegru_real_time: %s\n", what), 1; }

/* In place: qsort allocates. */
static void sort(unsigned* numbers, size_t count) {
  for (size_t gap = count / 2; gap > 0; gap = gap == 2 ? 1 : gap * 5 / 11) {
    for (size_t i = gap; i < count; ++i) {
      const unsigned number = numbers[i];
      size_t at = i;
      for (; at >= gap && numbers[at - gap] > number; at -= gap) numbers[at] = numbers[at - gap];
      numbers[at] = number;
    }
  }
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return 1e9 * (double)time.tv_sec + (double)time.tv_nsec;
}

int main(int argc, char** argv) {
  if (argc < 2) return fail("usage: onegru_real_time FILE [STEPS]");
  const size_t steps = argc > 2 ? strtoul(argv[2], NULL, 10) : 1000000;
  onegru_layer* layer;
  onegru_stream* stream;
  onegru_spec spec = {.size = sizeof(onegru_spec)};
  if (onegru_layer_open(argv[1], 0, NULL, &layer) != ONEGRU_OK || onegru_layer_spec(layer, &spec) != ONEGRU_OK ||
      onegru_stream_create(layer, 1, &stream) != ONEGRU_OK) {
    return fail(onegru_error_message());
  }
  onegru_layer_destroy(layer);
  const size_t bytes = spec.dtype == ONEGRU_FLOAT64 ? 8 : spec.dtype == ONEGRU_FLOAT32 ? 4 : 2;
  void *X = calloc(spec.input_size + 1, bytes), *Y = calloc(spec.hidden_size, bytes), *h = calloc(spec.hidden_size, 8);
  double scores[1] = {0}; /* zeros of every type */
  const void* attention = spec.attention != ONEGRU_NO_ATTENTION ? scores : NULL;
  unsigned* took = malloc((steps + 1) * sizeof(unsigned));
  if (X == NULL || Y == NULL || h == NULL || took == NULL) return fail("out of memory");
  memset(took, 1, steps * sizeof(unsigned)); /* its pages are there */
  now();
  struct sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 1, 0), /* at the end */
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  const struct sock_fprog filter = {sizeof(rules) / sizeof(rules[0]), rules};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    return fail("no seccomp here");
  }

  g_allocations = g_locks = 0;
  onegru_status status = ONEGRU_OK;
  for (size_t i = 0; i < steps; ++i) {
    const double before = now();
    status |= onegru_stream_step(stream, X, attention, Y);
    took[i] = (unsigned)(now() - before);
  }
  status |= onegru_stream_run(stream, 1, NULL, 0, X, attention, Y) | onegru_stream_get_state(stream, h) |
            onegru_stream_set_state(stream, h) | onegru_stream_reset(stream, 0);
  const size_t allocations = g_allocations, locks = g_locks;

  char text[200];
  sort(took, steps);
  const int length =
      snprintf(text, sizeof(text), "%zu steps: %zu allocations, %zu locks; ns: median %u, 99.9 %% %u, longest %u\n",
               steps, allocations, locks, took[steps / 2], took[steps - steps / 1000 - 1], took[steps - 1]);
  if (write(1, text, (size_t)length) != length) status |= 1;
  syscall(SYS_exit, status != ONEGRU_OK || allocations != 0 || locks != 0);
}
