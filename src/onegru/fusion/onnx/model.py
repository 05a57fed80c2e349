"""Replace the decomposed GRUs of an ONNX model."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

from onegru.core.dtypes import Array, numpy_dtype
from onegru.dataflow.flow import Flow
from onegru.formats.onnx.flow import flow_of, graph_types
from onegru.formats.onnx.functions.augru import add_augru_functions
from onegru.formats.onnx.parse import model_opset
from onegru.formats.onnx.validate import Source, replace_nodes
from onegru.formats.onnx.values import names_in
from onegru.formats.onnx.writing.edit import node_of
from onegru.fusion.fuse import fuse_flow
from onegru.fusion.search import Progress, Search
from onegru.operators.onnx import AUGRU_OPSET, OLDEST_OPSET


def fuse_model(source: Source, model: ModelProto, progress: Progress | None = None) -> Search:
    """Replace the decomposed GRUs of a model in place."""
    opset = model_opset(source, model)
    search = Search(names_in(model), source.name, progress=progress, opset=opset)
    if opset < OLDEST_OPSET:
        return search
    if opset < AUGRU_OPSET:
        reason = f"an AUGRU needs opset {AUGRU_OPSET} or later; convert the model with onnx.version_converter"
        search.why_not = lambda cell: reason if cell.attention else ""
    flow = flow_of(source, model.graph, graph_types(model), model.ir_version)
    fuse_flow(flow, search)
    if search.fused:
        _Writer(opset, model.ir_version).write(flow, model.graph)
        add_augru_functions(model, source)
    return search


class _Writer:
    """Writes flows back into their graphs."""

    def __init__(self, opset: int, ir_version: int) -> None:
        self.opset = opset
        self.ir_version = ir_version

    def write(self, flow: Flow, graph: GraphProto) -> None:
        """Replace the nodes of a graph by the operators of its flow, if some are new."""
        for op in flow.ops:
            for name, body in op.bodies.items():
                for attribute in op.origin.attribute:
                    if attribute.name == name:
                        self.write(body, attribute.g)
        if all(op.origin is not None for op in flow.ops):
            return
        used = {name for op in flow.ops for name in op.reads()} | set(flow.outputs)
        constants = {tensor.name: tensor for tensor in graph.initializer}
        early = [node for node in graph.node if node.op_type == "Constant" and used & set(node.output)]
        nodes = [op.origin if op.origin is not None else node_of(flow, op, self.opset) for op in flow.ops]
        used = {name for node in nodes for name in node.input} | used
        given = {name for node in (*early, *nodes) for name in node.output} | constants.keys()
        for name in sorted(used - given):
            if name in flow.constants:
                array = flow.constant(name)
                assert array is not None
                early.append(self._constant(graph, name, _typed(flow, name, array)))
        replace_nodes(graph, [*(node for node in early if node.op_type), *nodes])
        for value in graph.output if flow.outer is not None else ():
            _declare_shape(flow, value)
        inputs = {value.name for value in graph.input}
        for field in (graph.initializer, graph.value_info):
            for index in reversed(range(len(field))):
                known = used if field is graph.initializer else given | used
                if field[index].name not in known and field[index].name not in inputs:
                    del field[index]

    def _constant(self, graph: GraphProto, name: str, array: Array) -> NodeProto:
        tensor = onnx.numpy_helper.from_array(array, name)
        if self.ir_version >= 4:
            graph.initializer.append(tensor)
            return NodeProto()
        tensor.name = ""
        node: NodeProto = onnx.helper.make_node("Constant", [], [name], value=tensor)
        return node


def _declare_shape(flow: Flow, value: ValueInfoProto) -> None:
    """Declare the rank and fixed sizes of an output: ONNX Runtime infers no shapes after new functions."""
    shape = flow.shape(value.name)
    stated = value.type.tensor_type.shape
    if shape is not None and value.type.WhichOneof("value") == "tensor_type" and not stated.dim:
        stated.SetInParent()
        for size in shape:
            dim = stated.dim.add()
            if isinstance(size, int):
                dim.dim_value = size


def _typed(flow: Flow, name: str, array: Array) -> Array:
    """Return a new constant in the element type of its recurrence."""
    if array.dtype != np.float64:
        return np.asarray(array)
    return np.asarray(array, numpy_dtype(flow.dtype(name) or "float32"))
