// Independent tasks that a caller and its helpers share.

#ifndef ONEGRU_NATIVE_THREADS_TASKS_H_
#define ONEGRU_NATIVE_THREADS_TASKS_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <type_traits>
#include <utility>

#include "native/float_mode.h"
#include "native/threads/threads.h"

namespace onegru {

// Runs tasks 0…count - 1, each once, on the caller and its helpers. If a task throws, Run skips the tasks that have not
// begun, waits for the others, and throws the exception.
class Tasks final : public Job {
 public:
  using Task = void (*)(void* data, std::size_t index);

  static void Run(std::size_t count, std::size_t threads, Task task, void* data) {
    if (count <= 1 || threads <= 1) {
      for (std::size_t i = 0; i < count; ++i) task(data, i);
      return;
    }
    Tasks* const job = new Tasks(count, task, data);
    {
      const Invitation invitation(*job, std::min(threads, count) - 1, true, {});
      job->Work();
      for (Spin spin; job->done_.load(std::memory_order_acquire) != count;) spin.OnceOrNap();
    }
    const std::exception_ptr failure = std::exchange(job->failure_, nullptr);
    job->Unref();
    if (failure != nullptr) std::rethrow_exception(failure);
  }

  void Help() override {
    const DefaultFloatMode mode;
    Window::Open();
    Work();
    Window::Close();
  }

 private:
  Tasks(std::size_t count, Task task, void* data) : count_(count), task_(task), data_(data) {}

  void Work() {
    for (;;) {
      const std::size_t i = next_.fetch_add(1, std::memory_order_relaxed);
      if (i >= count_) return;
      MayStall();
      if (!has_failed_.load(std::memory_order_relaxed)) Do(i);
      done_.fetch_add(1, std::memory_order_release);
    }
  }

  void Do(std::size_t i) noexcept try { task_(data_, i); } catch (...) {
    if (!has_failed_.exchange(true, std::memory_order_relaxed)) failure_ = std::current_exception();
  }

  const std::size_t count_;
  const Task task_;
  void* const data_;
  std::atomic<std::size_t> next_{0}, done_{0};
  std::atomic<bool> has_failed_{false};
  std::exception_ptr failure_;  // of the first that failed; read when all are done
};

template <class F>
void ParallelFor(std::size_t count, std::size_t threads, F&& f) {
  Tasks::Run(
      count, threads, [](void* data, std::size_t index) { (*static_cast<std::remove_reference_t<F>*>(data))(index); },
      &f);
}

}  // namespace onegru

#endif  // ONEGRU_NATIVE_THREADS_TASKS_H_
