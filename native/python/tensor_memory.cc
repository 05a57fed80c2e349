// Where PyTorch's tensors have their numbers: many at once, as asking each from Python takes longer than a short call.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string_view.h>

#include <cstdint>
#include <stdexcept>
#include <string_view>

#include "native/python/bindings.h"

namespace nb = nanobind;

namespace onegru {
namespace {

// DLPack's exchange API, of its first version: how PyTorch shows a tensor's memory.
struct ExchangeApi {
  struct {
    std::uint32_t major, minor;
  } version;
  const void* earlier;
  void *allocate, *from_object, *to_object;
  int (*view)(void* object, nb::dlpack::dltensor* tensor);
  void* current_stream;
};

constexpr int kMaxAxes = 8;

// How a tensor has to lie in memory.
enum class Kind : char { kRows = 'r', kSingle = 's', kContiguous = 'c', kLengths = 'l', kMask = 'b' };

// Whether a tensor is on the CPU, of a type and shape, and between two addresses.
bool Fits(const nb::dlpack::dltensor& found, nb::dlpack::dtype type, const nb::tuple& shape, std::uintptr_t begin,
          std::uintptr_t end, Kind kind) {
  if (found.device.device_type != nb::device::cpu::value || found.dtype != type) return false;
  if (found.ndim > kMaxAxes || found.ndim != static_cast<std::int32_t>(shape.size())) return false;
  std::int64_t count = 1, last = 0;
  bool is_contiguous = true, has_rows = true;
  for (int axis = found.ndim; axis-- > 0;) {
    const std::int64_t size = found.shape[axis];
    if (size != nb::cast<std::int64_t>(shape[axis])) return false;
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

void BindTensorMemory(nb::module_& m) {
  m.def(
      "tensor_rows",
      [](nb::capsule api, nb::tuple tensors, nb::tuple room, nb::tuple shapes, std::string_view kinds,
         bool is_double) -> nb::object {
        const auto* const exchange = static_cast<const ExchangeApi*>(api.data("dlpack_exchange_api"));
        const std::size_t count = tensors.size();
        if (exchange == nullptr || exchange->version.major != 1 || exchange->view == nullptr) return nb::none();
        if (room.size() != 2 * count || shapes.size() != count || kinds.size() != count) {
          throw std::invalid_argument("room, shapes, kinds: must be two, one and one for each tensor");
        }
        const nb::dlpack::dtype numbers = is_double ? nb::dtype<double>() : nb::dtype<float>();
        nb::list rows;
        for (std::size_t i = 0; i < count; ++i) {
          const nb::handle tensor = tensors[i];
          if (tensor.is_none()) {
            rows.append(nb::make_tuple(0, 0, 0));
            continue;
          }
          nb::dlpack::dltensor found;
          if (exchange->view(tensor.ptr(), &found) != 0) {
            PyErr_Clear();
            return nb::none();
          }
          const auto kind = static_cast<Kind>(kinds[i]);
          found.data = static_cast<char*>(found.data) + found.byte_offset;
          const auto shape = nb::cast<nb::tuple>(shapes[i]);
          const auto begin = nb::cast<std::uintptr_t>(room[2 * i]), end = nb::cast<std::uintptr_t>(room[2 * i + 1]);
          if (!Fits(found, TypeOf(kind, numbers), shape, begin, end, kind)) return nb::none();
          std::int64_t strides[2] = {0, 0};
          for (int axis = 0; axis < 2 && axis < found.ndim && found.strides != nullptr; ++axis) {
            strides[axis] = found.strides[axis] * (found.dtype.bits / 8);
          }
          rows.append(nb::make_tuple(reinterpret_cast<std::uintptr_t>(found.data), strides[0], strides[1]));
        }
        return rows;
      },
      nb::arg("api"), nb::arg("tensors"), nb::arg("room"), nb::arg("shapes"), nb::arg("kinds"), nb::arg("is_double"),
      "Of each tensor its address, and its strides along the first two axes in bytes; None if one is not on the CPU, "
      "of its shape and type, and within its room, from one address to another. kinds: r for rows in one piece, s for "
      "single numbers, c for all in one piece, l and b likewise for int64 and bool. None among the tensors is at 0.");
}

}  // namespace onegru
