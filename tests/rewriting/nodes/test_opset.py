"""Rewriting to and from other opsets, the first versions included."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import onegru
from onegru.rewriting.rewrite import rewrite
from tests.support.files.onnx_models import B, I, T, graph, gru, model, node, numbers, save, value, weights
from tests.support.models.rewrite_cases import assert_close, attributes, expected, grus, rewritten
from tests.support.models.runtimes import onnxruntime_results

# ---- versions 1 and 3, and the oldest files


@pytest.mark.parametrize("opset", [1, 3])
def test_to_the_first_versions(opset: int, tmp_path: Path) -> None:
    nodes = [gru("X", ["Y", ""], bias="B", name="gru", layout=1)]
    source = model(graph(nodes, [value("X", shape=[2, 4, I])], [value("Y", shape=[None] * 4)], weights()))
    _, target = rewritten(tmp_path, source, opset=opset)
    (item,) = grus(target)
    assert attributes(item)["output_sequence"] == 1 and "layout" not in attributes(item)
    assert len(item.output) == (2 if opset == 1 else 1)  # Y_h is required in version 1
    feeds = {"X": numbers(1, 2, 4, I)}
    assert_close(
        onegru.load(tmp_path / "target.onnx").run(feeds), expected(tmp_path / "model.onnx", feeds), 1e-6
    )


@pytest.mark.parametrize("opset", [1, 3])
@pytest.mark.parametrize("options", [{"opset": 22}, {"runtime": "onnxruntime"}, {"decompose": True}])
def test_from_the_first_versions(opset: int, options: dict[str, Any], tmp_path: Path) -> None:
    more: dict[str, Any] = {"direction": "foward"} if opset == 1 else {"linear_before_reset": 3}
    nodes = [
        node("Add", ["x", "shift"], ["X"], broadcast=1, name="add"),
        gru("X", ["Y", "Y_h"], name="gru", output_sequence=1, **more),
    ]
    outputs = [value("Y", shape=[None] * 4), value("Y_h", shape=[None] * 3)]
    constants = {**weights(), "shift": numbers(3, I)}
    del constants["B"]
    source = model(graph(nodes, [value("x", shape=["T", "N", I])], outputs, constants), opset=opset)
    report, target = rewritten(tmp_path, source, **options)
    assert report.opsets[0] == opset and report.others == ("Add node 'add'",)
    feeds = {"x": numbers(1, T, B, I)}
    wanted = expected(tmp_path / "model.onnx", feeds)
    assert_close(onnxruntime_results(target, feeds), wanted, 1e-5)


def test_constants_before_ir_4(tmp_path: Path) -> None:
    constants = weights(D=2)
    inputs = [value("X", shape=[T, B, I])]
    inputs += [value(name, shape=array.shape) for name, array in constants.items()]
    nodes = [gru("X", ["Y"], bias="B", direction="bidirectional")]
    source = model(graph(nodes, inputs, [value("Y", shape=[None] * 4)], constants), opset=9, ir=3)
    _, target = rewritten(tmp_path, source, split=True)
    assert target.ir_version == 3 and [item.name for item in target.graph.input] == ["X"]
    feeds = {"X": numbers(1, T, B, I)}
    assert_close(onnxruntime_results(target, feeds), expected(tmp_path / "model.onnx", feeds), 1e-5)


# ---- the rest of the model


def test_other_nodes_at_another_opset(tmp_path: Path) -> None:
    """Only what changed between the opsets is converted: Squeeze, whose axes became an input."""
    nodes = [
        node("Relu", ["x"], ["X"], name="relu", doc_string="kept"),
        gru("X", ["Y"], bias="B", name="gru"),
        node("Squeeze", ["Y"], ["S"], name="squeeze", axes=[1], doc_string="kept too"),
        node("Custom", ["S"], ["Z"], domain="elsewhere", name="custom"),
    ]
    proto = graph(nodes, [value("x", shape=["T", "N", I])], ["Z"], weights())
    proto.output[0].type.tensor_type.shape.SetInParent()
    source = model(proto, opset=11, domains={"elsewhere": 2})
    source.metadata_props.add(key="author", value="someone")
    report, target = rewritten(tmp_path, source, opset=18, check=False)
    assert report.others == ("Squeeze node 'squeeze'",) and report.outputs == ()
    by_name = {item.name: item for item in target.graph.node}
    for name in ("relu", "custom"):
        assert by_name[name] == next(item for item in source.graph.node if item.name == name)
    assert by_name["squeeze"].doc_string == "kept too" and len(by_name["squeeze"].input) == 2
    assert {entry.domain: entry.version for entry in target.opset_import} == {"": 18, "elsewhere": 2}
    assert target.metadata_props == source.metadata_props


@pytest.mark.parametrize(
    ("kind", "second", "attributes", "message"),
    [
        ("Reshape", np.array([0, 0, I]), {"allowzero": 0}, "No Adapter .* for Reshape"),
        (
            "ReduceMean",
            np.array([], np.int64),
            {"noop_with_empty_axes": 1},
            "has no noop_with_empty_axes there",
        ),
    ],
)
def test_newer_attributes_are_refused(
    tmp_path: Path, kind: str, second: Any, attributes: dict[str, int], message: str
) -> None:
    nodes = [node(kind, ["x", "second"], ["X"], name="changed", **attributes), gru("X", ["Y"], name="gru")]
    constants = {**weights(), "second": second}
    proto = graph(nodes, [value("x", shape=["T", "N", I])], [value("Y", shape=[None] * 4)], constants)
    with pytest.raises(onegru.FormatError, match=f"{kind} node 'changed': cannot be converted .*{message}"):
        rewrite(save(tmp_path, model(proto, opset=20)), tmp_path / "target.onnx", opset=13, check=False)


def test_what_cannot_be_converted_is_named(tmp_path: Path) -> None:
    nodes = [
        node("LayerNormalization", ["x", "scale"], ["X"], name="norm"),
        gru("X", ["Y"], name="gru"),
    ]
    constants = {**weights(), "scale": numbers(4, I)}
    source = model(graph(nodes, [value("x", shape=["T", "N", I])], ["Y"], constants), opset=17)
    with pytest.raises(onegru.FormatError, match="LayerNormalization node 'norm': cannot be converted"):
        rewrite(save(tmp_path, source), tmp_path / "target.onnx", opset=13)
    assert not (tmp_path / "target.onnx").exists()


def with_node(
    kind: str, opset: int, others: Mapping[str, Any], attributes: Mapping[str, Any], mask: bool = False
) -> ModelProto:
    """A GRU after a node of this kind, whose other inputs are constants."""
    made = node(kind, ["x", *others], ["X", "mask"][: 1 + mask], name="changed", **attributes)
    outputs = [value("Y", shape=[None] * 4)]
    outputs += [value("mask", "float32" if opset < 10 else "bool", [2, 4, I])] if mask else []
    constants = {**weights(), **{name: np.asarray(array) for name, array in others.items()}}
    return model(
        graph([made, gru("X", ["Y"], name="gru")], [value("x", shape=[2, 4, I])], outputs, constants),
        opset=opset,
    )


ONES = np.ones(I, np.float32)
ZEROS = np.zeros((2, 4, I), np.float32)
SCALES = {"roi": ONES[:0], "scales": ONES[:3]}
MODE = "coordinate_transformation_mode"


@pytest.mark.parametrize(
    ("kind", "opsets", "others", "attributes", "reason"),
    [
        ("PRelu", (6, 14), {"slope": ONES[:4]}, {}, "slope must have one value"),
        ("PRelu", (14, 6), {"slope": ONES}, {}, "slope must have one value"),
        ("Selu", (1, 14), {}, {}, "must have both"),
        ("BatchNormalization", (6, 14), dict.fromkeys("abcd", ONES[:4]), {}, "set is_test"),
        ("Mean", (8, 7), {"a": ONES}, {}, "must have the same known shape"),
        ("Hardmax", (12, 14), {}, {"axis": 1}, "`axis` must be the last one"),
        ("Softmax", (14, 12), {}, {"axis": 1}, "`axis` must be the last one"),
        ("GroupNormalization", (18, 21), {"a": ONES[:2], "b": ONES[:2]}, {"num_groups": 2}, "each channel"),
        ("Resize", (11, 13), SCALES, {MODE: "tf_half_pixel_for_nn"}, "only exists below opset 13"),
        ("Resize", (10, 13), {"scales": ONES[:3]}, {"mode": "linear"}, "constant integer scales"),
        ("Upsample", (9, 11), {"scales": ONES[:3] * 1.5}, {}, "constant integer scales"),
        ("Resize", (19, 18), SCALES, {MODE: "half_pixel_symmetric"}, "needs opset 19"),
        ("Mod", (28, 27), {"a": ONES}, {}, "need fmod = 1"),
        ("Pad", (19, 18), {"a": [1, 0, 0, 0, 0, 0]}, {"mode": "wrap"}, "needs opset 19"),
        (
            "ScatterElements",
            (18, 16),
            {"a": np.zeros((2, 4, I), np.int64), "b": ZEROS},
            {"reduction": "max"},
            "18",
        ),
    ],
)
def test_a_node_with_another_meaning(
    kind: str,
    opsets: tuple[int, int],
    others: Mapping[str, Any],
    attributes: Mapping[str, Any],
    reason: str,
    tmp_path: Path,
) -> None:
    """The schemas have the same form, or onnx's converter returns a wrong node."""
    source = save(tmp_path, with_node(kind, opsets[0], others, attributes))
    with pytest.raises(onegru.FormatError, match=f"{kind} node 'changed': cannot be converted .*{reason}"):
        rewrite(source, tmp_path / "target.onnx", opset=opsets[1], check=False)


@pytest.mark.parametrize(("kind", "opset"), [("Resize", 10), ("Upsample", 9)])
def test_repeated_elements(kind: str, opset: int, tmp_path: Path) -> None:
    source = with_node(kind, opset, {"scales": np.array([3, 2, 1], np.float32)}, {})
    _, target = rewritten(tmp_path, source, opset=13, check=False)
    feeds = {"x": numbers(1, 2, 4, I)}
    assert_close(onnxruntime_results(target, feeds), onnxruntime_results(source, feeds), 1e-6)


def test_the_mask_of_a_dropout(tmp_path: Path) -> None:
    proto = with_node("Dropout", 7, {}, {}, mask=True)
    with pytest.raises(onegru.FormatError, match="its mask has the type of its input below opset 10"):
        rewrite(save(tmp_path, proto), opset=10, check=False)
    proto.graph.value_info.append(proto.graph.output.pop())
    report, target = rewritten(tmp_path, proto, opset=10)
    assert report.others == ()
    onnxruntime_results(target, {"x": numbers(1, 2, 4, I)})


@pytest.mark.parametrize(
    ("kind", "opsets", "others", "attributes"),
    [
        ("PRelu", (6, 14), {"slope": ONES[:1]}, {}),
        ("Mean", (8, 7), {"a": ZEROS}, {}),
        ("Softmax", (14, 12), {}, {"axis": 2}),
        ("ScatterElements", (18, 16), {"a": np.zeros((2, 4, I), np.int64), "b": ZEROS}, {"reduction": "add"}),
    ],
)
def test_a_node_with_the_same_meaning(
    kind: str,
    opsets: tuple[int, int],
    others: Mapping[str, Any],
    attributes: Mapping[str, Any],
    tmp_path: Path,
) -> None:
    source = with_node(kind, opsets[0], others, attributes)
    report, target = rewritten(tmp_path, source, opset=opsets[1], check=False)
    assert report.others == () and target.graph.node[0] == source.graph.node[0]
