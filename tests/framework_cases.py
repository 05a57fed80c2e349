"""Layers and inputs for the tests of other frameworks' forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import onegru

Array = npt.NDArray[Any]

I, H = 3, 4

TOLERANCES = {"float32": 1e-6, "float64": 1e-14}


def draw(shape: Sequence[int], dtype: str = "float32", seed: int = 0) -> Array:
    numbers: Array = np.random.default_rng(seed).normal(size=tuple(shape)).astype(dtype)
    return numbers


def layer(
    direction: str = "forward",
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


def stack(direction: str, count: int, linear_before_reset: bool = True, **options: Any) -> onegru.Stack:
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
    """Y of the last layer, batch first, directions side by side: [B, T, D·H]; X is batch first."""
    Y = source(X, layout=1, **options)[0]
    return Y.reshape(*Y.shape[:2], -1)


def largest_difference(a: Array, b: Array) -> float:
    assert a.shape == b.shape
    assert np.abs(a).max() > 0.05  # outputs of nothing but zeros would agree with anything
    return float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max())


def same_weights(a: onegru.GRU, b: onegru.GRU) -> bool:
    """Whether two layers are the same to the bit."""
    return a.spec == b.spec and all(
        getattr(a.weights, name).tobytes() == getattr(b.weights, name).tobytes() for name in "WRB"
    )
