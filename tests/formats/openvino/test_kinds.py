"""Layers of IRs as operators: what constants fold to is what OpenVINO computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from openvino import opset1, opset8
from openvino import opset13 as ops

from onegru.core.dtypes import Array
from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import Op
from onegru.formats.opened import open_model
from onegru.formats.openvino.constants import Constants
from onegru.formats.openvino.fields import AttributeParser
from onegru.formats.openvino.flow import IrGraphReader
from onegru.formats.openvino.kinds import UNARY, layer_of
from onegru.formats.openvino.states import ir_of
from onegru.formats.openvino.xml import parse_net
from tests.support.decomposed.ir import constant, scalar

NUMBERS = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32) * 2


def whole(*values: int) -> Any:
    return ops.constant(np.array(values, np.int32))


def axis(value: int) -> Any:
    return ops.constant(np.int64(value))


def strided(first: list[int], last: list[int], step: list[int], **masks: list[int]) -> Callable[[Any], Any]:
    def build(x: Any) -> Any:
        ignored = masks.pop("begin", []), masks.pop("end", [])
        begin, end = first, last
        return ops.strided_slice(x, constant(*begin), constant(*end), constant(*step), *ignored, **masks)

    return build


X = Callable[[Any], Any]
CASES: dict[str, X] = {
    "matmul": lambda x: ops.matmul(x, ops.constant(NUMBERS[0]), False, True),
    "matmul of a column": lambda x: ops.matmul(ops.constant(NUMBERS[:, 0].T), x, True, True),
    "add": lambda x: ops.add(x, ops.constant(NUMBERS[0])),
    "divide": lambda x: ops.divide(scalar(1), ops.add(ops.abs(x), scalar(1))),
    "divide integers": lambda x: ops.divide(whole(-7, 7, 8), whole(2, -2, 2)),
    "mod of integers": lambda x: ops.mod(whole(-7, 7, 8), whole(2, -2, 3)),
    "power": lambda x: ops.power(ops.abs(x), scalar(1.5)),
    "reciprocal": lambda x: ops.power(x, scalar(-1)),
    "square": lambda x: ops.power(x, scalar(2)),
    "root": lambda x: ops.power(ops.abs(x), scalar(0.5)),
    "clamp": lambda x: ops.clamp(x, -0.3, 1.1),
    "clamp of integers": lambda x: ops.clamp(whole(-3, -2, -1, 0, 1, 2, 3), -1.5, 2.5),
    "least": lambda x: ops.minimum(x, scalar(3.4028235e38)),
    "hard sigmoid": lambda x: ops.hard_sigmoid(x, scalar(0.3), scalar(0.4)),
    "hsigmoid": lambda x: ops.hsigmoid(x),
    "prelu": lambda x: ops.prelu(x, ops.constant(np.array([0.3], np.float32))),
    "elu": lambda x: ops.elu(x, 0.7),
    "softplus": lambda x: ops.softplus(x),
    "softsign": lambda x: ops.softsign(x),
    "relu": lambda x: ops.relu(x),
    "select": lambda x: ops.select(ops.greater(x, scalar(0.5)), x, ops.negative(x)),
    "logic": lambda x: ops.logical_and(ops.less(x, scalar(1)), ops.logical_not(ops.less(x, scalar(-1)))),
    "comparison": lambda x: ops.logical_or(ops.less_equal(x, scalar(1)), ops.greater_equal(x, scalar(2))),
    "reshape": lambda x: ops.reshape(x, constant(0, -1), True),
    "transpose": lambda x: ops.transpose(x, constant(2, 0, 1)),
    "transpose all": lambda x: ops.transpose(x, ops.constant(np.zeros(0, np.int64))),
    "squeeze": lambda x: ops.squeeze(ops.unsqueeze(x, constant(1, -1)), constant(1)),
    "split": lambda x: ops.split(x, axis(-1), 2).output(1),
    "variadic split": lambda x: ops.variadic_split(x, axis(2), constant(1, -1)).output(1),
    "concat": lambda x: ops.concat([x, ops.tanh(x)], -1),
    "gather": lambda x: ops.gather(x, constant(2, -1), axis(1)),
    "gather one": lambda x: ops.gather(x, axis(1), axis(-1)),
    "gather by version 1": lambda x: opset1.gather(x, constant(2, 0), axis(1)),
    "strided": strided([0, 1, 0], [2, 3, 4], [1, 1, 2]),
    "strided backwards": strided([0, 0, 0], [0, 0, 0], [1, 1, -1], begin=[1, 1, 1], end=[1, 1, 1]),
    "strided with one": strided([0, -1], [0, 0], [1, 1], begin=[1, 0], end=[1, 0], shrink_axis_mask=[0, 1]),
    "strided with a new axis": strided(
        [0, 0, 1], [0, 0, 2], [1, 1, 1], begin=[1, 1, 0], end=[1, 1, 0], new_axis_mask=[0, 1, 0]
    ),
    "strided with all": strided(
        [0, 0, 1], [0, 0, 2], [1, 1, 1], begin=[0, 1, 0], end=[0, 1, 0], new_axis_mask=[0, 1, 0],
        shrink_axis_mask=[1, 0, 0],
    ),
    "slice": lambda x: opset8.slice(x, constant(1, -1), constant(3, -9), constant(1, -1), constant(1, 2)),
    "slice without axes": lambda x: opset8.slice(x, constant(1), constant(2), constant(1)),
    "broadcast": lambda x: ops.broadcast(ops.constant(NUMBERS[0, :1]), constant(2, 3, 4)),
    "range": lambda x: ops.range(axis(1), axis(9), axis(3), "i64"),
    "range of several types": lambda x: ops.range(axis(1), ops.constant(np.int32(9)), axis(3), "f32"),
    "shape": lambda x: ops.shape_of(x),
    "convert": lambda x: ops.convert(x, "i32"),
    "einsum": lambda x: ops.einsum([x, ops.constant(NUMBERS[0])], "abc,dc->abd"),
}  # fmt: skip


def folded(path: Path) -> tuple[Array | None, str]:
    """What the output of an IR is known to be, and the kind of operator that gives it."""
    file = open_model("path", path)
    assert file.weights is not None
    words, root = AttributeParser(path), ir_of(file)[0]
    graph = IrGraphReader(words, Constants(words, file.weights)).read(parse_net(path, root), root)
    (name,) = graph.flow.outputs
    op = graph.flow.find_producer(name)
    return graph.flow.constant(name), "" if op is None else op.kind


@pytest.mark.parametrize("name", CASES)
def test_constants_fold_to_what_openvino_computes(tmp_path: Path, name: str) -> None:
    node = CASES[name](ops.constant(NUMBERS))
    model = openvino.Model([ops.result(node)], [], "test")
    openvino.serialize(model, tmp_path / "model.xml")
    (expected,) = (
        openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([]).values()
    )
    found, kind = folded(tmp_path / "model.xml")
    assert found is not None, kind
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("kind", UNARY)
def test_layers_are_written_in_an_opset_that_has_them(tmp_path: Path, kind: str) -> None:
    flow = Flow([Op(kind, ("x",), ("y",))], ["x"], ["y"], {})
    layer = layer_of(flow, flow.ops[0])
    x = ops.parameter([2], bool if kind == "Not" else np.float32, name="x")
    path = tmp_path / "model.xml"
    node = ops.logical_not(x) if kind == "Not" else ops.abs(x)
    openvino.serialize(openvino.Model([ops.result(node)], [x], "test"), path)
    old = f'type="{node.get_type_name()}" version="opset1"'
    path.write_text(path.read_text().replace(old, f'type="{layer.type}" version="{layer.version}"'))
    types = {op.get_type_name().lower() for op in openvino.Core().read_model(path).get_ops()}
    assert layer.type.lower() in types  # OpenVINO calls ReLU Relu


def test_what_is_not_known_is_left_unchanged(tmp_path: Path) -> None:
    x = ops.parameter([2, 3, 4], np.float32, name="x")
    first, second = constant(0), constant(1)
    ellipsis = {"new_axis_mask": [0], "shrink_axis_mask": [0], "ellipsis_mask": [1]}
    nodes = [
        ops.strided_slice(x, first, second, second, [0], [0], **ellipsis),
        ops.gather(x, ops.constant(np.zeros((2, 1), np.int64)), axis(1), 1),
        ops.roll(x, ops.constant([1]), ops.constant([1])),
    ]
    for node in nodes:
        openvino.serialize(openvino.Model([ops.result(node)], [x], "test"), tmp_path / "model.xml")
        found, kind = folded(tmp_path / "model.xml")
        assert found is None and kind.startswith("openvino::")
