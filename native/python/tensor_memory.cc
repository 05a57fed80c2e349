// Reads several tensors at once, because reading each from Python takes longer than a short call.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string_view.h>

#include <cstdint>
#include <stdexcept>
#include <span>
#include <string_view>
#include <vector>

#include "native/python/bindings.h"
#include "native/python/tensor_memory.h"

namespace nb = nanobind;

namespace onegru {
namespace {

constexpr int kMaxAxes = 8;

// Whether a tensor is on the CPU, has this type and shape, and is in memory between two addresses.
bool Fits(const nb::dlpack::dltensor& found, nb::dlpack::dtype type, std::span<const std::int64_t> shape,
          std::uintptr_t begin, std::uintptr_t end, Kind kind) {
  if (found.device.device_type != nb::device::cpu::value || found.dtype != type) return false;
  if (found.ndim > kMaxAxes || found.ndim != static_cast<std::int32_t>(shape.size())) return false;
  std::int64_t count = 1, last = 0;
  bool is_contiguous = true, has_rows = true;
  for (int axis = found.ndim; axis-- > 0;) {
    const std::int64_t size = found.shape[axis];
    if (size != shape[static_cast<std::size_t>(axis)]) return false;
    const std::int64_t stride = found.strides == nullptr ? count : found.strides[axis];
    if (stride < 0) return false;
    if (size > 1 && stride != count) is_contiguous = false;
    if (size > 1 && stride != 1 && axis + 1 == found.ndim) has_rows = false;
    count *= size;
    last += (size - 1) * stride;
  }
  if (count == 0) return true;
  if (kind == Kind::kRows ? !has_rows : kind != Kind::kSingle && !is_contiguous) return false;
  const auto at = reinterpret_cast<std::uintptr_t>(found.data);
  const auto bytes = static_cast<std::uintptr_t>(last + 1) * (type.bits / 8);
  return at != 0 && at >= begin && at <= end && bytes <= end - at;
}

nb::dlpack::dtype TypeOf(Kind kind, nb::dlpack::dtype numbers) {
  if (kind == Kind::kLengths) return nb::dtype<std::int64_t>();
  if (kind == Kind::kMask) return nb::dtype<bool>();
  return numbers;
}

}  // namespace

const ExchangeApi* ExchangeOf(const nb::capsule& capsule) {
  const auto* const exchange = static_cast<const ExchangeApi*>(capsule.data("dlpack_exchange_api"));
  return exchange == nullptr || exchange->version.major != 1 || exchange->view == nullptr ? nullptr : exchange;
}

bool ReadTensor(const ExchangeApi& exchange, nb::handle tensor, Kind kind, bool is_double,
                std::span<const std::int64_t> shape, std::uintptr_t begin, std::uintptr_t end, TensorRows* rows) {
  *rows = {};
  if (tensor.is_none()) return true;
  nb::dlpack::dltensor found;
  if (exchange.view(tensor.ptr(), &found) != 0) {
    PyErr_Clear();
    return false;
  }
  found.data = static_cast<char*>(found.data) + found.byte_offset;
  if (!Fits(found, TypeOf(kind, is_double ? nb::dtype<double>() : nb::dtype<float>()), shape, begin, end, kind)) {
    return false;
  }
  rows->data = found.data;
  for (int axis = 0; axis < 2 && axis < found.ndim && found.strides != nullptr; ++axis) {
    rows->strides[axis] = found.strides[axis] * (found.dtype.bits / 8);
  }
  return true;
}

void BindTensorMemory(nb::module_& m) {
  m.def(
      "tensor_rows",
      [](nb::capsule api, nb::tuple tensors, nb::tuple room, nb::tuple shapes, std::string_view kinds,
         bool is_double) -> nb::object {
        const ExchangeApi* const exchange = ExchangeOf(api);
        const std::size_t count = tensors.size();
        if (exchange == nullptr) return nb::none();
        if (room.size() != 2 * count || shapes.size() != count || kinds.size() != count) {
          throw std::invalid_argument("room, shapes, kinds: must have 2, 1 and 1 values for each tensor");
        }
        nb::list rows;
        for (std::size_t i = 0; i < count; ++i) {
          std::vector<std::int64_t> shape;
          for (const nb::handle size : nb::cast<nb::tuple>(shapes[i])) shape.push_back(nb::cast<std::int64_t>(size));
          TensorRows found;
          if (!ReadTensor(*exchange, tensors[i], static_cast<Kind>(kinds[i]), is_double, shape,
                          nb::cast<std::uintptr_t>(room[2 * i]), nb::cast<std::uintptr_t>(room[2 * i + 1]), &found)) {
            return nb::none();
          }
          rows.append(nb::make_tuple(reinterpret_cast<std::uintptr_t>(found.data), found.strides[0], found.strides[1]));
        }
        return rows;
      },
      nb::arg("api"), nb::arg("tensors"), nb::arg("room"), nb::arg("shapes"), nb::arg("kinds"), nb::arg("is_double"),
      "Returns the address of each tensor, and its strides along the first two axes in bytes. Returns None if a tensor "
      "is not on the CPU, has another shape or type, or is outside its room, an address range. kinds: r: contiguous "
      "rows; s: any strides; c: contiguous; l: contiguous int64; b: contiguous bool. The address of None is 0.");
}

}  // namespace onegru
