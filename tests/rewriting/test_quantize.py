"""`quantize`: weights in int8 that any runtime dequantizes, and onegru reads back unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onegru
from onegru import FormatError, SpecError
from onegru.core.compare import QUANTIZED, TOLERANCE_FUSED, TOLERANCE_REWRITTEN
from onegru.core.dtypes import Array
from onegru.engines.storage import quantize_channels
from onegru.models.inputs.random import Drawn, draw_inputs
from onegru.models.inputs.sizes import size_plans
from onegru.operators.onnx import AUGRU_DOMAINS
from onegru.rewriting.check import Check
from onegru.rewriting.compare import OutputCheck
from tests.support.comparison import assert_bits
from tests.support.files.int8_files import store_in_int8
from tests.support.files.onnx_models import (
    PLAIN,
    WEIGHTS,
    X_INFO,
    H,
    I,
    X,
    graph,
    gru,
    model,
    node,
    save,
    value,
    weights,
)
from tests.support.layers import make_gru
from tests.support.machine.repository import DENOISER, DIGITS
from tests.support.models.rewrite_cases import Case, assert_close, cases, expected
from tests.support.models.runtimes import onnxruntime_results, openvino_results


def in_int8(matrix: Array) -> Array:
    q, scale = quantize_channels(matrix)
    return np.asarray(q * scale)


@pytest.mark.parametrize("case", cases())
def test_every_kind_of_node(case: Case, tmp_path: Path) -> None:
    source = save(tmp_path, case.build())
    target = tmp_path / "target.onnx"
    if case.computed or case.dtype != "float32":
        with pytest.raises(SpecError, match=r"^quantize: .*must be (a constant|float32)"):
            store_in_int8(source, target, opset=13)
        return
    report = store_in_int8(source, target, opset=max(case.opset, 13))
    assert any("W and R became int8" in words for words in report.nodes[0].done)
    feeds = case.arrays()
    proto = onnx.load(source)
    for tensor in proto.graph.initializer:
        if tensor.name in "WR":
            tensor.CopyFrom(
                onnx.numpy_helper.from_array(in_int8(onnx.numpy_helper.to_array(tensor)), tensor.name)
            )
    wanted = expected(save(tmp_path, proto, "by_hand.onnx"), feeds)
    assert_close(onegru.load(target).run(feeds), wanted, 1e-6)
    if case.opset < 14 and "clip" not in case.attributes and "layout" not in case.attributes:
        assert_close(onnxruntime_results(onnx.load(target), feeds), wanted, 1e-5)
    types = {tensor.name: tensor.data_type for tensor in onnx.load(target).graph.initializer}
    assert sum(kind == onnx.TensorProto.INT8 for kind in types.values()) == 2
    assert not {"W", "R"} & types.keys()


@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_groups(group_size: int, direction: Any, tmp_path: Path) -> None:
    """Blocks, the last of them narrower; any runtime runs them, and onegru computes with the integers."""
    layer = make_gru(inputs=100, hidden=70, direction=direction, linear_before_reset=True)
    source, target = tmp_path / "source.onnx", tmp_path / "target.onnx"
    onegru.save_layers(layer, source)
    report = store_in_int8(source, target, group_size=group_size)
    assert report.nodes[0].done == (
        f"W and R became int8, with a scale for each {group_size} weights of a row",
    )
    storage = f"int8_g{group_size}"
    kept = layer.with_storage(storage)
    feeds = {"X": np.random.default_rng(0).standard_normal((5, 3, 100)).astype(np.float32)}
    assert_bits(onegru.load(target, weight_storage=storage).run(feeds)["Y"], kept(feeds["X"])[0])
    wanted = onegru.GRU.from_canonical(kept.spec, kept.weights)(feeds["X"])[0]
    assert_bits(onegru.load(target).run(feeds)["Y"], wanted)
    feeds["initial_h"] = np.zeros((layer.spec.num_directions, 3, 70), np.float32)
    np.testing.assert_allclose(onnxruntime_results(onnx.load(target), feeds)["Y"], wanted, atol=1e-5)
    assert onegru.quantize(source, feeds, group_size=group_size).weight_storage.popitem()[1] == storage


def test_group_sizes_are_refused(tmp_path: Path) -> None:
    source, target = tmp_path / "source.onnx", tmp_path / "target.onnx"
    onegru.save_layers(make_gru(), source, opset=20)
    for wrong in (0, 5, 64.0, True, "64"):
        with pytest.raises(SpecError, match=r"^group_size: .*; must be 32, 64, 128 or None$"):
            store_in_int8(source, target, group_size=wrong)  # type: ignore[arg-type]
        with pytest.raises(SpecError, match=r"^group_size: .*; must be 32, 64, 128 or None$"):
            onegru.quantize(source, group_size=wrong)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"^opset: 20; must be at least 21 for weights in int8, in groups"):
        store_in_int8(source, target, group_size=64)
    assert not target.exists()


def test_numbers_are_the_same_both_ways(tmp_path: Path) -> None:
    """Quantized, read, quantized again: the same integers and scales; in int8, the layer of the source."""
    source = save(tmp_path, model(graph([PLAIN], [X_INFO], ["Y"], WEIGHTS)))
    target, again = tmp_path / "q.onnx", tmp_path / "again.onnx"
    store_in_int8(source, target)
    (layer,) = onegru.load_layers(target).values()
    onegru.save_layers(layer, tmp_path / "float.onnx", opset=14)
    store_in_int8(tmp_path / "float.onnx", again)
    first, second = (
        sorted(tensor.raw_data for tensor in onnx.load(path).graph.initializer if tensor.data_type in (1, 3))
        for path in (target, again)
    )
    assert first == second
    store_in_int8(target, again)  # what is quantized already, itself
    twice = sorted(t.raw_data for t in onnx.load(again).graph.initializer if t.data_type in (1, 3))
    assert twice == first
    for activations in ("int16", "int8"):
        options: Any = {"weight_storage": "int8", "activation_storage": activations}
        wanted = onegru.GRU(WEIGHTS["W"], WEIGHTS["R"], WEIGHTS["B"], **options)(X)[0]
        assert_bits(onegru.load(target, **options).run({"X": X})["Y"], wanted)
        assert_bits(onegru.load(source, **options).run({"X": X})["Y"], wanted)
        assert_bits(onegru.InferenceSession(target, **options).run(None, {"X": X})[0], wanted)


@pytest.mark.parametrize("path", [DIGITS, DENOISER], ids=["digits", "denoiser"])
def test_published_models(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "q.onnx"
    report = store_in_int8(path, target)
    assert all(output.snr is not None and 40 < output.snr < 65 for output in report.outputs)
    assert target.stat().st_size < 0.45 * path.stat().st_size
    source, made = onegru.load(path), onegru.load(target)
    feeds = draw_inputs(source, 1, next(iter(size_plans(source)))).inputs
    wanted = source.run(feeds)
    for name, array in made.run(feeds).items():
        np.testing.assert_allclose(array, wanted[name], atol=0.05 * max(1, np.abs(wanted[name]).max()))
    for name, array in onnxruntime_results(onnx.load(target), feeds).items():
        np.testing.assert_allclose(array, made.run(feeds)[name], atol=1e-4)
    verified = onegru.verify(target, runtimes=["onnxruntime"])
    assert verified.agrees and len(verified.runtimes) == 2


def test_signal_to_noise(tmp_path: Path) -> None:
    """As computed from the outputs of the source and of the target."""
    source = save(tmp_path, model(graph([PLAIN], [value("X", "float32", [4, 2, 5])], ["Y"], WEIGHTS)))
    target = tmp_path / "q.onnx"
    (output,) = store_in_int8(source, target, check=onegru.Check(inputs={"X": X})).outputs
    wanted, found = (onegru.load(path).run({"X": X})["Y"].astype(np.float64) for path in (source, target))
    assert output.snr == pytest.approx(10 * np.log10((wanted**2).sum() / ((wanted - found) ** 2).sum()))
    assert onegru.rewrite(source, target, layout=0, opset=22).outputs[0].snr is None


def test_in_openvino(tmp_path: Path) -> None:
    source = save(tmp_path, model(graph([PLAIN], [X_INFO], ["Y"], WEIGHTS)))
    target = tmp_path / "q.onnx"
    store_in_int8(source, target, runtime="openvino")
    found = openvino_results(target, {"X": X})
    np.testing.assert_allclose(found["Y"], onegru.load(target).run({"X": X})["Y"], atol=1e-5)


def test_shared_weights_are_stored_once(tmp_path: Path) -> None:
    nodes = [PLAIN, gru("X", ["Y2"], bias="B", name="g2", linear_before_reset=1)]
    source = save(tmp_path, model(graph(nodes, [X_INFO], ["Y", "Y2"], WEIGHTS)))
    store_in_int8(source, tmp_path / "q.onnx")
    tensors = onnx.load(tmp_path / "q.onnx").graph.initializer
    assert sum(tensor.data_type == onnx.TensorProto.INT8 for tensor in tensors) == 2


def test_with_other_changes(tmp_path: Path) -> None:
    two = weights(D=2)
    source = save(
        tmp_path, model(graph([gru("X", ["Y"], bias="B", direction="bidirectional")], [X_INFO], ["Y"], two))
    )
    target = tmp_path / "q.onnx"
    report = store_in_int8(source, target, split=True, layout=1)
    assert len(report.nodes[0].done) >= 3
    layer = onegru.GRU(in_int8(two["W"]), in_int8(two["R"]), two["B"], direction="bidirectional")
    np.testing.assert_allclose(onegru.load(target).run({"X": X})["Y"], layer(X)[0], atol=1e-6)


def test_other_changes_of_a_quantized_model(tmp_path: Path) -> None:
    """They take the weights as numbers, where they would have to compute with them in every call."""
    two = weights(D=2)
    nodes = [gru("X", ["Y"], bias="B", direction="bidirectional")]
    source = save(tmp_path, model(graph(nodes, [X_INFO], ["Y"], two)))
    target, other = tmp_path / "q.onnx", tmp_path / "other.onnx"
    store_in_int8(source, target)
    report = onegru.rewrite(target, other, split=True)
    assert "quantized weights were dequantized" in report.notes
    assert {item.op_type for item in onnx.load(other).graph.node} == {"GRU", "Concat"}
    assert_close(onegru.load(other).run({"X": X}), onegru.load(target).run({"X": X}), 1e-6)
    onegru.rewrite(target, other, dtype="float16")
    assert "DequantizeLinear" not in {item.op_type for item in onnx.load(other).graph.node}


@pytest.mark.parametrize("tolerances", [TOLERANCE_REWRITTEN, TOLERANCE_FUSED], ids=["rewritten", "fused"])
def test_integer_outputs_are_not_allowed_the_error_of_weights(
    tmp_path: Path, tolerances: Mapping[str, float]
) -> None:
    """Of integers a share may change, and none only by rounding."""
    source = onegru.load(save(tmp_path, model(graph([PLAIN], [X_INFO], ["Y"], WEIGHTS))))
    check = Check(inputs={"X": X})
    for dtype in (np.int8, np.uint8, np.int32, np.bool_):
        array = np.arange(100).astype(dtype)
        case = Drawn({"X": X}, {"n": array, "f": np.full(3, 0.5, np.float32)})
        apart = array.copy()
        apart[:20] = np.logical_not(apart[:20]) if dtype == np.bool_ else apart[:20] + 1
        few = np.where(np.arange(100) < 5, apart, array)
        for dtypes, found, is_allowed in (
            ({"float32", QUANTIZED}, apart, False),
            ({"float32", QUANTIZED}, few, True),
            ({"float32"}, few, False),
        ):
            check_output = OutputCheck(source, case, check, tmp_path / "q.onnx", tolerances, dtypes, source)
            if is_allowed:
                assert check_output("n", "onegru", "output 'n'", array, found).tolerance == 0.1
                continue
            with pytest.raises(FormatError, match=r"from the source at \[0\] and in (20|5)\.00% of it"):
                check_output("n", "onegru", "output 'n'", array, found)


def test_refusals(tmp_path: Path) -> None:
    source = save(tmp_path, model(graph([PLAIN], [X_INFO], ["Y"], WEIGHTS), opset=7, ir=4))
    target = tmp_path / "q.onnx"
    calls: list[tuple[dict[str, Any], str]] = [
        ({}, r"^opset: 7; must be at least 13 for weights in int8; add --opset 13$"),
        ({"quantize": 1}, "^quantize: 1; must be True, False or names"),
        ({"quantize": []}, r"^quantize: \[\]; must be True, False or names"),
        ({"quantize": "g"}, "^quantize: 'g'; must be a list of names"),
        ({"quantize": ["g", "h"], "opset": 13}, r"^quantize: no GRU node is called 'h'; must be one of 'g'$"),
    ]
    for options, message in calls:
        with pytest.raises(SpecError, match=message):
            store_in_int8(source, target, **{"quantize": True, **options})
    broken = WEIGHTS["R"].copy()
    broken[0, 1, 2] = np.inf
    source = save(tmp_path, model(graph([PLAIN], [X_INFO], ["Y"], WEIGHTS | {"R": broken})))
    with pytest.raises(
        SpecError, match=r"^quantize: GRU node 'g'.*R contains NaN or infinity; must be finite "
    ):
        store_in_int8(source, target)
    broken[0, 1, 2] = 1e30
    source = save(tmp_path, model(graph([PLAIN], [X_INFO], ["Y"], WEIGHTS | {"R": broken})))
    with pytest.raises(SpecError, match=r"^quantize: GRU node 'g'.*R contains 1e\+30, a weight.*\(--node\)$"):
        store_in_int8(source, target)
    moved = [node("Mul", ["W", "scale"], ["W2"]), gru("X", ["Y"], W="W2")]
    source = save(tmp_path, model(graph(moved, [X_INFO, value("scale", "float32", [1])], ["Y"], WEIGHTS)))
    with pytest.raises(SpecError, match=r"^quantize: .*: W is computed in each run, .*; to quantize"):
        store_in_int8(source, target)
    nodes = [gru("X", ["Y"]), gru("X", ["Y2"])]  # which share X
    source = save(tmp_path, model(graph(nodes, [X_INFO], ["Y", "Y2"], WEIGHTS)))
    with pytest.raises(
        SpecError, match=r"^quantize: .*must be decomposed for openvino, so no GRU node remains"
    ):
        store_in_int8(source, target, runtime="openvino")
    assert not target.exists()


def test_a_result_that_is_far_off_is_not_written(tmp_path: Path) -> None:
    """Weights of one row that differ two thousandfold: int8 keeps only the large one."""
    R = np.zeros((1, 3 * H, H), np.float32)
    W = np.full((1, 3 * H, 5), 0.4, np.float32)
    W[0, :, 0] = 900
    nodes = [node("Mul", ["X", "mask"], ["M"]), gru("M", ["Y"])]
    constants = {"W": W, "R": R, "mask": np.array([0, 1, 1, 1, 1], np.float32)}
    source = save(tmp_path, model(graph(nodes, [X_INFO], ["Y"], constants)))
    with pytest.raises(FormatError, match="not written: output 'Y' in onegru differs from the source"):
        store_in_int8(source, tmp_path / "q.onnx")
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_augru_nodes(direction: Any, tmp_path: Path) -> None:
    """Each keeps its function, which other runtimes run; in int8, onegru computes with the same integers."""
    D = 1 + (direction == "bidirectional")
    constants = weights(D=D)
    names = ["X", "W", "R", "B", "", "", "A"]
    nodes = [
        gru("X", ["Y"], bias="B", direction=direction),
        node("AUGRU", names, ["Y2"], domain=AUGRU_DOMAINS[0], hidden_size=H, direction=direction, name="a"),
        node("AUGRU", names, ["", "Z"], domain=AUGRU_DOMAINS[0], hidden_size=H, direction=direction),
    ]
    inputs = [X_INFO, value("A", "float32", ["time", "batch", 1])]
    proto = model(graph(nodes, inputs, ["Y", "Y2", "Z"], constants), opset=15, domains={AUGRU_DOMAINS[0]: 1})
    source, target = save(tmp_path, proto), tmp_path / "q.onnx"
    report = store_in_int8(source, target)
    assert [item.name for item in report.nodes] == [onegru.load(source).gru_nodes[0].name, "a", "Z"]
    assert all("W and R became int8" in item.done[0] for item in report.nodes)
    tensors = onnx.load(target).graph.initializer
    assert sum(tensor.data_type == onnx.TensorProto.INT8 for tensor in tensors) == 2 and len(tensors) <= 7
    feeds = {"X": X, "A": np.random.default_rng(1).random((*X.shape[:2], 1), np.float32)}
    made = onegru.load(target)
    W, R = (in_int8(constants[name]) for name in "WR")
    for name, layer in (
        ("Y", onegru.GRU(W, R, constants["B"], direction=direction)),
        ("Y2", onegru.GRU(W, R, constants["B"], direction=direction, attention=True)),
    ):
        scores = feeds["A"] if name == "Y2" else None
        np.testing.assert_allclose(made.run(feeds)[name], layer(X, attention=scores)[0], atol=1e-6)
    assert_close(onnxruntime_results(onnx.load(target), feeds), made.run(feeds), 1e-5)
    for storage in ("int16", "int8"):
        options: Any = {"weight_storage": "int8", "activation_storage": storage}
        assert_bits(
            onegru.load(target, **options).run(feeds)["Y2"], onegru.load(source, **options).run(feeds)["Y2"]
        )
    report = store_in_int8(source, target, quantize=["a"])
    assert [any("int8" in words for words in item.done) for item in report.nodes] == [False, True]
    with pytest.raises(SpecError, match=r"^quantize: no GRU node is called 'b'; must be one of '"):
        store_in_int8(source, target, quantize=["b"])


def test_an_augru_node_that_int8_does_not_hold(tmp_path: Path) -> None:
    attention = node(
        "AUGRU", ["X", "W", "R", "B", "", "", "A"], ["Y"], domain=AUGRU_DOMAINS[0], hidden_size=H, name="a"
    )
    constants = {name: array.astype(np.float64) for name, array in WEIGHTS.items()}
    inputs = [value("X", "float64", ["time", "batch", I]), value("A", "float64", ["time", "batch", 1])]
    proto = model(
        graph([attention], inputs, [value("Y", "float64")], constants),
        opset=15,
        domains={AUGRU_DOMAINS[0]: 1},
    )
    with pytest.raises(
        SpecError, match=r"^quantize: AUGRU node 'a': W has element type float64; must be float32$"
    ):
        store_in_int8(save(tmp_path, proto), tmp_path / "q.onnx")


def test_only_the_nodes_that_are_named(tmp_path: Path) -> None:
    first, second = (gru("X", [f"Y{i}"], bias="B", name=f"g{i}") for i in range(2))
    source = save(tmp_path, model(graph([first, second], [X_INFO], ["Y0", "Y1"], WEIGHTS)))
    target = tmp_path / "q.onnx"
    report = store_in_int8(source, target, quantize=["g1"])
    assert [any("int8" in words for words in node.done) for node in report.nodes] == [False, True]
    plain, found = (onegru.load(path).run({"X": X}) for path in (source, target))
    assert_bits(found["Y0"], plain["Y0"])
    W, R = (in_int8(WEIGHTS[name]) for name in "WR")
    assert_bits(found["Y1"], onegru.GRU(W, R, WEIGHTS["B"])(X)[0])
