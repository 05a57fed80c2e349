"""Lifting nodes of opsets that ONNX Runtime no longer runs to one that it does, by onnx's own converter."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto, version_converter

from onegru.formats.onnx.order import node_inputs
from onegru.formats.onnx.read import Source, attribute_graphs, describe, is_gru, is_onnx, replace_nodes

#: The oldest opset that ONNX Runtime promises to run.
OLDEST = 7


def infer_types(model: ModelProto) -> dict[str, TypeProto]:
    """The types and shapes of a model's values, as far as onnx can tell: the converter asks for them."""
    copy = ModelProto()
    copy.CopyFrom(model)
    copy = _inferred(copy)
    types = _types(copy)
    elements = {name: kind.tensor_type.elem_type for name, kind in types.items()}
    elements |= {tensor.name: tensor.data_type for tensor in copy.graph.initializer}
    for node in copy.graph.node:
        # Shape inference leaves GRU-1 and GRU-3 out; their types and ranks are in their texts.
        element = next((elements[name] for name in node.input if elements.get(name)), None)
        if is_gru(node) and element is not None:
            for name, rank in zip(node.output, (4, 3), strict=False):
                if name and not types.get(name, TypeProto()).tensor_type.HasField("shape"):
                    _set_type(copy.graph, onnx.helper.make_tensor_value_info(name, element, [None] * rank))
    copy = _inferred(copy)
    # Many operators got their shape inference with opset 6, and it does for their earlier versions too.
    for entry in copy.opset_import:
        if is_onnx(entry):
            entry.version = OLDEST - 1
    return _types(_inferred(copy))


def _inferred(model: ModelProto) -> ModelProto:
    with contextlib.suppress(Exception):  # inference is a help, not a condition
        return onnx.shape_inference.infer_shapes(model)
    return model


def _set_type(graph: GraphProto, info: ValueInfoProto) -> None:
    for value in [*graph.value_info, *graph.output]:
        if value.name == info.name:
            value.CopyFrom(info)
            return
    graph.value_info.append(info)


def _types(model: ModelProto) -> dict[str, TypeProto]:
    values = [*model.graph.value_info, *model.graph.input, *model.graph.output]
    return {value.name: value.type for value in values if value.HasField("type")}


def lift(source: Source, model: ModelProto) -> ModelProto:
    """The same model at opset `OLDEST`.

    Raises:
        FormatError: the converter does not know how; the message names the node.
    """
    try:
        return _convert(model)
    except Exception as error:  # a C++ exception of no particular class, or a _CannotError
        for node in model.graph.node:
            reason = _why_not(model, node)
            if reason is not None:
                raise source.error(
                    f"{describe(node)}: cannot be lifted from opset {_version(model)} to {OLDEST} ({reason})"
                ) from None
        raise source.error(f"cannot be lifted to opset {OLDEST} ({_line(error)})") from None


def _version(model: ModelProto) -> int:
    return next((entry.version for entry in model.opset_import if is_onnx(entry)), 1)


def _convert(model: ModelProto) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    _lift_broadcasts(copy.graph, _ranks(copy.graph))
    _lift_grus(copy.graph)
    copy.opset_import.append(onnx.helper.make_opsetid(_LIFTED, 1))
    copy = version_converter.convert_version(copy, OLDEST)
    _take_back(copy.graph)
    opsets = [entry for entry in copy.opset_import if entry.domain != _LIFTED]
    del copy.opset_import[:]
    copy.opset_import.extend(opsets)
    return copy


def _why_not(model: ModelProto, node: NodeProto) -> str | None:
    """Why the converter fails on this node alone; None if it does not."""
    types = {value.name: value for value in [*model.graph.input, *model.graph.value_info]}
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    names = sorted(node_inputs(node))
    graph = onnx.helper.make_graph(
        [node],
        "node",
        [types.get(name) or ValueInfoProto(name=name) for name in names if name not in tensors],
        [ValueInfoProto(name=name) for name in node.output if name],
        [tensors[name] for name in names if name in tensors],
    )
    alone = ModelProto(ir_version=model.ir_version, graph=graph)
    alone.opset_import.extend(model.opset_import)
    try:
        _convert(alone)
    except Exception as error:  # a C++ exception of no particular class, or a _CannotError
        return _line(error)
    return None


def _line(error: Exception) -> str:
    """What went wrong, without the converter's own source lines."""
    text = str(error).strip()
    return text.splitlines()[-1].rpartition("failed: ")[2] if text else type(error).__name__


# Broadcasting: up to opset 6 by the attributes `broadcast` and `axis`, from 7 on by NumPy's rule. The
# converter knows it for some operators only, asks for every dimension, and misplaces a middle axis; so the
# nodes are lifted here, and kept from it under a domain that it does not know.

_BROADCASTING = frozenset(
    ("Add", "And", "Div", "Equal", "Gemm", "Greater", "Less", "Mul", "Or", "Pow", "PRelu", "Sub", "Xor")
)
_LIFTED = "onegru.lifted"


class _CannotError(Exception):
    """A node cannot be lifted; the message says why."""


def _ranks(graph: GraphProto) -> dict[str, int]:
    ranks = {
        value.name: len(value.type.tensor_type.shape.dim)
        for value in [*graph.input, *graph.value_info]
        if value.type.tensor_type.HasField("shape")
    }
    return ranks | {tensor.name: len(tensor.dims) for tensor in graph.initializer}


def _lift_broadcasts(graph: GraphProto, ranks: Mapping[str, int]) -> None:
    nodes: list[NodeProto] = []
    for node in graph.node:
        for body in attribute_graphs(node):
            _lift_broadcasts(body, {**ranks, **_ranks(body)})
        if node.op_type in _BROADCASTING and is_onnx(node):
            nodes += _lift_broadcast(node, ranks)
            node.domain = _LIFTED
        nodes.append(node)
    replace_nodes(graph, nodes)


def _lift_broadcast(node: NodeProto, ranks: Mapping[str, int]) -> list[NodeProto]:
    """Bring a node to NumPy's rule. Returns the node that it needs before it, if any."""
    values = {attribute.name: attribute.i for attribute in node.attribute}
    kept = [item for item in node.attribute if item.name not in ("axis", "broadcast", "consumed_inputs")]
    del node.attribute[:]
    node.attribute.extend(kept)
    # PRelu's slopes always lay along axis 1. Without an axis, or with -1, the last axes are meant.
    axis = 1 if node.op_type == "PRelu" else values.get("axis", -1) if values.get("broadcast") else -1
    if axis == -1 or len(node.input) < 2:
        return []
    first, second = node.input[0], node.input[1]
    for name in (first, second):
        if name not in ranks:
            raise _CannotError(f"axis {axis}, where the rank of {name!r} is not known")
    missing = ranks[first] - axis - ranks[second]
    if ranks[second] == 0 or missing == 0:
        return []
    if axis < 0 or missing < 0:
        raise _CannotError(
            f"axis {axis}, where {first!r} has rank {ranks[first]} and {second!r} {ranks[second]}"
        )
    node.input[1] = f"{second}/onegru_unsqueezed/{node.output[0]}"
    axes = range(ranks[second], ranks[second] + missing)
    return [onnx.helper.make_node("Unsqueeze", [second], [node.input[1]], axes=axes)]


def _lift_grus(graph: GraphProto) -> None:
    """Bring GRU nodes to version 7, in the same way: what they lose changes nothing."""
    for node in graph.node:
        for body in attribute_graphs(node):
            _lift_grus(body)
        if is_gru(node):
            node.domain = _LIFTED
            kept = [item for item in node.attribute if item.name != "output_sequence"]
            for item in kept:
                if item.name == "direction" and item.s == b"foward":  # as the text of version 1 spells it
                    item.s = b"forward"
            del node.attribute[:]
            node.attribute.extend(kept)


def _take_back(graph: GraphProto) -> None:
    """Give the nodes that were lifted here their domain back."""
    for node in graph.node:
        if node.domain == _LIFTED:
            node.domain = ""
        for body in attribute_graphs(node):
            _take_back(body)
