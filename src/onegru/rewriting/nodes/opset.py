"""Convert the other nodes of a graph to another opset, one by one.

This uses onnx's converter. A node stays unchanged, byte for byte, if its operator did not change between the
opsets.
"""

from __future__ import annotations

from copy import deepcopy

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, version_converter

from onegru.core.errors import FormatError
from onegru.formats.onnx.node import type_words
from onegru.formats.onnx.order import node_inputs
from onegru.formats.onnx.upgrade import converter_reason, upgrade
from onegru.formats.onnx.validate import (
    attribute_graphs,
    describe,
    drop_named,
    is_gru,
    is_onnx,
    replace_nodes,
    trimmed,
)
from onegru.operators.onnx import OLDEST_OPSET
from onegru.rewriting.nodes.meanings import changed_meaning
from onegru.rewriting.nodes.scope import Scope

# From these versions on, only the accepted types changed. Scan-8 had a batch axis.
_SAME_BODIES_SINCE = {"If": 1, "Loop": 1, "Scan": 9, "SequenceMap": 17}
# Attributes of newer versions whose absence keeps the old behavior; the converter lacks some of them.
_WITHOUT_EFFECT = {
    "AveragePool": {"dilations"},
    "Cast": {"saturate", "round_mode"},
    "CastLike": {"saturate", "round_mode"},
    "Reshape": {"allowzero"},
    "ScatterElements": {"reduction"},
    "ScatterND": {"reduction"},
    "Shape": {"start", "end"},
}
_MOST_ELEMENTS = 4096  # elements of a constant that the converter may look at, such as axes and scales


def convert_nodes(scope: Scope, old: int, new: int) -> list[str]:
    """Convert the nodes of a scope's graph to another opset, except GRUs and nodes in subgraphs."""
    nodes: list[NodeProto] = []
    changed: list[str] = []
    for node in scope.graph.node:
        stays = not is_onnx(node) or is_gru(node) or is_same(scope, node, old, new)
        converted = None if stays else _converted(scope, node, old, new)
        nodes += [node] if converted is None else converted
        if converted is not None:
            changed.append(describe(node))
    masks = {name for node in nodes if node.op_type == "Dropout" for name in node.output[1:]}
    drop_named(scope.graph.value_info, masks)  # the type of an unused mask may differ in the new opset
    if changed:
        replace_nodes(scope.graph, nodes)
    return changed


def is_same(scope: Scope, node: NodeProto, old: int, new: int) -> bool:
    """Whether a node has the same meaning in both opsets; at most the accepted types differ."""
    schemas = []
    for opset in (old, new):
        try:
            schemas.append(onnx.defs.get_schema(node.op_type, opset, ""))
        except onnx.defs.SchemaError as error:
            raise _no_conversion(scope, node, old, new, f"opset {opset} has no such operator") from error
    first, second = schemas
    if reason := changed_meaning(scope, node, old, new):
        raise _no_conversion(scope, node, old, new, reason)
    if first.since_version == second.since_version:
        return True
    if any(attribute_graphs(node)):
        if min(first.since_version, second.since_version) >= _SAME_BODIES_SINCE.get(node.op_type, 10**9):
            return True
        raise _no_conversion(scope, node, old, new, "its subgraphs have a different form there")
    absent = _WITHOUT_EFFECT.get(node.op_type, set()) - {item.name for item in node.attribute}
    same = _signature(first, absent) == _signature(second, absent)
    return same and not second.deprecated and _accepts_types(scope, node, second)


def _signature(schema: onnx.defs.OpSchema, absent: set[str]) -> object:
    """Return the operator's attributes and ports, without types and without these attributes."""
    attributes = sorted(
        (name, str(item.type), item.required, item.default_value.SerializeToString())
        for name, item in schema.attributes.items()
        if name not in absent
    )
    ports = [(port.name, str(port.option)) for port in (*schema.inputs, *schema.outputs)]
    return attributes, ports, len(schema.inputs), schema.min_input, schema.max_input


def _accepts_types(scope: Scope, node: NodeProto, schema: onnx.defs.OpSchema) -> bool:
    """Whether an operator accepts the known types of a node's inputs."""
    for index, name in enumerate(node.input):
        port = schema.inputs[min(index, len(schema.inputs) - 1)]
        words = type_words(scope.type_of(name) or TypeProto())
        if name and words and words not in port.types:
            return False
    return True


def _no_conversion(scope: Scope, node: NodeProto, old: int, new: int, reason: str) -> FormatError:
    return scope.source.error(f"{describe(node)}: cannot be converted from opset {old} to {new} ({reason})")


def _converted(scope: Scope, node: NodeProto, old: int, new: int) -> list[NodeProto] | None:
    """Return the nodes that replace `node`; None if it can stay unchanged."""
    model = _one_node_model(scope, node, old)
    if old < OLDEST_OPSET <= new:
        model = upgrade(scope.source, model, old)
    try:
        model = version_converter.convert_version(model, new)
    except Exception as error:  # a C++ exception of no particular class
        raise _no_conversion(scope, node, old, new, converter_reason(error)) from error
    graph = model.graph
    for item in graph.node:  # the converter keeps attributes that it does not know
        known = onnx.defs.get_schema(item.op_type, new, "").attributes
        for attribute in item.attribute:
            if attribute.name not in known:
                raise _no_conversion(scope, node, old, new, f"{item.op_type} has no {attribute.name} there")
    if len(graph.node) == 1 and _same_content(graph.node[0], node):
        return None
    return _renamed_nodes(scope, node, graph)


def _one_node_model(scope: Scope, node: NodeProto, opset: int) -> ModelProto:
    """Return a model of only this node, with small constants, which the converter may need."""
    tensors: list[TensorProto] = []
    inputs: list[ValueInfoProto] = []
    for name in sorted(node_inputs(node)):
        array = scope.constant(name)
        if array is not None and array.size <= _MOST_ELEMENTS:
            tensors.append(onnx.numpy_helper.from_array(array, name))
        else:
            inputs.append(ValueInfoProto(name=name, type=scope.type_of(name)))
    outputs = [ValueInfoProto(name=name, type=scope.types.get(name)) for name in filter(None, node.output)]
    graph = onnx.helper.make_graph([node], "node", inputs, outputs, tensors)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)


def _same_content(one: NodeProto, other: NodeProto) -> bool:
    def key(node: NodeProto) -> object:
        attributes = sorted(item.SerializeToString(deterministic=True) for item in node.attribute)
        return node.op_type, trimmed(node.input), trimmed(node.output), attributes

    return key(one) == key(other)


def _renamed_nodes(scope: Scope, node: NodeProto, graph: GraphProto) -> list[NodeProto]:
    """Give the converter's nodes new names; the node with the same operator keeps its name."""
    base = node.name or next(filter(None, node.output))
    own = {*node_inputs(node), *node.output, ""}
    renamed: dict[str, str] = {}

    def name_of(name: str) -> str:
        if name in own:
            return name
        if name not in renamed:
            renamed[name] = scope.names.fresh(f"{base}/{name.strip('_')}")
        return renamed[name]

    for tensor in graph.initializer:
        if tensor.name not in own:
            array = onnx.numpy_helper.to_array(tensor)
            renamed[tensor.name] = scope.in_graph(scope.shared_constant(f"{base}/{tensor.name}", array))
    successor = next((item for item in graph.node if item.op_type == node.op_type), graph.node[-1])
    nodes: list[NodeProto] = []
    for item in graph.node:
        copy = deepcopy(item)
        del copy.input[:], copy.output[:]
        copy.input.extend(map(name_of, item.input))
        copy.output.extend(map(name_of, item.output))
        if item is successor:
            copy.name, copy.doc_string = node.name, node.doc_string
            del copy.metadata_props[:]
            copy.metadata_props.extend(node.metadata_props)
        else:
            copy.name = scope.names.fresh(f"{base}/{item.op_type}")
        nodes.append(copy)
    return nodes
