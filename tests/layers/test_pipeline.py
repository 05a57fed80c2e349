"""Layers of a stack that run together on several threads: the same bits as one after another."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import GRU, Stack, _native
from onegru.core.dtypes import Array


@pytest.fixture(autouse=True)
def restore_threads() -> Iterator[None]:
    """Set the default number of threads again after each test."""
    yield
    onegru.set_num_threads(None)


def make(rng: np.random.Generator, dtype: str, I: int, sizes: list[int], layout: int = 0) -> Stack:
    """A stack of forward layers with random weights."""
    layers = []
    for H in sizes:
        W, R, B = (
            rng.standard_normal(n).astype(dtype) * 0.3 for n in ((1, 3 * H, I), (1, 3 * H, H), (1, 6 * H))
        )
        layers.append(GRU(W, R, B, linear_before_reset=bool(rng.integers(2)), layout=layout))
        I = H
    return Stack(layers)


def digest(stack: Stack, X: Array, states: list[Array] | None, layout: int) -> list[bytes]:
    """The bits of a call, and of a stream in two chunks."""
    Y, last = stack(X, states)
    stream = stack.stream(X.shape[1 - layout])
    if states is not None:
        stream.state = tuple(state.swapaxes(0, layout)[0] for state in states)
    steps = np.ascontiguousarray(X.swapaxes(0, layout))
    cut = len(steps) // 3
    chunks = np.concatenate([stream.run(steps[:cut]), stream.run(steps[cut:])])
    assert np.array_equal(
        chunks, Y.swapaxes(0, layout * 2)[:, 0] if not layout else Y[:, :, 0].swapaxes(0, 1)
    )
    return [Y.tobytes(), *(state.tobytes() for state in last), *(state.tobytes() for state in stream.state)]


@pytest.mark.long(every=4)
@pytest.mark.parametrize("seed", range(40))
def test_bits_do_not_depend_on_threads(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype, layout, B = rng.choice(["float32", "float64"]), int(rng.integers(2)), int(rng.integers(1, 8))
    sizes = [int(size) for size in rng.integers(24, 150, rng.integers(2, 5))]
    I, T = int(rng.integers(1, 60)), int(rng.integers(80, 300))
    stack = make(rng, dtype, I, sizes, layout)
    X = rng.standard_normal((T, B, I)).swapaxes(0, layout).astype(dtype)
    states = None
    if rng.integers(2):
        states = [rng.standard_normal((1, B, H)).swapaxes(0, layout).astype(dtype) for H in sizes]
    found = []
    for threads in (1, 2, 3, 8):
        onegru.set_num_threads(threads)
        found.append(digest(stack, X, states, layout))
    assert all(each == found[0] for each in found)


def test_small_types_and_storages() -> None:
    rng = np.random.default_rng(1)
    plain = make(rng, "float32", 20, [64, 80])
    half = make(rng, "float16", 20, [64, 80])
    stacks = [
        half,
        plain.with_storage("bfloat16"),
        plain.with_storage("int8"),
        plain.with_storage("bfloat16", "bfloat16"),
    ]
    for stack in stacks:
        X = rng.standard_normal((200, 2, 20)).astype(stack[0].spec.dtype)
        found = []
        for threads in (1, 2):
            onegru.set_num_threads(threads)
            found.append(digest(stack, X, None, 0))
        assert found[0] == found[1]


def test_a_pipeline_runs_calls_that_it_makes_faster() -> None:
    rng = np.random.default_rng(2)
    stack = make(rng, "float32", 40, [96, 96])
    streams = [layer.stream(1) for layer in stack]
    X = rng.standard_normal((100, 1, 40)).astype("f")
    onegru.set_num_threads(2)
    assert _native.run_stack(streams, X, False) is not None
    for other in (X[:10], X.astype("d"), X[..., :39], X.tolist(), None, np.ones((100, 2, 40), "f")):
        assert _native.run_stack(streams, other, False) is None
    assert _native.run_stack([], X, False) is None
    assert _native.run_stack(streams[:1], X, False) is None
    assert _native.run_stack(streams[::-1], X, False) is None
    onegru.set_num_threads(1)
    assert _native.run_stack(streams, X, False) is None


def test_wrong_arguments_have_the_messages_of_other_calls() -> None:
    stack = make(np.random.default_rng(3), "float32", 40, [96, 96])
    onegru.set_num_threads(2)
    X = np.ones((100, 2, 40), "f")
    with pytest.raises(onegru.SpecError, match=r"layer 0: X: shape \[100, 2, 39\]"):
        stack(X[..., :39])
    with pytest.raises(onegru.SpecError, match="initial_h: 1 array; must be 2"):
        stack(X, [None])
    with pytest.raises(onegru.SpecError, match=r"layer 1: initial_h: shape \[1, 3, 96\]"):
        stack(X, [None, np.ones((1, 3, 96), "f")])
    with pytest.raises(onegru.SpecError, match="layer 1: initial_h: type float64; must be float32"):
        stack(X, [None, np.ones((1, 2, 96))])
    with pytest.raises(onegru.SpecError, match="layout: 2"):
        stack(X, layout=2)


class Doubling(GRU):
    """A layer whose calls compute something else."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        Y, Y_h = super().__call__(*args, **options)
        return Y * 2, Y_h


def test_layers_of_a_subclass_are_called() -> None:
    layers = [Doubling(layer.weights.W, layer.weights.R, layer.weights.B) for layer in make_pair()]
    stack, X = Stack(layers), np.ones((200, 1, 40), "f")
    found = []
    for threads in (1, 2):
        onegru.set_num_threads(threads)
        found.append(stack(X)[0])
    assert np.array_equal(found[0], found[1])


def make_pair() -> Stack:
    """Two layers that run at the same time on two threads."""
    return make(np.random.default_rng(4), "float32", 40, [96, 96])


def test_arguments_that_other_calls_check() -> None:
    stack, X = make_pair(), np.ones((200, 1, 40), "f")
    masked: Any = np.ma.masked_array(np.ones((1, 1, 96), "f"), True)
    onegru.set_num_threads(2)
    with pytest.raises(onegru.SpecError, match="layer 0: X: type float64; must be float32"):
        stack(X.astype("d"), [np.ones((1, 1, 96))] * 2)
    with pytest.raises(onegru.SpecError, match="layer 0: initial_h: a masked array"):
        stack(X, [masked, None])


def test_a_state_of_float16_may_overflow() -> None:
    layers = []
    for I, H in ((40, 96), (96, 96)):
        W, R, B = (np.zeros(shape, np.float16) for shape in ((1, 3 * H, I), (1, 3 * H, H), (1, 6 * H)))
        W[:, 2 * H :] = 8
        layers.append(GRU(W, R, B, activations=["Sigmoid", "Relu"]))
    onegru.set_num_threads(2)
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        _, last = Stack(layers)(np.ones((200, 1, 40), np.float16))
    assert np.isinf(last[1]).all()
