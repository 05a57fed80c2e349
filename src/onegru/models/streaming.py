"""Rewrite a whole-sequence model in memory to run in chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from onegru.core.errors import FormatError, SpecError
from onegru.core.wording import count
from onegru.formats.graph import Graph, kept_states
from onegru.formats.opened import Kind
from onegru.models.fusing import fusing_hint
from onegru.models.gru_node import check_declared

if TYPE_CHECKING:
    from onegru.formats.onnx.validate import ModelProto, Source
    from onegru.timeline.check import UnchangedCheck
    from onegru.timeline.edits.edit import Streaming


def streaming_words(graph: Graph) -> str:
    """Describe whether a model runs in chunks, unchanged or rewritten, or why not; empty for others."""
    if not _is_whole(graph):
        return ""
    states = kept_states(graph)
    if graph.starts and not states:
        return "yes; the file specifies which output feeds which input"
    from onegru.timeline.check import check_unchanged

    found, why = check_unchanged(graph), ""
    if states:
        doubt = found.warning and f"; {found.warning}"
        return f"yes, with its internal states ({states}), which are inputs and outputs in onegru{doubt}"
    if found.is_sound:
        single = "; one step per run" if found.is_single_step else ""
        return f"yes, with its own states ({found.states}){single}" if found.named else "yes"
    for delay in (False, True):
        try:
            made = _streaming(graph, None, delay, found)
        except (SpecError, FormatError) as error:
            why = why or str(error).removeprefix(f"{graph.path}: ")
            continue
        if not made.states and not found.pairs:
            return "yes"
        kinds = Counter("state" if state.steps is None else "cache" for state in made.states)
        added = " and ".join(count(number, kind) for kind, number in kinds.items()) or "no state"
        later = max(made.delays.values(), default=0)
        wait = f", and delays outputs by {count(later, 'step')} (--delay)" if later else ""
        how = f"onegru stream, or stream(rewrite=True{', delay=True' * bool(later)})"
        return f"supported after {how}, which adds {added}{wait}"
    if found.pairs and not found.refusal:
        doubt = found.warning or "no time axis found"
        return f"unchanged, with its own states ({found.states}); it may need other states: {doubt}"
    return why.replace("cannot run in chunks, because", "no:")


def change_to_chunks(
    graph: Graph, time: Mapping[str, int] | None, forms: Forms, found: UnchangedCheck | None = None
) -> Streaming:
    """Change a model to run in chunks; if it already does, only add metadata."""
    from onegru.timeline.check import check_unchanged

    for gru in graph.grus:
        check_declared(gru, graph.constants, graph)
    found = check_unchanged(graph) if found is None else found
    is_sound = found.is_sound and time is None and not graph.starts and _is_open(graph, found)
    if is_sound and found.is_single_step and found.named:  # cannot be compared with a run of several steps
        return forms.annotated(found)
    try:
        made = forms.rewritten(is_sound)
        timed_states = [name for name in made.input_axes if time is None and name in found.pairs.values()]
        if timed_states:
            why = f"input {timed_states[0]!r} is named like a state, but has a time axis"
            raise SpecError(f"{graph.path}: cannot run in chunks, because {why}")
    except SpecError as error:
        if is_sound:
            return forms.annotated(found)
        if found.pairs and not found.refusal and not graph.starts:
            hint = f"stream() of the unchanged model carries its own states ({found.states})"
            raise SpecError(f"{error}; {hint}", error.argument) from error.__cause__
        if not graph.grus and (hint := fusing_hint(graph.file or graph.path)):
            raise SpecError(f"{error}; {hint}", error.argument) from error.__cause__
        raise
    return forms.annotated(found) if is_sound and made.states else made


class Forms(NamedTuple):
    """The possible results for a model."""

    # the model changed to run in chunks; True leaves an unchanged model to `annotated`
    rewritten: Callable[[bool], Streaming]
    annotated: Callable[[UnchangedCheck], Streaming]  # the unchanged model, with metadata that say so


def forms_of_onnx(
    source: Source,
    model: ModelProto,
    graph: Graph,
    time: Mapping[str, int] | None,
    delay: bool,
    sizes: Mapping[str, object] | None = None,
) -> Forms:
    """Return the forms of an ONNX model."""
    from onegru.timeline.edits.onnx import annotated_model, streaming_model

    def rewritten(keeps: bool) -> Streaming:
        own = deepcopy(model) if keeps else model
        return streaming_model(source, own, graph, time, delay, sizes)

    return Forms(rewritten, lambda found: annotated_model(source, model, graph, found))


def forms_of_ir(graph: Graph, time: Mapping[str, int] | None, delay: bool) -> Forms:
    """Return the forms of an IR; arguments as in `forms_of_onnx`."""
    from onegru.timeline.edits.openvino import annotated_ir, streaming_ir

    return Forms(lambda _: streaming_ir(graph, time, delay), lambda found: annotated_ir(graph, found))


def _is_open(graph: Graph, found: UnchangedCheck) -> bool:
    """Whether the unchanged model accepts chunks of any size, or of one step."""
    shapes = {info.name: info.shape or () for info in graph.inputs}
    sizes = [shapes[name][axis] for name, axis in found.input_axes.items() if axis < len(shapes[name])]
    return all(size == 1 or not isinstance(size, int) for size in sizes)


def streaming_graph(graph: Graph, time: Mapping[str, int] | None, delay: bool) -> Graph:
    """Return the graph of a model with its hidden states as inputs and outputs."""
    if not _is_whole(graph):
        raise SpecError.of(
            "rewrite", f"{graph.path} is neither an ONNX model nor an OpenVINO IR; must be one of them"
        )
    made = _streaming(graph, time, delay)
    if graph.file is not None and graph.file.kind is Kind.OPENVINO:
        ir: Graph = made.model.graph(graph.file.path)
        return ir
    from onegru.formats.onnx.parse import parse_onnx
    from onegru.formats.onnx.validate import serialized

    source = _source_of(graph)
    return parse_onnx(serialized(source, made.model, "too large to be rewritten in memory"), source)


def _is_whole(graph: Graph) -> bool:
    """Whether there is a model to rewrite, in a file or in memory."""
    return bool(graph.data) or (graph.file is not None and graph.file.kind in (Kind.ONNX, Kind.OPENVINO))


def _source_of(graph: Graph) -> Source:
    """Return the source of the external data of an ONNX model that is changed in memory."""
    from onegru.formats.onnx.validate import Source

    return Source(graph.path) if graph.file is None else replace(Source.of(graph.file), file=None)


def _streaming(
    graph: Graph, time: Mapping[str, int] | None, delay: bool, found: UnchangedCheck | None = None
) -> Streaming:
    if graph.file is not None and graph.file.kind is Kind.OPENVINO:
        return change_to_chunks(graph, time, forms_of_ir(graph, time, delay), found)
    from onegru.formats.onnx.validate import model_of, read_model

    source = _source_of(graph)
    model = read_model(source, graph.data) if graph.data or graph.file is None else model_of(graph.file)
    return change_to_chunks(graph, time, forms_of_onnx(source, model, graph, time, delay), found)
