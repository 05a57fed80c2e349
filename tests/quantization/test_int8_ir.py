"""IRs whose GRU layers have int8 weights: OpenVINO runs them, and onegru finds the same integers again."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import SpecError
from tests.rewriting.test_streaming import CAUSAL, B, C, T, built
from tests.support.files.onnx_models import save

ov = pytest.importorskip("openvino")

H = 64


def saved(path: Path, **options: Any) -> onegru.GRU:
    rng = np.random.default_rng(0)
    D = 2 if options.get("direction") == "bidirectional" else 1
    W, R = (rng.standard_normal((D, 3 * H, H)).astype("f") * 0.2 for _ in "WR")
    layer = onegru.GRU(W, R, **options)
    onegru.save_layers(layer, path)
    return layer


def types_in(path: Path) -> list[str | None]:
    return [layer.get("type") for layer in ET.parse(path).getroot().iter("layer")]


@pytest.mark.parametrize("group", [None, 32])
@pytest.mark.parametrize(
    "options",
    [{}, {"direction": "bidirectional"}, {"linear_before_reset": True}, {"attention": True}],
    ids=lambda options: " ".join(options) or "plain",
)
def test_a_saved_layer(options: dict[str, Any], group: int | None, tmp_path: Path) -> None:
    source, target = tmp_path / "gru.xml", tmp_path / "int8.xml"
    layer = saved(source, **options)
    report = onegru.quantize(source, None, target, group_size=group)
    assert report.written is not None and all(item.max_abs > 0 for item in report.written.outputs)
    assert target.with_suffix(".bin").stat().st_size < 0.31 * source.with_suffix(".bin").stat().st_size
    assert types_in(target).count("Convert") == types_in(target).count("Multiply") == 2
    storage = "int8" if group is None else f"int8_g{group}"
    (node,) = onegru.load(target, weight_storage=storage).gru_nodes
    wanted = layer.with_storage(storage)
    assert node.layer is not None
    for name in ("W", "R"):
        np.testing.assert_array_equal(getattr(node.layer.weights, name), getattr(wanted.weights, name))


@pytest.mark.parametrize("fp16", [False, True])
def test_a_whole_model(fp16: bool, tmp_path: Path) -> None:
    """Layers that share nothing but their input; one of them stays as it is."""
    source, target = tmp_path / "model.xml", tmp_path / "int8.xml"
    proto = built([CAUSAL["padded convolution"], CAUSAL["GRU"], CAUSAL["learned GRU"]], 3)
    ov.save_model(ov.convert_model(save(tmp_path, proto)), source, compress_to_fp16=fp16)
    first, second = (node.name for node in onegru.load(source).gru_nodes)
    report = onegru.quantize(source, None, target, nodes=[second])
    assert report.written is not None and [node.name for node in report.written.nodes] == [second]
    assert first not in str(report.written.nodes)
    X = np.random.default_rng(1).standard_normal((B, C, T)).astype(np.float32)
    by_openvino = ov.Core().compile_model(target, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(X)["Z"]
    found = onegru.load(target).run({"X": X})["Z"]
    np.testing.assert_allclose(np.array(by_openvino), found, atol=1e-5)
    exact = onegru.load(source).run({"X": X})["Z"]
    assert 0 < np.abs(found - exact).max() < 0.05


def test_lengths_that_are_all_steps(tmp_path: Path) -> None:
    """The node is not given them, and is traced and measured all the same."""
    source = tmp_path / "model.xml"
    proto = save(tmp_path, built([CAUSAL["GRU"]], 3))
    ov.save_model(ov.convert_model(proto), source, compress_to_fp16=False)
    model = onegru.load(source)
    X = np.random.default_rng(1).standard_normal((B, C, T)).astype(np.float32)
    (name,) = (node.name for node in model.gru_nodes)
    assert model.trace({"X": X}, name).name == name
    assert onegru.quantize(model, {"X": X}).grus[0].name == name


def test_refusals(tmp_path: Path) -> None:
    source, target = tmp_path / "gru.xml", tmp_path / "int8.xml"
    rng = np.random.default_rng(0)
    onegru.save_layers(onegru.GRU(*(rng.standard_normal((1, 15, 5)).astype("f") for _ in "WR")), source)
    with pytest.raises(
        SpecError, match=r"^opset: 21; has no effect, because .* is an OpenVINO IR; remove it"
    ):
        onegru.quantize(source, None, target, opset=21)
    with pytest.raises(SpecError, match=r"^group_size: 32; must divide the 5 columns of W of GRU layer"):
        onegru.quantize(source, None, target, group_size=32)
    with pytest.raises(SpecError, match=r"^nodes: 'other'; must be one of"):
        onegru.quantize(source, None, target, nodes=["other"])
    assert not target.exists()


def test_an_ir_without_gru_layers(tmp_path: Path) -> None:
    """Nothing of it would be in int8."""
    source, target = tmp_path / "model.xml", tmp_path / "int8.xml"
    x = ov.opset13.parameter([2, 3], np.float32, name="x")
    ov.save_model(ov.Model([ov.opset13.tanh(x)], [x], "none"), source)
    with pytest.raises(onegru.FormatError, match="has no GRU layer; there is nothing to quantize"):
        onegru.quantize(source, None, target)
    assert not target.exists()
