"""Draw near misses: decomposed GRUs with one more operator after a random value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.support.decomposed.draw import KINDS, Decomposed
from tests.support.decomposed.graph import Array, Generator, chance, pick

# No number saturates activations or rounds to one, because rounding would then decide at jumps.
_NUMBERS = (0.01, 0.05, 0.1, 0.26, 0.45, 0.51, 0.9, 1.01, 1.6, 3.1)
_PARAMETER_COUNTS = {"LeakyRelu": 1, "Elu": 1, "ThresholdedRelu": 1, "HardSigmoid": 2}
_UNARY = ("Abs", "Relu", "Neg", "Softsign", "Softplus", "Tanh", "Sigmoid")
_MOVES = (
    "Gather",
    "Slice",
    "Split",
    "Squeeze",
    "Unsqueeze",
    "Reshape",
    "Transpose",
    "Concat",
    "Identity",
    "Expand",
)
_PAIRS = ("Min", "Max", "Add", "Mul")
#: Operators that change a value. No Floor: if a state is 1 except for rounding, its result is uncertain.
#: Sums with another value make one GRU depend on the states of another.
_OF_TWO = tuple(f"{kind} of two" for kind in ("Min", "Max", "Mul", "Add"))
OPERATORS = (*_PAIRS, *_PARAMETER_COUNTS, *_UNARY, "Clip", "Where", *_OF_TWO, "Square", "Millionth")
# Relative change of a value of a float64 model. ONNX Runtime drops factors that float32 rounds to 1.
_HAIRS = (1e-6, 1e-7)


@dataclass(frozen=True)
class PerturbedModel:
    """Model with one perturbed value.

    Attributes:
        case: the model before.
        model: the model, of the same inputs and outputs.
        words: the perturbed value and its change, as text.
    """

    case: Decomposed
    model: ModelProto
    words: str


def draw_perturbed(rng: Generator, kind: str = "", *, is_float64: bool = False) -> PerturbedModel:
    """Draw a model, and insert an operator after one value, for all of its users or for one.

    Args:
        rng: the random generator.
        kind: a kind of `KINDS`; "" for any.
        is_float64: whether the model computes in float64, and most changes are nearly too small for float32.
    """
    case = KINDS[kind or pick(rng, list(KINDS))](rng)
    if is_float64:
        case = in_float64(case)
    model = onnx.shape_inference.infer_shapes(case.model)
    places = [(graph, *place) for graph in _graphs(model.graph) for place in _floats(graph)]
    computed = [place for place in places if place[0].node[place[1]].op_type not in _MOVES]
    graph, at, name = pick(rng, computed if computed and chance(rng, 0.9) else places)
    operator = pick(rng, OPERATORS)
    if is_float64 and chance(rng, 0.7):
        nodes, words = _hair(rng, name)
    else:
        nodes, words = _operator(rng, operator, name, _alike(graph, at, name))
    if is_float64:
        _widen(nodes)
    users = [node for node in graph.node[at + 1 :] if name in _inputs(node)]
    shown = [output.name for output in graph.output]
    if users and chance(rng, 0.3):
        users = [pick(rng, users)]
    elif name in shown:  # the node's name for it changes, and the perturbed value takes the old one
        _rename(graph.node[at].output, name, "straight")
        for node in nodes:
            _rename(node.input, name, "straight")
            _rename(node.output, "made", name)
        users = []
    for node in users:
        for inner in _nodes(node):
            _rename(inner.input, name, "made")
    made = graph.node[at].op_type
    for place, node in enumerate(nodes):
        graph.node.insert(at + 1 + place, node)
    whole = f"{words} of {name!r} ({made}, node {at} of {len(graph.node)}) for {len(users) or 'all'}"
    return PerturbedModel(case, model, f"{whole}; {case.recipe}")


def in_float64(case: Decomposed) -> Decomposed:
    """Return the same model in float64."""
    model = ModelProto()
    model.CopyFrom(case.model)
    for graph in _graphs(model.graph):
        _widen(graph.node)
        for tensor in graph.initializer:
            tensor.CopyFrom(_wide(tensor))
        for info in (*graph.input, *graph.output, *graph.value_info):
            if info.type.tensor_type.elem_type == TensorProto.FLOAT:
                info.type.tensor_type.elem_type = TensorProto.DOUBLE
    feeds = {
        name: array.astype(np.float64) if array.dtype == np.float32 else array
        for name, array in case.feeds.items()
    }
    return replace(case, model=model, feeds=feeds)


def _widen(nodes: Sequence[NodeProto]) -> None:
    """Turn the constants and casts of nodes into float64."""
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                attribute.t.CopyFrom(_wide(attribute.t))
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE


def _wide(tensor: TensorProto) -> TensorProto:
    if tensor.data_type != TensorProto.FLOAT:
        return tensor
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name)


def _hair(rng: Generator, name: str) -> tuple[list[NodeProto], str]:
    """Return nodes that change a value by slightly more than float32 rounding, with a description."""
    operator, by = str(pick(rng, ["Add", "Mul"])), float(pick(rng, _HAIRS))
    number = np.array(by + (operator == "Mul"))
    constant = helper.make_node("Constant", [], ["by"], value=numpy_helper.from_array(number))
    return [constant, helper.make_node(operator, [name, "by"], ["made"])], f"{operator} {number}"


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _nodes(node: NodeProto) -> Iterator[NodeProto]:
    """Yield a node and the nodes of its subgraphs."""
    yield node
    for attribute in node.attribute:
        if attribute.HasField("g"):
            for inner in attribute.g.node:
                yield from _nodes(inner)


def _inputs(node: NodeProto) -> set[str]:
    return {name for inner in _nodes(node) for name in inner.input}


def _floats(graph: GraphProto) -> Iterator[tuple[int, str]]:
    """Yield the floating-point outputs of a graph's nodes, which may be perturbed."""
    infos = (*graph.value_info, *graph.output)
    types = TensorProto.FLOAT, TensorProto.DOUBLE
    floats = {info.name for info in infos if info.type.tensor_type.elem_type in types}
    for at, node in enumerate(graph.node):
        if node.op_type != "Constant":
            yield from ((at, name) for name in node.output if name in floats)


def _alike(graph: GraphProto, at: int, name: str) -> list[str]:
    """Return earlier values of the same shape."""
    shapes = {info.name: info.type.tensor_type.shape.SerializeToString() for info in graph.value_info}
    before = [output for node in graph.node[:at] if node.op_type != "Constant" for output in node.output]
    return [other for other in before if other != name and shapes.get(other) == shapes.get(name, b"?")]


def _rename(names: Sequence[str], old: str, new: str) -> None:
    for place, name in enumerate(names):
        if name == old:
            names[place] = new  # type: ignore[index]


def _operator(rng: Generator, operator: str, name: str, others: list[str]) -> tuple[list[NodeProto], str]:
    """Return the nodes that change a value, with a description."""
    c = float(pick(rng, _NUMBERS)) * (1 if chance(rng, 0.6) else -1)
    if operator.endswith("of two"):
        if not others:
            operator = "Abs"
        else:
            other = pick(rng, others)
            return [helper.make_node(operator[:3], [name, other], ["made"])], f"{operator[:3]} with {other!r}"
    if operator == "Square":
        return [helper.make_node("Mul", [name, name], ["made"])], operator
    if operator == "Millionth":
        return [_constant("by", 1e-6), helper.make_node("Mul", [name, "by"], ["made"])], operator
    if operator in _PARAMETER_COUNTS:
        values = dict(zip(("alpha", "beta"), (abs(c), 0.5), strict=True))
        chosen: dict[str, Any] = dict(list(values.items())[: _PARAMETER_COUNTS[operator]])
        return [helper.make_node(operator, [name], ["made"], **chosen)], f"{operator} {abs(c)}"
    if operator in _UNARY:
        return [helper.make_node(operator, [name], ["made"])], operator
    first = _constant("by", c)
    if operator in _PAIRS:
        if operator in ("Add", "Mul"):
            first = _constant("by", c + (operator == "Mul"))
        return [first, helper.make_node(operator, [name, "by"], ["made"])], f"{operator} {c}"
    if operator == "Clip":
        low, high = sorted((c, float(pick(rng, _NUMBERS))))
        ends = [_constant("by", low), _constant("by2", high)]
        inputs = [name, *(pick(rng, [(e, f) for e in ("by", "") for f in ("by2", "") if e or f]))]
        return [*ends, helper.make_node("Clip", inputs, ["made"])], f"Clip {inputs[1:]} {low} {high}"
    nodes = [first, helper.make_node("Less", [name, "by"], ["less"]), _constant("by2", -c / 2)]
    return [*nodes, helper.make_node("Where", ["less", "by2", name], ["made"])], f"Where below {c}"


def _constant(name: str, value: float | Array) -> NodeProto:
    tensor = helper.make_tensor(f"{name}_value", TensorProto.FLOAT, (), [float(value)])
    return helper.make_node("Constant", [], [name], value=tensor)
