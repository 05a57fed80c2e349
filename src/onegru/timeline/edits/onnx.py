"""Change a whole-sequence ONNX model so that it runs in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

import onnx
from onnx import ModelProto, TensorProto

from onegru.core.errors import BROKEN, SpecError
from onegru.dataflow.edit import Edit
from onegru.dataflow.flow import Flow
from onegru.dataflow.nonempty import drop_guards
from onegru.formats.graph import STREAM_KEY, Graph
from onegru.formats.onnx.branches import inline_branches
from onegru.formats.onnx.flow import flow_of, graph_types
from onegru.formats.onnx.functions.augru import add_augru_functions
from onegru.formats.onnx.functions.inline import inline_functions
from onegru.formats.onnx.order import nodes_in_order
from onegru.formats.onnx.parse import model_opset
from onegru.formats.onnx.validate import Source, drop_named, replace_nodes
from onegru.formats.onnx.values import names_in
from onegru.formats.onnx.writing.edit import apply_edit
from onegru.formats.stream_note import write_note
from onegru.timeline.analysis import TimeAnalysis
from onegru.timeline.check import UnchangedCheck
from onegru.timeline.edits.edit import Streaming, StreamingRewriter
from onegru.timeline.find_time import asked_axes, find_time
from onegru.timeline.planning.plan import StreamingPlan
from onegru.timeline.planning.planner import plan_streaming

_MOST_INTEGERS = 64  # most integers in a folded constant
_MOST_FOLDS = 8  # each lets onnx infer more shapes, which allow more folds
_LEAST_IR = 4  # the first IR version whose initializers need not be inputs


def streaming_model(
    source: Source,
    given: ModelProto,
    graph: Graph,
    time: Mapping[str, int] | None = None,
    delay: bool = False,
    sizes: Mapping[str, object] | None = None,
) -> Streaming:
    """Change a model of whole sequences so that it runs in chunks."""
    if graph.starts:
        raise SpecError(f"{source.name}: was already rewritten for streaming; it runs in chunks as it is")
    add_augru_functions(given, source)
    model = inline_functions(source, given)
    nodes_in_order(source, model.graph)  # rejects graphs with cycles or ambiguous names
    if model.ir_version < _LEAST_IR:
        drop_named(model.graph.input, {tensor.name for tensor in model.graph.initializer})
        model.ir_version = _LEAST_IR
    del model.graph.value_info[:]  # exporters write wrong ones; onnx infers them
    for value in model.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:  # as above
                dim.Clear()
    asked = asked_axes(graph, time)
    _name_sizes(model, asked)
    opset = model_opset(source, model)
    try:
        states, steps = {taker: output for output, taker in graph.states}, 0
        analysis = TimeAnalysis(_folded(source, model), states, opset)
        try:
            plan = plan_streaming(graph, analysis, asked, delay)
        except SpecError as error:
            steps = _fix_steps(model, analysis, asked, sizes or {}, error)
            analysis = TimeAnalysis(_folded(source, model), states, opset)
            plan = plan_streaming(graph, analysis, asked, delay)
    except SpecError:
        raise
    except BROKEN as error:
        raise source.error(f"onegru cannot follow its operators ({error})") from error
    try:
        return replace(_edited(model, analysis, plan, graph.states, plan.input_axes), steps=steps)
    except SpecError:
        raise
    except BROKEN as error:
        raise source.error(f"its operators cannot be changed ({error})") from error


def _fix_steps(
    model: ModelProto,
    analysis: TimeAnalysis,
    asked: Mapping[str, int],
    sizes: Mapping[str, object],
    error: SpecError,
) -> int:
    """Fix the number of steps if it is dynamic in the inputs, and fixed in the graph."""
    # Only the caller knows it, because the model may also work in blocks of this many steps.
    try:
        time, axes = find_time(analysis, asked), analysis.axes
    except SpecError:
        raise error from error.__cause__  # it has the model's names of the inputs
    cut = {axes.find(factor) for lost in analysis.divided.values() for factor in lost}
    dims = [
        dim
        for value in model.graph.input
        for dim, axis in zip(
            value.type.tensor_type.shape.dim, analysis.axes_of.get(value.name) or (), strict=False
        )
        if axes.main(axis) <= time and not dim.dim_value
    ]
    if not dims or cut.isdisjoint(time):
        raise error
    given = sizes.get(dims[0].dim_param)
    steps = given if isinstance(given, int) else 0
    if not steps:
        name = dims[0].dim_param
        how = f"--dim {name}=N, or check=onegru.Check(dims={{{name!r}: N}})"
        raise SpecError(f"{error}; if it accepts only one number of steps, specify it: {how}", error.argument)
    for dim in dims:
        dim.dim_value = steps
    return steps


def annotated_model(source: Source, model: ModelProto, graph: Graph, found: UnchangedCheck) -> Streaming:
    """Return a model that runs in chunks unchanged, with metadata about its states."""
    _name_sizes(model, {})
    flow = flow_of(source, model.graph, graph_types(model), model.ir_version)
    analysis = TimeAnalysis(flow, {}, model_opset(source, model))
    made = _edited(model, analysis, StreamingPlan(), tuple(found.pairs.items()), found.input_axes)
    return replace(made, input_axes=found.input_axes, output_axes=found.output_axes)


def _edited(
    model: ModelProto,
    analysis: TimeAnalysis,
    plan: StreamingPlan,
    states: Sequence[tuple[str, str]],
    time: Mapping[str, int],
) -> Streaming:
    """Make the changes of a plan, and write the states to the metadata."""
    edit = Edit(analysis.flow, names_in(model))
    inputs = {value.name for value in model.graph.input}
    tensors = (tensor for tensor in model.graph.initializer if tensor.name in inputs)
    defaults = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in tensors}
    rewriter = StreamingRewriter(analysis, plan, edit)
    made = rewriter.edited()
    all_states = rewriter.all_states(states)
    initial = {item.input: item.start for item in all_states if item.start is not None} | defaults
    edit.metadata[STREAM_KEY] = write_note(all_states, initial, time, made.delays)
    apply_edit(model, analysis.opset, edit)
    return replace(made, model=model)


def _folded(source: Source, model: ModelProto) -> Flow:
    """Return the operators, with small integers folded into constants, such as pads."""

    def read() -> Flow:
        return flow_of(source, model.graph, graph_types(model), model.ir_version)

    flow = read()
    for _ in range(_MOST_FOLDS):
        if inline_branches(model, flow):
            flow = read()
        found: dict[str, TensorProto] = {}
        dynamic = {name for name in flow.inputs if not flow.holds(name)}
        for op in flow.ops:
            if not dynamic.isdisjoint(op.reads()):
                dynamic.update(filter(None, op.outputs))
            for name in op.inputs:
                if name not in found and name not in dynamic and name in flow.producers:
                    array = flow.constant(name)
                    if array is not None and array.dtype.kind in "iu" and array.size <= _MOST_INTEGERS:
                        found[name] = onnx.numpy_helper.from_array(array, name)
        if not found:
            break
        outputs = {value.name for value in model.graph.output}
        nodes = [node for node in model.graph.node if not set(node.output) & found.keys() - outputs]
        given = {name for node in nodes for name in node.output}
        model.graph.initializer.extend(tensor for name, tensor in found.items() if name not in given)
        replace_nodes(model.graph, nodes)
        flow = read()
        if not found.keys() - given:
            break
    for op in drop_guards(flow):
        op.origin.CopyFrom(onnx.helper.make_node(op.kind, op.inputs, op.outputs, name=op.name))
    return flow


def _name_sizes(model: ModelProto, time: Mapping[str, int]) -> None:
    """Name the dynamic sizes of inputs, because states refer to them; sizes of time get one name."""
    shapes = {value.name: value.type.tensor_type.shape.dim for value in model.graph.input}
    asked = [
        shapes[name][axis] for name, axis in time.items() if -len(shapes[name]) <= axis < len(shapes[name])
    ]
    steps = [dim for dim in asked if not dim.HasField("dim_value")]
    known = [dim.dim_param for dim in steps if dim.dim_param] or ["frames"]
    for dim in chain(*shapes.values()) if len(steps) > 1 else ():
        if dim.dim_param in known:
            dim.dim_param = known[0]
    for dim in steps if len(steps) > 1 else ():
        dim.dim_param = known[0]
    used = {dim.dim_param for value in model.graph.input for dim in value.type.tensor_type.shape.dim}
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.WhichOneof("value") is None or (dim.HasField("dim_param") and not dim.dim_param):
                name = f"{value.name}_{axis}"
                while name in used:
                    name += "_"
                used.add(name)
                dim.dim_param = name
