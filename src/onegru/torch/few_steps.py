"""A few steps of a few rows on the parameters as they are: nothing is packed, so nothing can go stale."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from onegru import _native
from onegru.core.activations import ACTIVATIONS
from onegru.torch.arguments import TorchGruConfig, spec_of
from onegru.torch.export import is_exporting

_NUMBERS = {name: index for index, name in enumerate(ACTIVATIONS)}
_ABSENT = (0, 0, 0)
_TYPES = (torch.float32, torch.float64)
_CLASSES = (Tensor, torch.nn.Parameter)


def are_few(T: int, B: int, H: int) -> bool:
    """Whether a call without gradients runs on parameters that are not packed: only its shape says so.

    Beyond, a call that packs them, or PyTorch's operator with more threads than one, takes less time.
    """
    return 0 < T * B <= 16 or (0 < T <= 5 and 0 < B <= (32 if H <= 128 else 8))


def run_few_steps(form: TorchGruConfig, tensors: Sequence[Tensor | None]) -> tuple[Tensor, Tensor] | None:
    """Y [T, B, D·H] and Y_h, as `onegru.torch.function.gru_layer`; None if a tensor's memory is not plain.

    Args:
        form: what to compute.
        tensors: X, initial_h, attention, lengths, resets, then the weights; on the CPU, of one type.
    """
    X, initial_h, attention, lengths, resets, *weights = tensors
    if X is None or X.dim() != 3 or len(weights) != 4 * form.num_directions or weights[1] is None:
        return None
    T, B, I = X.shape
    D, H = form.num_directions, weights[1].shape[-1]
    # Here alone memory is read by its address: all that says whose it is, and how much, is asked.
    rows = ((X, (T, B, I)), (initial_h, (D, B, H)), (attention, (T, B)))
    if not all(item is None or _is_in_rows(item, X.dtype, shape) for item, shape in rows):
        return None
    if lengths is not None:
        lengths = lengths.to(torch.int64).contiguous()
    if resets is not None:
        resets = resets.to(torch.bool).contiguous()
    for mask, shape in ((lengths, (B,)), (resets, (T, B))):
        if mask is not None and (not mask.is_cpu or mask.shape != shape or not has_memory(mask)):
            return None
    shapes = ((3 * H, I), (3 * H, H), (3 * H,), (3 * H,))
    addresses = []
    for place, weight in enumerate(weights):
        if weight is None and place % 4 >= 2:
            addresses.append(0)
            continue
        if weight is None or weight.shape != shapes[place % 4] or not weight.is_contiguous():
            return None
        if not weight.is_cpu or weight.dtype != X.dtype or weight.is_neg() or not has_memory(weight):
            return None
        addresses.append(weight.data_ptr())
    size = X.element_size()
    Y, Y_h = X.new_empty((T, B, D * H)), X.new_empty((D, B, H))
    y, last, row = Y.data_ptr(), Y_h.data_ptr(), H * size
    start, scores = _rows(initial_h), _rows(attention)
    for d in range(D):
        _native.few_steps(
            size == 8,
            (T, B, I, H),
            _native_form(form, d, attention is not None),
            tuple(addresses[4 * d : 4 * d + 4]),  # type: ignore[arg-type]
            _rows(X),
            (start[0] + d * start[1], 0, start[2]),
            scores,
            0 if lengths is None else lengths.data_ptr(),
            0 if resets is None else resets.data_ptr(),
            (y + d * row, B * D * row, D * row),
            (last + d * B * row, 0, row),
        )
    return Y, Y_h


def _rows(tensor: Tensor | None) -> tuple[int, int, int]:
    """A tensor's address, and its strides along the first two axes in bytes."""
    if tensor is None:
        return _ABSENT
    size, strides = tensor.element_size(), tensor.stride()
    return tensor.data_ptr(), strides[0] * size, strides[1] * size


def _is_in_rows(tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
    """Whether a tensor of this type and shape has its numbers in memory of the CPU, each row in one piece."""
    if tensor.layout is not torch.strided or not tensor.is_cpu or tensor.dtype != dtype:
        return False
    if tensor.shape != shape or tensor.is_neg() or not has_memory(tensor):
        return False
    is_plain: bool = tensor.is_contiguous() or tensor.dim() < 3 or tensor.shape[-1] == 1
    return is_plain or tensor.stride(-1) == 1


def has_memory(tensor: Tensor) -> bool:
    """Whether a tensor's storage holds all of its numbers: a program may have freed or cut it."""
    if not tensor.numel():
        return True
    span = tensor.numel() - 1
    if not tensor.is_contiguous():
        span = sum((n - 1) * by for n, by in zip(tensor.shape, tensor.stride(), strict=True))
    last: int = (tensor.storage_offset() + span + 1) * tensor.element_size()
    return tensor.untyped_storage().nbytes() >= last and bool(tensor.data_ptr())


def quick_call(
    form: TorchGruConfig,
    X: Tensor,
    hx: Tensor | None,
    weights: Sequence[Tensor | None],
    layers: int,
    H: int,
) -> tuple[Tensor, Tensor] | None:
    """A call with plain tensors, with the fewest questions; None for any other, of which more is asked.

    Args:
        form: what to compute.
        X: [T, B, I].
        hx: [L·D, B, H].
        weights: of each layer and direction, four; biases may be None.
        layers: L.
        H: hidden_size.
    """
    if torch._C._len_torch_dispatch_stack() or torch._C._are_functorch_transforms_active():
        return None
    if torch.is_autocast_enabled("cpu") or torch.jit.is_tracing() or is_exporting() or is_dual():
        return None
    dtype, D, B = X.dtype, form.num_directions, X.shape[1]
    if dtype not in _TYPES or any(
        item is not None and type(item) not in _CLASSES for item in (X, hx, *weights)
    ):
        return None
    if hx is not None and hx.shape != (layers * D, B, H):
        return None
    last = []
    for number in range(layers):
        start = hx if hx is None or layers == 1 else hx[number * D : (number + 1) * D]
        given = weights[4 * D * number : 4 * D * (number + 1)]
        found = run_few_steps(form, (X, start, None, None, None, *given))
        if found is None:
            return None
        X, Y_h = found
        last.append(Y_h)
    return X, last[0] if layers == 1 else torch.cat(last)


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
