"""An IR of whole sequences, read, planned and changed to run in chunks of time."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from onegru.core.errors import BROKEN, FormatError, SpecError
from onegru.dataflow.edit import Edit
from onegru.dataflow.flow import Flow
from onegru.formats.graph import STREAM_KEY, Graph
from onegru.formats.openvino.constants import Constants
from onegru.formats.openvino.document import IrDocument
from onegru.formats.openvino.fields import AttributeParser
from onegru.formats.openvino.flow import IrGraph, IrReader
from onegru.formats.openvino.reader import root_of
from onegru.formats.openvino.xml import parse_net
from onegru.formats.stream_note import State, write_note
from onegru.fusion.openvino.edit import add_notes, apply_edit
from onegru.timeline.analysis import TimeAnalysis
from onegru.timeline.check import AsItIs
from onegru.timeline.edit import Streaming, StreamingRewriter
from onegru.timeline.find_time import asked_axes
from onegru.timeline.planner import plan_streaming
from onegru.timeline.rules import RECURRENT, kind_of

OPSET = 13  # of the operators that layers are read as


class _Ir:
    """An IR being changed.

    Attributes:
        root: its XML.
        graph: its layers, and the flow that they were read as.
        names: what the model calls its inputs and outputs, by what the flow calls them.
    """

    def __init__(self, graph: Graph) -> None:
        outline, path = graph.outline, Path(graph.path)
        assert outline is not None and outline.weights is not None
        self.path = path
        self.root = copy.deepcopy(root_of(graph))
        parser = AttributeParser(path)
        self.constants = Constants(parser, outline.weights)
        self.reader = IrReader(parser, self.constants)
        self.graph: IrGraph = self.reader.read(parse_net(path, self.root), self.root)
        self.flow: Flow = self.graph.flow
        values = {f"{layer}:{port}": name for name, (layer, port) in self.graph.native.items()}
        self.inputs = {info.name: values[info.value] for info in graph.inputs}
        self.outputs = {info.name: values[info.value] for info in graph.outputs}
        self.names = {value: name for name, value in (*self.inputs.items(), *self.outputs.items())}
        for name, value in self.inputs.items():
            shape = self.flow.shape(value)
            if shape is not None:
                named = [
                    size if isinstance(size, int) else f"dim:{name}_{axis}" for axis, size in enumerate(shape)
                ]
                self.flow.set_shape(value, tuple(named))
        self.flow.forget()
        self._name_rows()

    def _name_rows(self) -> None:
        """Give the rows of an initial state the name that they have in the input of its recurrence."""
        analysis = TimeAnalysis(self.flow, {}, OPSET)
        names = {
            axis: size
            for value in self.inputs.values()
            for axis, size in zip(analysis.known.get(value) or (), self.flow.shape(value) or (), strict=False)
        }
        for op in analysis.recurrent:
            rows = (analysis.known.get(op.inputs[0]) or ((),))[0]
            for first, _ in RECURRENT[kind_of(op)]:
                shape = self.flow.shape(op.inputs[first])
                if op.inputs[first] in self.inputs.values() and shape and isinstance(shape[0], str):
                    self.flow.set_shape(op.inputs[first], (names.get(rows, shape[0]), *shape[1:]))
        self.flow.forget()

    def named(self, value: str) -> str:
        """What the model calls an input or output; the name itself of a new one."""
        return self.names.get(value, value)

    def sizes(self) -> dict[str, list[int | str]]:
        """The shapes of the inputs, with names for the open sizes."""
        return {
            name: [size if isinstance(size, int) else size.removeprefix("dim:") for size in shape]
            for name, value in self.inputs.items()
            if (shape := self.flow.shape(value)) is not None
        }


def streaming_ir(graph: Graph, time: Mapping[str, int] | None, delay: bool) -> Streaming:
    """Change an IR of whole sequences so that it runs in chunks of them; its model is an `IrDocument`.

    Args:
        graph: the IR, as `read_ir` gives it.
        time: the axis of time of inputs, by name; None to find it.
        delay: whether outputs may come later, where a layer needs steps ahead.

    Raises:
        SpecError: a layer cannot run in chunks; the message names it. Or an argument is not legal.
        FormatError: the file is broken, or its layers cannot be followed.
    """
    if graph.starts:
        raise SpecError(f"{graph.path}: was rewritten for streaming before; rewrite its source")
    try:
        ir = _Ir(graph)
        states = {ir.inputs[taken]: ir.outputs[given] for given, taken in graph.states}
        analysis = TimeAnalysis(ir.flow, states, OPSET)
        asked = {ir.inputs[name]: axis for name, axis in asked_axes(graph, time).items()}
        plan = plan_streaming(graph.path, analysis, asked, delay)
        edit = Edit(ir.flow, ir.reader.names)
        rewriter = StreamingRewriter(analysis, plan, edit)
        made = rewriter.edited()
        known = [(ir.outputs[given], ir.inputs[taken]) for given, taken in graph.states]
        told = [
            replace(state, input=ir.named(state.input), output=ir.named(state.output))
            for state in rewriter.all_states(known)
        ]
        found = Streaming(
            tuple(told[: len(made.states)]),
            {ir.named(name): axis for name, axis in made.time.items()},
            {ir.named(name): steps for name, steps in made.delays.items()},
            {ir.named(name): axis for name, axis in made.axes.items()},
        )
        sizes = ir.sizes() | {name: [*value.shape] for name, value in edit.inputs.items()}
        initial = {state.input: state.start for state in told if state.start is not None}
        edit.note(STREAM_KEY, write_note(told, initial, found.time, found.delays, sizes))
        weights = apply_edit(ir.graph, ir.reader, ir.constants, edit)
        return replace(found, model=IrDocument(ir.root, weights))
    except (SpecError, FormatError):
        raise
    except BROKEN as error:
        raise FormatError(f"{graph.path}: its layers cannot be followed ({error})") from None


def told_ir(graph: Graph, found: AsItIs) -> Streaming:
    """An IR that runs in chunks as it is, with metadata that say so.

    Args:
        graph: the IR, as `read_ir` gives it.
        found: what is known of it.
    """
    ir = _Ir(graph)
    sizes = ir.sizes()
    states = [State(taken, given, "", tuple(sizes[taken])) for given, taken in found.pairs.items()]
    add_notes(ir.root, {STREAM_KEY: write_note(states, {}, found.time, {}, sizes)})
    return Streaming((), found.time, {}, found.outputs, IrDocument(ir.root, ir.constants.weights))
