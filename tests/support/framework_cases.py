"""Define layers and inputs for the tests of PyTorch, Keras and Flax."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import onegru
from onegru.core.dtypes import Array
from onegru.core.spec import Weights
from onegru.operators.lowering import lower
from onegru.operators.openvino import GRU_SEQUENCE

I, H = 3, 4

TOLERANCES = {"float32": 1e-6, "float64": 1e-14}


def draw(shape: Sequence[int], dtype: str = "float32", seed: int = 0) -> Array:
    numbers: Array = np.random.default_rng(seed).normal(size=tuple(shape)).astype(dtype)
    return numbers


def layer(
    direction: Any = "forward",
    linear_before_reset: bool = True,
    *,
    dtype: str = "float32",
    input_size: int = I,
    bias: bool = True,
    seed: int = 0,
    **options: Any,
) -> onegru.GRU:
    D = 2 if direction == "bidirectional" else 1
    return onegru.GRU(
        draw((D, 3 * H, input_size), dtype, seed) * np.dtype(dtype).type(0.6),
        draw((D, 3 * H, H), dtype, seed + 1) * np.dtype(dtype).type(0.6),
        draw((D, 6 * H), dtype, seed + 2) * np.dtype(dtype).type(0.6) if bias else None,
        direction=direction,
        linear_before_reset=linear_before_reset,
        **options,
    )


def stack(direction: Any, count: int, linear_before_reset: bool = True, **options: Any) -> onegru.Stack:
    width = H * (2 if direction == "bidirectional" else 1)
    return onegru.Stack(
        [
            layer(
                direction, linear_before_reset, input_size=width if index else I, seed=10 * index, **options
            )
            for index in range(count)
        ]
    )


def run(source: onegru.GRU | onegru.Stack, X: Array, **options: Any) -> Array:
    """Return Y of the last layer as [B, T, D·H], with concatenated directions; X is batch first."""
    Y = source(X, layout=1, **options)[0]
    return Y.reshape(*Y.shape[:2], -1)


def largest_difference(a: Array, b: Array) -> float:
    assert a.shape == b.shape
    assert np.abs(a).max() > 0.05  # outputs of zeros would always agree
    return float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max())


def same_weights(a: onegru.GRU, b: onegru.GRU) -> bool:
    """Whether two layers are bitwise identical."""
    return a.spec == b.spec and all(
        getattr(a.weights, name).tobytes() == getattr(b.weights, name).tobytes() for name in "WRB"
    )


def without_inner_bias(source: onegru.GRU) -> onegru.GRU:
    """Return the layer with Rbh = 0, which Flax NNX requires."""
    B = source.weights.B.copy()
    B[:, 5 * H :] = 0
    return onegru.GRU.from_canonical(source.spec, Weights(source.weights.W, source.weights.R, B))


Convert = Callable[[onegru.GRU], onegru.GRU]


def through_onnx(source: onegru.GRU) -> onegru.GRU:
    weights, spec = source.weights, source.spec
    return onegru.GRU(
        weights.W,
        weights.R,
        weights.B,
        direction=spec.direction,
        linear_before_reset=spec.linear_before_reset,
    )


def through_torch(source: onegru.GRU) -> onegru.GRU:
    made = onegru.from_torch(onegru.to_torch_state_dict(source))
    assert isinstance(made, onegru.GRU)
    return made


def through_keras(source: onegru.GRU) -> onegru.GRU:
    arrays = onegru.to_keras_weights(source)
    made = onegru.from_keras(arrays, bidirectional=source.spec.num_directions == 2)
    assert isinstance(made, onegru.GRU)
    return made


def through_flax(form: str) -> Convert:
    def convert(source: onegru.GRU) -> onegru.GRU:
        if source.spec.direction != "bidirectional":
            return onegru.from_flax(onegru.to_flax(source, form=form))
        halves = [onegru.to_flax(source, form=form, direction=way) for way in ("forward", "reverse")]
        return onegru.from_flax(halves[0], backward=halves[1])

    return convert


def through_openvino(source: onegru.GRU) -> onegru.GRU:
    spec, weights = source.spec, source.weights
    hidden = spec.hidden_size
    Wb, Rb = weights.B[:, : 3 * hidden], weights.B[:, 3 * hidden :]
    if spec.linear_before_reset:  # sums for z and r, then both of h
        whole = slice(2 * hidden)
        B = np.concatenate([Wb[:, whole] + Rb[:, whole], Wb[:, 2 * hidden :], Rb[:, 2 * hidden :]], axis=1)
    else:
        B = Wb + Rb
    attributes = {
        "hidden_size": hidden,
        "direction": spec.direction,
        "linear_before_reset": spec.linear_before_reset,
    }
    lowered = lower(GRU_SEQUENCE, attributes, weights.W, weights.R, B)
    return onegru.GRU.from_canonical(lowered.spec, lowered.weights)


#: The conversions of each framework in both directions, in its own arrays.
DIALECTS: Mapping[str, Convert] = {
    "onnx": through_onnx,
    "openvino": through_openvino,
    "torch": through_torch,
    "keras": through_keras,
    "linen": through_flax("linen"),
    "nnx": through_flax("nnx"),
}
