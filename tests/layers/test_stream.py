"""Streams: every refusal's message, the state between calls, rows, attention; 16-bit weights."""

from __future__ import annotations

import itertools
import pickle
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import onegru
from onegru.core.dtypes import WEIGHT_STORAGES, Array
from tests.support.comparison import TYPES, assert_bits
from tests.support.layers import normal_gru

B, I, H = 4, 3, 5


def make(
    dtype: Any = np.float32, sizes: tuple[int, int] = (I, H), direction: Any = "forward", **options: Any
) -> onegru.GRU:
    return normal_gru(*sizes, dtype, direction, **options)


def draw(*shape: int, dtype: Any = np.float32, seed: int = 2) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def refuse(message: str, call: Any, *args: Any, **kwargs: Any) -> None:
    with pytest.raises(onegru.SpecError, match="^" + re.escape(message) + "$"):
        call(*args, **kwargs)


# --- what is refused


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, "3", None, True, [1]])
def test_a_batch_size_must_be_positive(batch_size: Any) -> None:
    refuse(f"batch_size: {batch_size!r}; must be an integer, at least 1", make().stream, batch_size)


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_a_stream_runs_forward(direction: Any) -> None:
    layer = make(direction=direction)
    refuse(f"stream: the layer's direction is {direction!r}; must be 'forward'", layer.stream, 1)


ENGINES = ["native", "reference"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("message", "x"),
    [
        ("x: rank 1, shape [3]; must be [batch_size, input_size] = [4, 3]", draw(I)),
        ("x: rank 3, shape [1, 4, 3]; must be [batch_size, input_size] = [4, 3]", draw(1, B, I)),
        ("x: shape [3, 3]; must be [batch_size, input_size] = [4, 3]", draw(3, I)),
        ("x: shape [4, 4]; must be [batch_size, input_size] = [4, 3]", draw(B, 4)),
        ("x: type float64; must be float32, like W; try x.astype(np.float32)", draw(B, I, dtype=np.float64)),
        ("x: type int64; must be float32, like W; try x.astype(np.float32)", np.zeros((B, I), np.int64)),
    ],
)
def test_x_must_fit(engine: str, message: str, x: Array) -> None:
    stream = make(engine=engine).stream(B)
    refuse(message, stream.step, x)
    assert not stream.state.any()


@pytest.mark.parametrize(
    ("message", "X"),
    [
        ("X: rank 2, shape [4, 3]; must be [seq_length, batch_size, input_size] = [any, 4, 3]", draw(B, I)),
        ("X: shape [2, 4, 2]; must be [seq_length, batch_size, input_size] = [any, 4, 3]", draw(2, B, 2)),
        (
            "X: type float16; must be float32, like W; try X.astype(np.float32)",
            draw(2, B, I, dtype=np.float16),
        ),
    ],
)
def test_a_chunk_must_fit(message: str, X: Array) -> None:
    refuse(message, make().stream(B).run, X)


@pytest.mark.parametrize(
    ("message", "rows"),
    [
        ("rows: 4; must be in 0…3", [0, 4]),
        ("rows: -1; must be in 0…3", [-1, 0]),
        ("rows: an index is repeated; each must appear at most once", [2, 2]),
        ("rows: type float64; must be an integer type", [0.0, 1.0]),
        ("rows: type bool; must be an integer type", [True, False]),
        ("rows: rank 0, shape []; must be [rows]", 1),
        ("rows: rank 2, shape [1, 2]; must be [rows]", [[0, 1]]),
    ],
)
def test_rows_must_be_indices(message: str, rows: Any) -> None:
    stream = make().stream(B)
    refuse(message, stream.step, draw(2, I), rows=rows)
    refuse(message, stream.reset, rows)


def test_x_has_a_row_for_each_of_rows() -> None:
    refuse(
        "x: shape [3, 3]; must be [batch_size, input_size] = [2, 3]",
        make().stream(B).step,
        draw(3, I),
        rows=[0, 1],
    )


def test_attention_must_be_given_where_it_belongs() -> None:
    with_attention, without = make(attention=True).stream(B), make().stream(B)
    x, X, a = draw(B, I), draw(2, B, I), draw(B)
    refuse("attention: missing; must be given", with_attention.step, x)
    refuse("attention: missing; must be given", with_attention.run, X)
    extra = "attention: must be None, because the layer has no attention"
    refuse(extra, without.step, x, attention=a)
    refuse(extra, without.run, X, attention=draw(2, B))
    step, run = with_attention.step, with_attention.run
    refuse("attention: shape [3]; must be [batch_size] = [4]", step, x, attention=a[:3])
    refuse("attention: shape [4, 2]; must be [batch_size, 1] = [4, 1]", step, x, attention=draw(B, 2))
    refuse("attention: shape [4]; must be [batch_size] = [2]", step, x[:2], attention=a, rows=[0, 1])
    hint = "attention: type float64; must be float32, like W; try attention.astype(np.float32)"
    refuse(hint, step, x, attention=a.astype(np.float64))
    refuse("attention: shape [3, 4]; must be [seq_length, batch_size] = [2, 4]", run, X, attention=draw(3, B))


@pytest.mark.parametrize(
    ("is_", "out"),
    [
        ("float32 [4, 4]", np.zeros((B, 4), np.float32)),
        ("float32 [1, 4, 5]", np.zeros((1, B, H), np.float32)),
        ("float64 [4, 5]", np.zeros((B, H))),
        ("list", [[0.0] * H] * B),
    ],
)
def test_out_must_fit(is_: str, out: Any) -> None:
    stream = make().stream(B)
    refuse(f"out: {is_}; must be an array, float32 [4, 5]", stream.step, draw(B, I), out=out)
    refuse(f"out: {is_}; must be an array, float32 [2, 4, 5]", stream.run, draw(2, B, I), out=out)


@pytest.mark.parametrize("engine", ENGINES)
def test_out_must_be_writeable(engine: str) -> None:
    stream = make(engine=engine).stream(B)
    out = np.zeros((B, H), np.float32)
    out.flags.writeable = False
    refuse("out: read-only; must be writeable", stream.step, draw(B, I), out=out)
    assert not out.any()
    assert not stream.state.any()


@pytest.mark.parametrize("dtype", TYPES)
def test_a_state_must_fit(dtype: Any) -> None:
    stream = make(dtype).stream(B)
    wide = "float64" if dtype is np.float64 else "float32"
    other = np.float32 if dtype is np.float64 else np.float64
    own = np.dtype(dtype).name
    must = f"must be {wide}" + (f" or {own}" if own != wide else "")
    refuse(f"state: type {np.dtype(other).name}; {must}", setattr, stream, "state", np.zeros((B, H), other))
    refuse(
        "state: rank 1, shape [5]; must be [batch_size, hidden_size] = [4, 5]",
        setattr,
        stream,
        "state",
        np.zeros(H, wide),
    )
    refuse(
        "state: shape [5, 4]; must be [batch_size, hidden_size] = [4, 5]",
        setattr,
        stream,
        "state",
        np.zeros((H, B), wide),
    )


# --- the state


@pytest.mark.parametrize(("dtype", "engine"), itertools.product(TYPES, ENGINES))
def test_the_state_is_wide_and_a_copy(dtype: Any, engine: str) -> None:
    stream = make(dtype, engine=engine).stream(B)
    state = stream.state
    assert state.dtype == (np.float64 if dtype is np.float64 else np.float32)
    assert state.shape == (B, H)
    assert not state.any()
    h = stream.step(draw(B, I, dtype=dtype))
    assert not state.any()
    assert h.dtype == np.dtype(dtype)
    assert_bits(stream.state.astype(dtype), h)  # what comes out is the state, rounded once
    if np.dtype(dtype).itemsize == 2:
        assert (stream.state != h.astype(np.float32)).any()


@pytest.mark.parametrize(("dtype", "engine"), itertools.product(TYPES, ENGINES))
def test_a_state_that_is_put_back_goes_on(dtype: Any, engine: str) -> None:
    layer = make(dtype, engine=engine)
    X = draw(6, B, I, dtype=dtype)
    stream, other = layer.stream(B), layer.stream(B)
    stream.run(X[:3])
    other.state = stream.state
    assert_bits(other.run(X[3:]), stream.run(X[3:]))
    assert_bits(other.state, stream.state)
    other.state = stream.state.astype(dtype)  # the layer's own type is welcome too
    assert_bits(other.state.astype(dtype), stream.state.astype(dtype))


@pytest.mark.parametrize("engine", ENGINES)
def test_reset(engine: str) -> None:
    stream = make(engine=engine).stream(B)
    stream.step(draw(B, I))
    before = stream.state
    stream.reset([])
    assert_bits(stream.state, before)
    stream.reset(np.array([3, 1], np.uint8))
    assert not stream.state[[1, 3]].any()
    assert_bits(stream.state[[0, 2]], before[[0, 2]])
    stream.reset()
    assert not stream.state.any()


@pytest.mark.parametrize(("dtype", "engine"), itertools.product(TYPES, ENGINES))
def test_rows_that_do_not_step_stay(dtype: Any, engine: str) -> None:
    layer = make(dtype, engine=engine)
    stream = layer.stream(B)
    stream.run(draw(2, B, I, dtype=dtype))
    before = stream.state
    pair = layer.stream(2)
    pair.state = before[[3, 1]]
    x = draw(2, I, dtype=dtype, seed=5)
    out = np.empty((2, H), dtype)
    assert stream.step(x, rows=[3, 1], out=out) is out
    assert_bits(out, pair.step(x))
    assert_bits(stream.state[[3, 1]], pair.state)
    assert_bits(stream.state[[0, 2]], before[[0, 2]])
    after = stream.state
    assert stream.step(np.empty((0, I), dtype), rows=[]).shape == (0, H)
    assert_bits(stream.state, after)


@pytest.mark.parametrize(("dtype", "engine"), itertools.product(TYPES, ENGINES))
def test_an_empty_chunk_keeps_the_state(dtype: Any, engine: str) -> None:
    stream = make(dtype, engine=engine).stream(B)
    stream.step(draw(B, I, dtype=dtype))
    before = stream.state
    assert stream.run(np.empty((0, B, I), dtype)).shape == (0, B, H)
    assert_bits(stream.state, before)


def test_streams_of_one_layer_are_apart() -> None:
    layer = make()
    one, two = layer.stream(B), layer.stream(B)
    one.step(draw(B, I))
    assert not two.state.any()
    del layer
    assert_bits(one.step(draw(B, I)), one.state)  # a stream keeps its layer


# --- one call, cut


@pytest.mark.parametrize(("dtype", "engine"), itertools.product(TYPES, ENGINES))
@pytest.mark.parametrize("after", [False, True])
def test_attention_in_chunks_is_one_call(dtype: Any, engine: str, after: bool) -> None:
    layer = make(dtype, (7, 37), attention=True, linear_before_reset=after, engine=engine)
    X, A = draw(12, B, 7, dtype=dtype), np.abs(draw(12, B, dtype=dtype, seed=3))
    Y = layer(X, attention=A)[0][:, 0]
    pairs = list(zip(X, A, strict=True))
    stream, steps, rows = layer.stream(B), layer.stream(B), layer.stream(B)
    Z = np.concatenate([stream.run(X[:5], attention=A[:5]), stream.run(X[5:], attention=A[5:, :, None])])
    stepped = [steps.step(x, attention=a if n % 2 else a[:, None]) for n, (x, a) in enumerate(pairs)]
    if engine == "native":
        assert_bits(Z, Y)
        assert_bits(np.stack(stepped), Y)
        for (x, a), h in zip(pairs, stepped, strict=True):
            for some in ([2, 0], [1, 3]):
                assert_bits(rows.step(x[some], attention=a[some], rows=some), h[some])
    else:  # the reference rounds its state at each end of a chunk
        tolerance = 1e-6 if np.dtype(dtype).itemsize > 2 else 1e-2
        np.testing.assert_allclose(Z.astype(np.float64), Y.astype(np.float64), atol=tolerance)
        np.testing.assert_allclose(np.stack(stepped).astype(np.float64), Y.astype(np.float64), atol=tolerance)


@pytest.mark.parametrize(("dtype", "after"), itertools.product(TYPES, [False, True]))
def test_the_engines_agree(dtype: Any, after: bool) -> None:
    native, reference = (make(dtype, linear_before_reset=after, engine=name).stream(B) for name in ENGINES)
    X = draw(9, B, I, dtype=dtype)
    for chunk in (X[:4], X[4:4], X[4:]):
        native.run(chunk), reference.run(chunk)
    np.testing.assert_allclose(native.state, reference.state, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("dtype", "engine"), itertools.product(TYPES, ENGINES))
def test_out_may_be_x(dtype: Any, engine: str) -> None:
    layer = make(dtype, (H, H), engine=engine)
    X = draw(5, B, H, dtype=dtype)
    expected = layer.stream(B).run(X)
    stream = layer.stream(B)
    for x, y in zip(X.copy(), expected, strict=True):
        assert stream.step(x, out=x) is x
        if engine == "native":
            assert_bits(x, y)
    inside = X.copy()
    assert_bits(layer.stream(B).run(inside, out=inside), expected)
    shifted = np.concatenate([X, X[:1]])
    assert_bits(layer.stream(B).run(shifted[:-1], out=shifted[1:]), expected)


@pytest.mark.parametrize(("dtype", "engine"), itertools.product(TYPES, ENGINES))
def test_arrays_that_are_not_contiguous(dtype: Any, engine: str) -> None:
    layer = make(dtype, engine=engine)
    X = draw(4, B, I, dtype=dtype)
    expected = layer.stream(B).run(X)
    wide, out = np.zeros((8, 2 * B, 3 * I), dtype), np.zeros((4, 2 * B, 2 * H), dtype)
    for view in (wide[::2, 1::2, I : 2 * I], wide[3::-1, :B, ::3]):
        view[...] = X
        for written in (out[:, :B, :H], out[::-1, ::2, ::2]):
            layer.stream(B).run(view, out=written)
            assert_bits(written, expected)
        stream = layer.stream(B)
        stepped = out[0, ::2, 1::2]
        stream.step(view[0], out=stepped)
        assert_bits(stepped, expected[0])
    swapped = X.astype(np.dtype(dtype).newbyteorder(">")) if dtype is not ml_dtypes.bfloat16 else X
    assert_bits(layer.stream(B).run(swapped), expected)


# --- 16-bit weights

#: Half a unit in the last place of 1: the most that rounding moves a weight, relatively.
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


@pytest.mark.parametrize(("storage", "after"), itertools.product(ROUNDING, [False, True]))
def test_weight_storage_is_the_layer_of_rounded_weights(storage: str, after: bool) -> None:
    layer = make(sizes=(11, 67), linear_before_reset=after)
    weights = layer.weights
    stored = onegru.GRU(
        weights.W, weights.R, weights.B, linear_before_reset=after, weight_storage=storage, engine="native"
    )
    narrow: Any = np.float16 if storage == "float16" else ml_dtypes.bfloat16
    W, R = (a.astype(narrow).astype(np.float32) for a in (weights.W, weights.R))
    rounded = onegru.GRU(W, R, weights.B, linear_before_reset=after)
    assert stored.weight_storage == storage
    assert layer.weight_storage == "float32"
    assert_bits(stored.weights.W, W)
    assert_bits(stored.weights.R, R)
    assert_bits(stored.weights.B, weights.B)
    X = draw(30, B, 11)
    assert_bits(stored(X)[0], rounded(X)[0])
    assert_bits(stored.stream(B).run(X), rounded.stream(B).run(X))
    copy = pickle.loads(pickle.dumps(stored))
    assert copy.weight_storage == storage
    assert_bits(copy(X)[0], stored(X)[0])


@pytest.mark.parametrize(("storage", "after"), itertools.product(ROUNDING, [False, True]))
def test_what_weight_storage_costs(storage: str, after: bool) -> None:
    """The roundings of a row of weights add up like a random walk."""
    i, h = 64, 256
    full = make(sizes=(i, h), linear_before_reset=after)
    weights = full.weights
    stored = onegru.GRU(weights.W, weights.R, weights.B, linear_before_reset=after, weight_storage=storage)
    X = draw(200, 8, i)
    error = np.abs(full(X)[0] - stored(X)[0])
    print(f"{storage}, after={after}: largest {error.max():.2g}, mean {error.mean():.2g}")
    assert 0 < error.max() < 4 * ROUNDING[storage]
    assert error.mean() < 0.4 * ROUNDING[storage]


@pytest.mark.parametrize("storage", [*ROUNDING, "int8"])
def test_weight_storage_is_refused_elsewhere(storage: str) -> None:
    for dtype, name in zip(TYPES, ("float16", "bfloat16", "float32", "float64"), strict=True):
        if name != "float32":
            message = f"weight_storage: {storage!r}; must be None for a layer of {name}"
            refuse(message, make, dtype, weight_storage=storage)


@pytest.mark.parametrize("storage", ["float32", "int4", "", 16, True])
def test_weight_storage_must_be_known(storage: Any) -> None:
    message = f"weight_storage: {storage!r}; must be {', '.join(WEIGHT_STORAGES)} or None"
    refuse(message, make, weight_storage=storage)


# --- weights, out of their packed form


@pytest.mark.parametrize(("dtype", "engine"), itertools.product(TYPES, ENGINES))
@pytest.mark.parametrize("after", [False, True])
def test_weights_come_back_bit_for_bit(dtype: Any, engine: str, after: bool) -> None:
    rng = np.random.default_rng(4)
    special = np.array([0.0, -0.0, np.finfo(np.float16).max, -1e-7, 6e-5, 6e-8], dtype)
    for i, h in ((1, 1), (3, 7), (5, 8), (2, 17), (33, 40)):
        W, R, bias = (
            rng.standard_normal(s).astype(dtype) for s in ((2, 3 * h, i), (2, 3 * h, h), (2, 6 * h))
        )
        for array in (W, R, bias):
            flat = array.reshape(-1)
            flat[: min(len(flat), 6)] = special[: len(flat)]
        layer = onegru.GRU(W, R, bias, direction="bidirectional", linear_before_reset=after, engine=engine)
        for found, given in zip(
            (layer.weights.W, layer.weights.R, layer.weights.B), (W, R, bias), strict=True
        ):
            assert_bits(found, given)


def test_a_layer_keeps_its_own_copy() -> None:
    W, R, bias = draw(1, 3 * H, I), draw(1, 3 * H, H), draw(1, 6 * H)
    layer = onegru.GRU(W, R, bias)
    X = draw(3, B, I)
    before = layer(X)[0]
    kept = bias.copy()
    W[...], R[...], bias[...] = 0, 0, 0
    assert_bits(layer(X)[0], before)
    assert_bits(layer.weights.B, kept)


def test_repr() -> None:
    assert repr(make().stream(B)) == "Stream(4 rows, 3 → 5, float32)"


def test_a_step_runs_whichever_way_it_is_asked_for() -> None:
    """Native code takes `step(x, out=h)`; all other calls, and what it declines, are Python's."""
    layer = make()
    X = draw(6, B, I)
    Y = layer(X)[0][:, 0]
    stream, out = layer.stream(B), np.empty((B, H), np.float32)
    assert stream.step(X[0], out=out) is out
    got = [
        out.copy(),
        stream.step(X[1]),
        stream.step(x=X[2], out=out).copy(),
        stream.step(X[3], attention=None, rows=None, out=out).copy(),
        stream.step(np.asfortranarray(X[4]), out=out).copy(),
        stream.step(X[5], rows=range(B), out=out).copy(),
    ]
    assert_bits(np.stack(got), Y)
    for args, kwargs in (((), {}), ((X[0], out), {}), ((X[0],), {"inn": out}), ((), {"out": out})):
        with pytest.raises(TypeError):
            stream.step(*args, **kwargs)
    assert_bits(stream.state, Y[-1])


@pytest.mark.filterwarnings("ignore:nanobind")
def test_a_stream_that_was_never_made_says_so() -> None:
    empty = onegru.reports.Stream.__new__(onegru.reports.Stream)
    with pytest.raises(AttributeError):
        empty.step(draw(B, I), out=draw(B, H))
