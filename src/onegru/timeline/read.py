"""Read the operators of a loaded model as a flow."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from onegru.core.errors import BROKEN, FormatError, needs_extra
from onegru.dataflow.flow import Flow
from onegru.dataflow.nonempty import drop_guards
from onegru.formats.graph import Graph, Outline

IR_OPSET = 13  # of the operators that represent the layers of an IR


@dataclass(frozen=True, slots=True)
class ModelFlow:
    """Operators of a model, along which time is followed."""

    flow: Flow  # the operators
    opset: int  # the opset of the operators
    inputs: Mapping[str, str]  # the flow's names of the model's inputs and outputs, by their names
    outputs: Mapping[str, str]


def read_model_flow(graph: Graph) -> ModelFlow | None:
    """Return a model's operators; None if they cannot be followed."""
    outline = graph.outline
    if outline is None:
        return None
    try:
        return _of_onnx(graph, outline) if outline.weights is None else _of_ir(graph, outline)
    except (FormatError, *BROKEN):
        return None


def _of_onnx(graph: Graph, outline: Outline) -> ModelFlow:
    with needs_extra("onnx", "onnx", graph.path):
        from onegru.formats.onnx.branches import inline_branches
        from onegru.formats.onnx.flow import flow_of, graph_types
        from onegru.formats.onnx.functions.augru import add_augru_functions
        from onegru.formats.onnx.parse import model_opset
        from onegru.formats.onnx.validate import Source
    source = Source(graph.path)
    model = deepcopy(outline.content)  # the reader has checked it
    add_augru_functions(model, source)  # broken functions crash the process in onnx's shape inference
    flow = flow_of(source, model.graph, graph_types(model), model.ir_version)
    if inline_branches(model, flow):
        flow = flow_of(source, model.graph, graph_types(model), model.ir_version)
    drop_guards(flow)
    inputs = {info.name: info.value for info in graph.inputs}
    flow.inputs = list(inputs.values())  # without inputs that replace large constants
    outputs = {info.name: info.value for info in graph.outputs}
    return ModelFlow(flow, model_opset(source, model), inputs, outputs)


def _of_ir(graph: Graph, outline: Outline) -> ModelFlow:
    from onegru.formats.openvino.constants import Constants
    from onegru.formats.openvino.fields import AttributeParser
    from onegru.formats.openvino.flow import IrGraphReader
    from onegru.formats.openvino.reader import root_of
    from onegru.formats.openvino.xml import parse_net

    path = Path(graph.path)
    assert outline.weights is not None
    parser = AttributeParser(path)
    root = root_of(graph)
    read = IrGraphReader(parser, Constants(parser, outline.weights)).read(parse_net(path, root), root)
    drop_guards(read.flow)
    names = {f"{layer}:{port}": name for name, (layer, port) in read.ports.items()}
    inputs = {info.name: names[info.value] for info in graph.inputs}
    outputs = {info.name: names[info.value] for info in graph.outputs}
    return ModelFlow(read.flow, IR_OPSET, inputs, outputs)
