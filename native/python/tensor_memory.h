// The memory of PyTorch tensors.

#ifndef ONEGRU_NATIVE_PYTHON_TENSOR_MEMORY_H_
#define ONEGRU_NATIVE_PYTHON_TENSOR_MEMORY_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace onegru {

// Version 1 of DLPack's exchange API, which gives access to the memory of PyTorch tensors.
struct ExchangeApi {
  struct {
    std::uint32_t major, minor;
  } version;
  const void* earlier;
  void *allocate, *from_object, *to_object;
  int (*view)(void* object, nanobind::dlpack::dltensor* tensor);
  void* current_stream;
};

// Returns the API in a capsule, or null if it has another version.
const ExchangeApi* ExchangeOf(const nanobind::capsule& capsule);

// The memory layout that a tensor must have.
enum class Kind : char { kRows = 'r', kSingle = 's', kContiguous = 'c', kLengths = 'l', kMask = 'b' };

// A tensor's memory, and its strides along the first two axes in bytes.
struct TensorRows {
  void* data = nullptr;
  std::ptrdiff_t strides[2] = {0, 0};
};

// Reads a tensor, or null for None. Returns false if it is not on the CPU, has another shape or type, or is not within
// the addresses [begin, end].
bool ReadTensor(const ExchangeApi& exchange, nanobind::handle tensor, Kind kind, bool is_double,
                std::span<const std::int64_t> shape, std::uintptr_t begin, std::uintptr_t end, TensorRows* rows);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_PYTHON_TENSOR_MEMORY_H_
