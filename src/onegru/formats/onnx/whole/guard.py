"""Insert nodes that prevent ONNX Runtime from crashing the process.

Its LSTM kernel crashes on an empty batch (seen in 1.31). Sizes are known only in a run. So X is reshaped to
its own shape times 1, where the 1 is the size of a scalar reshaped to [1, 1, 1]. If X is empty where it must
not be, that shape is impossible and the node fails. This works for every element type.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from onegru.core.dtypes import Array
from onegru.formats.onnx.validate import attribute_graphs, describe, is_onnx, replace_nodes

# Whether X can have 0 steps, 0 rows, 0 features.
_MAY_BE_EMPTY: Mapping[str, tuple[bool, bool, bool]] = {"LSTM": (True, False, False)}


def guard(model: ModelProto) -> bool:
    """Insert the nodes, in bodies and functions too. The model must be of opset 7 or later."""
    return any([_guard(owner) for owner in (model.graph, *model.functions)])


def _guard(owner: GraphProto | FunctionProto) -> bool:
    is_changed = False
    nodes: list[NodeProto] = []
    for node in owner.node:
        for body in attribute_graphs(node):
            is_changed |= _guard(body)
        if node.op_type in _MAY_BE_EMPTY and is_onnx(node) and node.input:
            nodes += _checks(node)
        nodes.append(node)
    if len(nodes) > len(owner.node):
        is_changed = True
        replace_nodes(owner, nodes)
    return is_changed


def _checks(node: NodeProto) -> list[NodeProto]:
    """Return nodes that pass X through, and fail if it is empty where it must not be."""
    place = f"{describe(node)}, which takes no empty X"
    X = node.input[0]
    names = (f"{X}/onegru_check_{number}/{next(filter(None, node.output), '')}" for number in range(12))
    shape, full, ones, factor, scaled, least, wanted, number, fits, count, same, checked = names
    node.input[0] = checked
    may_be_empty = np.array(_MAY_BE_EMPTY[node.op_type])
    make = onnx.helper.make_node
    return [
        make("Shape", [X], [shape]),
        make("Cast", [shape], [full], to=TensorProto.BOOL),
        make("Cast", [full], [ones], to=TensorProto.INT64),
        _constant(factor, np.where(may_be_empty, 0, 3)),
        make("Mul", [ones, factor], [scaled]),
        _constant(least, np.where(may_be_empty, 1, -2)),
        make("Add", [scaled, least], [wanted]),
        _constant(number, np.array(0)),
        make("Reshape", [number, wanted], [fits], name=place),
        make("Size", [fits], [count]),
        make("Mul", [shape, count], [same]),
        make("Reshape", [X, same], [checked]),
    ]


def _constant(name: str, values: Array) -> NodeProto:
    return onnx.helper.make_node(
        "Constant", [], [name], value=onnx.numpy_helper.from_array(values.astype(np.int64))
    )
