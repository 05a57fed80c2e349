#include "native/tests/system.h"

#if !defined(_WIN32) && !defined(__wasi__)
#include <cstdlib>
#include <sys/wait.h>
#include <unistd.h>
#endif
#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#endif

#include <string_view>
#include <thread>
#include <vector>

namespace onegru {

void OnThreads(std::size_t count, const std::function<void(std::size_t)>& body) {
#if defined(__wasi__)
  for (std::size_t i = 0; i < count; ++i) body(i);
#else
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < count; ++i) threads.emplace_back([&, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
#endif
}

#if defined(_WIN32) || defined(__wasi__)
bool InChild(const std::function<bool()>&, unsigned) { return true; }
#else
bool InChild(const std::function<bool()>& run, unsigned seconds) {
  // QEMU 7.2 aborts in a child that starts threads.
  if (std::getenv("ONEGRU_EMULATED") != nullptr) return true;
  const pid_t child = fork();
  if (child == 0) {
    alarm(seconds);
    _exit(run() ? 0 : 1);
  }
  int status = 1;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}
#endif

#if defined(__linux__)
bool RunThisProgram(const char* option, const char* value) {
  return InChild([&] {
    setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0:glibc.malloc.mmap_threshold=4096:glibc.malloc.top_pad=4096",
           1);
    execl("/proc/self/exe", "onegru_check", option, value, nullptr);
    return false;
  });
}

void BecomeAudioThread() {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(sched_getcpu()), &one);
  sched_setaffinity(0, sizeof(one), &one);
  sched_param priority{};
  priority.sched_priority = 1;
  sched_setscheduler(0, SCHED_FIFO, &priority);
}

bool IsUsualWorker() {
  sigset_t blocked;
  pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  cpu_set_t own, of_process;
  sched_getaffinity(0, sizeof(own), &own);
  sched_getaffinity(getpid(), sizeof(of_process), &of_process);
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return sigismember(&blocked, SIGPROF) == 1 && sigismember(&blocked, SIGINT) == 1 &&
         sigismember(&blocked, SIGSEGV) == 0 && sched_getscheduler(0) == SCHED_OTHER && CPU_EQUAL(&own, &of_process) &&
         std::string_view(name) == "onegru";
}
#else
bool RunThisProgram(const char*, const char*) { return true; }
void BecomeAudioThread() {}
bool IsUsualWorker() { return true; }
#endif

std::function<void(std::size_t)> CpusOfThisThread() {
#if defined(__linux__)
  return [thread = pthread_self()](std::size_t n) {
    cpu_set_t all, some;
    if (sched_getaffinity(0, sizeof(all), &all) != 0) return;
    CPU_ZERO(&some);
    for (std::size_t cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &all) && (n % 3 == 2 || seen++ % 2 == n % 3)) CPU_SET(cpu, &some);
    }
    if (CPU_COUNT(&some) != 0) pthread_setaffinity_np(thread, sizeof(some), &some);
  };
#else
  return [](std::size_t) {};
#endif
}

}  // namespace onegru
