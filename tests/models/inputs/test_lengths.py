"""Inputs that count steps: random lengths are between 1 and the number of steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto, ValueInfoProto

import onegru
from onegru.core.dtypes import Array
from onegru.models.inputs.random import pick_inputs
from tests.support.files.onnx_models import H, I, graph, gru, model, node, save, value, weights

INT: dict[str, Array] = {
    "axis": np.array([1]),
    "flat": np.array([-1]),
    "first": np.array([0, 1, 2]),
    "count": np.array([3]),
}
INT["two"] = np.array(2)
WAYS: dict[str, tuple[list[int | str], list[NodeProto]]] = {
    "Cast": (["batch"], []),
    "Identity": (["batch"], [node("Identity", ["l"], ["a"])]),
    "TopK": (["batch"], [node("TopK", ["l", "count"], ["a", "places"])]),
    "Gather": (["batch"], [node("Gather", ["l", "first"], ["a"])]),
    "Squeeze": (["batch", 1], [node("Squeeze", ["l", "axis"], ["a"])]),
    "Reshape": ([1, "batch"], [node("Reshape", ["l", "flat"], ["a"])]),
    "Expand": ([], [node("Expand", ["l", "count"], ["a"])]),
    "Min": (
        ["batch"],
        [node("Shape", ["X"], ["s"]), node("Gather", ["s", "zero"], ["T"]), node("Min", ["l", "T"], ["a"])],
    ),
    "Div": (
        ["batch"],
        [node("Div", ["l", "two"], ["h"]), node("Add", ["h", "h"], ["b"]), node("Min", ["b", "l"], ["a"])],
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_known", [True, False])
def test_lengths_from_other_operators(way: str, is_known: bool, tmp_path: Path) -> None:
    """They lie between 1 and the number of steps, and one row has them all."""
    shape, between = WAYS[way]
    end = between[-1].output[0] if between else "l"
    nodes: list[NodeProto] = [*between, node("Cast", [end], ["lens"], to=onnx.TensorProto.INT32)]
    x = "X"
    if not is_known:  # no inferred shape says how many steps there are
        nodes += [node("Shape", ["X"], ["sizes"]), node("Reshape", ["X", "sizes"], ["x"])]
        x = "x"
    nodes.append(gru(x, ["Y"], bias="B", lens="lens", name="g"))
    infos: list[ValueInfoProto] = [value("X", "float32", ["time", "batch", I]), value("l", "int64", shape)]
    constants = {**weights(), **INT, "zero": np.array(0)}
    loaded = onegru.load(save(tmp_path, model(graph(nodes, infos, ["Y"], constants))))
    for seed in range(3):
        drawn, _ = pick_inputs(loaded, {}, seed, {"time": 20, "batch": 3})
        lengths = loaded.trace(drawn)[0]["sequence_lens"]
        assert drawn["l"].min() >= 1 and lengths.max() == 20, drawn["l"]


def branch(name: str) -> onnx.GraphProto:
    made = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, None)
    return onnx.helper.make_graph([node("Identity", ["l"], [name])], name, [], [made])


COUNTED: dict[str, tuple[str, list[NodeProto]]] = {
    "a mask": (
        "int64",
        [
            node("Shape", ["X"], ["s"]),
            node("Gather", ["s", "zero"], ["T"]),
            node("Range", ["zero", "T", "one"], ["steps"]),
            node("Unsqueeze", ["steps", "axis"], ["each"]),
            node("Less", ["each", "l"], ["runs"]),
            node("Unsqueeze", ["runs", "axes"], ["mask"]),
            node("Where", ["mask", "y", "nothing"], ["Y"]),
        ],
    ),
    "the last step": (
        "int64",
        [
            node("Sub", ["l", "one"], ["index"]),
            node("Reshape", ["index", "shape"], ["b1"]),
            node("Expand", ["b1", "whole"], ["each"]),
            node("GatherElements", ["y", "each"], ["Y"], axis=0),
        ],
    ),
    "a branch": (
        "int64",
        [
            node("If", ["yes"], ["l2"], then_branch=branch("then"), else_branch=branch("else")),
            node("Cast", ["l2"], ["lens"], to=onnx.TensorProto.INT32),
            gru("X", ["Y"], lens="lens", name="other"),
        ],
    ),
    "floats": (
        "float32",
        [
            node("Cast", ["l"], ["lens"], to=onnx.TensorProto.INT32),
            gru("X", ["Y"], lens="lens", name="other"),
        ],
    ),
}


@pytest.mark.parametrize("way", COUNTED)
def test_lengths_that_count_steps_elsewhere(way: str, tmp_path: Path) -> None:
    """Of a mask or of an index, with which a check would else look only at the first step."""
    dtype, after = COUNTED[way]
    infos = [value("X", "float32", ["time", "batch", I]), value("l", dtype, ["batch"])]
    constants = {
        **{**weights(), **INT, "zero": np.array(0), "one": np.array(1), "axes": np.array([1, 3])},
        **{"shape": np.array([1, 1, -1, 1]), "whole": np.array([1, 1, 1, H])},
        **{"nothing": np.zeros((), np.float32), "yes": np.array(True)},
    }
    nodes = [gru("X", ["y"], bias="B", name="g"), *after]
    loaded = onegru.load(save(tmp_path, model(graph(nodes, infos, ["Y"], constants), opset=14)))
    for seed in range(3):
        lengths = pick_inputs(loaded, {}, seed, {"time": 20, "batch": 3})[0]["l"]
        assert lengths.min() >= 1 and lengths.max() == 20 and (lengths == np.floor(lengths)).all(), lengths


def test_numbers_that_are_no_lengths(tmp_path: Path) -> None:
    """Which a table is asked for, or a threshold."""
    nodes = [
        node("Gather", ["table", "who"], ["row"]),
        node("Greater", ["X", "least"], ["over"]),
        node("Where", ["over", "X", "row"], ["x"]),
        gru("x", ["Y"], bias="B", name="g"),
    ]
    infos = [value("X", "float32", ["t", "b", I]), value("who", "int64", [1]), value("least", "float32", [1])]
    constants = {**weights(), "table": np.ones((2, I), np.float32)}
    loaded = onegru.load(save(tmp_path, model(graph(nodes, infos, ["Y"], constants))))
    drawn, _ = pick_inputs(loaded, {}, 0, {"t": 20, "b": 3})
    assert drawn["who"].max() <= 1 and abs(drawn["least"]).max() < 3
