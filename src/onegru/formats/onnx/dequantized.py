"""Dequantize constant weights of GRU nodes once: fold their DequantizeLinear nodes.

ONNX Runtime does not fold these nodes, because many of its kernels use the integers. It has no such kernel
for GRU, and would run DequantizeLinear in every call.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import onnx
from onnx import AttributeProto, ModelProto, NodeProto

from onegru.core.dtypes import Array
from onegru.core.quantized import dequantize
from onegru.dataflow.table import Elements, movers
from onegru.engines.storage import quantize_channels
from onegru.formats.onnx.validate import Source, drop_named, is_onnx, is_ours, replace_nodes
from onegru.formats.onnx.values import Values, all_graphs, all_values

# Operators that are allowed between DequantizeLinear and a GRU.
_MOVERS = movers(
    Elements.KEPT | Elements.PERMUTED | Elements.CUT | Elements.JOINED,
    casts=True,
    without=("Flatten", "Gather"),
)
#: Operators that turn constants into weights; the execution provider runs all of them ahead of time.
#: ONNX Runtime's optimizer adds QuantizeLinear.
CARRIERS = {"DequantizeLinear", "QuantizeLinear", *(kind for kind in _MOVERS if "::" not in kind)}
#: The first opset with each attribute.
_SINCE = {"axis": 13, "block_size": 21, "output_dtype": 23}
_WEIGHTS = slice(1, 4)  # W, R and B among the inputs of either operator


def int8_opset(group: int) -> int:
    """Return the first opset whose DequantizeLinear supports scales by row, or by group of weights."""
    return _SINCE["block_size" if group else "axis"]


def quantized_inputs(matrix: Array, group: int) -> tuple[Array, Array, dict[str, Any]]:
    """Return the integers [D·3H, K], the scales and the attributes of a DequantizeLinear node."""
    q, scale = quantize_channels(matrix, group)
    if group:
        return q, scale, {"axis": 2, "block_size": group}
    is_single = len(q) == 1
    return q if is_single else q.reshape(-1, q.shape[2]), scale.ravel(), {"axis": int(is_single)}


def fold_dequantized(source: Source, model: ModelProto, opset: int) -> bool:
    """Replace DequantizeLinear nodes of constants by their results, where only GRU nodes use them."""
    kind = "DequantizeLinear"
    if not any(node.op_type == kind for graph in all_graphs(model.graph) for node in graph.node):
        return False
    if not _replace(source, model, kind, functools.partial(dequantized, opset)):
        return False
    _replace(source, model, "Reshape", _reshaped)  # from `onegru quantize`, for two directions
    return True


def _replace(
    source: Source, model: ModelProto, kind: str, value_of: Callable[[Values, NodeProto], Array | None]
) -> bool:
    """Replace nodes of one operator that lead to a weight by the results of `value_of`."""
    levels = list(all_values(source, model))
    used_elsewhere = {id(values.graph): _used_elsewhere(values) for values in levels}
    found: dict[tuple[int, str], tuple[Values, NodeProto]] = {}
    for values in levels:
        for node in values.graph.node:
            if is_ours(node):
                for name in node.input[_WEIGHTS]:
                    for at, producer in _producers(values, name, kind):
                        graph_id = id(at.graph)
                        if (output := producer.output[0]) not in used_elsewhere[graph_id]:
                            found[graph_id, output] = at, producer
    made = [(values.graph, node, value_of(values, node)) for values, node in found.values()]
    replaced_inputs: set[str] = set()
    for graph, node, array in made:
        if array is not None:
            graph.initializer.append(onnx.numpy_helper.from_array(array, node.output[0]))
            replace_nodes(graph, [other for other in graph.node if other.output[:1] != node.output[:1]])
            replaced_inputs.update(node.input)
    for values in all_values(source, model):
        drop_named(
            values.graph.initializer,
            replaced_inputs - values.consumers.keys() - values.inputs - values.outputs,
        )
    return bool(replaced_inputs)


def _producers(values: Values, name: str, kind: str) -> Iterator[tuple[Values, NodeProto]]:
    """Find the nodes of this operator upstream of a value, through operators that only move elements."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        name = waiting.pop()
        at = values.owner(name)
        node = at.producers.get(name)
        if node is None or name in seen:
            continue
        seen.add(name)
        if node.op_type == kind and is_onnx(node):
            yield at, node
        elif _moves_numbers(node):
            waiting += filter(None, node.input)


def _used_elsewhere(values: Values) -> set[str]:
    """Return the values that are graph outputs, or inputs of operators other than GRU."""
    found = set(values.outputs)
    for name, nodes in values.consumers.items():
        if not all(is_ours(node) or _moves_numbers(node) for node in nodes):
            found.add(name)
    waiting = list(found)
    while waiting:
        node = values.producers.get(waiting.pop())
        if node is not None and _moves_numbers(node):
            more = set(node.input) - found
            found |= more
            waiting += more
    return found


def _moves_numbers(node: NodeProto) -> bool:
    return node.op_type in _MOVERS and is_onnx(node)


def dequantized(opset: int, values: Values, node: NodeProto) -> Array | None:
    """Compute a DequantizeLinear of constants; None for a case that is left to ONNX Runtime."""
    attributes = {item.name: item.i for item in node.attribute}
    known = {name for name, since in _SINCE.items() if opset >= since}
    is_plain = all(item.type == AttributeProto.INT for item in node.attribute)
    if not is_plain or not attributes.keys() <= known or len(attributes) < len(node.attribute):
        return None
    arrays = [values.constant(name) if name else None for name in node.input]
    x, scale, zero_point = [*arrays, None, None, None][:3]
    if x is None or scale is None or (zero_point is None and any(node.input[2:])) or len(arrays) > 3:
        return None
    if len(node.output) != 1:
        return None
    if attributes.get("output_dtype", 0) not in (0, onnx.helper.np_dtype_to_tensor_dtype(scale.dtype)):
        return None
    return dequantize(x, scale, zero_point, attributes.get("axis", 1), attributes.get("block_size", 0))


def _reshaped(values: Values, node: NodeProto) -> Array | None:
    """Reshape a constant; None for other values, or if a size is 0 or -1."""
    if len(node.input) != 2 or len(node.output) != 1:
        return None
    array, shape = (values.constant(name) for name in node.input)
    if array is None or shape is None or shape.ndim != 1 or not (shape > 0).all():
        return None
    return array.reshape(shape) if array.size == math.prod(shape.tolist()) else None
