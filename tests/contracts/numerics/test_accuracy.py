"""Test the accuracy of the native core: activations, rounding to 16 bits, whole layers.

`make accuracy` tests all float32 values, this module a sample. docs/accuracy.md has the results of both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import onegru
from benchmarks.accuracy import MEASURED, Worst, fma_targets, native, ulp_errors, worst_error
from onegru import _native
from onegru.core.activations import Activation
from onegru.core.dtypes import Array, bfloat16

ids = [str(activation) for activation in MEASURED]
needs_fma = pytest.mark.skipif(not fma_targets(), reason="no target with FMA on this processor")

# Largest errors in ULP over all 2^32 float32 values, measured by `make accuracy`, rounded up to hundredths.
# The errors 0 and 0.5 follow from the formulas, which round at most once.
FLOAT32_BOUNDS = {
    "Relu": 0.0,
    "Tanh": 1.95,
    "Sigmoid": 2.41,
    "Affine": 0.5,
    "LeakyRelu": 0.5,
    "ThresholdedRelu": 0.0,
    "ScaledTanh": 3.91,
    "HardSigmoid": 0.5,
    "Elu": 1.01,
    "Softsign": 1.50,
    "Softplus": 2.80,
}

# Largest errors in ULP against long double over the 5 million values of `doubles()`, plus 10 %.
FLOAT64_BOUNDS = {
    "Relu": 0.0,
    "Tanh": 2.3,
    "Sigmoid": 2.6,
    "Affine": 0.5,
    "LeakyRelu": 0.5,
    "ThresholdedRelu": 0.0,
    "ScaledTanh": 4.0,
    "HardSigmoid": 0.5,
    "Elu": 1.3,
    "Softsign": 1.7,
    "Softplus": 2.9,
}


def around(points: Array, patterns: int) -> Array:
    """Return the float32 values near each point and its negative, by their bits."""
    middle = points.astype(np.float32).view(np.uint32).astype(np.int64)
    bits = middle[:, None] + np.arange(-patterns, patterns)
    positive = np.unique(bits[(bits >= 0) & (bits <= 0x7F800000)]).astype(np.uint32)
    return np.concatenate([positive, positive | np.uint32(1 << 31)])


@functools.cache
def floats() -> npt.NDArray[np.float32]:
    """Return every 1009th float32, all values near changes of formulas, and NaNs of all kinds."""
    bits = [
        np.arange(0, 1 << 32, 1009, dtype=np.uint32),
        around(np.array([0.0, 0.625, 1.0, 2.0, 2.5, 22.0, 60.0, np.inf, 2.0**-126]), 1 << 15),
        around(np.arange(1, 601) * (np.log(2) / 4), 1 << 9),  # the reduction of e^x, e^2x changes
        around(np.arange(87, 104.5, 0.125), 1 << 10),  # e^-x is subnormal here
        around(np.ldexp(1.0, np.arange(-149, 128)), 1 << 8),
        np.arange(1, 1 << 23, 131, dtype=np.uint32),  # subnormals
    ]
    every = np.concatenate(bits)
    return every[: len(every) // 16 * 16].view(np.float32)


@functools.cache
def doubles() -> npt.NDArray[np.float64]:
    rng = np.random.default_rng(0)
    a = np.concatenate(
        [
            np.ldexp(rng.uniform(1, 2, 1 << 20), rng.integers(-60, 11, 1 << 20)),
            rng.uniform(0, 50, 1 << 20),
            rng.uniform(0, 745, 1 << 19),
        ]
    )
    return np.concatenate([a, -a])


def exact(activation: Activation, x: Array) -> Array:
    """Return the activation at float64 values, in long double."""
    L = np.longdouble
    alpha, beta, zero = L(activation.alpha or 0), L(activation.beta or 0), L(0)
    high = x.astype(np.float32).astype(np.float64)
    with np.errstate(all="ignore"):
        wide = x.astype(L)
        # alpha and `high` have 24 bits, so nothing is lost before the terms cancel.
        affine = (alpha * high.astype(L) + beta) + alpha * (wide - high.astype(L))
        functions: dict[str, Callable[[], Array]] = {
            "Relu": lambda: np.maximum(wide, zero),
            "Tanh": lambda: np.tanh(wide),
            "Sigmoid": lambda: np.where(wide >= 0, L(1), np.exp(wide)) / (1 + np.exp(-np.abs(wide))),
            "Affine": lambda: affine,
            "LeakyRelu": lambda: np.where(wide >= 0, wide, alpha * wide),
            "ThresholdedRelu": lambda: np.where(wide >= alpha, wide, zero),
            "ScaledTanh": lambda: alpha * np.tanh(beta * wide),
            "HardSigmoid": lambda: np.clip(affine, zero, L(1)),
            "Elu": lambda: np.where(wide >= 0, wide, alpha * np.expm1(np.minimum(wide, zero))),
            "Softsign": lambda: wide / (1 + np.abs(wide)),
            "Softplus": lambda: np.maximum(wide, zero) + np.log1p(np.exp(-np.abs(wide))),
        }
        return functions[activation.name]()


# ---- activations


@needs_fma
@pytest.mark.parametrize("activation", MEASURED, ids=ids)
def test_float32(activation: Activation) -> None:
    worst = Worst()
    worst_error(activation, floats(), fma_targets(), worst)
    assert worst.ulp <= FLOAT32_BOUNDS[activation.name], worst
    assert worst.differing == 0  # targets are bitwise identical


def test_default_activations_are_within_four_ulp() -> None:
    assert max(FLOAT32_BOUNDS["Sigmoid"], FLOAT32_BOUNDS["Tanh"]) <= 4


@needs_fma
@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="long double is no wider than double here")
@pytest.mark.parametrize("activation", MEASURED, ids=ids)
def test_float64(activation: Activation) -> None:
    x = doubles()
    wanted = exact(activation, x)
    first, *others = (native(activation, x, target) for target in fma_targets())
    exponent = np.maximum(np.frexp(wanted)[1] - 53, -1074)
    errors = np.abs(first.astype(np.longdouble) - wanted) / np.ldexp(np.longdouble(1), exponent)
    assert float(errors.max()) <= FLOAT64_BOUNDS[activation.name], x[errors.argmax()]
    for other in others:
        assert np.array_equal(first.view(np.uint64), other.view(np.uint64))


# With the parameters of MEASURED.
LIMITS = {
    "Relu": (0, np.inf),
    "Tanh": (-1, 1),
    "Sigmoid": (0, 1),
    "Affine": (-np.inf, np.inf),
    "LeakyRelu": (-np.inf, np.inf),
    "ThresholdedRelu": (0, np.inf),
    "ScaledTanh": (-np.float32(1.7159), np.float32(1.7159)),
    "HardSigmoid": (0, 1),
    "Elu": (-1, np.inf),
    "Softsign": (-1, 1),
    "Softplus": (0, np.inf),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("target", _native.available_targets())
@pytest.mark.parametrize("activation", MEASURED, ids=ids)
def test_limits_and_nan(activation: Activation, target: str, dtype: Any) -> None:
    x = np.repeat(np.array([-np.inf, np.inf, np.nan, -np.nan], dtype), 4)
    with np.errstate(all="ignore"):
        y = native(activation, x, target)
    low, high = LIMITS[activation.name]
    assert (y[:4] == dtype(low)).all()
    assert (y[4:8] == dtype(high)).all()
    assert np.isnan(y[8:]).all()


def test_the_measure() -> None:
    y = np.array([1, 1 - 2**-24, 2**-149, np.inf, np.nan, np.nan, np.inf, 0], np.float32)
    wanted = np.array([1 + 2**-24, 1, 1.5 * 2**-149, 1e39, np.nan, 1, 1, 0])
    assert ulp_errors(y, wanted).tolist() == [0.5, 0.5, 0.5, 0, 0, np.inf, np.inf, 0]


# ---- 16 bits


def halves() -> list[Any]:
    return [np.dtype(np.float16), bfloat16()]


def neighbourhoods(dtype: Any) -> Array:
    """Return the finite values of a type, the midpoints between them, and adjacent float32 values."""
    bits = np.arange(1 << 15, dtype=np.uint16)
    value = bits.view(dtype).astype(np.float32)
    finite = value[np.isfinite(value)].astype(np.float64)
    middle = (finite + np.append(finite[1:], 2 * finite[-1] - finite[-2])) / 2
    points = [finite, middle, np.nextafter(middle.astype(np.float32), np.float32(0))]
    points.append(np.nextafter(middle.astype(np.float32), np.float32(np.inf)))
    points.append(np.nextafter(finite.astype(np.float32), np.float32(0)))
    with np.errstate(over="ignore"):
        x = np.concatenate(points).astype(np.float32)
    x = x[np.isfinite(x)]
    return np.concatenate([x, -x])


@pytest.mark.parametrize("dtype", halves(), ids=str)
def test_rounding_to_16_bits(dtype: Any) -> None:
    """With z = 1 and n = 0, a step keeps the float32 state, and returns it rounded."""
    H, x = 16, neighbourhoods(dtype)
    x = np.pad(x, (0, -len(x) % H)).reshape(-1, H)
    layer = onegru.GRU(
        np.zeros((1, 3 * H, 1), dtype),
        np.zeros((1, 3 * H, H), dtype),
        activations=["Affine", "Affine"],
        activation_alpha=[0, 0],
        activation_beta=[1, 0],
    )
    stream = layer.stream(len(x))
    stream.state = x
    h = stream.step(np.zeros((len(x), 1), dtype))
    assert np.array_equal(stream.state, x)
    with np.errstate(over="ignore"):
        wanted = x.astype(dtype)
    # -0·1 + 0 is +0, so a zero loses its sign before it is rounded.
    wanted[x == 0] = 0
    assert np.array_equal(h.view(np.uint16), wanted.view(np.uint16))


@pytest.mark.parametrize("dtype", halves(), ids=str)
def test_widening_from_16_bits(dtype: Any) -> None:
    """With z = 0 and n = x, a layer returns its input: every finite value, infinity and NaN."""
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    finite = every[np.isfinite(every.astype(np.float32))]
    W, R = np.array([0, 0, 1], dtype)[None, :, None], np.zeros((1, 3, 1), dtype)
    options: dict[str, Any] = {"activations": ["Affine", "Affine"], "activation_alpha": [0, 1]}
    Y, _ = onegru.GRU(W, R, **options)(finite[None, :, None])
    assert np.array_equal(Y.ravel(), finite)
    for value, slope in ((np.inf, -1), (-np.inf, 1), (np.nan, 1)):  # the slope makes z 0
        options = {"activations": ["HardSigmoid", "Affine"], "activation_alpha": [slope, 1]}
        Y, _ = onegru.GRU(np.ones_like(W), R, **options)(np.full((1, 1, 1), value, dtype))
        assert np.array_equal(Y.ravel().astype(np.float32), np.array([value], np.float32), equal_nan=True)


# ---- whole layers


def draw(H: int, B: int, seed: int) -> tuple[Array, ...]:
    """Return W, R, B, X: weights as initialized by frameworks, inputs of variance one, 100 steps."""
    rng = np.random.default_rng(seed)
    shapes = (1, 3 * H, H), (1, 3 * H, H), (1, 6 * H)
    weights = [rng.uniform(-(H**-0.5), H**-0.5, shape).astype(np.float32) for shape in shapes]
    return *weights, rng.standard_normal((100, B, H)).astype(np.float32)


def error(H: int, after: bool, seed: int, dtype: Any = np.float32, **options: Any) -> float:
    """Return the largest difference of Y from the float64 reference."""

    def run(dtype: Any, **options: Any) -> Array:
        W, R, B, X = (array.astype(dtype) for array in draw(H, 4, seed))
        return onegru.GRU(W, R, B, linear_before_reset=after, **options)(X)[0]

    return float(np.abs(run(dtype, **options) - run(np.float64, engine="reference")).max())


# (H, linear_before_reset) -> the largest error of 20 draws in float32 and in float64, plus a quarter.
LAYER_BOUNDS = {
    (64, False): (6.6e-7, 9.7e-16),
    (64, True): (4.4e-7, 8.3e-16),
    (256, False): (1.14e-6, 1.87e-15),
    (256, True): (1.02e-6, 1.39e-15),
}


@pytest.mark.parametrize(("H", "after"), LAYER_BOUNDS)
def test_layers(H: int, after: bool) -> None:
    for dtype, bound in zip((np.float32, np.float64), LAYER_BOUNDS[H, after], strict=True):
        assert error(H, after, 0, dtype) <= bound


# (H, weight_storage, activation_storage) -> the largest error of 5 draws in either reset mode, plus a
# quarter.
STORAGE_BOUNDS = {
    (256, "bfloat16", None): 3.4e-3,
    (256, "bfloat16", "bfloat16"): 5.2e-3,
    (256, "float16", None): 5.4e-4,
    (256, "int8", "int16"): 9.9e-3,
    (256, "int8", "int8"): 2.3e-2,
    (512, "bfloat16", None): 4.2e-3,
    (512, "bfloat16", "bfloat16"): 7.1e-3,
    (512, "float16", None): 5.8e-4,
    (512, "int8", "int16"): 1.0e-2,
    (512, "int8", "int8"): 2.6e-2,
}


@pytest.mark.parametrize(("H", "weights", "activations"), STORAGE_BOUNDS)
def test_the_cost_of_storage(H: int, weights: str, activations: str | None) -> None:
    bound = STORAGE_BOUNDS[H, weights, activations]
    found = error(H, True, 0, weight_storage=weights, activation_storage=activations)
    assert bound / 10 <= found <= bound


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("storage", ["float16", "bfloat16"])
def test_rounding_the_weights_is_the_whole_cost(storage: str, after: bool) -> None:
    """A float32 layer with rounded W and R is bitwise identical. Biases are stored as float32."""
    dtype = np.dtype(np.float16) if storage == "float16" else bfloat16()
    W, R, B, X = draw(67, 3, 1)
    W[0, 0, :4] = 2.0**-20, -(2.0**-24), 2.0**-25, 60000  # subnormal and large values in float16
    kept, _ = onegru.GRU(W, R, B, linear_before_reset=after, weight_storage=storage)(X)
    W, R = (array.astype(dtype).astype(np.float32) for array in (W, R))
    by_hand, _ = onegru.GRU(W, R, B, linear_before_reset=after)(X)
    assert np.array_equal(kept.view(np.uint32), by_hand.view(np.uint32))
