"""What `onegru.save_layers` writes as ONNX: ONNX Runtime runs it, onegru reads it back with the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onegru
from onegru import SpecError
from onegru.core.dtypes import Array
from tests.support.cases import DIRECTIONS, DTYPES, PARAMETER_COUNTS
from tests.support.files.saved_models import LENGTHS, assert_close
from tests.support.layers import H, I, call, draw, make_gru, make_stack, reference
from tests.support.models.runtimes import onnxruntime_results


def onnx_feeds(X: Array, states: list[Array], lengths: Array | None = None) -> dict[str, Array]:
    """The inputs of a written ONNX model."""
    names = [f"initial_h_{index}" for index in range(len(states))] if len(states) > 1 else ["initial_h"]
    feeds = {"X": X, **dict(zip(names, states, strict=True))}
    return feeds if lengths is None else {**feeds, "sequence_lens": lengths}


@pytest.mark.parametrize("opset", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 15, 21, 22])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_onnx_of_every_opset(tmp_path: Path, opset: int, count: int) -> None:
    stack = make_stack(count, ("bidirectional", "forward", "reverse"), linear_before_reset=opset >= 3)
    layers = stack if count > 1 else stack.layers[0]
    path = tmp_path / "m.onnx"
    onegru.save_layers(layers, path, opset=opset, sequence_lens=True)
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    known = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset if opset > 4 else 1)])
    assert (proto.ir_version, proto.opset_import[0].version) == (known, opset)
    X, states = draw(layers)
    Y, Y_h = call(layers, X, states, LENGTHS)
    feeds = onnx_feeds(X, states, LENGTHS)
    model = onegru.load(path)
    results = model.run(feeds)
    names = ["Y_h"] if count == 1 else [f"Y_h_{index}" for index in range(count)]
    assert list(results) == ["Y", *names]
    assert all(np.array_equal(results[name], array) for name, array in zip(results, (Y, *Y_h), strict=True))
    assert [gru.layer.weights.B.tobytes() for gru in model.gru_nodes if gru.layer] == [
        layer.weights.B.tobytes() for layer in stack.layers
    ]
    if opset >= 7:
        for name, array in onnxruntime_results(proto, feeds).items():
            assert_close(array, results[name])


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("clip", [None, 0.375])
def test_onnx_in_onnxruntime(tmp_path: Path, direction: str, after: bool, clip: float | None) -> None:
    layer = make_gru(direction=direction, linear_before_reset=after, clip=clip)
    path = tmp_path / "m.onnx"
    onegru.save_layers(layer, path, opset=14, sequence_lens=True)
    X, states = draw(layer)
    results = onnxruntime_results(onnx.load(path), onnx_feeds(X, states, LENGTHS))
    Y, Y_h = call(reference(layer), X, states, LENGTHS)
    assert_close(results["Y"], Y)
    assert_close(results["Y_h"], Y_h[0])


@pytest.mark.parametrize("f", sorted(PARAMETER_COUNTS))
@pytest.mark.parametrize("opset", [1, 7, 22])
def test_onnx_hands_out_alpha_and_beta(tmp_path: Path, f: str, opset: int) -> None:
    # Every function as f of the forward direction; those around it take both, one or none of the values.
    names = [f, "Affine", "LeakyRelu", "HardSigmoid"]
    numbers = {1: [0.25, 0.75, 0.125, 0.3], 2: [0.5, 0.0625, 0.4]}
    alpha, beta = (
        numbers[least][: sum(PARAMETER_COUNTS[name] >= least for name in names)] for least in (1, 2)
    )
    layer = make_gru(
        direction="bidirectional", activations=names, activation_alpha=alpha, activation_beta=beta
    )
    path = tmp_path / "m.onnx"
    onegru.save_layers(layer, path, opset=opset)
    (gru,) = onegru.load(path).gru_nodes
    assert gru.layer is not None and gru.layer.spec == layer.spec
    if opset >= 7:
        X, states = draw(layer)
        results = onnxruntime_results(onnx.load(path), onnx_feeds(X, states))
        Y, Y_h = layer(X, states[0])
        assert_close(results["Y"], Y)
        assert_close(results["Y_h"], Y_h)


@pytest.mark.parametrize("opset", [14, 22])
def test_onnx_batch_first(tmp_path: Path, opset: int) -> None:
    stack = make_stack(3, ("bidirectional", "forward"))
    path = tmp_path / "m.onnx"
    onegru.save_layers(stack, path, opset=opset, layout=1)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    X, states = draw(stack)
    Y, Y_h = stack(X.swapaxes(0, 1), [state.swapaxes(0, 1) for state in states], layout=1)
    feeds = onnx_feeds(X.swapaxes(0, 1), [state.swapaxes(0, 1) for state in states])
    results = onegru.load(path).run(feeds)
    assert all(np.array_equal(a, b) for a, b in zip(results.values(), (Y, *Y_h), strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("opset", [3, 22])
def test_onnx_types(tmp_path: Path, dtype: str, opset: int) -> None:
    stack = make_stack(2, ("bidirectional",), dtype=dtype)
    path = tmp_path / "m.onnx"
    if dtype == "bfloat16" and opset < 22:
        with pytest.raises(
            SpecError, match="opset: 3; must be at least 22, because the layer has type bfloat16"
        ):
            onegru.save_layers(stack, path, opset=opset)
        return
    onegru.save_layers(stack, path, opset=opset)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    layers = [gru.layer for gru in onegru.load(path).gru_nodes]
    for layer, wanted in zip(layers, stack.layers, strict=True):
        assert layer is not None and layer.spec == wanted.spec
        assert all(getattr(layer.weights, n).tobytes() == getattr(wanted.weights, n).tobytes() for n in "WRB")


def test_onnx_inputs_and_sizes(tmp_path: Path) -> None:
    layer = make_gru()
    path = tmp_path / "m.onnx"
    onegru.save_layers(layer, path)
    model = onegru.load(path)
    assert {info.name: info.shape for info in (*model.inputs, *model.outputs)} == {
        "X": ("seq_length", "batch_size", I),
        "initial_h": (1, "batch_size", H),
        "Y": ("seq_length", 1, "batch_size", H),
        "Y_h": (1, "batch_size", H),
    }
    onegru.save_layers(layer, path, initial_h=False, sequence_lens=True, batch_size=2, seq_length=7)
    model = onegru.load(path)
    assert {info.name: (info.dtype, info.shape) for info in model.inputs} == {
        "X": ("float32", (7, 2, I)),
        "sequence_lens": ("int32", (2,)),
    }
    onegru.save_layers(layer, path, initial_h=False, opset=7)
    X, _ = draw(layer)
    assert np.array_equal(onegru.load(path).run({"X": X})["Y"], layer(X)[0])
    assert_close(onnxruntime_results(onnx.load(path), {"X": X})["Y"], layer(X)[0])
