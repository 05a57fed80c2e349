"""Fast path for short calls: runs on unpacked PyTorch parameters."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from onegru import _native
from onegru.core.activations import ACTIVATIONS
from onegru.torch.arguments import TorchGruConfig, spec_of
from onegru.torch.autograd.memory import ABSENT, TYPES, Rows, Tensors, room_of, rows_of
from onegru.torch.autograd.watching import EXCHANGE, is_profiled

_NUMBERS = {name: index for index, name in enumerate(ACTIVATIONS)}
#: Rows of H values that a step saves: the arguments of r, z and n; h·Rnᵀ + Rbn; the state.
SAVED = 5
# T, B, I, H, and the number of threads that PyTorch may use.
_Sizes = tuple[int, int, int, int, int]


class Memory(NamedTuple):
    """Addresses and strides of the inputs of a call."""

    sizes: _Sizes  # T, B, I, H, and the number of threads that PyTorch may use
    # addresses and strides in bytes of X, initial_h, attention, lengths, resets and the weights
    rows: Sequence[Rows]
    kept: Sequence[Any]  # the storages, which must stay alive while the kernels read them
    is_cell: bool  # whether the first axis of the inputs is the batch


def memory_of(form: TorchGruConfig, tensors: Tensors) -> Memory | None:
    """Return the addresses of the inputs of a call; None if a tensor's memory is not plain."""
    # Only this function reads memory by address. So it checks the owner and the size of each tensor's memory.
    sized = _sized(form, tensors)
    if sized is None:
        return None
    sizes, tensors = sized
    X = tensors[0]
    T, B, I, H, _ = sizes
    shapes = _cell_shapes(B, I, H) if X.dim() == 2 else _shapes(T, B, I, H, form.num_directions)
    found = rows_of(tensors, shapes, "rrslb" + "cccc" * form.num_directions, X.dtype)
    if found is None:
        return None
    return Memory(sizes, *found, X.dim() == 2)


def _sized(form: TorchGruConfig, tensors: Tensors) -> tuple[_Sizes, Tensors] | None:
    """Return T, B, I, H and PyTorch's threads, and the inputs, with converted lengths and resets."""
    X, lengths, resets, R = tensors[0], tensors[3], tensors[4], tensors[6]
    if X is None or R is None or len(tensors) != 5 + 4 * form.num_directions or X.dtype not in TYPES:
        return None
    if any(w is None for w in (*tensors[5::4], *tensors[6::4])):  # computed from other tensors
        return None
    if lengths is not None or resets is not None:
        lengths = None if lengths is None else lengths.to(torch.int64).contiguous()
        resets = None if resets is None else resets.to(torch.bool).contiguous()
        tensors = (*tensors[:3], lengths, resets, *tensors[5:])
    shape = X.shape
    if len(shape) != 3 and len(shape) != 2:
        return None
    T, B, I = shape if len(shape) == 3 else (1, *shape)
    if lengths is not None and B and not bool(((lengths >= 0) & (lengths <= T)).all()):
        return None
    return (T, B, I, R.shape[-1], torch.get_num_threads()), tensors


@functools.lru_cache(maxsize=256)
def _shapes(T: int, B: int, I: int, H: int, D: int) -> tuple[tuple[int, ...], ...]:
    weights = ((3 * H, I), (3 * H, H), (3 * H,), (3 * H,))
    return ((T, B, I), (D, B, H), (T, B), (B,), (T, B), *weights * D)


@functools.lru_cache(maxsize=256)
def _cell_shapes(B: int, I: int, H: int) -> tuple[tuple[int, ...], ...]:
    return ((B, I), (B, H), (B,), (B,), (1, B), (3 * H, I), (3 * H, H), (3 * H,), (3 * H,))


def _of_cell(rows: Rows) -> Rows:
    return rows[0], 0, rows[1]


def _inputs(memory: Memory, d: int) -> tuple[tuple[int, int, int, int], Rows, Rows, Rows, int, int]:
    """Return the inputs of one direction, in the order of the native module."""
    X, h, scores, lengths, resets, *weights = memory.rows
    W, R, Wb, Rb = weights[4 * d : 4 * d + 4]
    if memory.is_cell:
        X, h, scores = _of_cell(X), _of_cell(h), _of_cell(scores)
    else:
        h = h[0] + d * h[1], 0, h[2]
    return (W[0], R[0], Wb[0], Rb[0]), X, h, scores, lengths[0], resets[0]


def run_few_steps(form: TorchGruConfig, tensors: Tensors) -> tuple[Tensor, Tensor] | None:
    """Return Y and Y_h of a layer, or the state of a cell twice; None if a tensor's memory is not plain."""
    sized = _sized(form, tensors)
    if sized is None:
        return None
    (T, B, _, H, _), D = sized[0], form.num_directions
    X: Any = tensors[0]
    Y = X.new_empty((B, H) if len(X.shape) == 2 else (T, B, D * H))
    Y_h = Y if len(X.shape) == 2 else X.new_empty((D, B, H))
    if is_profiled():  # as autograd's function appears in profiles
        with torch.profiler.record_function("onegru::few_steps"):
            done = _run_tensors(form, *sized, Y, Y_h)
    else:
        done = _run_tensors(form, *sized, Y, Y_h)
    return (Y, Y_h) if done else None


def _run_tensors(form: TorchGruConfig, sizes: _Sizes, tensors: Tensors, Y: Tensor, Y_h: Tensor) -> bool:
    """Compute a call without gradients; return False if a tensor's memory is not plain."""
    if EXCHANGE is None:
        memory = memory_of(form, tensors)
        if memory is not None:
            run_on_memory(form, memory, tensors[2] is not None, Y, Y_h)
        return memory is not None
    found = room_of(tensors)
    if found is None:
        return False
    room, kept = found  # keeps the storages while they are read, even if another thread changes the tensors
    forms = _native_forms(form, tensors[2] is not None)
    is_cell, is_double = Y is Y_h, Y.dtype is torch.float64
    outputs = Y.data_ptr(), Y_h.data_ptr()
    done = _native.few_steps_of_tensors(
        EXCHANGE, tuple(tensors), tuple(room), sizes, forms, is_cell, is_double, *outputs
    )
    del kept
    return done


@functools.lru_cache(maxsize=256)
def _native_forms(form: TorchGruConfig, has_scores: bool) -> tuple[tuple[Any, ...], ...]:
    return tuple(_native_form(form, d, has_scores) for d in range(form.num_directions))


def run_on_memory(
    form: TorchGruConfig,
    memory: Memory,
    has_scores: bool,
    Y: Tensor,
    Y_h: Tensor,
    gates: Tensor | None = None,
) -> None:
    """Compute a call into new tensors."""
    (_, B, _, H, _), D, size = memory.sizes, form.num_directions, Y.element_size()
    y, last, row = Y.data_ptr(), Y_h.data_ptr(), H * size
    kept = 0 if gates is None else gates.data_ptr()
    directions = tuple(
        (
            _native_form(form, d, has_scores),
            *_inputs(memory, d),
            (kept + d * B * SAVED * row, D * B * SAVED * row, SAVED * row) if kept else ABSENT,
            (y + d * row, B * D * row, D * row),
            (last + d * B * row, 0, row),
        )
        for d in range(D)
    )
    _native.few_steps(size == 8, memory.sizes, directions)


def gradients_of_few_steps(
    form: TorchGruConfig,
    tensors: Tensors,
    gates: Tensor,
    d_outputs: tuple[Tensor | None, Tensor | None],
    wanted: Sequence[bool],
) -> list[Tensor | None] | None:
    """Return the gradients of X, initial_h, attention and the weights; None if memory is not plain."""
    memory, X = memory_of(form, tensors), tensors[0]
    if memory is None or X is None:
        return None
    (T, B, _, H, _), D, size = memory.sizes, form.num_directions, X.element_size()
    of_inputs = ((B, H), (B,)) if X.dim() == 2 else ((D, B, H), (T, B))
    shapes = (tuple(X.shape), *of_inputs)
    found: list[Tensor | None] = [None] * len(wanted)
    for index, is_wanted in enumerate(wanted):
        if is_wanted and index < 3:
            found[index] = X.new_empty(shapes[index])
        elif is_wanted and (weight := tensors[index + 2]) is not None:
            found[index] = X.new_empty(weight.shape)
    dY, dY_h = (None if item is None else item.contiguous() for item in d_outputs)
    of_Y = (B, H) if memory.is_cell else (T, B, D * H)
    others = rows_of((gates, dY, dY_h), ((T, D, B, SAVED, H), of_Y, (D, B, H)), "ccc", X.dtype)
    if others is None:
        return None
    at = [0 if item is None else item.data_ptr() for item in found]
    y, y_h, row = others[0][1][0], others[0][2][0], H * size
    kept, by_row, I = others[0][0][0], D * row, memory.sizes[2]
    directions = tuple(
        (
            _native_form(form, d, tensors[2] is not None),
            *_inputs(memory, d),
            (kept + d * B * SAVED * row, D * B * SAVED * row, SAVED * row),
            (
                (y + d * row, B * by_row, by_row) if y else ABSENT,
                (y_h + d * B * row, 0, row) if y_h else ABSENT,
            ),
            (
                (at[0], B * I * size, I * size),
                (at[1] + d * B * row, 0, row) if at[1] else ABSENT,
                (at[2], B * size, size),
            ),
            d > 0,
            (at[3 + 4 * d], at[4 + 4 * d], at[5 + 4 * d], at[6 + 4 * d]),
        )
        for d in range(D)
    )
    _native.few_steps_gradients(size == 8, memory.sizes, directions)
    return found


@functools.lru_cache(maxsize=256)
def _native_form(form: TorchGruConfig, d: int, attention: bool) -> tuple[Any, ...]:
    spec = spec_of(form, 1, 1, "float32", attention)
    f, g = ((_NUMBERS[item.name], *item.parameters) for item in spec.activations[d])
    reverse = spec.reversed_directions[d]
    is_dien = form.attention == "dien"
    return form.linear_before_reset, reverse, form.clip or math.inf, f, g, form.resets_to_initial, is_dien
