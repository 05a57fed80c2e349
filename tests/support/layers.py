"""Create random layers and stacks; the weights of `make_gru` keep float32 rounding below 1e-6."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onegru import GRU, Stack
from onegru.core.dtypes import Array
from onegru.layers.stack import layers_of
from tests.support.cases import DTYPES

I, H = 5, 4


def make_gru(
    seed: int = 0,
    *,
    inputs: int = I,
    hidden: int = H,
    direction: Any = "forward",
    dtype: str = "float32",
    **arguments: Any,
) -> GRU:
    """Create a layer."""
    rng = np.random.default_rng(seed)
    D = 2 if direction == "bidirectional" else 1
    shapes = ((D, 3 * hidden, inputs), (D, 3 * hidden, hidden), (D, 6 * hidden))
    W, R, B = (rng.uniform(-0.5, 0.5, shape).astype(DTYPES[dtype]) for shape in shapes)
    return GRU(W, R, B, direction=direction, **arguments)


def normal_gru(
    I: int, H: int, dtype: Any = np.float32, direction: Any = "forward", *, seed: int = 1, **options: Any
) -> GRU:
    """Create a layer with normally distributed weights, which are smaller for a larger H."""
    rng = np.random.default_rng(seed)
    D = 2 if direction == "bidirectional" else 1
    shapes = (D, 3 * H, I), (D, 3 * H, H), (D, 6 * H)
    W, R, B = ((rng.standard_normal(shape) / np.sqrt(H)).astype(dtype) for shape in shapes)
    return GRU(W, R, B, direction=direction, **options)


def make_stack(count: int, directions: Sequence[str] = ("forward",), **arguments: Any) -> Stack:
    """Create a stack of layers of different sizes with alternating directions."""
    layers: list[GRU] = []
    inputs = I
    for index in range(count):
        direction = directions[index % len(directions)]
        layers.append(make_gru(index, inputs=inputs, hidden=H - index, direction=direction, **arguments))
        inputs = layers[-1].spec.num_directions * layers[-1].spec.hidden_size
    return Stack(layers)


def draw(layers: GRU | Stack, T: int = 6, B: int = 3, seed: int = 9) -> tuple[Array, list[Array]]:
    """Return X [T, B, I], and a state [D, B, H] for each layer."""
    rng = np.random.default_rng(seed)
    specs = [layer.spec for layer in layers_of(layers)]
    dtype = DTYPES[specs[0].dtype]
    X = rng.standard_normal((T, B, specs[0].input_size)).astype(dtype)
    return X, [rng.uniform(-1, 1, (s.num_directions, B, s.hidden_size)).astype(dtype) for s in specs]


def call(
    layers: GRU | Stack, X: Array, states: Sequence[Array] | None = None, lengths: Any = None
) -> tuple[Array, tuple[Array, ...]]:
    """Return Y, and the Y_h of each layer."""
    if isinstance(layers, Stack):
        return layers(X, None if states is None else list(states), sequence_lens=lengths)
    Y, Y_h = layers(X, None if states is None else states[0], sequence_lens=lengths)
    return Y, (Y_h,)


def reference(layers: GRU | Stack) -> GRU | Stack:
    """Return the same layers with the float64 reference engine."""
    made = [GRU.from_canonical(layer.spec, layer.weights, engine="reference") for layer in layers_of(layers)]
    return Stack(made) if isinstance(layers, Stack) else made[0]


def same_layers(a: GRU | Stack, b: GRU | Stack) -> bool:
    """Whether two have the same specs and bitwise identical weights."""
    pairs = list(zip(layers_of(a), layers_of(b), strict=True))
    return type(a) is type(b) and all(
        left.spec == right.spec
        and all(np.array_equal(getattr(left.weights, n), getattr(right.weights, n)) for n in "WRB")
        for left, right in pairs
    )
