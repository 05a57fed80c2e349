"""Weights of GRU nodes that a file keeps in integers, as DequantizeLinear nodes of constants.

ONNX Runtime runs these nodes in every call, where GRUs that it has integers for could take them. It has none
for GRUs, so the weights become constants of floating-point numbers, and onegru packs them once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto

from onegru.core.dtypes import Array, default_float_mode
from onegru.formats.onnx.order import sort_nodes
from onegru.formats.onnx.validate import (
    Source,
    attribute_graphs,
    drop_named,
    is_onnx,
    is_ours,
    replace_nodes,
)
from onegru.formats.onnx.values import Values, all_graphs

# What may stand between them and a GRU node: it moves numbers, and changes none.
_MOVERS = {"Identity", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Concat", "Split", "Slice"}
_INTEGERS = {"int4", "uint4", "int8", "uint8", "int16", "uint16", "int32"}
#: The opset from which on each attribute is there.
_SINCE = {"axis": 13, "block_size": 21, "output_dtype": 23}
_WEIGHTS = slice(1, 4)  # W, R and B among the inputs of either operator


def fold_dequantized(source: Source, model: ModelProto, opset: int) -> bool:
    """Turn the DequantizeLinear nodes of constants that GRU nodes alone take as weights into constants.

    Args:
        source: the file.
        model: the model, which this changes.
        opset: the version of its operators.

    Returns:
        whether there were any.

    Raises:
        FormatError: a constant is broken.
    """
    if not any(_is_dequantizing(node) for graph in all_graphs(model.graph) for node in graph.node):
        return False
    sort_nodes(source, model.graph)  # refuses graphs with cycles or ambiguous names
    if not _replace(source, model, _is_dequantizing, lambda values, node: _numbers(values, node, opset)):
        return False
    _replace(source, model, _is_reshaping, _reshaped)  # as `convert --quantize` writes two directions
    return True


def _replace(
    source: Source,
    model: ModelProto,
    is_one: Callable[[NodeProto], bool],
    value_of: Callable[[Values, NodeProto], Array | None],
) -> bool:
    """Turn nodes of one kind, before GRU nodes, into the constants that they give, where that is known."""
    found: dict[tuple[int, str], tuple[Values, NodeProto]] = {}
    for values in _levels(source, model):
        for node in values.graph.node:
            if is_ours(node):
                for name in node.input[_WEIGHTS]:
                    _find(values, name, is_one, found)
    made = [(values.graph, node, value_of(values, node)) for values, node in found.values()]
    taken: set[str] = set()
    for graph, node, array in made:
        if array is not None:
            graph.initializer.append(onnx.numpy_helper.from_array(array, node.output[0]))
            replace_nodes(graph, [other for other in graph.node if other.output[:1] != node.output[:1]])
            taken.update(node.input)
    for values in _levels(source, model):
        drop_named(values.graph.initializer, taken - values.consumers.keys() - values.inputs - values.outputs)
    return bool(taken)


def _levels(source: Source, model: ModelProto) -> Iterator[Values]:
    """The values of the graph, and of the bodies in it."""
    waiting = [Values(source, model.graph, model.ir_version)]
    while waiting:
        values = waiting.pop()
        yield values
        waiting += [values.of_body(body) for node in values.graph.node for body in attribute_graphs(node)]


def _is_dequantizing(node: NodeProto) -> bool:
    return node.op_type == "DequantizeLinear" and is_onnx(node)


def _is_reshaping(node: NodeProto) -> bool:
    return node.op_type == "Reshape" and is_onnx(node)


def _find(
    values: Values,
    name: str,
    is_one: Callable[[NodeProto], bool],
    found: dict[tuple[int, str], tuple[Values, NodeProto]],
) -> None:
    """Add the nodes of this kind that what becomes a value goes through, and that weights alone take."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        name = waiting.pop()
        at = values.owner(name)
        node = at.producers.get(name)
        if node is None or name in seen:
            continue
        seen.add(name)
        if is_one(node):
            if name not in at.outputs and all(map(_is_of_weights, at.consumers.get(name, ()))):
                found[id(at.graph), name] = at, node
        elif _is_of_weights(node) and not is_ours(node):
            waiting += filter(None, node.input)


def _is_of_weights(node: NodeProto) -> bool:
    """Whether a node may take dequantized weights, to run or to pass on."""
    return is_ours(node) or (node.op_type in _MOVERS and is_onnx(node))


def _numbers(values: Values, node: NodeProto, opset: int) -> Array | None:
    """(x - x_zero_point)·x_scale in float32, as ONNX Runtime has it; None for what it has to do itself."""
    attributes = {item.name: item.i for item in node.attribute}
    known = {name for name, since in _SINCE.items() if opset >= since}
    is_plain = all(item.type == AttributeProto.INT for item in node.attribute)
    if not is_plain or not attributes.keys() <= known or len(attributes) < len(node.attribute):
        return None
    if attributes.get("output_dtype", 0) not in (0, TensorProto.FLOAT) or len(node.output) != 1:
        return None
    arrays = [values.constant(name) if name else None for name in node.input]
    x, scale, zero_point = [*arrays, None, None, None][:3]
    if x is None or scale is None or (zero_point is None and any(node.input[2:])) or len(arrays) > 3:
        return None
    if x.dtype == np.int32 and zero_point is not None and zero_point.any():
        return None
    if x.dtype.name not in _INTEGERS or scale.dtype != np.float32:
        return None
    if zero_point is None:
        zero_point = np.zeros(scale.shape, x.dtype)
    if zero_point.shape != scale.shape or zero_point.dtype != x.dtype:
        return None
    axis, block_size = attributes.get("axis", 1), attributes.get("block_size", 0)
    of_each, of_zero = (_spread(array, x.shape, axis, block_size) for array in (scale, zero_point))
    if of_each is None or of_zero is None:
        return None
    with default_float_mode(), np.errstate(over="ignore", invalid="ignore"):
        offsets = x.astype(np.int64) - of_zero.astype(np.int64)
        return np.asarray(offsets.astype(np.float32) * of_each)


def _reshaped(values: Values, node: NodeProto) -> Array | None:
    """A constant in another shape; None for any other value, or where sizes are left to the operator."""
    if len(node.input) != 2 or len(node.output) != 1:
        return None
    array, shape = (values.constant(name) for name in node.input)
    if array is None or shape is None or shape.ndim != 1 or not (shape > 0).all():
        return None
    return array.reshape(shape) if array.size == math.prod(shape.tolist()) else None


def _spread(array: Array, shape: tuple[int, ...], axis: int, block_size: int) -> Array | None:
    """One number for all, for each slice of an axis, or for each block of it: to be broadcast to a shape."""
    if array.size == 1 and array.ndim <= 1 and block_size == 0:
        return array.reshape(())
    if not -len(shape) <= axis < len(shape) or block_size < 0:
        return None
    axis %= len(shape)
    if block_size == 0:
        sizes = [1] * len(shape)
        sizes[axis] = shape[axis]
        return array.reshape(sizes) if array.shape == (shape[axis],) else None
    wanted = (*shape[:axis], -(-shape[axis] // block_size), *shape[axis + 1 :])
    if array.shape != wanted:
        return None
    return np.take(array, np.arange(shape[axis]) // block_size, axis)
