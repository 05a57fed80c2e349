"""What is not rewritten, and why: illegal arguments, broken files, results that differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru.core.dtypes import Array
from onegru.formats.onnx.writing import gru_step
from onegru.rewriting.nodes import node_config
from onegru.rewriting.rewrite import rewrite
from tests.support.files.onnx_models import I, graph, gru, model, node, numbers, save, value, weights
from tests.support.models.rewrite_cases import Case


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"opset": 0}, "opset: 0; must be in 1…"),
        ({"opset": 999}, "opset: 999; must be in 1…"),
        ({"layout": 2}, "layout: 2; must be 0 or 1"),
        ({"layout": 1, "opset": 13}, "opset: 13; must be at least 14, because GRU node 'gru' has layout"),
        ({"layout": 1, "runtime": "onnxruntime"}, "layout: 1; must be 0 for onnxruntime"),
        ({"layout": 0, "decompose": True}, "layout: has no effect with decompose"),
        ({"split": True, "decompose": True}, "split: has no effect with decompose"),
        ({"decompose": True, "opset": 9}, "opset: 9; must be at least 11 to decompose GRU node 'gru'"),
        ({"dtype": "int8"}, "dtype: 'int8'; must be 'float16'"),
        ({"runtime": "tvm"}, "runtime: 'tvm'; must be 'onnxruntime' or 'openvino'"),
        ({"opset": 1}, "opset: 1; must be at least 3, because GRU node 'gru' has linear_before_reset"),
        (
            {"check": onegru.Check(dims={"K": 3})},
            "dims: 'K'; must be a dynamic dimension of an input: 'N', 'T'",
        ),
        ({"check": onegru.Check(dims={"T": (3,)})}, "dims: 'T' is (3,); must be one size"),
        ({"check": onegru.Check(inputs={}), "opset": 22}, "'X': missing"),
        ({"check": onegru.Check(inputs={"Q": 3}), "opset": 22}, "'Q': not an input"),
        ({"check": 1}, "check: 1; must be True, False or an onegru.Check"),
        ({"split": 1}, "split: 1; must be True or False"),
        ({"decompose": "no"}, "decompose: 'no'; must be True or False"),
        ({"layout": True}, "layout: True; must be 0 or 1"),
        ({"source": 3}, "source: 3; must be the name of a file"),
        ({"target": 3}, "target: 3; must be the name of a file"),
    ],
)
def test_illegal_arguments(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    nodes = [gru("X", ["Y"], name="gru", linear_before_reset=1)]
    source = save(tmp_path, model(graph(nodes, [value("X", shape=["T", "N", I])], ["Y"], weights())))
    with pytest.raises(onegru.SpecError) as caught:
        rewrite(**{"source": source, "target": tmp_path / "target.onnx"} | options)
    assert message in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tolerance": -1.0}, "tolerance: -1.0; must be at least 0"),
        ({"tolerance": "a"}, "tolerance: 'a'; must be a number"),
        ({"tolerance": float("inf")}, "tolerance: inf; must be at least 0 and finite"),
        ({"dims": {"T": 0}}, "dims['T']: 0; must be an integer, at least 1"),
        ({"dims": {"T": "3"}}, "dims['T']: '3'; must be an integer"),
        ({"dims": []}, "dims: []; must be a mapping from names to sizes"),
        ({"seed": -1}, "seed: -1; must be an integer, at least 0"),
        ({"seed": 1.5}, "seed: 1.5; must be an integer, at least 0"),
        ({"seed": True}, "seed: True; must be an integer, at least 0"),
        ({"inputs": 3}, "inputs: 3; must be a mapping from names to arrays"),
        ({"inputs": []}, "inputs: []; must be a mapping from names to arrays"),
        ({"inputs": {}, "dims": {"T": 3}}, "dims: has no effect together with inputs"),
    ],
)
def test_illegal_checks(options: dict[str, Any], message: str) -> None:
    with pytest.raises(onegru.SpecError) as caught:
        onegru.Check(**options)
    assert message in str(caught.value)


@pytest.mark.parametrize("opset", [7, 11, 13])
def test_a_layout_that_the_source_s_opset_has_not(opset: int, tmp_path: Path) -> None:
    nodes = [gru("X", ["Y"], name="gru")]
    infos = [value("X", shape=["T", "N", I])]
    source = save(tmp_path, model(graph(nodes, infos, ["Y"], weights()), opset=opset, ir=6))
    with pytest.raises(onegru.SpecError) as caught:
        rewrite(source, tmp_path / "target.onnx", layout=1)
    assert str(caught.value) == (
        f"layout: 1; needs opset 14 or newer, and the target has opset {opset}; add --opset 14"
    )
    assert rewrite(source, tmp_path / "target.onnx", layout=1, opset=14).opsets == (opset, 14)
    rewrite(source, tmp_path / "target.onnx", layout=0)


@pytest.mark.parametrize("name", ["target.txt", "nowhere/target.onnx", "folder.onnx"])
def test_illegal_targets(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder.onnx").mkdir()
    source = save(tmp_path, Case("plain").build())
    with pytest.raises(onegru.SpecError, match="target: "):
        rewrite(source, tmp_path / name, opset=22)


def test_models_without_a_gru(tmp_path: Path) -> None:
    source = model(graph([node("Relu", ["X"], ["Y"])], [value("X", shape=[2])], ["Y"]))
    with pytest.raises(onegru.FormatError, match="has no GRU node"):
        rewrite(save(tmp_path, source), tmp_path / "target.onnx", opset=22)


@pytest.mark.parametrize("data", [b"", b"not a model", Case("cut").build().SerializeToString()[:-50]])
def test_broken_files(data: bytes, tmp_path: Path) -> None:
    for check_it in (True, False):
        with pytest.raises(onegru.FormatError, match=r"model\.onnx"):
            rewrite(save(tmp_path, data), tmp_path / "target.onnx", check=check_it)
    assert not (tmp_path / "target.onnx").exists()


@pytest.mark.parametrize("options", [{"opset": 22}, {"layout": 0}, {"decompose": True}, {"dtype": "float16"}])
def test_damaged_files(options: dict[str, Any], tmp_path: Path) -> None:
    """A file with a few bytes changed is rewritten or refused, never anything else."""
    nodes = [
        node("Transpose", ["x"], ["X"], perm=[1, 0, 2], name="to_batch_first"),
        gru("X", ["Y"], bias="B", name="gru", layout=1, clip=2.0),
        node("Softmax", ["Y"], ["Z"], name="softmax", axis=1),
    ]
    proto = graph(nodes, [value("x", shape=["T", "N", I])], [value("Z", shape=[None] * 4)], weights())
    data = model(proto).SerializeToString()
    rng = np.random.default_rng(5)
    outcomes = set()
    for _ in range(150):
        damaged = bytearray(data)
        for place in rng.integers(0, len(data), rng.integers(1, 4)):
            damaged[place] = rng.integers(256)
        path = save(tmp_path, bytes(damaged))
        try:
            rewrite(path, tmp_path / "target.onnx", check=False, **options)
            outcomes.add("rewritten")
        except onegru.OneGRUError:
            outcomes.add("refused")
    assert outcomes == {"rewritten", "refused"}


def test_illegal_nodes_without_a_check(tmp_path: Path) -> None:
    nodes = [gru("X", ["Y"], name="gru", clip=-1.0)]
    source = save(tmp_path, model(graph(nodes, [value("X", shape=["T", "N", I])], ["Y"], weights())))
    with pytest.raises(onegru.SpecError, match="GRU node 'gru': clip: -1; must be > 0"):
        rewrite(source, tmp_path / "target.onnx", opset=22, check=False)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("R", numbers(1, 1, 2, 3), "R: shape [1, 2, 3]; must be [1, 9, 3]"),
        ("B", numbers(1, 18), "B: shape [18]; must be [1, 18]"),
        ("R", np.ones((1, 9, 3), np.int32), "R: type int32; must be float16"),
        ("R", numbers(1, 1, 9, 3, dtype="float64"), "W, R and B have several types"),
    ],
)
def test_constants_with_computed_weights(name: str, array: Array, message: str, tmp_path: Path) -> None:
    constants = {**weights(), name: array}
    other = "B" if name == "R" else "R"
    inputs = [value("X", shape=["T", "N", I]), value(other, shape=constants.pop(other).shape)]
    source = model(graph([gru("X", ["Y"], bias="B", name="gru")], inputs, ["Y"], constants))
    with pytest.raises(onegru.SpecError) as caught:
        rewrite(save(tmp_path, source), tmp_path / "target.onnx", decompose=True, check=False)
    assert f"GRU node 'gru': {message}" in str(caught.value)


def test_weights_beyond_float16(tmp_path: Path) -> None:
    large = weights()
    large["W"][0, 1, 2] = 1e6
    source = model(graph([gru("X", ["Y"], name="gru")], [value("X", shape=["T", "N", I])], ["Y"], large))
    with pytest.raises(onegru.SpecError, match="float16: GRU node 'gru' has a weight of 1e"):
        rewrite(save(tmp_path, source), tmp_path / "target.onnx", dtype="float16")


def test_a_target_that_differs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong rewriting is found, and an earlier target stays as it was."""
    target = tmp_path / "target.onnx"
    target.write_bytes(b"earlier")
    monkeypatch.setattr(gru_step._OnnxElementary, "tanh", gru_step._OnnxElementary.relu)
    source = save(tmp_path, Case("plain").build())
    with pytest.raises(onegru.FormatError, match="not written: output 'out_Y' in onegru differs"):
        rewrite(source, target, decompose=True)
    assert target.read_bytes() == b"earlier"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "target.onnx"]


def test_sizes_may_be_numpys(tmp_path: Path) -> None:
    source = save(tmp_path, Case("plain").build())
    names = [size for size in onegru.load(source).inputs[0].shape or () if isinstance(size, str)]
    dims: dict[str, Any] = {name: np.int64(2) for name in names}
    assert rewrite(source, tmp_path / "target.onnx", opset=22, check=onegru.Check(dims=dims)).outputs


def test_an_attribute_that_rewriting_would_lose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of an opset that brings a new one."""
    monkeypatch.setattr(node_config, "_ATTRIBUTES", node_config._ATTRIBUTES - {"hidden_size"})
    with pytest.raises(
        onegru.SpecError, match=r"GRU node 'gru': has attribute hidden_size, which onegru cannot rewrite$"
    ):
        rewrite(save(tmp_path, Case("plain").build()), tmp_path / "target.onnx", opset=22)
    assert not (tmp_path / "target.onnx").exists()
