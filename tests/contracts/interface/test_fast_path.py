"""Test the fast path of native code: calls return the bits and the messages of the general path."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru.core.dtypes import Array
from tests.support.comparison import TYPES
from tests.support.layers import normal_gru

I, H = 3, 5


class Other(np.ndarray[Any, Any]):
    """Array subclass that native code leaves to the general path."""


def make(dtype: Any, D: int = 1, sizes: tuple[int, int] = (I, H), **options: Any) -> onegru.GRU:
    return normal_gru(*sizes, dtype, "bidirectional" if D == 2 else "forward", **options)


def draw(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


def bits(array: Array) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def general(call: Callable[..., Any], X: Array, *args: Any, **given: Any) -> Any:
    """Return the result of the general path."""
    return call(X.view(Other), *args, **given)


def strided(array: Array) -> Array:
    """Return the same values with a contiguous last axis and other strides for the others."""
    wide = np.zeros((*(2 * size for size in array.shape[:-1]), array.shape[-1] + 3), array.dtype)
    view = wide[(*(slice(None, None, -2) for _ in array.shape[:-1]), slice(1, 1 + array.shape[-1]))]
    view[...] = array
    return view


def mixes(T: int, B: int, D: int, dtype: Any, layout: int, attention: bool) -> Iterator[dict[str, Any]]:
    lengths = np.arange(B) % (T + 1)
    for h, lens, strides, scores in itertools.product(
        (None, "given", "strided"),
        (None, "int32", "int64", "list", "strided"),
        (False, True),
        ("2", "3", "T"),
    ):
        if not attention and scores != "2":
            continue
        X = draw(*((T, B) if layout == 0 else (B, T)), I, dtype=dtype)
        given: dict[str, Any] = {"X": strided(X) if strides else X}
        if h is not None:
            state = draw(*((D, B) if layout == 0 else (B, D)), H, dtype=dtype)
            given["initial_h"] = strided(state) if h == "strided" else state
        if lens is not None:
            given["sequence_lens"] = {
                "int32": lengths.astype(np.int32),
                "int64": lengths,
                "list": lengths.tolist(),
                "strided": np.repeat(lengths, 2)[::2],
            }[lens]
        if attention:
            a = np.abs(draw(*X.shape[:2], dtype=dtype))
            given["attention"] = {"2": a, "3": a[:, :, None], "T": np.asfortranarray(a)}[scores]
        yield given


@pytest.mark.parametrize(
    ("dtype", "D", "layout", "attention"), itertools.product(TYPES, (1, 2), (0, 1), (False, True))
)
def test_every_mix_has_the_bits_of_the_general_path(dtype: Any, D: int, layout: int, attention: bool) -> None:
    plain, own = make(dtype, D, attention=attention), make(dtype, D, attention=attention, layout=layout)
    for T, B in ((0, 2), (1, 1), (2, 0), (3, 1), (4, 3)):
        for given in mixes(T, B, D, dtype, layout, attention):
            Y, Y_h = general(plain, layout=layout, **given)
            for which in ("none", "nones", "Y", "Y_h", "both"):
                out = tuple(np.full_like(array, 9) for array in (Y, Y_h))
                outs: Any = {
                    "none": None,
                    "nones": (None, None),
                    "Y": (out[0], None),
                    "Y_h": (None, out[1]),
                    "both": out,
                }[which]
                done = plain.try_call(layout=layout, out=outs, **given)
                assert done is not None, (T, B, which, given)
                for made, wanted in zip(done, (Y, Y_h), strict=True):
                    assert type(made) is np.ndarray
                    assert made.flags.owndata and made.flags.c_contiguous
                    assert (made.dtype, made.shape) == (wanted.dtype, wanted.shape)
                    assert bits(made) == bits(wanted)
                if outs is not None:
                    assert all(a is None or a is b for a, b in zip(outs, done, strict=True))
                assert (done is outs) == (which == "both")
            for result in (plain(layout=layout, **given), own(**given), own.run(**given)):
                assert [bits(array) for array in result] == [bits(Y), bits(Y_h)]


@pytest.mark.parametrize(("layout", "lengths"), itertools.product((0, 1), (False, True)))
def test_the_last_state_may_be_the_first(layout: int, lengths: bool) -> None:
    """Threads that share the rows must allow it too."""
    layer = make(np.float32, 2, (32, 64))
    X, h = draw(40, 64, 32), draw(*((2, 64) if layout == 0 else (64, 2)), 64)
    if layout:
        X = np.ascontiguousarray(X.swapaxes(0, 1))
    given: dict[str, Any] = {"sequence_lens": np.arange(64) % 41} if lengths else {}
    Y, Y_h = general(layer, X, h.copy(), layout=layout, **given)
    before = onegru.get_num_threads()
    try:
        for threads in (1, 2, 4):
            onegru.set_num_threads(threads)
            state = h.copy()
            done = layer.try_call(X, state, layout=layout, out=(None, state), **given)
            assert done is not None and done[1] is state
            assert [bits(array) for array in done] == [bits(Y), bits(Y_h)]
    finally:
        onegru.set_num_threads(before)


def test_other_calls_take_the_general_path() -> None:
    layer = make(np.float32, sizes=(H, H))
    X, h = draw(4, 3, H), draw(1, 3, H)
    Y, Y_h = layer(X, h)
    buffer = np.zeros((4, 4, H), np.float32)
    unaligned = np.zeros(X.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(X.shape)
    unaligned[...] = X
    read_only = X.copy()
    read_only.flags.writeable = False
    backwards = X[..., ::-1].copy()[..., ::-1]
    for other in (unaligned, backwards, X.tolist(), X.astype(">f4"), X.view(Other)):
        assert layer.try_call(other, h) is None
    assert layer.try_call(read_only, h) is not None
    for lengths in (
        np.full(3, 4, np.uint8),
        np.full(3, 4, ">i8"),
        np.full(3, 4).view(Other),
        [np.int64(4)] * 3,
    ):
        assert layer.try_call(X, h, sequence_lens=lengths) is None
        assert bits(layer(X, h, sequence_lens=lengths)[0]) == bits(Y)
    inside = buffer[:, :3]
    inside[...] = X
    wide = np.zeros((4, 1, 3, 2 * H), np.float32)
    for case, out in (
        (X, (wide[..., ::2], None)),
        (inside, (inside[:, None], None)),
        (X, (None, h[:, ::-1])),
        (X, [np.empty_like(Y), np.empty_like(Y_h)]),
    ):
        assert layer.try_call(case, h, out=out) is None
    zero: Any = np.int64(0)
    assert layer.try_call(X, h, layout=zero) is None
    assert bits(layer(X, h, layout=zero)[0]) == bits(Y)
    assert make(np.float32, engine="reference").try_call(draw(2, 1, I)) is None
    for args, kwargs in (((X, h, h), {}), ((X,), {"inn": 1}), ((X,), {"X": X})):
        with pytest.raises(TypeError):
            layer.try_call(*args, **kwargs)


def wrong_calls() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield options of a layer with arguments that it rejects."""
    X, A = draw(4, 3, I), draw(4, 3)
    Y, Y_h = np.zeros((4, 1, 3, H), np.float32), np.zeros((1, 3, H), np.float32)
    frozen = Y.copy()
    frozen.flags.writeable = False
    wrong: list[dict[str, Any]] = [
        {"initial_h": draw(1, 2, H)},
        {"initial_h": draw(3, 1, H)},
        {"initial_h": draw(1, 3, H).astype(np.float64)},
        {"initial_h": 0},
        {"sequence_lens": [4, 4]},
        {"sequence_lens": np.array([4, 5, 1])},
        {"sequence_lens": np.array([4, -1, 1], np.int32)},
        {"sequence_lens": [4, 1, 2**70]},
        {"sequence_lens": [4, True, "x"]},
        {"sequence_lens": np.full((3, 1), 4)},
        {"sequence_lens": np.full(3, 4.0)},
        {"sequence_lens": 4},
        {"attention": A},
        {"layout": 2},
        {"layout": True},
        {"layout": 2**70},
        {"layout": 1, "initial_h": draw(1, 3, H)},
        {"out": (Y, Y_h, Y)},
        {"out": Y},
        {"out": (Y[:3], Y_h)},
        {"out": (frozen, None)},
        {"out": (None, Y_h.astype(np.float64))},
        {"out": (Y, Y[0])},
        {"out": (Y_h, Y)},
        {"out": (Y, Y_h), "layout": 1},
    ]
    for given in wrong:
        yield {}, {"X": X, **given}
    for given in (
        {},
        {"attention": A.T},
        {"attention": A[0]},
        {"attention": draw(4, 3, 2)},
        {"attention": 1.0},
    ):
        yield {"attention": True}, {"X": X, **given}
    for x in (draw(4, 3, 2), draw(3, I), draw(4, 3, I).astype(np.float16)):
        yield {}, {"X": x}
    huge = np.lib.stride_tricks.as_strided(np.zeros(I, np.float32), (2**30, 2**29, I), (0, 0, 4))
    yield {}, {"X": huge}


@pytest.mark.parametrize(("options", "given"), wrong_calls())
def test_what_is_wrong_is_refused_in_the_same_words(options: dict[str, Any], given: dict[str, Any]) -> None:
    layer = make(np.float32, **options)
    values = [*given.values(), *(given["out"] if isinstance(given.get("out"), tuple) else ())]
    arrays = [value for value in values if isinstance(value, np.ndarray) and value.size < 1000]
    before = [bits(array) for array in arrays]
    with pytest.raises(onegru.SpecError) as by_general_path:
        general(layer, **given)
    assert layer.try_call(**given) is None
    for call in (layer, layer.run):
        with pytest.raises(onegru.SpecError) as refused:
            call(**given)
        assert str(refused.value) == str(by_general_path.value)
    assert [bits(array) for array in arrays] == before


# Streams


@pytest.mark.parametrize(("dtype", "attention"), itertools.product(TYPES, (False, True)))
def test_every_step_has_the_bits_of_the_general_path(dtype: Any, attention: bool) -> None:
    layer = make(dtype, attention=attention)
    B = 4
    for rows, strides, write, three in itertools.product(
        (None, [2, 0], (3,), [], np.array([1, 3, 2]), np.array([0], np.int32)), *(3 * [(False, True)])
    ):
        n = B if rows is None else len(rows)
        quick, slow = layer.stream(B), layer.stream(B)
        quick.state = slow.state = draw(B, H, dtype=dtype)
        X, A = draw(3, n, I, dtype=dtype), np.abs(draw(3, n, dtype=dtype))
        if strides:
            X, A = strided(X), np.asfortranarray(A)
        for x, a in zip(X, A, strict=True):
            given = {"attention": a[:, None] if three else a} if attention else {}
            out = np.empty((n, H), dtype) if write else None
            h = quick.step(x, rows=rows, out=out, **given)
            assert out is None or h is out
            assert bits(h) == bits(general(slow.step, x, rows=rows, **given))
            assert bits(quick.state) == bits(slow.state)
        if rows is not None:
            continue
        given = {"attention": A[:, :, None] if three else A} if attention else {}
        for chunk in (X, X[:0]):
            given = {name: a[: len(chunk)] for name, a in given.items()}
            Y = np.empty((len(chunk), n, H), dtype) if write else None
            done = quick.try_run(chunk, given.get("attention"), Y)
            assert done is not None and (Y is None or done is Y)
            assert bits(done) == bits(general(slow.run, chunk, **given))
            assert bits(quick.state) == bits(slow.state)


def test_what_is_wrong_in_a_step_is_refused_in_the_same_words() -> None:
    stream, with_attention = make(np.float32).stream(3), make(np.float32, attention=True).stream(3)
    x, X = draw(3, I), draw(2, 3, I)
    out = np.zeros((3, H), np.float32)
    calls: list[tuple[Callable[..., Any], Array, dict[str, Any]]] = [
        (stream.step, x, {"rows": [0, 1, 3]}),
        (stream.step, x, {"rows": np.array([0, 1, 1])}),
        (stream.step, x, {"rows": np.array([0, -1, 1])}),
        (stream.step, x, {"rows": [0, 1]}),
        (stream.step, x, {"rows": np.zeros((3, 1), int)}),
        (stream.step, x, {"attention": draw(3)}),
        (stream.step, x, {"out": out[:2]}),
        (stream.step, x, {"out": out.astype(np.float64)}),
        (stream.step, x, {"rows": [0, 1, 2], "out": out[None]}),
        (stream.step, draw(3, 2), {}),
        (stream.run, X, {"out": out}),
        (stream.run, X, {"attention": draw(2, 3)}),
        (stream.run, draw(2, 2, I), {}),
        (with_attention.step, x, {}),
        (with_attention.step, x, {"attention": draw(2)}),
        (with_attention.step, x, {"attention": draw(3, 2)}),
        (with_attention.run, X, {}),
        (with_attention.run, X, {"attention": draw(3, 2)}),
    ]
    for call, given, more in calls:
        with pytest.raises(onegru.SpecError) as by_general_path:
            general(call, given, **more)
        with pytest.raises(onegru.SpecError) as refused:
            call(given, **more)
        assert str(refused.value) == str(by_general_path.value)
    assert not out.any() and not stream.state.any() and not with_attention.state.any()


# Models


@pytest.mark.parametrize("layout", [0, 1])
def test_a_models_nodes_take_the_fast_path(layout: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes with lengths and batch first are included; lengths must have a type of the specification."""
    onnx = pytest.importorskip("onnx")
    from tests.support.files.onnx_models import graph, gru, model, value, weights

    node = gru("X", ["Y", "Y_h"], bias="B", lens="lens", initial_h="h", layout=layout)
    inputs = [value("X"), value("lens", "int32"), value("h")]
    constants = weights(1)
    proto = model(graph([node], inputs, ["Y", "Y_h"], constants))
    assert isinstance(proto, onnx.ModelProto)
    loaded = onegru.load(proto.SerializeToString())
    X, h = (draw(4, 2, 5), draw(1, 2, 3)) if layout == 0 else (draw(2, 4, 5), draw(2, 1, 3))
    feeds = {"X": X, "lens": np.array([3, 4], np.int32), "h": h}
    expected = onegru.gru(
        X, constants["W"], constants["R"], constants["B"], feeds["lens"], h, layout=layout, hidden_size=3
    )
    with monkeypatch.context() as patched:
        patched.setattr("onegru.layers.call.execute", None)
        results = loaded.run(feeds)
    assert [bits(array) for array in results.values()] == [bits(array) for array in expected]
    with pytest.raises(ValueError, match="lens"):
        loaded.run({**feeds, "lens": np.array([3, 4])})


OPENVINO = {
    "gru_cell": ("forward",),
    "augru_cell": ("forward",),
    "gru_sequence": ("forward", "reverse", "bidirectional"),
    "augru_sequence": ("forward",),
}


def openvino_inputs(function: str, D: int, lengths: Any = np.int64) -> dict[str, Array]:
    """Return inputs of OpenVINO's operators, in the order of the specification."""
    T, B = 4, 3
    if function.endswith("cell"):
        inputs = {"X": draw(B, I), "state": draw(B, H), "W": draw(3 * H, I), "R": draw(3 * H, H)}
        inputs |= {"B": draw(3 * H), "A": draw(B, 1)}
    else:
        lens = np.array([4, 0, 2], lengths)
        inputs = {"X": draw(B, T, I), "state": draw(B, D, H), "sequence_lengths": lens}
        inputs |= {"W": draw(D, 3 * H, I), "R": draw(D, 3 * H, H), "B": draw(D, 3 * H), "A": draw(B, T, 1)}
    if not function.startswith("augru"):
        del inputs["A"]
    state = "H_t" if function.startswith("augru") else "initial_hidden_state"
    return {state if name == "state" else name: array for name, array in inputs.items()}


@pytest.mark.parametrize(
    ("function", "direction", "lengths"),
    [
        (function, direction, lengths)
        for function, directions in OPENVINO.items()
        for direction in directions
        for lengths in ((np.int32, np.int64) if function.endswith("sequence") else (np.int64,))
    ],
)
def test_a_models_openvino_layers_take_the_fast_path(
    function: str, direction: str, lengths: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.files.ir_files import write_case

    inputs = openvino_inputs(function, 2 if direction == "bidirectional" else 1, lengths)
    attributes = {"hidden_size": H} | ({"direction": direction} if function.endswith("sequence") else {})
    loaded = onegru.load(write_case(tmp_path / "x.xml", function, inputs, attributes))
    feeds = {name: array for name, array in inputs.items() if name not in ("W", "R", "B")}
    expected = getattr(onegru, function)(*inputs.values(), **attributes)
    with monkeypatch.context() as patched:
        patched.setattr("onegru.layers.call.execute", None)
        results = list(loaded.run(feeds).values())
    for array, right in zip(results, expected if len(results) == 2 else [expected], strict=True):
        assert array.shape == right.shape and array.flags.c_contiguous
        assert bits(array) == bits(right)
    # Cases that the fast path leaves to the general path.
    views = {name: array.view(Other) for name, array in feeds.items()}
    for array, right in zip(loaded.run(views).values(), results, strict=True):
        assert bits(array) == bits(right)
    for name, array in feeds.items():
        for wrong in (array[..., None], array.astype(np.float64 if array.dtype.kind == "f" else np.int16)):
            with pytest.raises(onegru.SpecError, match=name):
                loaded.run({**feeds, name: wrong})
