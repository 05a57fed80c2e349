"""Few steps on weights that are not packed: the kernels by themselves, against those of packed weights."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from onegru import _native
from onegru.core.activations import ACTIVATIONS, Activation
from onegru.core.dtypes import Array
from onegru.core.spec import Attention, Spec
from onegru.engines.training import DirectionWeights, LayerCall, Resets, TrainedLayer

#: r, z, n, as PyTorch has them: where z, r and n are.
ORDER = (1, 0, 2)
#: Of the largest number; of gradients by weights, sums over rows, in proportion from 95 rows on. Measured on
#: AVX-512, AVX2, SSE4 and scalar: 5.6e-6 and 9.1e-15.
BOUNDS = {"float32": 1e-5, "float64": 1e-14}
ABSENT = (0, 0, 0)
PAIRS = (
    (Activation("Sigmoid"), Activation("Tanh")),
    (Activation("HardSigmoid", 0.3, 0.4), Activation("Softsign")),
    (Activation("Sigmoid"), Activation("Elu", 0.7)),
)
ATTENTION: tuple[Attention | None, ...] = (None, "openvino", "dien")
NUMBERS = {name: index for index, name in enumerate(ACTIVATIONS)}


def rows(array: Array | None) -> tuple[int, int, int]:
    """An array's address, and its strides in bytes."""
    return ABSENT if array is None else (array.ctypes.data, array.strides[0], array.strides[1])


def states(array: Array | None) -> tuple[int, int, int]:
    return ABSENT if array is None else (array.ctypes.data, 0, array.strides[-2])


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(("seed", "after"), product(range(60), (False, True)))
def test_results_and_gradients_are_those_of_packed_weights(seed: int, after: bool, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    T, B = int(rng.integers(1, 6)), int(rng.integers(1, 80 if seed % 2 else 20))
    I, H = int(rng.integers(1, 40)), int(rng.choice([1, 2, 5, 8, 16, 17, 33, 50]))
    reverse, attention = bool(seed % 2), ATTENTION[seed % 3]
    clip = None if seed % 4 else 0.75
    f, g = PAIRS[seed % 5 % 3]

    def drawn(*shape: int) -> Array:
        return (rng.standard_normal(shape) / 2).astype(dtype)

    X, initial_h = drawn(T, B, I), drawn(1, B, H) if seed % 7 else None
    scores = rng.random((T, B)).astype(dtype) if attention else None
    lengths = rng.integers(0, T + 1, B) if seed % 3 == 1 else None
    resets = Resets(rng.random((T, B)) < 0.3, bool(seed % 4 > 1)) if seed % 5 == 2 else None
    own = DirectionWeights(drawn(3 * H, I), drawn(3 * H, H), drawn(3 * H), drawn(3 * H))
    direction: Any = "reverse" if reverse else "forward"
    spec = Spec(
        I,
        H,
        dtype,
        direction,
        linear_before_reset=after,
        clip=clip,
        activations=((f, g),),
        attention=attention,
    )
    layer = TrainedLayer(spec, [own], ORDER)
    call = LayerCall(X, initial_h, lengths, scores, resets)
    wanted = layer.forward(call)

    is_double, threads = dtype == "float64", 1 + seed % 2
    mask = None if resets is None else np.ascontiguousarray(resets.before, np.uint8)
    Y, Y_h, gates = np.empty((T, B, H), dtype), np.empty((B, H), dtype), np.empty((T, B, 5, H), dtype)
    to_initial = resets is not None and resets.to_initial
    form = (
        *(
            after,
            reverse,
            clip or math.inf,
            (NUMBERS[f.name], *f.parameters),
            (NUMBERS[g.name], *g.parameters),
        ),
        *(to_initial, attention == "dien"),
    )
    sizes = (T, B, I, H, threads)
    given: Any = (
        form,
        tuple(item.ctypes.data for item in own if item is not None),
        *(rows(X), states(initial_h), rows(scores), 0 if lengths is None else lengths.ctypes.data),
        *(0 if mask is None else mask.ctypes.data, rows(gates)),
    )
    run: Any = _native.few_steps
    run(is_double, sizes, ((*given, rows(Y), states(Y_h)),))

    def check(mine: Array, right: Array, rows: int = 0) -> None:
        scale = max(1.0, float(np.abs(right).max(initial=0))) * max(1.0, rows / 95)
        np.testing.assert_allclose(mine, right, rtol=0, atol=BOUNDS[dtype] * scale)

    check(Y, wanted.Y[:, 0])
    check(Y_h, wanted.Y_h[0])

    dY, dY_h = drawn(T, B, H), drawn(B, H)
    inputs = ["X", *(["initial_h"] if initial_h is not None else []), *(["attention"] if attention else [])]
    found, by = layer.gradients(
        call, wanted.Y, None, dY[:, None], dY_h[None], inputs, [("W", "R", "Wb", "Rb")]
    )
    dX, d_h, d_scores = (np.full(shape, 0 if seed % 2 else 9, dtype) for shape in (X.shape, (B, H), (T, B)))
    by_weights = [np.empty_like(item) for item in own if item is not None]
    run = _native.few_steps_gradients
    by_inputs = (
        rows(dX),
        states(d_h if initial_h is not None else None),
        rows(d_scores if attention else None),
    )
    adds = seed % 2 == 1  # to zeros
    addresses = tuple(item.ctypes.data for item in by_weights)
    run(is_double, sizes, ((*given, (rows(dY), states(dY_h)), by_inputs, adds, addresses),))
    check(dX, found["X"])
    if initial_h is not None:
        check(d_h, found["initial_h"][0])
    if attention:
        check(d_scores, found["attention"])
    for mine, right in zip(by_weights, by[0], strict=True):
        assert right is not None
        check(mine, right, T * B)
