"""`flush_subnormals`: what it sets to 0, by each engine, storage and way to run a layer."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import onegru
from onegru.core.dtypes import Array
from tests.support.comparison import assert_bits, same_bits
from tests.support.files import onnx_models as m

I, H = 3, 21
#: The least state that stays, of layers that are computed in float32 and in float64.
LEAST = {np.float32: 2.0**-100, np.float64: 2.0**-1000}
STEPS = {np.float32: 400, np.float64: 3000}


def fading(dtype: Any = np.float32, **options: Any) -> onegru.GRU:
    """A layer whose state fades while X is 0: it has no biases but that of the update gate."""
    draw = np.random.default_rng(5).uniform
    W, R = (draw(-0.1, 0.1, (1, 3 * H, n)).astype(dtype) for n in (I, H))
    B = np.zeros((1, 6 * H), dtype)
    B[:, :H] = 0.5
    return onegru.GRU(W, R, B, linear_before_reset=True, **options)


def silence(dtype: Any = np.float32) -> tuple[Array, Array]:
    """Zeros for X, and a state before them."""
    return np.zeros((STEPS[dtype], 2, I), dtype), np.full((1, 2, H), 0.5, dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("engine", ["native", "reference"])
def test_small_states_are_zero_and_others_stay(dtype: Any, engine: str) -> None:
    X, h = silence(dtype)
    Y = fading(dtype, engine=engine, flush_subnormals=True)(X, h)[0][:, 0]
    kept = fading(dtype, engine=engine)(X, h)[0][:, 0]
    first = int(np.argmax((np.abs(kept) < LEAST[dtype]).any((1, 2))))
    assert 0 < first < len(X)
    assert_bits(Y[:first], kept[:first])
    assert not ((Y != 0) & (np.abs(Y) < LEAST[dtype])).any()
    assert not Y[-1].any()
    if (engine, dtype) == ("native", np.float32):  # others fade to 0, sooner or later
        assert kept[-1].any()


@pytest.mark.parametrize(
    "storage", [(None,), ("float16",), ("bfloat16",), ("int8",), ("int8_g32",), ("bfloat16", "bfloat16")]
)
def test_the_engines_agree(storage: tuple[str | None, ...]) -> None:
    X, h = silence()
    options: Any = dict(zip(("weight_storage", "activation_storage"), storage, strict=False))
    native, reference = (
        fading(engine=engine, flush_subnormals=True, **options)(X, h)[0] for engine in ("native", "reference")
    )
    assert np.abs(native - reference).max() < 2e-7
    assert not native[-1].any() and not reference[-1].any()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_stream_has_the_bits_of_a_call(dtype: Any) -> None:
    X, h = silence()
    layer = fading(dtype, flush_subnormals=True)
    Y = layer(X.astype(dtype), h.astype(dtype))[0]
    stream = layer.stream(2)
    stream.state = h[0]
    assert_bits(stream.run(X.astype(dtype)), Y[:, 0])
    assert not stream.state.any()


def test_a_copy_keeps_it() -> None:
    X, h = silence()
    layer = fading(flush_subnormals=True)
    assert layer.flush_subnormals and "flush_subnormals=True" in repr(layer)
    assert not fading().flush_subnormals and "flush" not in repr(fading())
    for copy in (pickle.loads(pickle.dumps(layer)), layer.with_storage(None)):
        assert copy.flush_subnormals and same_bits(copy(X, h)[0], layer(X, h)[0])
    with pytest.raises(onegru.SpecError, match="flush_subnormals: 1; must be True or False"):
        fading(flush_subnormals=1)


def of_file() -> tuple[bytes, dict[str, Any], Array, Array]:
    """A model of the layer, its inputs, and its Y with and without the option."""
    layer = fading()
    W, R, B = layer.weights.W, layer.weights.R, layer.weights.B
    X, h = silence()
    node = m.gru("X", ["Y"], bias="B", initial_h="h", hidden_size=H, linear_before_reset=1)
    inputs = [m.value("X", shape=["T", "N", I]), m.value("h", shape=[1, "N", H])]
    model = m.model(m.graph([node], inputs, ["Y"], {"W": W, "R": R, "B": B}))
    return model.SerializeToString(), {"X": X, "h": h}, fading(flush_subnormals=True)(X, h)[0], layer(X, h)[0]


def test_models() -> None:
    model, inputs, flushed, kept = of_file()
    for flushes, wanted in ((True, flushed), (False, kept)):
        assert same_bits(onegru.load(model, flush_subnormals=flushes).run(inputs)["Y"], wanted)


def test_sessions_of_onnx_runtime() -> None:
    pytest.importorskip("onnxruntime")
    model, inputs, flushed, kept = of_file()
    provider = onegru.execution_provider.register()
    for options, wanted in (
        ({"flush_subnormals": True}, flushed),
        ({"providers": [(provider, {"flush_subnormals": "1"}), "CPUExecutionProvider"]}, flushed),
        ({"flush_subnormals": False}, kept),
    ):
        assert same_bits(onegru.InferenceSession(model, **options).run(None, inputs)[0], wanted)
    with pytest.raises(onegru.SpecError, match="flush_subnormals: True; must be False with the reference"):
        onegru.InferenceSession(model, engine="reference", flush_subnormals=True)


def test_models_of_openvino() -> None:
    openvino = pytest.importorskip("openvino")
    content, inputs, flushed, kept = of_file()
    for flushes, wanted in ((True, flushed), (False, kept)):
        model = openvino.Core().read_model(content)
        assert onegru.openvino.replace_grus(model, flush_subnormals=flushes) == 1
        compiled = openvino.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        assert same_bits(compiled(list(inputs.values()))[0], wanted)
