"""Apply changes of a flow to its ONNX model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto

from onegru.core.dtypes import numpy_dtype
from onegru.dataflow.edit import Edit, Staged
from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import Op
from onegru.dataflow.table import operator_of
from onegru.formats.onnx.order import needed_nodes, node_inputs
from onegru.formats.onnx.validate import drop_named, replace_nodes


def node_of(flow: Flow, op: Op, opset: int) -> NodeProto:
    """Create the node of an operator in an opset."""
    attributes: dict[str, Any] = {
        name: onnx.numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
        for name, value in op.attributes.items()
    }
    inputs = list(op.inputs)
    if op.kind == "Cast":
        attributes["to"] = code_of(attributes.pop("dtype"))
    for name, parameter in operator_of(op.kind).parameters.items():
        if opset < parameter.since:
            found = flow.ints(op, name, parameter.input)
            attributes |= {} if found is None else {name: found}
            if parameter.input < len(inputs):
                inputs[parameter.input] = ""
    while inputs and not inputs[-1]:
        inputs.pop()
    domain, _, kind = op.kind.rpartition("::")
    node: NodeProto = onnx.helper.make_node(
        kind, inputs, list(op.outputs), name=op.name, domain=domain or None, **attributes
    )
    return node


def node_with_lists(
    kind: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    name: str,
    opset: int,
    constant: Callable[[str, list[int]], str],
    **attributes: Any,
) -> NodeProto:
    """Create a node of an opset, with lists of integers as attributes or inputs, as the opset requires."""
    all_inputs = list(inputs)
    for argument, parameter in operator_of(kind).parameters.items():
        if argument in attributes and opset >= parameter.since:
            all_inputs += [""] * (parameter.input + 1 - len(all_inputs))
            all_inputs[parameter.input] = constant(argument, list(attributes.pop(argument)))
    node: NodeProto = onnx.helper.make_node(kind, all_inputs, list(outputs), name=name, **attributes)
    return node


def code_of(dtype: str) -> int:
    """Return ONNX's code of an element type."""
    return int(onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype)))


def apply_edit(model: ModelProto, opset: int, edit: Edit) -> None:
    """Apply an edit to the model that its flow was read from, and remove unused nodes and constants."""
    graph: GraphProto = model.graph
    graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in edit.constants.items()
    )
    for staged in edit.changes():
        _change(staged)
    for side, declared in ((graph.input, edit.inputs), (graph.output, edit.outputs)):
        for name, value in declared.items():
            side.append(onnx.helper.make_tensor_value_info(name, code_of(value.dtype), list(value.shape)))
    by_node = {id(op.origin): op for op in edit.flow.ops}
    placed = edit.in_order([(by_node.get(id(node)), node) for node in graph.node])
    nodes = [node_of(edit.flow, item, opset) if isinstance(item, Op) else item for item in placed]
    wanted = [value.name for value in graph.output]
    kept = needed_nodes(nodes, wanted)
    used = {*wanted, *(value.name for value in graph.input)}.union(*map(node_inputs, kept))
    drop_named(graph.initializer, {tensor.name for tensor in graph.initializer} - used)
    replace_nodes(graph, kept)
    values = {value.name: value for value in (*graph.input, *graph.output)}
    for (name, axis), size in edit.sizes.items():
        dims = values[name].type.tensor_type.shape.dim
        if axis < len(dims) and isinstance(size, str):
            dims[axis].dim_param = size
    del graph.value_info[:]
    for key, text in edit.metadata.items():
        for prop in [prop for prop in model.metadata_props if prop.key == key]:
            model.metadata_props.remove(prop)
        model.metadata_props.add(key=key, value=text)


def _change(staged: Staged) -> None:
    """Apply a staged change to its node."""
    node: NodeProto = staged.op.origin
    if staged.is_replaced:
        node.CopyFrom(onnx.helper.make_node(staged.kind, staged.inputs, staged.outputs, name=node.name))
        return
    for field, names in ((node.input, staged.inputs), (node.output, staged.outputs)):
        if list(field) != names:
            field[:] = names
    for name, value in staged.attributes.items():
        old = next((item for item in node.attribute if item.name == name), None)
        if value is None:
            drop_named(node.attribute, {name})
        elif old is not None:
            old.CopyFrom(onnx.helper.make_attribute(name, value))
        else:
            node.attribute.append(onnx.helper.make_attribute(name, value))
