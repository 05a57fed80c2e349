"""Upgrade models from opsets that ONNX Runtime no longer supports."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from copy import deepcopy

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto, version_converter

from onegru.formats.onnx.functions.unfold import all_nodes
from onegru.formats.onnx.order import node_inputs
from onegru.formats.onnx.validate import (
    Source,
    attribute_graphs,
    describe,
    drop_named,
    is_gru,
    is_onnx,
    replace_nodes,
)
from onegru.operators.onnx import OLDEST_OPSET


def infer_types(model: ModelProto) -> dict[str, TypeProto]:
    """The types and shapes of a model's values, as onnx infers them: the converter needs them."""
    copy = infer_shapes(deepcopy(model))
    types = _types(copy)
    elements = {name: kind.tensor_type.elem_type for name, kind in types.items()}
    elements |= {tensor.name: tensor.data_type for tensor in copy.graph.initializer}
    for node in copy.graph.node:
        # Shape inference does not support GRU-1 and GRU-3; the specification has their types and ranks.
        element = next((elements[name] for name in node.input if elements.get(name)), None)
        if is_gru(node) and element is not None:
            for name, rank in zip(node.output, (4, 3), strict=False):
                if name and not types.get(name, TypeProto()).tensor_type.HasField("shape"):
                    _set_type(copy.graph, onnx.helper.make_tensor_value_info(name, element, [None] * rank))
    copy = infer_shapes(copy)
    # Many operators got shape inference with opset 6, which is also correct for their earlier versions.
    for entry in copy.opset_import:
        if is_onnx(entry):
            entry.version = OLDEST_OPSET - 1
    return _types(infer_shapes(copy))


def infer_shapes(model: ModelProto) -> ModelProto:
    """Return the model with inferred shapes, or unchanged if inference fails."""
    with contextlib.suppress(Exception):  # inference is optional
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


def upgrade(source: Source, model: ModelProto) -> ModelProto:
    """The same model at opset `OLDEST_OPSET`."""
    try:
        return _convert(model)
    except Exception as error:  # a C++ exception without a specific class, or a _CannotError
        for node in model.graph.node:
            if (reason := _why_not(model, node)) is not None:
                old = next((entry.version for entry in model.opset_import if is_onnx(entry)), 1)
                opsets = f"from opset {old} to {OLDEST_OPSET}"
                raise source.error(f"{describe(node)}: cannot be upgraded {opsets} ({reason})") from error
        raise source.error(
            f"cannot be upgraded to opset {OLDEST_OPSET} ({converter_reason(error)})"
        ) from error


def _convert(model: ModelProto) -> ModelProto:
    copy = deepcopy(model)
    _upgrade_broadcasts(copy.graph, _ranks(copy.graph))
    _upgrade_grus(copy.graph)
    copy.opset_import.append(onnx.helper.make_opsetid(_UPGRADED, 1))
    copy = version_converter.convert_version(copy, OLDEST_OPSET)
    for node in all_nodes(copy.graph.node):
        if node.domain == _UPGRADED:
            node.domain = ""
    copy.opset_import.remove(next(entry for entry in copy.opset_import if entry.domain == _UPGRADED))
    return copy


def _why_not(model: ModelProto, node: NodeProto) -> str | None:
    """Return why the converter fails on a model with only this node; None if it does not fail."""
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
    except Exception as error:  # a C++ exception without a specific class, or a _CannotError
        return converter_reason(error)
    return None


def converter_reason(error: Exception) -> str:
    """Return the reason in an error of onnx's converter, without its source lines."""
    text = str(error).strip()
    return text.splitlines()[-1].rpartition("failed: ")[2] if text else type(error).__name__


# Broadcasting used the attributes `broadcast` and `axis` up to opset 6, and NumPy's rule from 7 on. The
# converter supports only some operators, needs all dimensions, and misplaces a middle axis. So the nodes are
# upgraded here, and hidden from the converter in an unknown domain.

_BROADCASTING = frozenset(
    ("Add", "And", "Div", "Equal", "Gemm", "Greater", "Less", "Mul", "Or", "Pow", "PRelu", "Sub", "Xor")
)
_UPGRADED = "onegru.upgraded"


class _CannotError(Exception):
    """A node cannot be upgraded; the message has the reason."""


def _ranks(graph: GraphProto) -> dict[str, int]:
    ranks = {
        value.name: len(value.type.tensor_type.shape.dim)
        for value in [*graph.input, *graph.value_info]
        if value.type.tensor_type.HasField("shape")
    }
    return ranks | {tensor.name: len(tensor.dims) for tensor in graph.initializer}


def _upgrade_broadcasts(graph: GraphProto, ranks: Mapping[str, int]) -> None:
    nodes: list[NodeProto] = []
    for node in graph.node:
        for body in attribute_graphs(node):
            _upgrade_broadcasts(body, {**ranks, **_ranks(body)})
        if node.op_type in _BROADCASTING and is_onnx(node):
            nodes += _upgrade_broadcast(node, ranks)
            node.domain = _UPGRADED
        nodes.append(node)
    replace_nodes(graph, nodes)


def _upgrade_broadcast(node: NodeProto, ranks: Mapping[str, int]) -> list[NodeProto]:
    """Adapt a node to NumPy's rule; return the node that is needed before it, if any."""
    values = {attribute.name: attribute.i for attribute in node.attribute}
    drop_named(node.attribute, ("axis", "broadcast", "consumed_inputs"))
    # PRelu's slopes are always along axis 1. Without an axis, or with -1, the last axes are used.
    axis = 1 if node.op_type == "PRelu" else values.get("axis", -1) if values.get("broadcast") else -1
    if axis == -1 or len(node.input) < 2:
        return []
    first, second = node.input[0], node.input[1]
    for name in (first, second):
        if name not in ranks:
            raise _CannotError(f"axis {axis}, but the rank of {name!r} is unknown")
    missing = ranks[first] - axis - ranks[second]
    if ranks[second] == 0 or missing == 0:
        return []
    if axis < 0 or missing < 0:
        raise _CannotError(
            f"axis {axis}, but {first!r} has rank {ranks[first]} and {second!r} {ranks[second]}"
        )
    node.input[1] = f"{second}/onegru_unsqueezed/{node.output[0]}"
    axes = range(ranks[second], ranks[second] + missing)
    return [onnx.helper.make_node("Unsqueeze", [second], [node.input[1]], axes=axes)]


def _upgrade_grus(graph: GraphProto) -> None:
    """Convert GRU nodes to version 7 in the same way; the removed attributes have no effect."""
    for node in all_nodes(graph.node):
        if is_gru(node):
            node.domain = _UPGRADED
            drop_named(node.attribute, ("output_sequence",))
            for item in node.attribute:
                if item.name == "direction" and item.s == b"foward":  # a typo in version 1's specification
                    item.s = b"forward"
