"""Read the memory of PyTorch's tensors as arrays, and as addresses with strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onegru import _native
from onegru.core.dtypes import Array
from onegru.core.errors import SpecError
from onegru.torch.autograd.watching import EXCHANGE, is_of_zeros

TYPES = {torch.float32: "float32", torch.float64: "float64"}
_DTYPES = {kind: np.dtype(name) for kind, name in TYPES.items()}
_DTYPES |= {torch.int64: np.dtype(np.int64), torch.bool: np.dtype(np.bool_)}
_STRIDED = torch.strided
# Tensors or None: X, initial_h, attention, lengths, resets, and the four weights of each direction.
Tensors = Sequence[Any]
# An address, and strides along the first two axes in bytes.
Rows = tuple[int, int, int]
ABSENT: Rows = (0, 0, 0)


def array_of(name: str, tensor: Tensor) -> Array:
    """Return a tensor's memory as an array with a contiguous last axis, for the duration of a call."""
    # Unlike `Tensor.numpy`, PyTorch keeps the memory, and can resize it later.
    if not tensor.is_cpu or tensor.dtype not in _DTYPES or tensor.layout is not torch.strided:
        kind = f"{tensor.dtype}, {tensor.layout}, on {tensor.device.type}"
        raise SpecError.of(name, f"{kind}; must be float32 or float64 with strides on the CPU")
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    shape, strides = tensor.shape, tensor.stride()
    if strides and strides[-1] != 1 and shape[-1] > 1:
        tensor = tensor.contiguous()
        strides = tensor.stride()
    address = tensor.data_ptr()
    if not has_memory(tensor):
        if is_of_zeros(tensor):
            return np.zeros(shape, _DTYPES[tensor.dtype])
        raise SpecError.of(name, "a tensor whose memory was freed; must have values")
    return _native.array_at(tensor, address, shape, strides, _DTYPES[tensor.dtype])


def array_if_given(name: str, tensor: Tensor | None) -> Array | None:
    """Return `array_of` the tensor; None for None."""
    return None if tensor is None else array_of(name, tensor)


def rows_of(
    tensors: Tensors, shapes: tuple[tuple[int, ...], ...], kinds: str, dtype: torch.dtype
) -> tuple[list[Rows], list[Any]] | None:
    """Return addresses and strides of tensors, as `_native.tensor_rows`; None if memory is not plain."""
    # Kinds: "s" any strides, "r" contiguous rows; contiguous: "c", "l" for int64, "b" for booleans.
    # The returned storages keep the memory alive while it is read, even if another thread changes the
    # tensors. The size of a storage shows whether its memory was freed.
    found = room_of(tensors)
    if found is None:
        return None
    room, storages = found
    if EXCHANGE is not None:
        is_double = dtype is torch.float64
        rows = _native.tensor_rows(EXCHANGE, tuple(tensors), tuple(room), shapes, kinds, is_double)
        return None if rows is None else (rows, storages)
    read = [
        _rows_by_attributes(tensor, shape, kind, dtype)
        for tensor, shape, kind in zip(tensors, shapes, kinds, strict=True)
    ]
    return None if None in read else ([item for item in read if item is not None], storages)


def room_of(tensors: Tensors) -> tuple[list[int], list[Any]] | None:
    """Return begin and end of each tensor's storage, and the storages; None if one is not plain."""
    room: list[int] = []
    storages: list[Any] = []
    for tensor in tensors:
        if tensor is None:
            room += (0, 0)
        elif tensor.layout is _STRIDED and not tensor.is_neg():
            try:
                storage = tensor.untyped_storage()
                begin = storage.data_ptr()
            except (RuntimeError, NotImplementedError):  # a tensor without memory, such as a zero tensor
                return None
            storages.append(storage)
            room += (begin, begin + storage.nbytes())
        else:
            return None
    return room, storages


def _rows_by_attributes(
    tensor: Tensor | None, shape: tuple[int, ...], kind: str, dtype: torch.dtype
) -> Rows | None:
    """Return address and strides of a tensor, for versions of PyTorch without that interface."""
    if tensor is None:
        return ABSENT
    wanted = {"l": torch.int64, "b": torch.bool}.get(kind, dtype)
    if not tensor.is_cpu or tensor.shape != shape or tensor.dtype != wanted or not has_memory(tensor):
        return None
    strides, size = tensor.stride(), tensor.element_size()
    in_rows = shape[-1] <= 1 or strides[-1] == 1
    if kind != "s" and not (in_rows if kind == "r" else tensor.is_contiguous()):
        return None
    along = (*strides, 0, 0)
    return tensor.data_ptr(), along[0] * size, along[1] * size


def has_memory(tensor: Tensor) -> bool:
    """Whether a tensor's storage holds all its values: a program may have freed or cut it."""
    if not tensor.numel():
        return True
    span = tensor.numel() - 1
    if not tensor.is_contiguous():
        span = sum((n - 1) * by for n, by in zip(tensor.shape, tensor.stride(), strict=True))
    last: int = (tensor.storage_offset() + span + 1) * tensor.element_size()
    return tensor.untyped_storage().nbytes() >= last and bool(tensor.data_ptr())
