"""A layer's results and gradients by the engine, on the memory of PyTorch's tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from onegru import _native
from onegru.core.dtypes import Array, contiguous
from onegru.core.errors import SpecError
from onegru.engines.training import Call, DirectionWeights, Outputs, Resets, TrainedLayer
from onegru.torch.arguments import TorchGruConfig, check_steps, spec_of
from onegru.torch.autograd.few_steps import has_memory
from onegru.torch.autograd.watching import is_of_zeros
from onegru.torch.threads import with_threads

TYPES = {torch.float32: "float32", torch.float64: "float64"}
_DTYPES = {kind: np.dtype(name) for kind, name in TYPES.items()}
_DTYPES |= {torch.int64: np.dtype(np.int64), torch.bool: np.dtype(np.bool_)}
_GATES = (1, 0, 2)  # where z, r and n are in PyTorch's order r, z, n
# The inputs that have gradients; behind them come lengths, resets and the weights.
INPUTS = ("X", "initial_h", "attention")
WEIGHTS = ("W", "R", "Wb", "Rb")


def _array(name: str, tensor: Tensor) -> Array:
    """A tensor's memory as an array, its last axis contiguous, for the time of a call."""
    # Unlike `Tensor.numpy` it leaves the memory to PyTorch, which can resize it later.
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
        raise SpecError.of(name, "a tensor whose memory was freed; must have its numbers")
    return _native.array_at(tensor, address, shape, strides, _DTYPES[tensor.dtype])


def _new(X: Tensor, shape: tuple[int, ...]) -> Array:
    """The memory of a new tensor, of X's type."""
    made = X.new_empty(shape)
    return _native.array_at(made, made.data_ptr(), shape, made.stride(), _DTYPES[made.dtype])


def _given(name: str, tensor: Tensor | None) -> Array | None:
    return None if tensor is None else _array(name, tensor)


def _layer(
    form: TorchGruConfig, X: Tensor, weights: Sequence[Tensor | None], attention: bool, packs: bool = True
) -> TrainedLayer:
    each = len(weights) // form.num_directions
    read = each if packs else 2  # gradients from saved gates read the matrices alone
    arrays = [
        None if weight is None or place % each >= read else contiguous(_array(WEIGHTS[place % each], weight))
        for place, weight in enumerate(weights)
    ]
    own = [DirectionWeights(*arrays[d * each : (d + 1) * each]) for d in range(form.num_directions)]
    assert own[0].R is not None
    if X.dim() != 3 or own[0].R.ndim != 2:  # hooks of saved tensors may return anything
        raise SpecError(f"X, R: {X.dim()} and {own[0].R.ndim} axes; must have 3 and 2")
    # Sizes are tensors while a call is traced.
    spec = spec_of(form, int(X.shape[2]), int(own[0].R.shape[1]), TYPES[X.dtype], attention)
    return TrainedLayer(spec, own, _GATES, packs=packs)


def _call(form: TorchGruConfig, tensors: Sequence[Tensor | None]) -> Call:
    X, initial_h, attention, lengths, resets = tensors
    assert X is not None
    if lengths is not None:
        lengths = lengths.to(torch.int64).contiguous()
    call = Call(
        _array("X", X),
        _given("initial_h", initial_h),
        _given("lengths", lengths),
        _given("attention", attention),
        None if resets is None else Resets(_array("resets", resets), form.resets_to_initial),
    )
    check_steps("X", call.X.shape[0])
    return call


def forward(
    form: TorchGruConfig, tensors: Sequence[Tensor | None], saves: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Y [T, B, D, H], Y_h and the gates, empty if none are saved."""
    X = tensors[0]
    assert X is not None
    call = _call(form, tensors[:5])
    layer = _layer(form, X, tensors[5:], tensors[2] is not None)
    T, B, _ = call.X.shape
    D, H = form.num_directions, layer.spec.hidden_size
    size = layer.saved_size(call) if saves else 0
    Y, Y_h = X.new_empty((T, B, D, H)), X.new_empty((D, B, H))
    gates = X.new_empty((T, D, B, size) if size else 0)
    saved = _array("gates", gates) if size else None
    with_threads(
        layer.forward, call, out=Outputs(_array("Y", Y).transpose(0, 2, 1, 3), _array("Y_h", Y_h), saved)
    )
    return Y, Y_h, gates


def backward(
    form: TorchGruConfig,
    tensors: Sequence[Tensor | None],
    Y: Tensor,
    dY: Tensor | None,
    dY_h: Tensor | None,
    wanted: Sequence[bool],
    gates: Tensor | None = None,
) -> list[Tensor | None]:
    """The gradients by X, initial_h, attention and the weights, those that are wanted."""
    X, attention = tensors[0], tensors[2]
    assert X is not None
    saved = gates if gates is not None and gates.numel() else None
    layer = _layer(form, X, tensors[5:], attention is not None, packs=saved is None)
    if dY is not None:
        dY = dY.reshape(Y.shape).transpose(1, 2)
    inputs = [name for name, is_wanted in zip(INPUTS, wanted, strict=False) if is_wanted]
    weights = [
        [name for name, is_wanted in zip(WEIGHTS, wanted[first : first + 4], strict=True) if is_wanted]
        for first in range(3, 3 + 4 * form.num_directions, 4)
    ]
    found, by = with_threads(
        layer.gradients,
        _call(form, tensors[:5]),
        _array("Y", Y.transpose(1, 2)),
        _given("gates", saved),
        _given("dY", dY),
        _given("dY_h", dY_h),
        inputs,
        weights,
        lambda shape: _new(X, shape),
    )
    arrays = [*(found.get(name) for name in INPUTS), *(array for own in by for array in own)]
    return [None if array is None else array.base for array in arrays]  # the tensor that it is the memory of


def output_of(Y: Tensor, saves: bool) -> Tensor:
    """Y [T, B, D, H] as [T, B, D·H]; not a view of what is saved: it may be changed in place."""
    output = Y.flatten(2)
    return output.clone() if saves else output
