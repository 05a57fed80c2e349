// The functions of fuzzers, which create a problem from any bytes, and check it. An error ends the process, so that the
// fuzzer keeps the bytes. fuzz_main.cc is the fuzzer; check.cc calls the functions with random bytes.

#ifndef ONEGRU_NATIVE_TESTS_FUZZ_H_
#define ONEGRU_NATIVE_TESTS_FUZZ_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "native/tests/problems.h"

namespace onegru {

// Valid layers and calls with any sizes, strides, activations and numbers, on any target, with any number of threads.
void FuzzKernels(const std::uint8_t* data, std::size_t size);

// Checks, packs and runs GRU nodes of ONNX models, valid or not.
void FuzzNodes(const std::uint8_t* data, std::size_t size);

// Reads files with onegru.h.
void FuzzFiles(const std::uint8_t* data, std::size_t size);

// Reads the bytes of an input one after another, and zeros after the last.
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
  // Returns a number that depends on one or two bytes of the input.
  std::size_t Below(std::size_t n) { return n <= 256 ? Next<std::uint8_t>() % n : Next<std::uint16_t>() % n; }
  // Returns false at the end of the input.
  bool OneIn(std::size_t n) { return Below(n) == n - 1; }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

// Ends the process with a message if a condition is false.
void Require(bool good, const char* what, const Problem& p, const char* target);

// Returns a target of this CPU.
std::size_t DrawTarget(Bytes& bytes);
Problem DrawProblem(Bytes& bytes);

// Solves a problem in the order of operations that docs/reproducibility.md guarantees, with the same bits. Only the
// activations are those of the kernels.
Result Exactly(const Problem& p, std::size_t target);

// Whether the arrays have the same bits, except those of NaN.
bool SameNumbers(const Array& a, const Array& b);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_TESTS_FUZZ_H_
