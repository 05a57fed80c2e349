"""The layer: call after call, layouts, outputs to write into, attention."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest

import onegru
from onegru import SpecError
from onegru.core.activations import Activation
from onegru.core.dtypes import Array
from onegru.core.spec import DIRECTIONS, Spec, Weights
from tests.support.machine.processes import run_threads

T, B, I, H = 5, 3, 2, 4


def make(direction: Any = "forward", dtype: Any = np.float32, **options: Any) -> onegru.GRU:
    rng = np.random.default_rng(1)
    d = 2 if direction == "bidirectional" else 1
    W, R, bias = (rng.standard_normal(s).astype(dtype) for s in ((d, 3 * H, I), (d, 3 * H, H), (d, 6 * H)))
    return onegru.GRU(W, R, bias, direction=direction, **options)


def draw(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(2).standard_normal(shape).astype(dtype)


def refuse(message: str, call: Any, *args: Any, **kwargs: Any) -> None:
    with pytest.raises(onegru.SpecError, match="^" + re.escape(message)):
        call(*args, **kwargs)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_layouts_are_the_same_numbers(direction: Any) -> None:
    layer = make(direction)
    X, h = draw(T, B, I), draw(layer.spec.num_directions, B, H)
    Y, Y_h = layer(X, h, sequence_lens=[5, 0, 2])
    Y1, Y_h1 = layer(X.swapaxes(0, 1), h.swapaxes(0, 1), sequence_lens=[5, 0, 2], layout=1)
    np.testing.assert_array_equal(Y1, Y.transpose(2, 0, 1, 3))
    np.testing.assert_array_equal(Y_h1, Y_h.swapaxes(0, 1))
    assert Y1.flags.c_contiguous


def test_chunks_are_the_whole() -> None:
    layer = make()
    X = draw(T, B, I)
    Y, Y_h = layer(X)
    first, h = layer(X[:2])
    second, h = layer(X[2:], h)
    np.testing.assert_array_equal(np.concatenate([first, second]), Y)
    np.testing.assert_array_equal(h, Y_h)


def test_reverse_is_forward_over_each_row_turned_round() -> None:
    rng = np.random.default_rng(3)
    W, R = rng.standard_normal((1, 3 * H, I)), rng.standard_normal((1, 3 * H, H))
    X, lens = rng.standard_normal((T, B, I)), [5, 2, 0]
    turned = np.zeros_like(X)
    for b, n in enumerate(lens):
        turned[:n, b] = X[:n, b][::-1]
    Y, Y_h = onegru.GRU(W, R, direction="reverse")(X, sequence_lens=lens)
    Z, Z_h = onegru.GRU(W, R)(turned, sequence_lens=lens)
    for b, n in enumerate(lens):
        np.testing.assert_allclose(Y[:n, :, b], Z[:n, :, b][::-1], atol=1e-15)
        assert not Y[n:, :, b].any()
    np.testing.assert_allclose(Y_h, Z_h, atol=1e-15)


# Attention


def test_attention_scales_the_update_gate() -> None:
    layer, plain = make(attention=True), make()
    X = draw(T, B, I)
    np.testing.assert_array_equal(layer(X, attention=np.zeros((T, B), np.float32))[0], plain(X)[0])
    # With a score of 1 the update gate is shut: the state is only the candidate.
    one = layer(X, attention=np.ones((T, B), np.float32))[0]
    assert not np.allclose(one, plain(X)[0])
    scores = draw(T, B)
    expected = layer(X, attention=scores)[0]
    np.testing.assert_array_equal(layer(X, attention=scores[:, :, None])[0], expected)
    for given in (scores.T, scores.T[:, :, None]):
        Y = layer(X.swapaxes(0, 1), attention=given, layout=1)[0]
        np.testing.assert_array_equal(Y, expected.transpose(2, 0, 1, 3))


def test_attention_is_not_clamped_and_serves_both_directions() -> None:
    layer = make("bidirectional", np.float64, attention=True, linear_before_reset=True, clip=1.5)
    spec, weights = layer.spec, layer.weights
    X, scores = draw(T, B, I, dtype=np.float64), 3 * draw(T, B, dtype=np.float64)
    Y, _ = layer(X, attention=scores)
    for d, direction in enumerate(DIRECTIONS[:2]):
        single = onegru.GRU(
            weights.W[d : d + 1],
            weights.R[d : d + 1],
            weights.B[d : d + 1],
            direction=direction,
            attention=True,
            linear_before_reset=True,
            clip=spec.clip,
        )
        np.testing.assert_array_equal(single(X, attention=scores)[0][:, 0], Y[:, d])


def test_attention_is_refused_or_required() -> None:
    X = draw(T, B, I)
    refuse("attention: must be None", make(), X, attention=draw(T, B))
    layer = make(attention=True)
    refuse("attention: missing; must be given", layer, X)
    refuse("attention: rank 1, shape [5]; must be [seq_length, batch_size]", layer, X, attention=draw(T))
    refuse(
        "attention: shape [3, 5]; must be [seq_length, batch_size] = [5, 3]", layer, X, attention=draw(B, T)
    )
    refuse("attention: shape [5, 3, 2]; must be", layer, X, attention=draw(T, B, 2))
    refuse("attention: type int64", layer, X, attention=np.zeros((T, B), int))
    refuse("attention: 1; must be one of openvino, dien", make, attention=1)


# Outputs


@pytest.mark.parametrize("layout", [0, 1])
def test_out_is_written_and_returned(layout: int) -> None:
    layer = make("bidirectional")
    X = draw(T, B, I) if layout == 0 else draw(B, T, I)
    expected = layer(X, layout=layout)
    out = tuple(np.full_like(array, np.nan) for array in expected)
    result = layer(X, layout=layout, out=(out[0], out[1]))
    assert result[0] is out[0]
    assert result[1] is out[1]
    for actual, wanted in zip(out, expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)
    strided = np.full((*expected[0].shape[:-1], 2 * H), np.nan, np.float32)[..., ::2]
    assert layer(X, layout=layout, out=(strided, None))[0] is strided
    np.testing.assert_array_equal(strided, expected[0])


def test_out_may_be_the_state_that_goes_in_or_the_input() -> None:
    layer = onegru.GRU(draw(1, 3 * H, H), draw(1, 3 * H, H))
    X, h = draw(T, B, H), draw(1, B, H)
    Y, Y_h = layer(X, h)
    state = h.copy()
    assert layer(X, state, out=(None, state))[1] is state
    np.testing.assert_array_equal(state, Y_h)
    buffer = X.copy()
    layer(buffer, h, out=(buffer[:, None], None))
    np.testing.assert_array_equal(buffer, Y[:, 0])


def test_out_may_be_a_memory_map(tmp_path: Path) -> None:
    layer, X = make(), draw(T, B, I)
    expected = layer(X)[0]
    Y = np.memmap(tmp_path / "Y", np.float32, "w+", shape=expected.shape)
    layer(X, out=(Y, None))
    np.testing.assert_array_equal(Y, expected)
    Y[...] = 0
    layer.stream(B).run(X, out=Y[:, 0])
    np.testing.assert_array_equal(Y, expected)
    Y[...] = 0
    layer.stream(B).step(X[0], out=Y[0, 0])
    np.testing.assert_array_equal(Y[0], expected[0])


def test_out_is_refused() -> None:
    layer, X = make(), draw(T, B, I)
    Y, Y_h = layer(X)
    refuse("out: Y is float64 [5, 1, 3, 4]; must be an array, float32 [5, 1, 3, 4]", layer, X,
           out=(Y.astype(float), Y_h))  # fmt: skip
    refuse("out: Y is float32 [4, 1, 3, 4]; must be", layer, X, out=(Y[1:], Y_h))
    refuse("out: Y_h is list; must be an array", layer, X, out=(Y, Y_h.tolist()))
    refuse("out: list; must be a tuple (Y, Y_h)", layer, X, out=[Y, Y_h])
    refuse("out: tuple; must be a tuple (Y, Y_h)", layer, X, out=(Y,))
    refuse("out: Y and Y_h overlap; must be separate arrays", layer, X, out=(Y, Y[0]))
    flat = np.lib.stride_tricks.as_strided(Y[0], Y.shape, (0, *Y.strides[1:]), writeable=True)
    refuse("out: Y is masked or overlaps itself", layer, X, out=(flat, Y_h))
    refuse("out: Y is masked or overlaps itself", layer, X, out=(np.ma.masked_array(Y), Y_h))
    Y.flags.writeable = False
    refuse("out: Y is read-only; must be writeable", layer, X, out=(Y, Y_h))


def test_a_call_is_run() -> None:
    """Native code takes the call that has everything, whatever is not plain goes to `run`."""
    layer, X, h = make(), draw(T, B, I), draw(1, B, H)
    Y, Y_h = layer.run(X, h)
    out = np.empty_like(Y), np.empty_like(Y_h)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((X, h), {}),
        ((X,), {"initial_h": h}),
        ((X, h), {"out": out}),
        ((np.asfortranarray(X), h), {"out": out}),
        ((X,), {"initial_h": h, "out": out}),
        ((), {"X": X, "initial_h": h, "out": None}),
    ]
    for args, kwargs in calls:
        for array in out:
            array.fill(np.nan)
        for got, wanted in zip(layer(*args, **kwargs), (Y, Y_h), strict=True):
            np.testing.assert_array_equal(got, wanted)
    assert layer(X, h, out=out) is out
    np.testing.assert_array_equal(layer(X, out=out)[0], layer.run(X)[0])
    wrong: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((), {}),
        ((), {"out": out}),
        ((X, h, h), {"out": out}),
        ((X,), {"inn": out}),
    ]
    for args, kwargs in wrong:
        with pytest.raises(TypeError):
            layer(*args, **kwargs)

    class Doubled(onegru.GRU):
        def __call__(self, *args: Any, **kwargs: Any) -> tuple[Array, Array]:
            Y, Y_h = super().__call__(*args, **kwargs)
            return 2 * Y, Y_h

    doubled = Doubled.from_canonical(layer.spec, layer.weights)
    np.testing.assert_array_equal(doubled(X, h, out=out)[0], 2 * Y)


def test_a_call_that_is_given_to_the_class_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a test of somebody's program may do; on both ways that the interpreter may call."""
    layer, X, h = make(), draw(T, B, I), draw(1, B, H)
    Y, _ = layer(X)

    class Same(onegru.GRU):
        pass

    same = Same.from_canonical(layer.spec, layer.weights)
    with monkeypatch.context() as patch:
        patch.setattr(onegru.GRU, "__call__", lambda *args, **kwargs: (args, kwargs))
        for one in (layer, same):
            found: Any = one(X, h, layout=1)
            assert found == ((one, X, h), {"layout": 1})
    for other in (staticmethod(lambda *args: len(args)), classmethod(lambda _, *args: len(args))):
        with monkeypatch.context() as patch:
            patch.setattr(onegru.GRU, "__call__", other)
            counts: list[Any] = [one(X, h) for one in (layer, same)]
            assert counts == [2, 2]
    with mock.patch.object(onegru.GRU, "__call__", return_value=7) as called:
        seven: Any = layer(X, layout=1)
        assert seven == 7
        called.assert_called_once_with(X, layout=1)
    for one in (layer, same):
        np.testing.assert_array_equal(one(X)[0], Y)
        np.testing.assert_array_equal(one(*[X], **{"layout": 0})[0], Y)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:nanobind")
def test_a_layer_is_made_once() -> None:
    layer, X = make(), draw(T, B, I)
    Y, Y_h = layer(X)
    with pytest.raises(TypeError):
        layer.__init__(draw(1, 3 * H, I), draw(1, 3 * H, H))  # type: ignore[misc]
    np.testing.assert_array_equal(layer(X, sequence_lens=[T] * B)[0], Y)
    np.testing.assert_array_equal(layer(X, out=(Y, Y_h))[0], layer.run(X)[0])


@pytest.mark.filterwarnings("ignore:nanobind")
def test_a_layer_that_was_never_made_says_so() -> None:
    empty = onegru.GRU.__new__(onegru.GRU)
    X = draw(T, B, I)
    out = make()(X)
    with pytest.raises(TypeError, match="the layer was never made"):
        empty(X)
    with pytest.raises((AttributeError, TypeError)):
        empty(X, out=out)


def test_layout_is_refused() -> None:
    for layout in (2, -1, True, "0", 0.0, 1 + 0j, np.array(0)):
        refuse(f"layout: {layout!r}; must be 0 or 1", make(), draw(T, B, I), layout=layout)


def test_a_layer_has_a_layout_of_its_own() -> None:
    """Calls that give none take it, on every way that a call can go; another one overrides it."""
    plain = make("bidirectional")
    layer = make("bidirectional", layout=1)
    assert (plain.layout, layer.layout) == (0, 1)
    assert repr(plain).endswith("layout=0)") and repr(layer).endswith("layout=1)")
    for size in (B, T):  # in the second, a shape does not tell the layouts apart
        X, h = draw(T, size, I), draw(2, size, H)
        Y, Y_h = plain(X, h)
        expected = Y.transpose(2, 0, 1, 3), Y_h.swapaxes(0, 1)
        first, states = np.ascontiguousarray(X.swapaxes(0, 1)), np.ascontiguousarray(h.swapaxes(0, 1))
        out = tuple(np.full(array.shape, np.nan, np.float32) for array in expected)
        for twin in (layer, pickle.loads(pickle.dumps(layer)), copy.copy(layer), copy.deepcopy(layer)):
            for given in (None, out):
                got = twin(first, states, out=given)  # type: ignore[arg-type]
                np.testing.assert_array_equal(got[0], expected[0])
                np.testing.assert_array_equal(got[1], expected[1])
            assert twin.try_call(X, h, out=(np.empty_like(Y), np.empty_like(Y_h))) is None
            np.testing.assert_array_equal(twin(X, h, layout=0)[0], Y)
            np.testing.assert_array_equal(twin(first, states, layout=1)[0], expected[0])
            np.testing.assert_array_equal(twin(first, states, sequence_lens=[T] * size)[0], expected[0])
    refuse("layout: 2; must be 0 or 1", make, layout=2)
    forward = make(layout=1)
    X = draw(T, B, I)
    np.testing.assert_array_equal(forward.stream(B).run(X), make()(X)[0][:, 0])  # streams take time first


# The object


def test_weights_are_the_layers_own() -> None:
    W, R, bias = draw(1, 3 * H, I), draw(1, 3 * H, H), draw(1, 6 * H)
    layer, X = onegru.GRU(W, R, bias), draw(T, B, I)
    expected = layer(X)[0]
    for array in (W, R, bias):
        array[...] = 0
    np.testing.assert_array_equal(layer(X)[0], expected)
    with pytest.raises(ValueError, match="read-only"):
        layer.weights.W[0, 0, 0] = 1


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_layers_pickle_and_copy(dtype: Any) -> None:
    layer = make(
        "bidirectional",
        dtype,
        clip=0.5,
        activations=["Elu", "Softsign", "Affine", "Relu"],
        activation_alpha=[0.5],
    )
    X = draw(T, B, I, dtype=dtype)
    for twin in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)):
        assert twin.spec == layer.spec
        np.testing.assert_array_equal(twin(X)[0], layer(X)[0])


def test_engines_are_named() -> None:
    assert make(engine="reference").engine == "reference"
    assert make().engine in ("native", "reference")
    refuse("engine: 'cuda'; must be one of auto, ", make, engine="cuda")
    refuse("engine: ['reference']; must be one of auto, ", make, engine=["reference"])


def test_repr_says_what_it_is() -> None:
    shown = repr(make("reverse", clip=2.0, attention=True))
    for part in ("2 → 4", "float32", "'reverse'", "clip=2.0", "Sigmoid", "attention='openvino'"):
        assert part in shown


def test_spec_and_weights_exist_only_if_they_are_legal() -> None:
    refuse("hidden_size: 0; must be at least 1", Spec, 1, 0, "float32")
    refuse("dtype: 'int8'; must be one of", Spec, 1, 1, "int8")
    refuse("clip: 0; must be > 0", Spec, 1, 1, "float32", clip=0)
    refuse("direction: 'up'; must be one of", Spec, 1, 1, "float32", "up")
    refuse("activations: 1 pair; must be one for each direction", Spec, 1, 1, "float32", "bidirectional")
    refuse("activations: ScaledTanh needs alpha", Activation, "ScaledTanh")
    refuse("activations: Tanh takes no beta", Activation, "Tanh", beta=1.0)
    weights = Weights(draw(1, 3, 1), draw(1, 3, 1), draw(1, 6))
    refuse(
        "W: float32 [1, 3, 1]; must be float32 [1, 3, 2]",
        onegru.GRU.from_canonical,
        Spec(2, 1, "float32"),
        weights,
    )


def test_flops_and_parameters_count_every_product() -> None:
    spec = make("bidirectional").spec
    assert spec.flops_per_step == 2 * (2 * 3 * H * I + 2 * 3 * H * H)
    assert spec.parameter_count == 2 * (3 * H * I + 3 * H * H + 6 * H)


def test_threads_may_share_a_layer() -> None:
    layer = make("bidirectional")
    inputs = [draw(T, n, I) for n in range(1, 9)]
    expected = [layer(x)[0] for x in inputs]
    found: dict[int, Array] = {}

    def work(n: int) -> None:
        for _ in range(20):
            found[n] = layer(inputs[n])[0]

    run_threads(work, range(len(inputs)))
    for n, wanted in enumerate(expected):
        np.testing.assert_array_equal(found[n], wanted)


# Types


@pytest.mark.parametrize(("dtype", "digits"), [(np.float16, 11), (ml_dtypes.bfloat16, 8)])
def test_16_bit_types_round_once(dtype: Any, digits: int) -> None:
    """The state is not rounded between steps: the outputs are within half a spacing of those of float64."""
    layer = make("bidirectional", dtype)
    wide = onegru.GRU(
        *(array.astype(np.float64) for array in (layer.weights.W, layer.weights.R, layer.weights.B)),
        direction="bidirectional",
    )
    X = draw(40, B, I, dtype=dtype)
    for narrow, exact in zip(layer(X), wide(X.astype(np.float64)), strict=True):
        assert narrow.dtype == dtype
        spacing = np.ldexp(1.0, np.frexp(exact)[1] - digits)
        error = np.abs(narrow.astype(np.float64) - exact)
        assert (error <= 0.5 * spacing + 1e-6).all()  # the second is float32's


def empty(*shape: int) -> np.ndarray:
    return np.empty(shape, np.float32)


@pytest.mark.parametrize(
    ("X", "out", "more"),
    [
        (empty(0, 3, 3), (empty(0, 1, 3, 4), empty(1, 3, 4)), {"sequence_lens": [0, 0, 0]}),
        (empty(3, 0, 3), (empty(3, 0, 1, 4), empty(3, 1, 4)), {"layout": 1}),
        (empty(0, 3, 3), (empty(0, 1, 3, 4), None), {}),
        (empty(2, 0, 3), (empty(2, 1, 0, 4), empty(1, 0, 4)), {"sequence_lens": []}),
    ],
)
def test_empty_outputs_are_written(
    X: np.ndarray, out: tuple[np.ndarray, ...], more: dict[str, object]
) -> None:
    layer = onegru.GRU(np.zeros((1, 12, 3), np.float32), np.zeros((1, 12, 4), np.float32))
    Y, _ = layer(X, out=out, **more)  # type: ignore[arg-type]
    assert Y is out[0]


def test_an_output_that_overlaps_itself_is_refused() -> None:
    layer = onegru.GRU(np.zeros((1, 12, 3), np.float32), np.zeros((1, 12, 4), np.float32))
    strided = np.lib.stride_tricks.as_strided
    for steps in ((4, 4, 4, 4), (32, 0, 0, 4), (16, 16, 16, 4)):
        Y = strided(np.zeros(200, np.float32), (5, 1, 2, 4), steps)
        with pytest.raises(SpecError, match="out: Y is masked or overlaps itself"):
            layer(np.zeros((5, 2, 3), np.float32), out=(Y, None))
    plain = np.zeros((4, 2, 1, 5), np.float32).transpose(3, 2, 1, 0)[::-1]
    assert layer(np.zeros((5, 2, 3), np.float32), out=(plain, None))[0] is plain


def test_none_is_not_an_array() -> None:
    layer = onegru.GRU(np.zeros((1, 12, 3), np.float32), np.zeros((1, 12, 4), np.float32))
    with pytest.raises(SpecError, match="X"):
        layer(None, out=(empty(5, 1, 2, 4), empty(1, 2, 4)))  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="x"):
        layer.stream().step(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(RuntimeError, SpecError), (MemoryError, MemoryError), (TimeoutError, TimeoutError)],
)
def test_what_a_tensor_raises_is_distinguished_from_other_errors(
    raised: type[Exception], expected: type[Exception]
) -> None:
    """As the exception of a signal's handler, or want of memory: it keeps its type."""

    class Tensor:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise raised("words")

    with pytest.raises(expected, match="words"):
        onegru.GRU(*np.zeros((2, 1, 3, 1), np.float32))(Tensor())


def test_weights_that_are_sizes_or_lack_the_directions() -> None:
    with pytest.raises(
        SpecError, match=r"^W: 8; must be an array of weights; for sizes, use onegru.torch.GRU$"
    ):
        onegru.GRU(8, 16)
    W, R = np.zeros((1, 12, 3), np.float32), np.zeros((1, 12, 4), np.float32)
    with pytest.raises(SpecError, match=r"^R: rank 2, .*; for one direction, pass R\[None\]$"):
        onegru.GRU(W, R[0])


@pytest.mark.parametrize("score", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("attention", ["openvino", "dien"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_that_are_not_finite(score: float, attention: Any, dtype: Any) -> None:
    rng = np.random.default_rng(4)
    W, R, X, h = (
        rng.uniform(-1, 1, shape).astype(dtype) for shape in ((1, 63, 5), (1, 63, 21), (1, 3, 5), (1, 3, 21))
    )
    scores = np.full((1, 3), score, dtype)
    native, reference = (
        onegru.GRU(W, R, attention=attention, engine=engine)(X, h, attention=scores)[0]
        for engine in ("native", "reference")
    )
    assert np.array_equal(native, reference, equal_nan=True)
