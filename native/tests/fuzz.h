// What fuzzers run: a problem made of bytes, and what has to hold for it. Any bytes make a problem, and a fault ends
// the process, so that a fuzzer keeps them. fuzz_main.cc is the fuzzer; check.cc gives some random bytes to each.

#ifndef ONEGRU_NATIVE_TESTS_FUZZ_H_
#define ONEGRU_NATIVE_TESTS_FUZZ_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "native/tests/problems.h"

namespace onegru {

// Legal layers and calls: any sizes, strides, activations and numbers, on any target, by any number of threads.
void FuzzKernels(const std::uint8_t* data, std::size_t size);

// GRU nodes as an ONNX model may have them, legal or not: checked, packed, run.
void FuzzNodes(const std::uint8_t* data, std::size_t size);

// Files as onegru.h reads them.
void FuzzFiles(const std::uint8_t* data, std::size_t size);

// The bytes of an input, drawn one after another; zeros after the last.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  template <class T>
  T Next() {
    T value{};
    const std::size_t count = std::min(sizeof(T), size_);
    if (count != 0) std::memcpy(&value, data_, count);
    data_ += count;
    size_ -= count;
    return value;
  }
  // A byte or two of the input: other bytes, other numbers.
  std::size_t Below(std::size_t n) { return n <= 256 ? Next<std::uint8_t>() % n : Next<std::uint16_t>() % n; }
  // False where the input has ended.
  bool OneIn(std::size_t n) { return Below(n) == n - 1; }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

// Ends the process, with these words, where something does not hold.
void Require(bool good, const char* what, const Problem& p, const char* target);

// One of this CPU's targets.
std::size_t DrawTarget(Bytes& bytes);
Problem DrawProblem(Bytes& bytes);

// The solution in the order of operations that docs/reproducibility.md guarantees, bit for bit; the activations alone
// are the kernels' own.
Result Exactly(const Problem& p, std::size_t target);

// The same bits, but for those of NaN, which may be any.
bool SameNumbers(const Array& a, const Array& b);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_TESTS_FUZZ_H_
