"""Change a whole-sequence IR so that it runs in chunks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onegru.core.errors import BROKEN, FormatError, SpecError
from onegru.dataflow.flow import Flow
from onegru.dataflow.nonempty import drop_guards
from onegru.dataflow.table.recurrences import recurrence_of
from onegru.formats.graph import STREAM_KEY, Graph, kept_states
from onegru.formats.openvino.writing.edit import EditedIr
from onegru.formats.stream_note import State, write_note
from onegru.timeline.analysis import TimeAnalysis
from onegru.timeline.check import UnchangedCheck
from onegru.timeline.edits.edit import Streaming, StreamingRewriter
from onegru.timeline.find_time import asked_axes
from onegru.timeline.planning.planner import plan_streaming
from onegru.timeline.read import IR_OPSET
from onegru.timeline.size_names import declared_name


class _NamedIr(EditedIr):
    """IR whose dynamic sizes have names."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.flow: Flow = self.graph.flow
        drop_guards(self.flow)
        self.names = {value: name for name, value in (*self.inputs.items(), *self.outputs.items())}
        for name, value in self.inputs.items():
            shape = self.flow.shape(value)
            if shape is not None:
                named = [
                    size if isinstance(size, int) else f"dim:{name}_{axis}" for axis, size in enumerate(shape)
                ]
                self.flow.set_shape(value, tuple(named))
        self._name_rows()

    def _name_rows(self) -> None:
        """Name the rows of an initial state as in the input of its recurrence."""
        analysis = TimeAnalysis(self.flow, {}, IR_OPSET)
        names = {
            axis: size
            for value in self.inputs.values()
            for axes in [analysis.axes_of.get(value) or ()]
            for axis, size in zip(axes, self.flow.shape(value) or (), strict=False)
        }
        for op in analysis.recurrent:
            rows = (analysis.axes_of.get(op.inputs[0]) or ((),))[0]
            for first, _ in recurrence_of(op).states:
                shape = self.flow.shape(op.inputs[first])
                if op.inputs[first] in self.inputs.values() and shape and isinstance(shape[0], str):
                    self.flow.set_shape(op.inputs[first], (names.get(rows, shape[0]), *shape[1:]))

    def named(self, value: str) -> str:
        """Return the model's name of an input or output; for a new one, its own name."""
        return self.names.get(value, value)

    def shapes(self) -> dict[str, list[int | str]]:
        """Return the shapes of the inputs, with names for the dynamic sizes."""
        return {
            name: [size if isinstance(size, int) else declared_name(size) for size in shape]
            for name, value in self.inputs.items()
            if (shape := self.flow.shape(value)) is not None
        }


def streaming_ir(graph: Graph, time: Mapping[str, int] | None, delay: bool) -> Streaming:
    """Change an IR of whole sequences so that it runs in chunks. The result's model is an `IrDocument`."""
    if kept := kept_states(graph):
        raise SpecError(f"{graph.path}: already keeps its states ({kept}); use stream() without rewriting")
    if graph.starts:
        raise SpecError(f"{graph.path}: was already rewritten for streaming; rewrite its source")
    try:
        ir = _NamedIr(graph)
        states = {ir.inputs[taker]: ir.outputs[output] for output, taker in graph.states}
        analysis = TimeAnalysis(ir.flow, states, IR_OPSET)
        asked = {ir.inputs[name]: axis for name, axis in asked_axes(graph, time).items()}
        plan = plan_streaming(graph, analysis, asked, delay)
        edit, rewriter = ir.edit, StreamingRewriter(analysis, plan, ir.edit)
        made = rewriter.edited()
        known = [(ir.outputs[output], ir.inputs[taker]) for output, taker in graph.states]
        all_states = [
            replace(state, input=ir.named(state.input), output=ir.named(state.output))
            for state in rewriter.all_states(known)
        ]
        found = Streaming(
            tuple(all_states[: len(made.states)]),
            {ir.named(name): axis for name, axis in made.input_axes.items()},
            {ir.named(name): steps for name, steps in made.delays.items()},
            {ir.named(name): axis for name, axis in made.output_axes.items()},
        )
        shapes = ir.shapes() | {name: [*value.shape] for name, value in edit.inputs.items()}
        for (value, axis), size in edit.sizes.items():
            if (name := ir.named(value)) in shapes:
                shapes[name][axis] = size
        initial = {state.input: state.start for state in all_states if state.start is not None}
        edit.metadata[STREAM_KEY] = write_note(all_states, initial, found.input_axes, found.delays, shapes)
        return replace(found, model=ir.document())
    except (SpecError, FormatError):
        raise
    except BROKEN as error:
        raise FormatError(f"{graph.path}: its layers cannot be followed ({error})") from error


def annotated_ir(graph: Graph, found: UnchangedCheck) -> Streaming:
    """Return an IR that runs in chunks unchanged, with metadata about its states."""
    ir = _NamedIr(graph)
    shapes = ir.shapes()
    states = [State(taker, output, "", tuple(shapes[taker])) for output, taker in found.pairs.items()]
    ir.edit.metadata[STREAM_KEY] = write_note(states, {}, found.input_axes, {}, shapes)
    return Streaming((), found.input_axes, {}, found.output_axes, ir.document())
