// Sums of two directions that are computed at the same time.

#ifndef ONEGRU_NATIVE_OWN_ROWS_H_
#define ONEGRU_NATIVE_OWN_ROWS_H_

#include <algorithm>
#include <cstddef>

#include "native/memory_pool.h"
#include "native/problem.h"

namespace onegru {

// What the second direction adds to rows, while the first one adds to the same rows on another thread. Afterwards each
// number is added to the first one's, so that the order of sums is that of one direction after the other.
template <class C>
class OwnRows {
 public:
  // rows: [T, B] rows of `width` numbers, in whose place the second direction gets its own.
  OwnRows(std::size_t T, std::size_t B, std::size_t width, Rows* rows)
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

#endif  // ONEGRU_NATIVE_OWN_ROWS_H_
