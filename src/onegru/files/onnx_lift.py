"""Lifting nodes of opsets that ONNX Runtime no longer runs to one that it does, by onnx's own converter."""

from __future__ import annotations

import contextlib

import onnx
from onnx import ModelProto, NodeProto, TypeProto, version_converter

from onegru.files.onnx_read import Source, describe, is_gru, node_inputs

__all__ = ["OLDEST", "infer_types", "lift"]

#: The oldest opset that ONNX Runtime promises to run.
OLDEST = 7


def infer_types(model: ModelProto) -> dict[str, TypeProto]:
    """The types and shapes of a model's values, as far as onnx can tell: the converter asks for them."""
    copy = ModelProto()
    copy.CopyFrom(model)
    known = {value.name for value in copy.graph.value_info}
    element = {value.name: value.type.tensor_type.elem_type for value in copy.graph.input}
    for node in copy.graph.node:
        # GRU-1 has no shape inference of its own; its ranks are in its text.
        if is_gru(node) and node.input and node.input[0] in element:
            for name, rank in zip(node.output, (4, 3), strict=False):
                if name and name not in known:
                    info = onnx.helper.make_tensor_value_info(name, element[node.input[0]], [None] * rank)
                    copy.graph.value_info.append(info)
    with contextlib.suppress(Exception):  # inference is a help, not a condition
        copy = onnx.shape_inference.infer_shapes(copy)
    values = [*copy.graph.value_info, *copy.graph.input, *copy.graph.output]
    return {value.name: value.type for value in values if value.HasField("type")}


def lift(source: Source, model: ModelProto) -> ModelProto:
    """The same model at opset `OLDEST`.

    Raises:
        FormatError: the converter does not know how; the message names the node.
    """
    try:
        return _convert(model)
    except Exception as error:  # a C++ exception of no particular class
        for node in model.graph.node:
            reason = _why_not(model, node)
            if reason is not None:
                raise source.error(
                    f"{describe(node)}: cannot be lifted from opset {_version(model)} to {OLDEST} ({reason})"
                ) from None
        raise source.error(f"cannot be lifted to opset {OLDEST} ({_line(error)})") from None


def _version(model: ModelProto) -> int:
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1)


def _convert(model: ModelProto) -> ModelProto:
    return version_converter.convert_version(model, OLDEST)


def _why_not(model: ModelProto, node: NodeProto) -> str | None:
    """Why the converter fails on this node alone; None if it does not."""
    types = {value.name: value for value in [*model.graph.input, *model.graph.value_info]}
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    names = sorted(node_inputs(node))
    graph = onnx.helper.make_graph(
        [node],
        "node",
        [types.get(name) or onnx.ValueInfoProto(name=name) for name in names if name not in tensors],
        [onnx.ValueInfoProto(name=name) for name in node.output if name],
        [tensors[name] for name in names if name in tensors],
    )
    alone = ModelProto(ir_version=model.ir_version, graph=graph)
    alone.opset_import.extend(model.opset_import)
    try:
        _convert(alone)
    except Exception as error:  # a C++ exception of no particular class
        return _line(error)
    return None


def _line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[-1] if text else type(error).__name__
