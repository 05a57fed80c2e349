"""A few steps of a few rows on the parameters as they are: nothing is packed, so nothing can go stale."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from onegru import _native
from onegru.core.activations import ACTIVATIONS
from onegru.torch.arguments import TorchGruConfig, spec_of

_NUMBERS = {name: index for index, name in enumerate(ACTIVATIONS)}
# An address, and strides along the first two axes in bytes.
_Rows = tuple[int, int, int]
_ABSENT: _Rows = (0, 0, 0)
_TYPES = (torch.float32, torch.float64)
_STRIDED, _INT64, _BOOL = torch.strided, torch.int64, torch.bool
# How PyTorch shows the memory of its tensors, from 2.10 on.
_EXCHANGE = getattr(Tensor, "__dlpack_c_exchange_api__", None)


def are_few(T: int, B: int, H: int) -> bool:
    """Whether a call without gradients runs on parameters that are not packed: only its shape says so.

    Beyond, a call that packs them, or PyTorch's operator with more threads than one, takes less time.
    """
    rows = T * B
    if H <= 128:
        return 0 < rows <= (128 if H <= 64 else 80)
    return 0 < rows <= 16 or (rows > 0 and B <= 8 and rows <= (64 if H <= 256 else 40))


def are_few_trained(T: int, B: int, H: int) -> bool:
    """The same of a call with gradients."""
    rows = T * B
    if T == 1:
        return 0 < rows <= (64 if H <= 64 else 32 if H <= 128 else 16 if H <= 256 else 8)
    return 0 < rows <= (128 if H <= 256 else 16 if T == 2 else 64)


class _Memory(NamedTuple):
    """The inputs of a call where they are.

    Attributes:
        sizes: T, B, I, H, and how many threads PyTorch may use.
        rows: of X, initial_h, attention, lengths, resets and the weights: addresses and strides in bytes.
        kept: the storages that these are in.
    """

    sizes: tuple[int, int, int, int, int]
    rows: Sequence[_Rows]
    kept: object


def _memory_of(form: TorchGruConfig, tensors: Sequence[Tensor | None]) -> _Memory | None:
    """Where the inputs of a call are; None if a tensor's memory is not plain.

    Here alone memory is read by its address: all that says whose it is, and how much, is asked.
    """
    X, _, _, lengths, resets, *weights = tensors
    if X is None or X.dim() != 3 or len(weights) != 4 * form.num_directions or weights[1] is None:
        return None
    if any(weight is None for weight in (*weights[::4], *weights[1::4])) or X.dtype not in _TYPES:
        return None
    if lengths is not None or resets is not None:
        lengths = None if lengths is None else lengths.to(torch.int64).contiguous()
        resets = None if resets is None else resets.to(torch.bool).contiguous()
        tensors = (*tensors[:3], lengths, resets, *weights)
    T, B, I = X.shape
    if lengths is not None and B and not bool(((lengths >= 0) & (lengths <= T)).all()):
        return None
    H, kinds = weights[1].shape[-1], "rrrlb" + "cccc" * form.num_directions
    found = _rows_of(tensors, _shapes(T, B, I, H, form.num_directions), kinds, X.dtype)
    return None if found is None else _Memory((T, B, I, H, torch.get_num_threads()), *found)


@functools.lru_cache(maxsize=256)
def _shapes(T: int, B: int, I: int, H: int, D: int) -> tuple[tuple[int, ...], ...]:
    weights = ((3 * H, I), (3 * H, H), (3 * H,), (3 * H,))
    return ((T, B, I), (D, B, H), (T, B), (B,), (T, B), *weights * D)


def _rows_of(
    tensors: Sequence[Tensor | None], shapes: tuple[tuple[int, ...], ...], kinds: str, dtype: torch.dtype
) -> tuple[list[_Rows], list[Any]] | None:
    """See `tensor_rows` of the module; None also if a tensor is not strided, or a view that negates.

    With them come the storages, which keep the memory while it is read, whatever another thread makes of the
    tensors. A storage says how much there is: a program may have freed or cut it.
    """
    room: list[int] = []
    storages: list[Any] = []
    for tensor in tensors:
        if tensor is None:
            room += (0, 0)
        elif tensor.layout is _STRIDED and not tensor.is_neg():
            try:
                storage = tensor.untyped_storage()
                begin = storage.data_ptr()
            except (RuntimeError, NotImplementedError):  # a tensor without memory, as of zeros
                return None
            storages.append(storage)
            room += (begin, begin + storage.nbytes())
        else:
            return None
    if _EXCHANGE is not None:
        is_double = dtype is torch.float64
        rows = _native.tensor_rows(_EXCHANGE, tuple(tensors), tuple(room), shapes, kinds, is_double)
        return None if rows is None else (rows, storages)
    read = [
        _rows_by_attributes(tensor, begin, end, shape, kind, dtype)
        for tensor, begin, end, shape, kind in zip(tensors, room[::2], room[1::2], shapes, kinds, strict=True)
    ]
    return None if None in read else ([item for item in read if item is not None], storages)


def _rows_by_attributes(
    tensor: Tensor | None, begin: int, end: int, shape: tuple[int, ...], kind: str, dtype: torch.dtype
) -> _Rows | None:
    """The same of one tensor, where PyTorch is older than that interface."""
    if tensor is None:
        return _ABSENT
    wanted = {"l": _INT64, "b": _BOOL}.get(kind, dtype)
    if not tensor.is_cpu or tensor.shape != shape or tensor.dtype != wanted:
        return None
    strides, size, first = tensor.stride(), tensor.element_size(), tensor.data_ptr()
    last = sum((n - 1) * by for n, by in zip(shape, strides, strict=True))
    if tensor.numel() and (not first or first < begin or first + (last + 1) * size > end):
        return None
    in_rows = len(shape) < 3 or shape[-1] <= 1 or strides[-1] == 1
    if not (in_rows if kind == "r" else tensor.is_contiguous()):
        return None
    along = (*strides, 0, 0)
    return first, along[0] * size, along[1] * size


def _inputs(memory: _Memory, d: int) -> tuple[tuple[int, int, int, int], _Rows, _Rows, _Rows, int, int]:
    """Those of a direction, as the module takes them."""
    X, h, scores, lengths, resets, *weights = memory.rows
    W, R, Wb, Rb = weights[4 * d : 4 * d + 4]
    return (W[0], R[0], Wb[0], Rb[0]), X, (h[0] + d * h[1], 0, h[2]), scores, lengths[0], resets[0]


def run_few_steps(
    form: TorchGruConfig, tensors: Sequence[Tensor | None], saves: bool = False
) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """Y [T, B, D·H], Y_h and None; with `saves` Y [T, B, D, H] and the gates; None if memory is not plain.

    Args:
        form: what to compute.
        tensors: X, initial_h, attention, lengths, resets, then the weights; on the CPU, of one type.
        saves: whether to keep gates, [T, D, B, 4, H].
    """
    if torch.autograd._profiler_enabled() and not saves:  # where autograd's function shows itself
        with torch.profiler.record_function("onegru::few_steps"):
            return _run(form, tensors, saves)
    return _run(form, tensors, saves)


def _run(
    form: TorchGruConfig, tensors: Sequence[Tensor | None], saves: bool
) -> tuple[Tensor, Tensor, Tensor | None] | None:
    memory = _memory_of(form, tensors)
    if memory is None:
        return None
    X = tensors[0]
    assert X is not None
    (T, B, _, H, _), D, size = memory.sizes, form.num_directions, X.element_size()
    Y, Y_h = X.new_empty((T, B, D, H) if saves else (T, B, D * H)), X.new_empty((D, B, H))
    gates = X.new_empty((T, D, B, 4, H)) if saves else None
    y, last, kept, row = Y.data_ptr(), Y_h.data_ptr(), 0 if gates is None else gates.data_ptr(), H * size
    has_scores = tensors[2] is not None
    for d in range(D):
        _native.few_steps(
            size == 8,
            memory.sizes,
            _native_form(form, d, has_scores),
            *_inputs(memory, d),
            (y + d * row, B * D * row, D * row),
            (kept + d * B * 4 * row, D * B * 4 * row, 4 * row) if saves else _ABSENT,
            (last + d * B * row, 0, row),
        )
    return Y, Y_h, gates


def gradients_of_few_steps(
    form: TorchGruConfig,
    tensors: Sequence[Tensor | None],
    Y: Tensor,
    gates: Tensor,
    by: tuple[Tensor | None, Tensor | None],
    wanted: Sequence[bool],
) -> list[Tensor | None] | None:
    """The gradients by X, initial_h, attention and the weights; None if a tensor's memory is not plain.

    Args:
        form: what was computed.
        tensors: as `run_few_steps` was given them.
        Y: what it gave.
        gates: likewise.
        by: the gradients by Y [T, B, D·H] and Y_h; None for zeros.
        wanted: whether each is wanted.
    """
    memory = _memory_of(form, tensors)
    if memory is None:
        return None
    X = tensors[0]
    assert X is not None
    (T, B, I, H, _), D, size = memory.sizes, form.num_directions, X.element_size()
    shapes = ((T, B, I), (D, B, H), (T, B))
    found: list[Tensor | None] = [None] * len(wanted)
    for place, is_wanted in enumerate(wanted):
        if is_wanted and place < 3:
            found[place] = X.new_zeros(shapes[place])
        elif is_wanted and (weight := tensors[place + 2]) is not None:
            found[place] = X.new_empty(weight.shape)
    dY, dY_h = (None if item is None else item.contiguous() for item in by)
    others = _rows_of(
        (Y, gates, dY, dY_h, *found[:3]),
        ((T, B, D, H), (T, D, B, 4, H), (T, B, D * H), (D, B, H), *shapes),
        "ccccccc",
        X.dtype,
    )
    if others is None:
        return None
    (y, *_), (kept, *_), of_Y, of_Y_h, dX, of_h, of_scores = others[0]
    row = H * size
    for d in range(D):
        _native.few_steps_gradients(
            size == 8,
            memory.sizes,
            _native_form(form, d, tensors[2] is not None),
            *_inputs(memory, d),
            (y + d * row, B * D * row, D * row),
            (kept + d * B * 4 * row, D * B * 4 * row, 4 * row),
            (
                _ABSENT if dY is None else (of_Y[0] + d * row, *of_Y[1:]),
                (of_Y_h[0] + d * of_Y_h[1], 0, of_Y_h[2]),
            ),
            (dX, (of_h[0] + d * of_h[1], 0, of_h[2]), of_scores),
            tuple(0 if w is None else w.data_ptr() for w in found[3 + 4 * d : 7 + 4 * d]),  # type: ignore[arg-type]
        )
    return found


def has_memory(tensor: Tensor) -> bool:
    """Whether a tensor's storage holds all of its numbers: a program may have freed or cut it."""
    if not tensor.numel():
        return True
    span = tensor.numel() - 1
    if not tensor.is_contiguous():
        span = sum((n - 1) * by for n, by in zip(tensor.shape, tensor.stride(), strict=True))
    last: int = (tensor.storage_offset() + span + 1) * tensor.element_size()
    return tensor.untyped_storage().nbytes() >= last and bool(tensor.data_ptr())


def is_dual() -> bool:
    """Whether derivatives in forward mode are computed, which reads of memory would lose."""
    return bool(forward_ad._current_level >= 0)


@functools.lru_cache(maxsize=256)
def _native_form(form: TorchGruConfig, d: int, attention: bool) -> tuple[Any, ...]:
    spec = spec_of(form, 1, 1, "float32", attention)
    f, g = ((_NUMBERS[item.name], *item.parameters) for item in spec.activations[d])
    reverse = spec.reversed_directions[d]
    is_dien = form.attention == "dien"
    return form.linear_before_reset, reverse, form.clip or math.inf, f, g, form.resets_to_initial, is_dien
