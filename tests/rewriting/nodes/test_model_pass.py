"""Rewriting and the rest of a model: other nodes, shared weights, bodies, functions, external data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import onegru
from onegru.formats.onnx.functions.augru import add_augru_functions
from onegru.rewriting.nodes.changes import CHANGES, Change, RewriteOptions
from onegru.rewriting.nodes.node_config import GruNodeConfig
from onegru.rewriting.nodes.scope import Draft
from onegru.rewriting.rewrite import rewrite
from tests.support.files.onnx_models import (
    B,
    H,
    I,
    T,
    augru_node,
    graph,
    gru,
    model,
    node,
    numbers,
    save,
    value,
    weights,
)
from tests.support.models.rewrite_cases import assert_close, expected, others_untouched, rewritten
from tests.support.models.runtimes import onnxruntime_results


def test_transposes_cancel_out(tmp_path: Path) -> None:
    """A time-first GRU between two Transposes becomes a batch-first one without any."""
    nodes = [
        node("Transpose", ["x"], ["X"], perm=[1, 0, 2], name="to_time_first"),
        gru("X", ["Y"], bias="B", name="gru"),
        node("Transpose", ["Y"], ["Z"], perm=[2, 0, 1, 3], name="to_batch_first"),
        node("Relu", ["Z"], ["out"], name="relu"),
    ]
    proto = graph(nodes, [value("x", shape=["N", "T", I])], [value("out", shape=[None] * 4)], weights())
    proto.value_info.extend([value("X", shape=["T", "N", I]), value("Z", shape=["N", "T", 1, H])])
    _, target = rewritten(tmp_path, model(proto), layout=1)
    assert [item.op_type for item in target.graph.node] == ["GRU", "Relu"]
    assert [item.name for item in target.graph.value_info] == ["Z"]
    feeds = {"x": numbers(1, B, T, I)}
    wanted = expected(tmp_path / "model.onnx", feeds)
    assert_close(onegru.load(tmp_path / "target.onnx").run(feeds), wanted, 1e-6)


def test_a_transpose_that_others_take_stays(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", ["x"], ["X"], perm=[1, 0, 2], name="to_time_first"),
        gru("X", ["Y"], bias="B", name="gru"),
        node("Transpose", ["Y"], ["Z"], perm=[2, 0, 1, 3], name="to_batch_first"),
        node("Relu", ["Y"], ["out"], name="relu"),
        node("Relu", ["X"], ["out_X"], name="relu_X"),
    ]
    outputs = [value("Z", shape=[None] * 4), value("out", shape=[None] * 4), value("out_X", shape=[None] * 3)]
    proto = graph(nodes, [value("x", shape=["N", "T", I])], outputs, weights())
    _, target = rewritten(tmp_path, model(proto), layout=1)
    others_untouched(model(proto), target)
    feeds = {"x": numbers(1, B, T, I)}
    wanted = expected(tmp_path / "model.onnx", feeds)
    assert_close(onegru.load(tmp_path / "target.onnx").run(feeds), wanted, 1e-6)


def test_nodes_that_only_fed_removed_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that reads no lengths any more removes what computed them; other unused nodes stay."""

    def without_lengths(new: Draft, config: GruNodeConfig, _: RewriteOptions) -> list[GruNodeConfig]:
        new.scope.released_inputs.add(config.inputs["sequence_lens"])
        new.done.append("lengths removed")
        return [replace(config, inputs={k: v for k, v in config.inputs.items() if k != "sequence_lens"})]

    monkeypatch.setitem(CHANGES, "lengths", Change(lambda *_: True, without_lengths))
    body = graph([node("Add", ["rows", "zero"], ["s"])], [], [value("s", "int64", [1])])
    nodes = [
        node("Shape", ["X"], ["sizes"], name="shape"),
        node("Slice", ["sizes", "zero", "one"], ["steps"], name="steps"),
        node("Slice", ["sizes", "one", "two"], ["rows"], name="rows"),
        node("If", ["is_on"], ["more"], then_branch=body, else_branch=body, name="if"),
        node("Add", ["steps", "more"], ["sum"], name="sum"),
        node("Sub", ["sum", "more"], ["all"], name="all"),
        node("Expand", ["all", "rows"], ["many"], name="many"),
        node("Cast", ["many"], ["lens"], to=onnx.TensorProto.INT32, name="cast"),
        node("Neg", ["rows"], ["unused"], name="unused"),
        gru("X", ["Y"], lens="lens", name="gru"),
    ]
    constants = {name: np.array([number]) for number, name in enumerate(("zero", "one", "two"))}
    constants |= {"is_on": np.array(True), **weights()}
    proto = graph(nodes, [value("X", shape=["T", "N", I])], [value("Y", shape=[None] * 4)], constants)
    _, target = rewritten(tmp_path, model(proto, opset=18))
    assert [item.name for item in target.graph.node] == ["shape", "rows", "unused", "gru"]
    assert {tensor.name for tensor in target.graph.initializer} == {"one", "two", "W", "R", "B"}


@pytest.mark.parametrize("is_sorted", [True, False])
def test_a_transpose_between_two_grus(is_sorted: bool, tmp_path: Path) -> None:
    """Only one of the two GRUs can replace it."""
    nodes = [
        gru("X", ["", "Y_h"], bias="B", name="first"),
        node("Transpose", ["Y_h"], ["rows"], perm=[1, 0, 2], name="to_rows"),
        gru("rows", ["Z"], W="W_2", R="R_2", name="second"),
    ][:: 1 if is_sorted else -1]
    constants = {**weights(), **weights(2, "_2", I=H)}
    proto = graph(nodes, [value("X", shape=["T", "N", I])], [value("Z", shape=[None] * 4)], constants)
    source = save(tmp_path, model(proto))
    rewrite(source, tmp_path / "target.onnx", layout=1)
    feeds = {"X": numbers(1, T, B, I)}
    assert_close(expected(tmp_path / "target.onnx", feeds), expected(source, feeds), 1e-6)


def test_shared_weights_stay_shared(tmp_path: Path) -> None:
    nodes = [gru(name, [f"Y_{name}"], bias="B", name=name, direction="bidirectional") for name in ("a", "b")]
    inputs = [value(name, shape=["T", "N", I]) for name in ("a", "b")]
    outputs = [value(f"Y_{name}", shape=[None] * 4) for name in ("a", "b")]
    source = model(graph(nodes, inputs, outputs, weights(D=2)))
    for options, count in (({"split": True}, 6), ({"dtype": "float16"}, 3)):
        _, target = rewritten(tmp_path, source, **options)
        large = [entry for entry in target.graph.initializer if len(entry.dims) > 1]
        assert len(large) == count, [entry.name for entry in large]


def test_weights_that_others_take_stay(tmp_path: Path) -> None:
    nodes = [gru("X", ["Y"], bias="B", name="gru"), node("Relu", ["W"], ["Z"], name="relu")]
    outputs = [value("Y", shape=[None] * 4), value("Z", shape=[None] * 3)]
    source = model(graph(nodes, [value("X", shape=["T", "N", I])], outputs, weights()))
    _, target = rewritten(tmp_path, source, decompose=True)
    names = {entry.name for entry in target.graph.initializer}
    assert "W" in names and "R" not in names and "B" not in names


def test_defaults_that_a_caller_may_replace(tmp_path: Path) -> None:
    """An initializer that is an input as well stays one, and another value given for it counts."""
    inputs = [value("X", shape=["T", "N", I]), value("R", shape=[1, 3 * H, H])]
    source = model(graph([gru("X", ["Y"], name="gru")], inputs, [value("Y", shape=[None] * 4)], weights()))
    _, target = rewritten(tmp_path, source, decompose=True)
    assert [item.name for item in target.graph.input] == ["X", "R"]
    feeds = {"X": numbers(1, T, B, I), "R": numbers(2, 1, 3 * H, H)}
    wanted = expected(tmp_path / "model.onnx", feeds)
    assert_close(onegru.load(tmp_path / "target.onnx").run(feeds), wanted, 1e-6)


def test_names_in_use(tmp_path: Path) -> None:
    """New names differ from those that the file has, hostile ones included."""
    nodes = [
        node("Relu", ["x"], ["gru/X"], name="gru/X/Transpose"),
        gru("gru/X", ["Y"], name="gru"),
        node("Neg", ["Y"], ["gru/Y"], name="gru/0/Scan"),
    ]
    outputs = [value("gru/Y", shape=[None] * 4)]
    source = model(graph(nodes, [value("x", shape=["T", "N", I])], outputs, weights()))
    for options in ({"layout": 1}, {"decompose": True}, {"dtype": "float16"}):
        _, target = rewritten(tmp_path, source, **options)
        names = [name for item in target.graph.node for name in item.output if name]
        assert len(names) == len(set(names))


@pytest.mark.parametrize("other", ["", "Relu"])
def test_nodes_with_the_same_name(other: str, tmp_path: Path) -> None:
    """ONNX Runtime refuses them, so it cannot run a source with other nodes for the check."""
    nodes = [
        node(other or "Identity", ["x"], ["X"], name="same"),
        gru("X", ["", "Y_h"], bias="B", name="same"),
        gru("Y_h", ["Z"], W="W_2", R="R_2", name="same"),
    ][not other :]
    constants = {**weights(), **weights(2, "_2", I=H)}
    inputs = [value("x" if other else "X", shape=["T", "N", I])]
    source = model(graph(nodes, inputs, [value("Z", shape=[None] * 4)], constants))
    report, target = rewritten(tmp_path, source, runtime="onnxruntime", check=not other)
    names = [item.name for item in target.graph.node]
    assert len(set(names)) == len(names) == len(report.notes) + 1 and names[0] == "same"
    for name, note in zip(names[1:], report.notes, strict=True):
        assert note.startswith(f"GRU node 'same' is now called {name!r}, because ONNX Runtime refuses")
    for item, old in zip(target.graph.node, nodes, strict=True):
        item.name = old.name
    others_untouched(source, target)


# ---- bodies, functions, external data


def nested(**attributes: Any) -> ModelProto:
    """A GRU in both branches of an If."""
    branches = {
        f"{name}_branch": graph(
            [gru("X", [f"Y_{name}"], bias="B", name=name, **attributes)],
            outputs=[value(f"Y_{name}", shape=[None] * 4)],
        )
        for name in ("then", "else")
    }
    inputs = [value("flag", "bool", []), value("X", shape=["T", "N", I])]
    nodes = [node("If", ["flag"], ["Y"], name="if", **branches)]
    constants = weights(D=2 if attributes.get("direction") == "bidirectional" else 1)
    return model(graph(nodes, inputs, [value("Y", shape=[None] * 4)], constants))


@pytest.mark.parametrize(
    "options",
    [
        {"opset": 22},
        {"opset": 11},
        {"split": True},
        {"decompose": True},
        {"dtype": "float16"},
        {"runtime": "onnxruntime"},
    ],
)
def test_bodies(options: dict[str, Any], tmp_path: Path) -> None:
    more: dict[str, Any] = {"activations": ["Sigmoid", "Tanh"] * 2, "direction": "bidirectional"}
    source = nested(**more)
    report, target = rewritten(tmp_path, source, **options)
    assert [entry.name for entry in report.nodes] == ["else", "then"] or len(report.nodes) == 2
    for flag in (True, False):
        feeds = {"flag": np.array(flag), "X": numbers(1, T, B, I)}
        wanted = onnxruntime_results(source, feeds)
        tolerance = 2e-3 if "dtype" in options else 1e-6
        assert_close(onnxruntime_results(target, feeds), wanted, tolerance)


def test_equal_names_in_two_branches(tmp_path: Path) -> None:
    """Each branch has its own number of steps, so its own number of unrolled ones."""
    branches = {}
    for name, steps in (("then", 2), ("else", 4)):
        nodes = [node("Slice", ["X", "from", name], ["x"]), gru("x", ["", "h"], bias="B", name=name)]
        branches[f"{name}_branch"] = graph(nodes, outputs=[value("h", shape=[1, B, H])])
        branches[f"{name}_branch"].value_info.append(value("x", shape=[steps, B, I]))
    inputs = [value("flag", "bool", []), value("X", shape=[4, B, I])]
    constants = {**weights(), "from": np.array([0]), "then": np.array([2]), "else": np.array([4])}
    nodes = [node("If", ["flag"], ["Y"], name="if", **branches)]
    source = model(graph(nodes, inputs, [value("Y", shape=[1, B, H])], constants))
    _, target = rewritten(tmp_path, source, decompose=True, check=False)
    for flag in (True, False):
        feeds = {"flag": np.array(flag), "X": numbers(1, 4, B, I)}
        assert_close(onnxruntime_results(target, feeds), onnxruntime_results(source, feeds), 1e-6)


def test_bodies_that_onnxruntime_cannot_run(tmp_path: Path) -> None:
    """ONNX Runtime by itself refuses the source: it is onegru that runs it for the check."""
    source = nested(layout=1)
    path, target = save(tmp_path, source), tmp_path / "target.onnx"
    report = rewrite(path, target, runtime="onnxruntime")
    assert {entry.done for entry in report.nodes} == {("layout 1 became 0",)}
    X = numbers(1, T, B, I)
    plain = save(tmp_path, graph_of_one_gru(layout=1), "plain.onnx")
    wanted = expected(plain, {"X": X})
    assert_close(onnxruntime_results(onnx.load(target), {"flag": np.array(True), "X": X}), wanted, 1e-6)


def graph_of_one_gru(**attributes: Any) -> ModelProto:
    nodes = [gru("X", ["Y"], bias="B", **attributes)]
    return model(graph(nodes, [value("X", shape=["T", "N", I])], [value("Y", shape=[None] * 4)], weights()))


def test_other_nodes_in_bodies(tmp_path: Path) -> None:
    """A Loop whose body holds a GRU, on weights from outside, and a node that the new opset changes."""
    body = graph(
        [
            gru("h", ["Y"], bias="B", name="inner", hidden_size=I),
            node("Squeeze", ["Y"], ["h_next"], name="squeeze", axes=[1]),
            node("Identity", ["go"], ["go_on"], name="go_on"),
        ],
        [value("i", "int64", []), value("go", "bool", []), value("h", shape=[None, None, I])],
        [value("go_on", "bool", []), value("h_next", shape=[None, None, I])],
    )
    nodes = [node("Loop", ["times", "", "X"], ["Z"], name="loop", body=body)]
    constants = {**weights(H=I), "times": np.array(3, np.int64)}
    inputs = [value("X", shape=["T", "N", I])]
    source = model(graph(nodes, inputs, [value("Z", shape=[None] * 3)], constants), opset=11)
    feeds = {"X": numbers(1, T, B, I)}
    wanted = onnxruntime_results(source, feeds)
    for options in ({"opset": 18}, {"opset": 18, "decompose": True}, {"opset": 22, "runtime": "openvino"}):
        report, target = rewritten(tmp_path, source, **options)
        assert report.others == ("Squeeze node 'squeeze'",)
        assert [entry.name for entry in report.nodes] == ["inner"]
        assert_close(onnxruntime_results(target, feeds), wanted, 1e-6)


def test_functions_that_hold_grus(tmp_path: Path) -> None:
    body = [gru("x", ["y"], W="w", R="r", name="inner")]
    function = onnx.helper.make_function(
        "own", "Recurrent", ["x", "w", "r"], ["y"], body, [onnx.helper.make_opsetid("", 14)]
    )
    nodes = [node("Recurrent", ["X", "W", "R"], ["Y"], domain="own", name="call")]
    proto = graph(nodes, [value("X", shape=["T", "N", I])], [value("Y", shape=[None] * 4)], weights())
    source = model(proto, functions=[function], domains={"own": 1})
    report, target = rewritten(tmp_path, source, decompose=True)
    assert "functions that contain GRU nodes" in report.notes[0]
    feeds = {"X": numbers(1, T, B, I)}
    wanted = expected(tmp_path / "model.onnx", feeds)
    assert_close(onnxruntime_results(target, feeds), wanted, 1e-6)


def test_other_functions_stay(tmp_path: Path) -> None:
    function = onnx.helper.make_function(
        "own",
        "Twice",
        ["x"],
        ["y"],
        [node("Add", ["x", "x"], ["y"], name="add")],
        [onnx.helper.make_opsetid("", 14)],
    )
    nodes = [gru("X", ["Y"], name="gru"), node("Twice", ["Y"], ["Z"], domain="own", name="call")]
    proto = graph(nodes, [value("X", shape=["T", "N", I])], [value("Z", shape=[None] * 4)], weights())
    source = model(proto, functions=[function], domains={"own": 1})
    _, target = rewritten(tmp_path, source, opset=18)
    assert target.functions[0].node == source.functions[0].node
    assert target.functions[0].opset_import[0].version == 18
    feeds = {"X": numbers(1, T, B, I)}
    wanted = expected(tmp_path / "model.onnx", feeds)
    assert_close(onegru.load(tmp_path / "target.onnx").run(feeds), wanted, 1e-6)


def test_functions_with_nodes_that_change_are_refused(tmp_path: Path) -> None:
    function = onnx.helper.make_function(
        "own",
        "Flat",
        ["x"],
        ["y"],
        [node("Squeeze", ["x"], ["y"], name="squeeze", axes=[1])],
        [onnx.helper.make_opsetid("", 11)],
    )
    nodes = [gru("X", ["Y"], name="gru"), node("Flat", ["Y"], ["Z"], domain="own", name="call")]
    proto = graph(nodes, [value("X", shape=["T", "N", I])], ["Z"], weights())
    source = save(tmp_path, model(proto, opset=11, functions=[function], domains={"own": 1}))
    with pytest.raises(
        onegru.FormatError, match=r"function 'Flat': Squeeze node 'squeeze': .* 11 to 18; inline"
    ):
        onegru.rewrite(source, tmp_path / "target.onnx", opset=18, check=False)


@pytest.mark.parametrize("options", [{"opset": 18}, {"layout": 1}, {"runtime": "onnxruntime"}])
def test_nodes_with_attention_stay(options: dict[str, Any], tmp_path: Path) -> None:
    roles = {"X": "X", "W": "W", "R": "R", "A": "A"}
    nodes = [
        gru("X", ["states"], name="gru"),
        augru_node(roles, {"Y": "Y"}, {"linear_before_reset": 1}, "attention"),
        node("Add", ["states", "Y"], ["Z"]),
    ]
    inputs = [value("X", shape=["T", "N", I]), value("A", shape=["T", "N", 1])]
    source = model(graph(nodes, inputs, [value("Z", shape=[None] * 4)], weights()), opset=15)
    add_augru_functions(source)
    _, target = rewritten(tmp_path, source, **options)
    (function,) = target.functions
    assert function.opset_import[0].version == options.get("opset", 15)
    feeds = {"X": numbers(1, T, B, I), "A": numbers(2, T, B, 1)}
    wanted = expected(tmp_path / "model.onnx", feeds)
    assert_close(onegru.load(tmp_path / "target.onnx").run(feeds), wanted, 1e-6)


def external(tmp_path: Path) -> Path:
    source = model(
        graph([gru("X", ["Y"])], [value("X", shape=["T", "N", I])], [value("Y", shape=[None] * 4)], weights())
    )
    path = tmp_path / "model.onnx"
    onnx.save(source, path, save_as_external_data=True, location="model.bin", size_threshold=0)
    return path


def test_external_data_come_into_the_file(tmp_path: Path) -> None:
    path = external(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    target = tmp_path / "elsewhere" / "target.onnx"
    report = rewrite(path, target, opset=22)
    assert report.notes == ("external data of 3 tensors are now in the file",)
    feeds = {"X": numbers(1, T, B, I)}
    assert_close(onegru.load(target).run(feeds), expected(path, feeds), 1e-6)


def test_external_data_outside_the_folder(tmp_path: Path) -> None:
    path = external(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"model.bin", b"../../x.x"))
    with pytest.raises(onegru.FormatError, match="outside the model's folder"):
        rewrite(path, tmp_path / "target.onnx", opset=22, check=False)
