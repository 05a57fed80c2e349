"""Layers in int8: what is computed, against the reference; what the weights become; what is refused."""

from __future__ import annotations

import itertools
import pickle
import re
from typing import Any

import numpy as np
import pytest

import onegru
from onegru.core.compare import signal_to_noise
from onegru.core.dtypes import Array
from tests.support.comparison import assert_bits
from tests.support.layers import normal_gru

f32 = np.float32
ACTIVATION_STORAGES = ("int16", "int8")
#: The largest integer that an input of a product becomes.
LARGEST = {"int16": 127 * 128, "int8": 127}
FUNCTIONS: list[dict[str, Any]] = [
    {},
    {"clip": 0.75},
    {"activations": ["Softplus", "Elu"], "activation_alpha": [0.5]},
    {"activations": ["HardSigmoid", "Softsign"]},
    {"activations": ["Sigmoid", "Affine"], "activation_alpha": [3.0], "activation_beta": [1.0]},
    {"activations": ["Tanh", "Tanh"]},
]


def draw(*shape: int, seed: int = 2) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(f32)


def pair(
    layer: onegru.GRU, activation_storage: str, weight_storage: str = "int8"
) -> tuple[onegru.GRU, onegru.GRU]:
    """The layer in int8, native and by the reference."""
    native, reference = (
        onegru.GRU.from_canonical(
            layer.spec,
            layer.weights,
            engine=engine,
            weight_storage=weight_storage,
            activation_storage=activation_storage,
        )
        for engine in ("native", "reference")
    )
    return native, reference


@pytest.mark.parametrize(("storage", "after"), itertools.product(ACTIVATION_STORAGES, [False, True]))
@pytest.mark.parametrize("options", FUNCTIONS, ids=lambda options: " ".join(map(str, options)) or "default")
@pytest.mark.parametrize(
    ("size", "weights"),
    [
        *itertools.product([(1, 1), (3, 5), (8, 8), (70, 67), (33, 130)], ["int8"]),
        *[((1, 1), "int8_g32"), ((70, 67), "int8_g32"), ((33, 130), "int8_g64"), ((130, 33), "int8_g128")],
    ],
)
def test_a_step_is_the_references(
    storage: str, after: bool, options: dict[str, Any], size: tuple[int, int], weights: str
) -> None:
    """X and h become the same integers, whose products are exact; the rest is rounding in float32.

    r∘h of the reference is not rounded like ours, so that here and there its integers are one apart.
    """
    I, H = size
    layer = normal_gru(I, H, linear_before_reset=after, attention=True, **options)
    native, reference = pair(layer, storage, weights)
    B = 19
    X, h, attention = draw(1, B, I), draw(1, B, H, seed=3), draw(1, B, seed=4) % 1
    X[0, 0], h[0, 1] = 0, 0
    X[0, 2] *= 1e-30
    X[0, 3] *= 1e30 if options.get("clip") else 1e3
    h[0, 4:] = np.clip(h[0, 4:], -1, 1)
    found, wanted = (gru(X, h, attention=attention)[1][0] for gru in (native, reference))
    scale = np.maximum(1, np.abs(wanted).max(-1))
    error = np.abs(found - wanted).max(-1) / scale
    # Measured: 3.4e-7, and 4.4e-7 in groups; with reset before, half a step of the largest weight in two of
    # the 19 rows.
    step = 0 if after else 0.65 * np.abs(layer.weights.R).max() / LARGEST[storage]
    rounding = 4.3e-7 if weights == "int8" else 5.5e-7
    assert (error <= rounding + step).all()
    assert np.mean(error > rounding) <= (0 if after else 0.14)


@pytest.mark.parametrize(("storage", "after"), itertools.product(ACTIVATION_STORAGES, [False, True]))
@pytest.mark.parametrize("options", FUNCTIONS, ids=lambda options: " ".join(map(str, options)) or "default")
def test_states_that_are_given_and_those_of_a_call_are_the_same(
    storage: str, after: bool, options: dict[str, Any]
) -> None:
    """A call without an initial state does not look for states beyond 1 where there can be none."""
    layer = normal_gru(20, 37, linear_before_reset=after, **options).with_storage("int8", storage)
    X, h = 3 * draw(12, 4, 20), np.zeros((1, 4, 37), f32)
    Y = layer(X)[0]
    for x, y in zip(X, Y, strict=True):
        h = layer(x[None], h)[1]
        assert_bits(h, y)


@pytest.mark.parametrize(("storage", "after"), itertools.product(ACTIVATION_STORAGES, [False, True]))
def test_a_sequence_stays_near_the_float_layer(storage: str, after: bool) -> None:
    """The least signal-to-noise ratio of these draws is 43.3 dB with int16 and 40.0 dB with int8."""
    for seed, H in itertools.product(range(3), (64, 256)):
        layer = normal_gru(40, H, seed=seed, linear_before_reset=after)
        X = draw(60, 4, 40, seed=seed)
        exact, found = layer(X)[0], layer.with_storage("int8", storage)(X)[0]
        noise = np.sum((exact - found).astype(np.float64) ** 2) / np.sum(exact.astype(np.float64) ** 2)
        print(storage, after, H, -10 * np.log10(noise))
        assert -10 * np.log10(noise) > {"int16": 43, "int8": 39.5}[storage]


def test_groups_with_scales_of_their_own_keep_more() -> None:
    """Where the weights of a row are of many sizes, a scale for each few of them loses less."""
    layer = normal_gru(256, 64, linear_before_reset=True)
    sizes = np.repeat(2.0 ** np.arange(-4, 4), 32).astype(f32)
    layer = onegru.GRU(layer.weights.W / sizes, layer.weights.R, linear_before_reset=True)
    X = draw(20, 4, 256) * sizes
    exact = layer(X)[0]
    ratios = []
    for weights in ("int8", "int8_g128", "int8_g64", "int8_g32"):
        stored = layer.with_storage(weights)
        again = onegru.GRU.from_canonical(stored.spec, stored.weights, weight_storage=weights)
        assert_bits(again(X)[0], stored(X)[0])
        assert stored.weight_storage == weights
        ratios.append(signal_to_noise(exact, stored(X)[0]) or 0)
    print(ratios)
    assert ratios == sorted(ratios)
    assert ratios[-1] > ratios[0] + 6


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_inputs_below_the_least_range(engine: str) -> None:
    """The range of a row of inputs is at least 2^-100, so that 1e-32 becomes 2 of its 127 parts."""
    W, R = np.full((1, 3, 1), 1e30, f32), np.zeros((1, 3, 1), f32)
    options: Any = {
        "activations": ["Affine", "Affine"],
        "activation_alpha": [0, 1],
        "activation_beta": [0, 0],
    }
    options |= {"weight_storage": "int8", "activation_storage": "int8", "engine": engine}
    Y = onegru.GRU(W, R, **options)(np.full((1, 1, 1), 1e-32, f32))[0]
    assert Y[0, 0, 0, 0] == pytest.approx(2 * 2.0**-100 / 127 * 1e30, rel=1e-4)


@pytest.mark.parametrize("after", [False, True])
def test_weights_are_whole_multiples_of_scales(after: bool) -> None:
    layer = normal_gru(33, 70, direction="bidirectional", linear_before_reset=after)
    W, R, B = (getattr(layer.weights, name).copy() for name in "WRB")
    W[0, 0], R[1, 5] = 0, 0
    W[0, 1] = np.finfo(f32).max * np.linspace(-1, 1, 33)
    W[0, 2] *= 1e-35
    stored = onegru.GRU(W, R, B, direction="bidirectional", linear_before_reset=after, weight_storage="int8")
    again = stored.weights
    assert_bits(again.B, B)
    for given, kept in ((W, again.W), (R, again.R)):
        largest = np.maximum(np.abs(given.astype(np.float64)).max(-1, keepdims=True), 2.0**-100)
        step = largest / 127  # the scale is at most 2^-15 larger
        assert (np.abs(given - kept.astype(np.float64)) <= 0.5 * step * (1 + 2.0**-14)).all()
        at = np.abs(given).argmax(-1, keepdims=True)
        scale = np.abs(np.take_along_axis(kept, at, -1)) / 127
        q = kept / np.where(scale == 0, 1, scale)
        assert_bits(q, np.rint(q))
        assert np.abs(q).max() == 127
    made = onegru.GRU(
        again.W, again.R, again.B, direction="bidirectional", linear_before_reset=after, weight_storage="int8"
    )
    assert_bits(made.weights.W, again.W)
    assert_bits(made.weights.R, again.R)
    X = draw(7, 3, 33)
    assert_bits(made(X)[0], stored(X)[0])
    reference = made.from_canonical(made.spec, made.weights, engine="reference", weight_storage="int8")
    assert_bits(reference.weights.W, again.W)


@pytest.mark.parametrize("storage", ACTIVATION_STORAGES)
def test_the_storages_are_visible(storage: str) -> None:
    layer = normal_gru(5, 7).with_storage("int8", storage)
    assert (layer.weight_storage, layer.activation_storage) == ("int8", storage)
    assert f"weight_storage='int8', activation_storage='{storage}'" in repr(layer)
    copy = pickle.loads(pickle.dumps(layer))
    assert (repr(copy), copy.activation_storage) == (repr(layer), storage)
    X = draw(4, 2, 5)
    assert_bits(copy(X)[0], layer(X)[0])
    plain = layer.with_storage(None)
    assert (plain.weight_storage, plain.activation_storage) == ("float32", None)
    assert_bits(plain.weights.W, layer.weights.W)
    assert normal_gru(5, 7, weight_storage="int8").activation_storage == "int16"


@pytest.mark.parametrize(("storage", "after"), itertools.product(ACTIVATION_STORAGES, [False, True]))
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_inputs_that_are_not_finite_make_their_row_nan(storage: str, after: bool, number: float) -> None:
    layer = normal_gru(9, 37, linear_before_reset=after).with_storage("int8", storage)
    X, h = draw(6, 5, 9), draw(1, 5, 37)
    Y = layer(X, h)[0]
    wrong = X.copy()
    wrong[2, 3, 4] = number
    found = layer(wrong, h)[0]
    assert_bits(np.delete(found, 3, 2), np.delete(Y, 3, 2))
    assert_bits(found[:2], Y[:2])
    assert np.isnan(found[2:, :, 3]).all()
    h[0, 1, 0] = number
    assert np.isnan(layer(X, h)[0][:, :, 1]).all()


def test_a_bias_that_is_nan_makes_all_later_states_nan() -> None:
    for storage, after in itertools.product(ACTIVATION_STORAGES, [False, True]):
        weights = normal_gru(9, 37).weights
        B = weights.B.copy()
        B[0, 5] = np.nan
        layer = onegru.GRU(weights.W, weights.R, B, linear_before_reset=after).with_storage("int8", storage)
        Y = layer(draw(4, 2, 9))[0]
        assert np.isnan(Y[1:]).all()
        assert np.isnan(Y[0]).sum() == 2


def refuse(message: str, call: Any, *args: Any, **options: Any) -> None:
    with pytest.raises(onegru.SpecError, match="^" + re.escape(message) + "$"):
        call(*args, **options)


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_refusals(engine: str) -> None:
    weights = normal_gru(5, 7).weights
    make: Any = lambda W=weights.W, R=weights.R, **options: onegru.GRU(W, R, engine=engine, **options)  # noqa: E731
    for name, matrix in (("W", weights.W), ("R", weights.R)):
        switched = matrix.copy()
        switched[0, 3, 2] = 1e30  # as masked steps become; with it, all others would be zeros
        with pytest.raises(
            onegru.SpecError, match=rf"^{name}: contains 1e\+30, a weight so large.*stored as bfloat16"
        ):
            make(**{name: switched}, weight_storage="int8")
        only = np.where(switched == np.float32(1e30), switched, 0)
        make(**{name: only}, weight_storage="int8")  # whose row has no others
        for number in (np.nan, np.inf):
            wrong = matrix.copy()
            wrong[0, 3, 2] = number
            message = f"{name}: contains NaN or infinity; must be finite for int8"
            refuse(message, make, **{name: wrong}, weight_storage="int8")
    wide = np.zeros((1, 3, 131073), f32)
    refuse(
        "W: shape [1, 3, 131073]; its last axis must be at most 131072 for int8",
        make,
        wide,
        np.zeros((1, 3, 1), f32),
        weight_storage="int8",
    )
    refuse(
        "activation_storage: 'int8'; must be None, unless weight_storage is an int8 type or bfloat16",
        make,
        activation_storage="int8",
    )
    refuse(
        "activation_storage: 'int4'; must be int16, int8, bfloat16 or None",
        make,
        weight_storage="int8",
        activation_storage="int4",
    )


@pytest.mark.parametrize("storage", ACTIVATION_STORAGES)
def test_the_most_inputs(storage: str) -> None:
    """All weights, and all inputs, at the ends of their ranges: the sums are the largest that there are."""
    K = 1 << 17
    W, R = np.full((1, 3, K), 1, f32), np.zeros((1, 3, 1), f32)
    W[0, 1] = -1
    W[0, 2, ::2] = -1
    options: Any = {"activations": ["Affine", "Affine"], "activation_alpha": [2.0**-20] * 2}
    native, reference = pair(onegru.GRU(W, R, activation_beta=[0.0, 0.0], **options), storage)
    for X in (np.ones((1, 1, K), f32), -np.ones((1, 1, K), f32), draw(1, 1, K)):
        np.testing.assert_allclose(native(X)[0], reference(X)[0], rtol=1e-6, atol=1e-9)
