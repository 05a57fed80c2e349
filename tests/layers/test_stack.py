"""Layers on top of each other: the same as calling them one by one, and the same bits when streamed."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import GRU, SpecError, Stack


def make(rng: np.random.Generator, I: int, H: int, direction: Any = "forward", reset: bool = True) -> GRU:
    D = 2 if direction == "bidirectional" else 1
    W, R, B = (rng.standard_normal(n).astype("f") * 0.3 for n in ((D, 3 * H, I), (D, 3 * H, H), (D, 6 * H)))
    return GRU(W, R, B, direction=direction, linear_before_reset=reset)


def test_is_its_layers_one_by_one() -> None:
    rng = np.random.default_rng(0)
    below, above = make(rng, 5, 7, "bidirectional"), make(rng, 14, 3, "bidirectional", reset=False)
    X = rng.standard_normal((6, 4, 5)).astype("f")
    lengths = [6, 0, 3, 1]
    h = [rng.standard_normal((2, 4, n)).astype("f") for n in (7, 3)]
    Y, Y_h = Stack([below, above])(X, h, sequence_lens=lengths)
    first, first_h = below(X, h[0], sequence_lens=lengths)
    joined = np.concatenate([first[:, 0], first[:, 1]], axis=-1)
    second, second_h = above(joined, h[1], sequence_lens=lengths)
    assert np.array_equal(Y, second)
    assert np.array_equal(Y_h[0], first_h) and np.array_equal(Y_h[1], second_h)
    swapped, swapped_h = Stack([below, above])(
        X.swapaxes(0, 1), [state.swapaxes(0, 1) for state in h], sequence_lens=lengths, layout=1
    )
    assert np.array_equal(swapped, Y.transpose(2, 0, 1, 3))
    assert all(np.array_equal(a.swapaxes(0, 1), b) for a, b in zip(swapped_h, Y_h, strict=True))


def test_a_stack_has_the_layout_of_its_layers() -> None:
    rng = np.random.default_rng(7)
    plain = [make(rng, 5, 7), make(rng, 7, 3)]
    first = [GRU.from_canonical(layer.spec, layer.weights, layout=1) for layer in plain]
    X = rng.standard_normal((4, 4, 5)).astype("f")
    expected = Stack(plain)(X)[0].transpose(2, 0, 1, 3)
    for stack in (Stack(first), Stack(plain, layout=1), pickle.loads(pickle.dumps(Stack(first)))):
        assert stack.layout == 1 and repr(stack).endswith("layout=1)")
        assert np.array_equal(stack(X.swapaxes(0, 1))[0], expected)
        assert np.array_equal(stack(X, layout=0)[0], Stack(plain)(X)[0])
    assert Stack([first[0], plain[1]], layout=0).layout == 0
    with pytest.raises(SpecError, match=r"layers\[1\]: layout 0; must be 1, like the layer below"):
        Stack([first[0], plain[1]])


def test_takes_the_states_as_pytorch_has_them() -> None:
    rng = np.random.default_rng(1)
    stack = Stack([make(rng, 5, 4, "bidirectional"), make(rng, 8, 4, "bidirectional")])
    X, h = rng.standard_normal((3, 2, 5)).astype("f"), rng.standard_normal((4, 2, 4)).astype("f")
    assert np.array_equal(stack(X, h)[0], stack(X, [h[:2], h[2:]])[0])
    first = stack(X.swapaxes(0, 1), h, layout=1)[0]  # PyTorch's states are the same with batch_first
    assert np.array_equal(first, stack(X, h)[0].transpose(2, 0, 1, 3))
    with pytest.raises(SpecError, match=r"initial_h: shape \[3, 2, 4\]; must be \[4, batch_size"):
        stack(X, h[:3])
    with pytest.raises(SpecError, match="initial_h: 1 array; must be 2"):
        stack(X, [h[:2]])


def test_streams_with_the_bits_of_one_call() -> None:
    rng = np.random.default_rng(2)
    stack = Stack([make(rng, 5, 7), make(rng, 7, 3), make(rng, 3, 9, reset=False)])
    X = rng.standard_normal((6, 2, 5)).astype("f")
    Y, Y_h = stack(X)
    stream = stack.stream(2)
    assert np.array_equal(np.stack([stream.step(x) for x in X]), Y[:, 0])
    assert all(np.array_equal(a, b[0]) for a, b in zip(stream.state, Y_h, strict=True))
    stream.reset()
    assert np.array_equal(np.concatenate([stream.run(X[:4]), stream.run(X[4:])]), Y[:, 0])
    saved = stream.state
    stream.reset(rows=[0])
    assert not any(state[0].any() for state in stream.state) and stream.state[0][1].any()
    stream.state = saved
    assert all(np.array_equal(a, b) for a, b in zip(stream.state, saved, strict=True))
    with pytest.raises(SpecError, match="state"):
        stream.state = (saved[0], saved[1], saved[1])
    assert all(np.array_equal(a, b) for a, b in zip(stream.state, saved, strict=True))


def test_a_refused_step_changes_nothing() -> None:
    rng = np.random.default_rng(3)
    stream = Stack([make(rng, 5, 7), make(rng, 7, 3)]).stream(2)
    stream.step(np.ones((2, 5), "f"))
    before = stream.state
    with pytest.raises(SpecError):
        stream.step(np.ones((2, 5), "f"), out=np.empty((2, 4), "f"))
    assert all(np.array_equal(a, b) for a, b in zip(stream.state, before, strict=True))


@pytest.mark.parametrize("shape", [(0, 2), (3, 0)])
def test_empty(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(4)
    Y, Y_h = Stack([make(rng, 5, 4, "bidirectional"), make(rng, 8, 3)])(np.empty((*shape, 5), "f"))
    assert Y.shape == (shape[0], 1, shape[1], 3)
    assert [state.shape for state in Y_h] == [(2, shape[1], 4), (1, shape[1], 3)]


def test_refuses() -> None:
    rng = np.random.default_rng(5)
    with pytest.raises(SpecError, match="layers: empty"):
        Stack([])
    with pytest.raises(SpecError, match=r"layers\[1\]: input size 5; must be 8"):
        Stack([make(rng, 5, 4, "bidirectional"), make(rng, 5, 4)])
    with pytest.raises(SpecError, match=r"layers\[0\]: str; must be a GRU"):
        Stack(["layer"])  # type: ignore[list-item]
    with pytest.raises(SpecError, match="layer 0: X"):
        Stack([make(rng, 5, 4), make(rng, 4, 4)])(np.zeros((2, 2, 3), "f"))
    assert onegru.Stack is Stack


@pytest.mark.parametrize("call", ["run", "step"])
@pytest.mark.parametrize("with_out", [False, True])
def test_what_ends_a_stream_in_an_upper_layer_leaves_all_states(
    monkeypatch: pytest.MonkeyPatch, call: str, with_out: bool
) -> None:
    rng = np.random.default_rng(8)
    stream = Stack([make(rng, 5, 7), make(rng, 7, 3)]).stream(2)
    X = rng.standard_normal((4, 2, 5)).astype("f")
    stream.run(X)
    before = stream.state
    x, out = (X, np.empty((4, 2, 3), "f")) if call == "run" else (X[0], np.empty((2, 3), "f"))

    class Upper:
        """A stream that Ctrl-C ends."""

        def __getattr__(self, name: str) -> Any:
            return getattr(upper, name)

        def ended(self, *_: object, **__: object) -> None:
            raise KeyboardInterrupt

        step = run = ended

    below, upper = stream._streams
    monkeypatch.setattr(stream, "_streams", (below, Upper()))
    with pytest.raises(KeyboardInterrupt):
        getattr(stream, call)(x, out=out if with_out else None)
    monkeypatch.undo()
    assert all(np.array_equal(a, b) for a, b in zip(stream.state, before, strict=True))
