"""A model of whole sequences, made to run in chunks of time in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from onegru.core.errors import FormatError, SpecError
from onegru.core.wording import count
from onegru.formats.graph import Graph
from onegru.formats.opened import Kind, Opened

if TYPE_CHECKING:
    from onegru.formats.onnx.validate import ModelProto, Source
    from onegru.timeline.check import AsItIs
    from onegru.timeline.edit import Streaming


def streaming_words(file: Opened, graph: Graph) -> str:
    """Whether an ONNX model runs in chunks of time as it is, or rewritten, or why not; empty for others."""
    if file.kind is not Kind.ONNX:
        return ""
    if graph.starts:
        return "yes; the file says which output feeds which input"
    from onegru.timeline.check import judge

    found, why = judge(graph), ""
    if found.is_sound:
        single = "; a run takes one step" if found.is_single else ""
        return f"yes, by its own states ({found.states}){single}" if found.named else "yes"
    for delay in (False, True):
        try:
            made = _streaming(file, graph, None, delay, found)
        except (SpecError, FormatError) as error:
            why = why or str(error).removeprefix(f"{graph.path}: ")
            continue
        if not made.states and not found.pairs:
            return "yes"
        kinds = Counter("state" if state.steps is None else "cache" for state in made.states)
        added = " and ".join(count(number, kind) for kind, number in kinds.items()) or "no state"
        later = max(made.delays.values(), default=0)
        wait = f", {count(later, 'step')} later (--delay)" if later else ""
        return f"once rewritten by onegru stream, which adds {added}{wait}"
    if found.pairs and not found.refusal:
        doubt = found.warning or "no axis of time is known"
        own = f"as it is, by its own states ({found.states})"
        return f"{own}; whether they are all that it needs is not known: {doubt}"
    return why.replace("cannot run in chunks, as", "no:")


def run_in_chunks(
    source: Source,
    model: ModelProto,
    graph: Graph,
    time: Mapping[str, int] | None,
    delay: bool,
    found: AsItIs | None = None,
) -> Streaming:
    """Change a model so that it runs in chunks; one that does as it is only has to say so.

    What streams, inspections and rewriting hold of a model comes from `judge` and from here.

    Args:
        source: where it comes from.
        model: the model, which this changes.
        graph: the same as it was read.
        time: the axis of time of inputs, by name; None to find it.
        delay: whether outputs may come later, where an operator needs steps ahead.
        found: what `judge` says of the graph, if it is known.

    Raises:
        SpecError: an operator cannot run in chunks; the message names it. Or an argument is not legal.
        FormatError: the file is broken, or its operators cannot be followed.
    """
    from onegru.timeline.check import judge
    from onegru.timeline.onnx import streaming_model, told_model

    found = judge(graph) if found is None else found
    is_sound = found.is_sound and time is None and not graph.starts and _is_open(graph, found)
    if is_sound and found.is_single and found.named:  # whose steps nobody can compare with more at once
        return told_model(source, model, graph, found)
    unchanged = type(model).FromString(model.SerializeToString()) if is_sound else model
    try:
        made = streaming_model(source, model, graph, time, delay)
        taken = [name for name in made.time if time is None and name in found.pairs.values()]
        if taken:
            why = f"input {taken[0]!r} is a state by its name, and goes along time"
            raise SpecError(f"{source.name}: cannot run in chunks, as {why}")
    except SpecError as error:
        if is_sound:
            return told_model(source, unchanged, graph, found)
        if found.pairs and not found.refusal and not graph.starts:
            hint = f"stream() of the model as it is carries the states that it has ({found.states})"
            raise SpecError(f"{error}; {hint}", error.argument) from None
        raise
    return told_model(source, unchanged, graph, found) if is_sound and made.states else made


def _is_open(graph: Graph, found: AsItIs) -> bool:
    """Whether a run of the model as it is takes a chunk, of any size or of one step."""
    shapes = {info.name: info.shape or () for info in graph.inputs}
    sizes = [shapes[name][axis] for name, axis in found.time.items() if axis < len(shapes[name])]
    return all(size == 1 or not isinstance(size, int) for size in sizes)


def streaming_graph(graph: Graph, time: Mapping[str, int] | None, delay: bool) -> Graph:
    """The graph of a model, its hidden states among its inputs and outputs.

    Raises:
        SpecError: an operator cannot run in chunks, the model does not come from an ONNX file, or an argument
            is not legal.
        FormatError: its operators cannot be followed.
    """
    if graph.file is None or graph.file.kind is not Kind.ONNX:
        raise SpecError.of("rewrite", f"{graph.path} is no ONNX file; must be one")
    from onegru.formats.onnx.parse import parse_onnx
    from onegru.formats.onnx.validate import Source, serialized

    source, made = replace(Source.of(graph.file), file=None), _streaming(graph.file, graph, time, delay)
    return parse_onnx(serialized(source, made.model, "too large to be rewritten in memory"), source)


def _streaming(
    file: Opened, graph: Graph, time: Mapping[str, int] | None, delay: bool, found: AsItIs | None = None
) -> Streaming:
    from onegru.formats.onnx.validate import Source, model_of

    source = replace(Source.of(file), file=None)
    return run_in_chunks(source, model_of(file), graph, time, delay, found)
