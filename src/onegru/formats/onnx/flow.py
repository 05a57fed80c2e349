"""Convert ONNX graphs to flows."""

from __future__ import annotations

import functools
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from typing import Any

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TypeProto

from onegru.core.dtypes import Array
from onegru.dataflow.flow import Flow, LazyFlow
from onegru.dataflow.operator import TIMES, Op, Shape
from onegru.formats.onnx.node import is_plain_constant
from onegru.formats.onnx.order import nodes_in_order
from onegru.formats.onnx.sizes import without_weights
from onegru.formats.onnx.validate import Source, attribute_graphs, element_type, is_onnx, to_array
from onegru.formats.onnx.values import Values


class GraphTypes(ChainMap[str, TypeProto]):
    """The known types of the values in a graph and in the enclosing graphs."""

    def __init__(self, graph: GraphProto, outer: GraphTypes | None = None) -> None:
        stated = (*graph.value_info, *graph.output, *graph.input)
        own = {value.name: value.type for value in stated if value.type.WhichOneof("value") is not None}
        super().__init__(own, *(() if outer is None else outer.maps))
        self._bodies = {
            _first_output(node): [GraphTypes(body, self) for body in attribute_graphs(node)]
            for node in graph.node
            if any(attribute_graphs(node))
        }

    def bodies(self, node: NodeProto) -> Iterator[tuple[GraphProto, GraphTypes]]:
        """Iterate over the subgraphs of a node, and the types of their values."""
        known = self._bodies.get(_first_output(node), [])
        return zip(attribute_graphs(node), chain(known, repeat(self)), strict=False)


def _first_output(node: NodeProto) -> str:
    return next(filter(None, node.output), "")


def graph_types(model: ModelProto) -> GraphTypes:
    """Return the stated and inferred types of a model's values."""
    try:
        # Without data_prop, which needs unbounded memory for growing shapes.
        inferred = onnx.shape_inference.infer_shapes(without_weights(model))
    except Exception:  # no specific class; only the stated types are available then
        inferred = model
    return GraphTypes(inferred.graph)


def flow_of(
    source: Source,
    graph: GraphProto,
    types: GraphTypes,
    ir_version: int,
    outer: Flow | None = None,
) -> Flow:
    """Convert a graph, or a subgraph of `outer`, to a flow."""
    nodes = nodes_in_order(source, graph) if outer is None else list(graph.node)
    values = Values(source, graph, ir_version, types)
    constants = _constants_of(values, values.producers)
    ops: list[Op] = []
    shapes, dtypes = _stated(graph)
    names = [value.name for value in (*graph.input, *graph.output, *graph.value_info)]
    names += [name for node in nodes for name in node.output]
    for name in names:
        if name in types and name not in shapes:
            _learn(name, types[name], shapes, dtypes)
    flow = Flow(
        [],
        [value.name for value in graph.input],
        [value.name for value in graph.output],
        constants,
        shapes,
        dtypes,
        outer,
    )
    for node in nodes:
        if not (is_plain_constant(node) and node.output):
            ops.append(_op_of(source, node, types, ir_version, flow))
    flow.ops = ops
    flow.reconnect()
    return flow


def lazy_flow_of(values: Values) -> LazyFlow:
    """Convert a graph to a lazy flow that only knows shapes and constants."""
    graph, plain = values.graph, [node for node in values.graph.node if is_plain_constant(node)]
    constants = _constants_of(values, [name for node in plain for name in node.output])
    read = functools.partial(
        _op_of, values.source, types=GraphTypes(GraphProto()), ir_version=values.ir_version
    )
    producers: dict[str, Callable[[], Op]] = {}
    flow = LazyFlow([value.name for value in graph.input], producers, constants, *_stated(graph))
    for name, node in values.producers.items():
        if name not in constants:
            producers[name] = functools.partial(read, node, flow=flow)
    return flow


def _constants_of(values: Values, others: Iterable[str]) -> dict[str, Callable[[], Array]]:
    """Return readers for the constants among a graph's initializers and some other values."""
    names = [*values.tensors, *others]
    held = {name: constant for name in names if (constant := values.holder(name)) is not None}
    return {name: functools.partial(values.array, constant) for name, constant in held.items()}


def _stated(graph: GraphProto) -> tuple[dict[str, Shape], dict[str, str]]:
    """Return the shapes and element types that a graph states."""
    shapes: dict[str, Shape] = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    dtypes: dict[str, str] = {}
    for value in (*graph.input, *graph.output, *graph.value_info):
        _learn(value.name, value.type, shapes, dtypes)
    return shapes, dtypes


def _op_of(source: Source, node: NodeProto, types: GraphTypes, ir_version: int, flow: Flow) -> Op:
    kind = node.op_type if is_onnx(node) else f"{node.domain}::{node.op_type}"
    attributes: dict[str, Any] = {}
    bodies: dict[str, Flow] = {}
    inner = (known for _, known in types.bodies(node))
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            bodies[attribute.name] = flow_of(source, attribute.g, next(inner), ir_version, flow)
        elif attribute.type == AttributeProto.GRAPHS or attribute.ref_attr_name:
            kind = f"unknown::{kind}"
        elif attribute.type == AttributeProto.TENSOR:
            attributes[attribute.name] = to_array(source, attribute.t)
        else:
            value = onnx.helper.get_attribute_value(attribute)
            attributes[attribute.name] = value.decode(errors="replace") if isinstance(value, bytes) else value
    if kind == "Cast":
        dtype = element_type(attributes.pop("to", 0))
        attributes["dtype"] = None if dtype is None else dtype.name
    if kind in _OLD_BROADCAST and ("axis" in attributes or "broadcast" in attributes):
        kind = f"unknown::{kind}"
    return Op(kind, tuple(node.input), tuple(node.output), attributes, bodies, node, node.name)


_OLD_BROADCAST = ("Add", "Sub", "Mul", "Div", "And", "Or", "Less", "Greater", "Equal", "PRelu", "Pow")


def _learn(name: str, kind: TypeProto, shapes: dict[str, Shape], dtypes: dict[str, str]) -> None:
    """Record the shape and element type of a value."""
    if not kind.HasField("tensor_type"):
        return
    if kind.tensor_type.HasField("shape"):
        shapes[name] = tuple(
            dim.dim_value
            if dim.HasField("dim_value") and dim.dim_value >= 0
            else (
                f"dim:{dim.dim_param}" if dim.dim_param and TIMES not in dim.dim_param else f"{name}#{axis}"
            )
            for axis, dim in enumerate(kind.tensor_type.shape.dim)
        )
    dtype = element_type(kind.tensor_type.elem_type)
    if dtype is not None:
        dtypes[name] = dtype.name
