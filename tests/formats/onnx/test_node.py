"""What a GRU node may be, and which version of the operator it is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto

import onegru
from onegru import FormatError, SpecError, SpecWarning
from tests.support.files.onnx_models import (
    PLAIN,
    WEIGHTS,
    X_INFO,
    B,
    I,
    T,
    X,
    graph,
    gru,
    loaded,
    model,
    numbers,
    tensor,
    value,
    weights,
)

# ---- what a GRU node may be ----


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda n: n.input.__setitem__(0, ""), "X: missing; GRU-14 requires it"),
        (lambda n: n.input.__setitem__(1, ""), "W: missing; GRU-14 requires it"),
        (lambda n: n.input.__delitem__(slice(2, None)), "R: missing; GRU-14 requires it"),
        (lambda n: n.input.extend(["", "", "X"]), "7 inputs; must be at most 6"),
        (lambda n: n.output.append("Z"), "3 outputs; must be at most 2"),
        (lambda n: n.attribute.append(n.attribute[0]), "attribute 'hidden_size' appears twice"),
        (lambda n: add(n, "clip", 2), "attribute 'clip' has type INT; must be FLOAT"),
        (
            lambda n: add(n, "activation_alpha", [1]),
            "attribute 'activation_alpha' has type INTS; must be FLOATS",
        ),
        (lambda n: add(n, "layout", 1.0), "attribute 'layout' has type FLOAT; must be INT"),
        (
            lambda n: add(n, "activations", "Tanh"),
            "attribute 'activations' has type STRING; must be STRINGS",
        ),
        (
            lambda n: add(n, "direction", ["forward"]),
            "attribute 'direction' has type STRINGS; must be STRING",
        ),
        (lambda n: add(n, "direction", tensor("", X)), "attribute 'direction' must have a plain value"),
        (lambda n: add(n, "direction", b"\xff"), "attribute 'direction' is not UTF-8"),
        (lambda n: add(n, "activations", [b"Tanh", b"\xff"]), "attribute 'activations' is not UTF-8"),
        (lambda n: n.attribute[0].ClearField("type"), "attribute 'hidden_size' must have a plain value"),
        (
            lambda n: setattr(n.attribute[0], "ref_attr_name", "h"),
            "attribute 'hidden_size' must have a plain value",
        ),
        (lambda n: setattr(n.attribute[0], "i", 4), "hidden_size: 4; must be 3, because R has shape"),
        (lambda n: setattr(n.attribute[0], "i", 2**62), "hidden_size: 4611686018427387904; must be 3"),
        (lambda n: add(n, "output_sequence", 1), "output_sequence was removed in opset 7"),
        (lambda n: add(n, "colour", 1), "colour: not an attribute of GRU-14"),
        (lambda n: add(n, "activations", ["Tanh"]), "activations: 1 names; must be 2"),
    ],
)
def test_illegal_nodes(tmp_path: Path, change: Any, message: str) -> None:
    bad = gru("X", ["Y", "Y_h"], bias="B", name="g")
    change(bad)
    with pytest.raises((FormatError, SpecError)) as caught:
        loaded(tmp_path, model(graph([bad], [X_INFO], ["Y"], WEIGHTS)))
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 'model.onnx'}: GRU node 'g': ")
    assert "\n" not in str(caught.value)


def add(owner: NodeProto, name: str, value: Any) -> None:
    owner.attribute.append(onnx.helper.make_attribute(name, value))


def test_outputs_that_old_versions_require(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="output Y_h: missing; GRU-1 requires it"):
        loaded(tmp_path, model(graph([gru("X", ["Y"])], [X_INFO], ["Y"], WEIGHTS), opset=1))
    bad = gru("X", ["", "Y_h"], output_sequence=1)
    with pytest.raises(SpecError, match="output Y: missing; GRU-3 requires it with output_sequence = 1"):
        loaded(tmp_path, model(graph([bad], [X_INFO], ["Y_h"], WEIGHTS), opset=3))


@pytest.mark.parametrize(
    ("name", "shape"), [("W", (1, 9)), ("W", (2, 9, 5)), ("R", (1, 8, 3)), ("B", (1, 9))]
)
def test_weights_whose_sizes_disagree(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    constants = {**WEIGHTS, name: numbers(0, *shape)}
    with pytest.raises(SpecError, match=rf"model\.onnx: GRU node 'g': {name}: .*shape \[.*; must be \["):
        loaded(tmp_path, model(graph([PLAIN], [X_INFO], ["Y"], constants)))


def test_mixed_types(tmp_path: Path) -> None:
    constants = {**WEIGHTS, "R": WEIGHTS["R"].astype(np.float64)}
    with pytest.raises(SpecError, match=r"GRU node 'g': R: type float64; must be float32"):
        loaded(tmp_path, model(graph([PLAIN], [X_INFO], ["Y"], constants)))
    inputs = [value("X", "float64", [T, B, I])]
    ours = loaded(tmp_path, model(graph([PLAIN], inputs, ["Y"], WEIGHTS)))
    with pytest.raises(SpecError, match=r"GRU node 'g': X: type float64; must be float32, like W"):
        ours.run({"X": X.astype(np.float64)})


def test_bfloat16_before_its_opset(tmp_path: Path) -> None:
    constants = weights(dtype="bfloat16")
    with pytest.raises(SpecError, match=r"W: type bfloat16, which needs opset 22"):
        loaded(tmp_path, model(graph([PLAIN], [value("X", "bfloat16")], ["Y"], constants), opset=21))


def test_warnings_name_the_node(tmp_path: Path) -> None:
    odd = gru("X", ["Y"], name="odd", activation_alpha=[0.5])
    with pytest.warns(SpecWarning, match=r"model\.onnx: GRU node 'odd': activation_alpha: 1 value too many"):
        loaded(tmp_path, model(graph([odd], [X_INFO], ["Y"], WEIGHTS)))


def test_a_node_without_a_name_is_called_by_its_output(tmp_path: Path) -> None:
    ours = loaded(tmp_path, model(graph([gru("X", ["", "state"])], [X_INFO], ["state"], WEIGHTS)))
    assert ours.gru_nodes[0].name == "state"
    with pytest.raises(SpecError, match="GRU node with output 'state': W: missing"):
        loaded(tmp_path, model(graph([gru("X", ["", "state"], W="")], [X_INFO], ["state"], WEIGHTS)))


def test_only_onnxs_gru_is_a_gru(tmp_path: Path) -> None:
    """Another domain's GRU is another operator."""
    other = gru("X", ["Y"], domain="elsewhere")
    proto = model(graph([other], [X_INFO], ["Y"], WEIGHTS), domains={"elsewhere": 1})
    with pytest.raises(FormatError, match=r"ONNX Runtime refuses it .*elsewhere:GRU"):
        loaded(tmp_path, proto)
    same = gru("X", ["Y"], domain="ai.onnx")
    assert len(loaded(tmp_path, model(graph([same], [X_INFO], ["Y"], WEIGHTS))).gru_nodes) == 1


# ---- the version ----


@pytest.mark.parametrize(
    ("opset", "version"),
    [(1, 1), (2, 1), (3, 3), (6, 3), (7, 7), (13, 7), (14, 14), (21, 14), (22, 22), (28, 22)],
)
def test_opset_selects_the_version(tmp_path: Path, opset: int, version: int) -> None:
    proto = model(graph([gru("X", ["Y", "Y_h"])], [X_INFO], ["Y_h"], WEIGHTS), opset=opset)
    ours = loaded(tmp_path, proto)
    assert ours.gru_nodes[0].operator == f"GRU-{version}"
    _, Y_h = onegru.gru(X, WEIGHTS["W"], WEIGHTS["R"], opset=opset)
    np.testing.assert_array_equal(ours.run({"X": X})["Y_h"], Y_h)


@pytest.mark.parametrize(
    ("opsets", "ir", "message"),
    [
        ([("", 0)], 10, r"opset_import: version 0; must be 1 to \d+, the newest that onegru and"),
        (
            [("", 1000)],
            10,
            r"opset_import: version 1000; must be 1 to \d+, the newest that onegru and",
        ),
        ([("", -3)], 10, r"opset_import: version -3; must be 1 to"),
        ([], 10, r"opset_import: no version of the ONNX operators; must have one"),
        ([("other", 1)], 10, r"opset_import: no version of the ONNX operators; must have one"),
        (
            [("", 14), ("ai.onnx", 13)],
            10,
            r"opset_import: versions \[14, 13\] of the ONNX operators; must have only one",
        ),
    ],
)
def test_no_usable_opset(tmp_path: Path, opsets: list[tuple[str, int]], ir: int, message: str) -> None:
    proto = model(graph([PLAIN], [X_INFO], ["Y"], WEIGHTS), ir=ir)
    del proto.opset_import[:]
    proto.opset_import.extend(onnx.helper.make_opsetid(*entry) for entry in opsets)
    with pytest.raises(FormatError, match=message):
        loaded(tmp_path, proto)


def test_a_newer_gru_than_onegru_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = SimpleNamespace(since_version=30)
    monkeypatch.setattr(onnx.defs, "get_schema", lambda *_: newer)
    with pytest.raises(FormatError, match=r"GRU node .*: version 30; must be at most 22, the newest that"):
        loaded(tmp_path, model(graph([PLAIN], [X_INFO], ["Y"], WEIGHTS)))


def test_an_empty_list_of_activations_is_none(tmp_path: Path) -> None:
    odd = gru("X", ["Y", "Y_h"], name="odd")
    odd.attribute.append(onnx.AttributeProto(name="activations", type=onnx.AttributeProto.STRINGS))
    ours = loaded(tmp_path, model(graph([odd], [X_INFO], ["Y_h"], WEIGHTS)))
    _, Y_h = onegru.gru(X, WEIGHTS["W"], WEIGHTS["R"])
    np.testing.assert_array_equal(ours.run({"X": X})["Y_h"], Y_h)


def test_before_ir_3_there_was_one_opset(tmp_path: Path) -> None:
    proto = model(graph([gru("X", ["Y", "Y_h"])], [X_INFO], ["Y"], WEIGHTS), ir=2)
    del proto.opset_import[:]
    assert loaded(tmp_path, proto).gru_nodes[0].operator == "GRU-1"
