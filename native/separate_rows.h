// Sums over two directions that run in parallel.

#ifndef ONEGRU_NATIVE_SEPARATE_ROWS_H_
#define ONEGRU_NATIVE_SEPARATE_ROWS_H_

#include <algorithm>
#include <cstddef>

#include "native/memory_pool.h"
#include "native/problem.h"

namespace onegru {

// Separate rows for the sums of the second direction, while the first direction accumulates into the shared rows on
// another thread. AddToShared then adds them, so the order of sums is that of sequential directions.
template <class C>
class SeparateRows {
 public:
  // Replaces `rows`, [T, B] rows of `width` elements, by separate rows for the second direction.
  SeparateRows(std::size_t T, std::size_t B, std::size_t width, Rows* rows)
      : T_(T), B_(B), width_(width), shared_(*rows), memory_(AllocatePooled(T * B * width * sizeof(C))) {
    C* const numbers = reinterpret_cast<C*>(memory_.get());
    std::fill_n(numbers, T * B * width, C{-0.0});  // -0 + x is x, of any sign
    *rows = own_ = ContiguousRows(numbers, "TB", T_, 1, B_, width * sizeof(C));
  }

  void AddToShared() const {
    for (std::size_t t = 0; t < T_; ++t) {
      for (std::size_t b = 0; b < B_; ++b) {
        const C* const from = reinterpret_cast<const C*>(own_.at(t, 0, b));
        C* const to = reinterpret_cast<C*>(shared_.at(t, 0, b));
        for (std::size_t j = 0; j < width_; ++j) to[j] += from[j];
      }
    }
  }

 private:
  const std::size_t T_, B_, width_;
  const Rows shared_;
  Rows own_;
  PooledBytes memory_;
};

}  // namespace onegru

#endif  // ONEGRU_NATIVE_SEPARATE_ROWS_H_
