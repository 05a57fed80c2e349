"""Compute results and gradients of a layer in the memory of PyTorch's tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from onegru import _native
from onegru.core.dtypes import contiguous
from onegru.core.errors import SpecError
from onegru.engines.training import DirectionWeights, LayerCall, Outputs, Resets, TrainedLayer
from onegru.layers.stack import flops_of_row, may_pipeline
from onegru.torch.arguments import GATES, TorchGruConfig, check_steps, spec_of
from onegru.torch.autograd.memory import TYPES, Tensors, array_if_given, array_of
from onegru.torch.threads import with_threads

# The inputs that have gradients. Lengths, resets and the weights follow them.
INPUTS = ("X", "initial_h", "attention")
WEIGHTS = ("W", "R", "Wb", "Rb")
# More units gain from splitting each step between threads.
_PIPELINE_UNITS = 256


def _layer(
    form: TorchGruConfig,
    X: Tensor,
    weights: Tensors,
    attention: bool,
    *,
    packs: bool = True,
    input_size: int | None = None,
) -> TrainedLayer:
    each = len(weights) // form.num_directions
    read = each if packs else 2  # gradients from saved gates read only the matrices
    arrays = [
        None
        if weight is None or index % each >= read
        else contiguous(array_of(WEIGHTS[index % each], weight))
        for index, weight in enumerate(weights)
    ]
    own = [DirectionWeights(*arrays[d * each : (d + 1) * each]) for d in range(form.num_directions)]
    assert own[0].R is not None
    if X.dim() != 3 or own[0].R.ndim != 2:  # hooks of saved tensors may return anything
        raise SpecError(f"X, R: {X.dim()} and {own[0].R.ndim} dimensions; must have 3 and 2")
    # Sizes are tensors while a call is traced.
    width = int(X.shape[2] if input_size is None else input_size)
    spec = spec_of(form, width, int(own[0].R.shape[1]), TYPES[X.dtype], attention)
    return TrainedLayer(spec, own, GATES, packs=packs)


def _call(form: TorchGruConfig, tensors: Tensors) -> LayerCall:
    X, initial_h, attention, lengths, resets = tensors
    if lengths is not None:
        lengths = lengths.to(torch.int64).contiguous()
    call = LayerCall(
        array_of("X", X),
        array_if_given("initial_h", initial_h),
        array_if_given("lengths", lengths),
        array_if_given("attention", attention),
        None if resets is None else Resets(array_of("resets", resets), form.resets_to_initial),
    )
    check_steps("X", call.X.shape[0])
    return call


def forward(form: TorchGruConfig, tensors: Tensors, saves: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Return Y [T, B, D, H], Y_h and the gates, which are empty unless they are saved."""
    X = tensors[0]
    call = _call(form, tensors[:5])
    layer = _layer(form, X, tensors[5:], tensors[2] is not None)
    T, B, _ = call.X.shape
    D, H = form.num_directions, layer.spec.hidden_size
    size = layer.saved_size(call) if saves else 0
    Y, Y_h = X.new_empty((T, B, D, H)), X.new_empty((D, B, H))
    gates = X.new_empty((T, D, B, size) if size else 0)
    saved = array_of("gates", gates) if size else None
    with_threads(
        layer.forward, call, out=Outputs(array_of("Y", Y).transpose(0, 2, 1, 3), array_of("Y_h", Y_h), saved)
    )
    return Y, Y_h, gates


def forward_of_layers(
    form: TorchGruConfig, X: Tensor, initial_h: Tensor | None, weights: Sequence[Tensors]
) -> tuple[Tensor, Tensor] | None:
    """Return Y [T, B, H] and Y_h [L, B, H] of forward layers; None if no pipeline can be faster."""
    (T, B, I), H, L = X.shape, int(weights[0][1].shape[1]), len(weights)
    sizes = [I] + [H] * (L - 1)
    flops = T * B * flops_of_row((size, H) for size in sizes)
    if T < 2 or H > _PIPELINE_UNITS or not may_pipeline(B, flops):
        return None
    Y_h = X.new_zeros((L, B, H)) if initial_h is None else X.new_empty((L, B, H)).copy_(initial_h)
    layers = [_layer(form, X, own, False, input_size=size) for own, size in zip(weights, sizes, strict=True)]
    states, below = array_of("Y_h", Y_h), array_of("X", X)
    Y = X.new_empty((T, B, H))
    streams = [_native.Stepper(layer.stream(states[index])) for index, layer in enumerate(layers)]
    if _native.run_stack(streams, below, False, array_of("Y", Y)[:, None]) is not None:
        return Y, Y_h
    for index, layer in enumerate(layers):  # a pipeline is not faster, but the weights are already packed
        Y = (
            X.new_empty((T, B, H)) if index else Y
        )  # the first layer uses the memory that the pipeline did not
        state = states[index : index + 1]
        layer.forward(LayerCall(below, state.copy()), out=Outputs(array_of("Y", Y)[:, None], state, None))
        below = array_of("Y", Y)
    return Y, Y_h


def backward(
    form: TorchGruConfig,
    tensors: Tensors,
    Y: Tensor,
    d_outputs: Tensors,
    wanted: Sequence[bool],
    gates: Tensor | None = None,
) -> list[Tensor | None]:
    """Return the wanted gradients of X, initial_h, attention and the weights."""
    X, attention, (dY, dY_h) = tensors[0], tensors[2], d_outputs
    saved = gates if gates is not None and gates.numel() else None
    layer = _layer(form, X, tensors[5:], attention is not None, packs=saved is None)
    if dY is not None:
        dY = dY.reshape(Y.shape).transpose(1, 2)
    inputs = [name for name, is_wanted in zip(INPUTS, wanted, strict=False) if is_wanted]
    weights = [
        [name for name, is_wanted in zip(WEIGHTS, wanted[first : first + 4], strict=True) if is_wanted]
        for first in range(3, 3 + 4 * form.num_directions, 4)
    ]
    found, by_weights = with_threads(
        layer.gradients,
        _call(form, tensors[:5]),
        array_of("Y", Y.transpose(1, 2)),
        array_if_given("gates", saved),
        array_if_given("dY", dY),
        array_if_given("dY_h", dY_h),
        inputs,
        weights,
        lambda shape: array_of("X", X.new_empty(shape)),
    )
    arrays = [*(found.get(name) for name in INPUTS), *(array for own in by_weights for array in own)]
    return [None if array is None else array.base for array in arrays]  # the tensor that owns the memory


def output_of(Y: Tensor, saves: bool) -> Tensor:
    """Return Y [T, B, D, H] as [T, B, D·H]; not as a view of saved data, so it can be changed in place."""
    output = Y.flatten(2)
    return output.clone() if saves else output
