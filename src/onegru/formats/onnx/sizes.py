"""Remove the weights of a model for analyses of shapes."""

from __future__ import annotations

import math

import onnx
from onnx import GraphProto, ModelProto, TensorProto

_MOST_NUMBERS = 256  # largest constant that `without_weights` keeps


def without_weights(model: ModelProto) -> ModelProto:
    """Return a model with inputs instead of large constants; its functions and subgraphs are kept."""
    old = model.graph
    graph = GraphProto(name=old.name, input=old.input, output=old.output, value_info=old.value_info)
    inputs = {value.name for value in old.input}
    nodes: list[onnx.NodeProto] = []
    for node in old.node:
        tensor = node.attribute[0].t if node.op_type == "Constant" and len(node.attribute) == 1 else None
        if tensor is not None and node.output and math.prod(tensor.dims) > _MOST_NUMBERS:
            graph.input.append(_stated(node.output[0], tensor))
        else:
            nodes.append(node)
    graph.node.extend(nodes)
    for tensor in old.initializer:
        if math.prod(tensor.dims) <= _MOST_NUMBERS and tensor.data_location != TensorProto.EXTERNAL:
            graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            graph.input.append(_stated(tensor.name, tensor))
    return ModelProto(
        ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions, graph=graph
    )


def _stated(name: str, tensor: TensorProto) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
