"""Write models with a very long chain of operators, and a GRU at its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto
from openvino import opset13 as ops

from tests.support.files import onnx_models, openvino_models
from tests.support.files.onnx_models import I, graph, gru, model, node, value

# A link: the nodes that compute a new value from another, by the link's number and both names.
Link = Callable[[int, str, str], list[NodeProto]]

# Links on a [time, batch, I] tensor.
ON_X: dict[str, Link] = {
    "unary": lambda n, a, b: [node(("Tanh", "Neg")[n % 2], [a], [b])],
    "identity": lambda n, a, b: [node("Identity", [a], [b])],
    "cast": lambda n, a, b: [node("Cast", [a], [b], to=(11, 1)[n % 2])],
    "axes": lambda n, a, b: [node(("Unsqueeze", "Squeeze")[n % 2], [a, "zero"], [b])],
    "transpose": lambda n, a, b: [node("Transpose", [a], [b], perm=[1, 0, 2])],
    "reshape": lambda n, a, b: [node("Reshape", [a, "keep"], [b])],
    "sum": lambda n, a, b: [node("Add", [a, "X"], [b])],
    "twice": lambda n, a, b: [node("Mul", [a, a], [b])],
    "blend": lambda n, a, b: [
        node("Sigmoid", [a], [f"{b}z"]),
        node("Mul", [f"{b}z", a], [f"{b}p"]),
        node("Add", [f"{b}p", "X"], [b]),
    ],
    "qdq": lambda n, a, b: [
        node("QuantizeLinear", [a, "scale", "point"], [f"{b}q"]),
        node("DequantizeLinear", [f"{b}q", "scale", "point"], [b]),
    ],
    "matmul": lambda n, a, b: [node("MatMul", [a, "square"], [b])],
    "unknown": lambda n, a, b: [node("LpNormalization", [a], [b])],
    "where": lambda n, a, b: [node("Where", ["yes", a, "X"], [b])],
}
# Links on a list of three sizes.
ON_SIZES: dict[str, Link] = {
    "gather": lambda n, a, b: [node("Gather", [a, "all"], [b])],
    "concat": lambda n, a, b: [node("Concat", [a, "none"], [b], axis=0)],
    "slice": lambda n, a, b: [node("Slice", [a, "zero", "three"], [b])],
    "flat": lambda n, a, b: [node("Reshape", [a, "minus"], [b])],
    "arithmetic": lambda n, a, b: [node(("Add", "Sub")[n % 2], [a, "one"], [b])],
    "unsqueezed": lambda n, a, b: [node(("Unsqueeze", "Squeeze")[n % 2], [a, "zero"], [b])],
    "shape_of_shape": lambda n, a, b: [
        node("ConstantOfShape", [a], [f"{b}c"]),
        node("Shape", [f"{b}c"], [b]),
    ],
}
# Links on a constant, and on a condition.
ON_CONSTANT: dict[str, Link] = {"folded": lambda n, a, b: [node(("Neg", "Abs")[n % 2], [a], [b])]}
ON_CONDITION: dict[str, Link] = {
    "not": lambda n, a, b: [node("Not", [a], [b])],
    "and": lambda n, a, b: [node("And", [a, a], [b])],
}
KINDS = (*ON_X, *ON_SIZES, *ON_CONSTANT, *ON_CONDITION)

_CONSTANTS = {
    **{name: np.array([number], np.int64) for name, number in (("zero", 0), ("one", 1), ("three", 3))},
    "none": np.zeros(0, np.int64),
    "minus": np.array([-1], np.int64),
    "all": np.arange(3),
    "keep": np.array([0, 0, I]),
    "scale": np.array(0.05, np.float32),
    "point": np.array(0, np.int8),
    "square": np.eye(I, dtype=np.float32),
    "yes": np.array(True),
    "number": np.array([0.5], np.float32),
}


def _chained(link: Link, start: str, count: int) -> tuple[list[NodeProto], str]:
    """Return at least `count` nodes; an even number of links."""
    nodes: list[NodeProto] = []
    name, number = start, 0
    while len(nodes) < count or number % 2:
        nodes += link(number, name, f"v{number}")
        name, number = f"v{number}", number + 1
    return nodes, name


def chain(kind: str, count: int) -> ModelProto:
    """Return a model of a GRU after at least `count` operators of a kind."""
    nodes: list[NodeProto] = []
    last = "X"
    if kind in ON_X:
        nodes, last = _chained(ON_X[kind], "X", count)
    elif kind in ON_SIZES:
        nodes, sizes = _chained(ON_SIZES[kind], "sizes", count)
        nodes = [node("Shape", ["X"], ["sizes"]), *nodes, node("Reshape", ["X", sizes], ["last"])]
        last = "last"
    elif kind in ON_CONSTANT:
        nodes, number = _chained(ON_CONSTANT[kind], "number", count)
        nodes, last = [*nodes, node("Add", ["X", number], ["last"])], "last"
    else:
        nodes, condition = _chained(ON_CONDITION[kind], "flag", count)
        nodes = [node("Greater", ["X", "number"], ["flag"]), *nodes]
        nodes, last = [*nodes, node("Where", [condition, "X", "number"], ["last"])], "last"
    return _model(nodes, last)


def _model(nodes: list[NodeProto], last: str) -> ModelProto:
    inputs = [value("X", "float32", ["time", "batch", I]), value("h", "float32", [1, "batch", onnx_models.H])]
    end = gru(last, ["Y", "Y_h"], bias="B", initial_h="h", name="g")
    constants = {**_CONSTANTS, **onnx_models.weights()}
    return model(graph([*nodes, end], inputs, ["Y", "Y_h"], constants), opset=17)


def grus(count: int) -> ModelProto:
    """Return a model of stacked GRUs."""
    nodes: list[NodeProto] = []
    constants = onnx_models.weights(1, "first") | onnx_models.weights(2, "s", I=onnx_models.H)
    for place in range(count):
        weights = "first" if not place else "s"
        names = [f"{name}{weights}" for name in ("W", "R", "B")]
        x = "X" if not place else f"x{place}"
        nodes.append(node("GRU", [x, *names], [f"Y{place}"], hidden_size=onnx_models.H, name=f"g{place}"))
        nodes.append(node("Squeeze", [f"Y{place}", "one"], [f"x{place + 1}"]))
    inputs = [value("X", "float32", ["time", "batch", I])]
    return model(graph(nodes, inputs, [f"x{count}"], {**_CONSTANTS, **constants}), opset=17)


def nested(depth: int) -> bytes:
    """Return a model of a GRU inside nested Ifs, which protobuf itself may reject."""
    branch = graph([node("Neg", ["X"], ["inner"])], (), ["inner"]).SerializeToString()
    other = graph([node("Relu", ["X"], ["other"])], (), ["other"]).SerializeToString()
    end, made = "inner", b""
    for level in range(depth):
        new = f"i{level}"
        made = node("If", ["yes"], [new], name=f"if{level}").SerializeToString()
        for name, body in (("then_branch", branch), ("else_branch", other)):
            made += _field(5, _field(1, name.encode()) + _field(6, body) + bytes((0xA0, 1, 5)))
        end, branch = new, _field(1, made) + graph([], (), [new]).SerializeToString()
    rest: bytes = _model([], end).SerializeToString()
    return _field(7, _field(1, made)) + rest


def _field(number: int, data: bytes) -> bytes:
    """Return a field of a protobuf message: its key, its length, its bytes."""
    length = b""
    size = len(data)
    while size >= 128:
        length += bytes((size % 128 + 128,))
        size //= 128
    return bytes((number * 8 + 2,)) + length + bytes((size,)) + data


# IRs

ON_IR: dict[str, Callable[[int, object], object]] = {
    "unary": lambda n, a: (ops.tanh, ops.relu, ops.negative, ops.abs)[n % 4](a),
    "convert": lambda n, a: ops.convert(a, ("f64", "f32")[n % 2]),
    "axes": lambda n, a: (ops.unsqueeze, ops.squeeze)[n % 2](a, ops.constant(np.int64(0))),
    "add": lambda n, a: ops.add(a, a),
    "reshape": lambda n, a: ops.reshape(a, ops.constant(np.array([0, 0, 4])), True),
}
IR_SIZES = {
    "gather": lambda n, a: ops.gather(a, ops.constant(np.arange(3)), ops.constant(np.int64(0))),
    "concat": lambda n, a: ops.concat([a, ops.constant(np.zeros(0, np.int64))], 0),
    "multiply": lambda n, a: ops.multiply(a, ops.constant(np.int64(1))),
}
IR_KINDS = (*ON_IR, *IR_SIZES, "grus")


def ir_chain(path: Path, kind: str, count: int) -> Path:
    """Write an IR of a GRUSequence after at least `count` operators of a kind, or of `count` GRUSequences."""
    x = ops.parameter([-1, -1, openvino_models.I], np.float32, name="x")
    last = x
    if kind == "grus":
        for place in range(count):
            Y = openvino_models.sequence(last, openvino_models.I, openvino_models.I, seed=place)
            last = ops.squeeze(Y.output(0), ops.constant(np.int64(1)))
        return openvino_models.save(path, {"out": last.output(0)}, [x])
    if kind in ON_IR:
        for place in range(count + count % 2):
            last = ON_IR[kind](place, last)
    else:
        sizes = ops.shape_of(x)
        for place in range(count):
            sizes = IR_SIZES[kind](place, sizes)
        last = ops.reshape(x, sizes, False)
    Y = openvino_models.sequence(last, openvino_models.I)
    return openvino_models.save(path, {"out": ops.relu(Y.output(0)).output(0)}, [x])
