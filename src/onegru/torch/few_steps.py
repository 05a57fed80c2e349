"""A few steps of a few rows on the parameters as they are: nothing is packed, so nothing can go stale."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

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
    if X is None or not all(_is_in_rows(item) for item in (X, initial_h, attention) if item is not None):
        return None
    lengths = None if lengths is None else lengths.to(torch.int64).contiguous()
    resets = None if resets is None else resets.to(torch.bool).contiguous()
    T, B, I = X.shape
    D, H = form.num_directions, weights[1].shape[-1]  # type: ignore[union-attr]
    shapes = ((3 * H, I), (3 * H, H), (3 * H,), (3 * H,))
    addresses = []
    for place, weight in enumerate(weights):
        address = 0
        if weight is not None:
            address = weight.data_ptr()
            if weight.shape != shapes[place % 4] or not weight.is_contiguous() or weight.is_neg():
                return None
            if not address and weight.numel():
                return None
        addresses.append(address)
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


def _is_in_rows(tensor: Tensor) -> bool:
    """Whether a tensor's memory is its numbers, each row in one piece."""
    if tensor.layout is not torch.strided or tensor.is_neg() or (not tensor.data_ptr() and tensor.numel()):
        return False
    is_plain: bool = tensor.is_contiguous() or tensor.dim() < 3 or tensor.shape[-1] == 1
    return is_plain or tensor.stride(-1) == 1


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
    if torch.is_autocast_enabled("cpu") or torch.jit.is_tracing() or is_exporting():
        return None
    dtype, D, B = X.dtype, form.num_directions, X.shape[1]
    if dtype not in _TYPES or not X.is_cpu or weights[0] is None or weights[1] is None:
        return None
    for item in (X, hx, *weights):
        if item is not None and (type(item) not in _CLASSES or item.dtype != dtype or not item.is_cpu):
            return None
    if X.shape[2] != weights[0].shape[1] or (hx is not None and hx.shape != (layers * D, B, H)):
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


@functools.lru_cache(maxsize=256)
def _native_form(form: TorchGruConfig, d: int, attention: bool) -> tuple[Any, ...]:
    spec = spec_of(form, 1, 1, "float32", attention)
    f, g = ((_NUMBERS[item.name], *item.parameters) for item in spec.activations[d])
    reverse = spec.reversed_directions[d]
    is_dien = form.attention == "dien"
    return form.linear_before_reset, reverse, form.clip or math.inf, f, g, form.resets_to_initial, is_dien
