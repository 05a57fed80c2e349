"""The sizes in an ONNX graph."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx
from onnx import GraphProto, ModelProto, TensorProto

from onegru.formats.onnx.validate import is_gru, is_onnx
from onegru.formats.onnx.values import Values
from onegru.formats.sizes import Sizes

_MOST_NUMBERS = 256  # of a constant that `without_weights` keeps


class OnnxSizes(Sizes):
    """See `onegru.formats.sizes.Sizes`."""

    def __init__(self, values: Values) -> None:
        super().__init__(values.shape, values.integers_of)
        self._producers = values.producers

    def producer(self, value: str) -> tuple[str, Sequence[str]] | None:
        """See `Sizes`."""
        node = self._producers.get(value)
        if node is None or not is_onnx(node) or is_gru(node) or not node.input:
            return None
        if node.op_type == "Shape" and node.attribute:  # since version 15, from start to end
            return None
        return (node.op_type, node.input) if node.output[0] == value else None

    def axes(self, value: str) -> Sequence[int] | None:
        """See `Sizes`."""
        node = self._producers[value]
        stated = next((tuple(a.ints) for a in node.attribute if a.name in ("perm", "axes")), None)
        array = self.integers(node.input[1]) if len(node.input) == 2 else None
        return stated if array is None else tuple(array.ravel().tolist())


def without_weights(model: ModelProto) -> ModelProto:
    """A model with an input for each large constant; its functions and the bodies in its nodes are kept."""
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
