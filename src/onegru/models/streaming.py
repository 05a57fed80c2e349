"""A model of whole sequences, made to run in chunks of time in memory."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from onegru.core.errors import FormatError, SpecError, SpecWarning
from onegru.core.wording import count
from onegru.formats.graph import Graph
from onegru.formats.opened import Kind, Opened

if TYPE_CHECKING:
    from onegru.timeline.edit_onnx import Streaming


def streaming_words(file: Opened, graph: Graph) -> str:
    """Whether an ONNX model runs in chunks of time as it is, or rewritten, or why not; empty for others."""
    if file.kind is not Kind.ONNX:
        return ""
    if graph.starts:
        return "yes; the file says which output feeds which input"
    why = ""
    for delay in (False, True):
        try:
            made = _streaming(file, graph, None, delay)
        except (SpecError, FormatError) as error:
            why = why or str(error).removeprefix(f"{graph.path}: ")
            continue
        if not made.states:
            return "yes"
        kinds = Counter("state" if state.steps is None else "cache" for state in made.states)
        added = " and ".join(count(number, kind) for kind, number in kinds.items())
        later = max(made.delays.values(), default=0)
        wait = f", {count(later, 'step')} later (--delay)" if later else ""
        return f"once rewritten by onegru convert --streaming, which adds {added}{wait}"
    if own := own_states(graph):
        return f"as it is, by its own states ({own}); whether they are all that it needs is not known: {why}"
    return why.replace("cannot run in chunks, as", "no:")


def own_states(graph: Graph) -> str:
    """The states that `Model.stream` finds among a model's inputs and outputs; empty where it refuses."""
    from onegru.timeline.check import check_time, named_states
    from onegru.timeline.read import read_timeline

    timeline = read_timeline(graph)
    pairs = {**dict(graph.states), **named_states(graph, timeline)}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SpecWarning)
            check_time(graph, timeline, pairs, refuses=True)
    except SpecError:
        return ""
    return ", ".join(f"{output} → {taker}" for output, taker in pairs.items())


def streaming_graph(graph: Graph, time: Mapping[str, int] | None, delay: bool) -> Graph:
    """The graph of a model, its hidden states among its inputs and outputs.

    Raises:
        SpecError: an operator cannot run in chunks, the model does not come from an ONNX file, or an argument
            is not legal.
        FormatError: its operators cannot be followed.
    """
    if graph.file is None or graph.file.kind is not Kind.ONNX:
        raise SpecError(f"rewrite: {graph.path} is no ONNX file; must be one")
    from onegru.formats.onnx.parse import parse_onnx
    from onegru.formats.onnx.validate import Source, serialized

    source, made = replace(Source.of(graph.file), file=None), _streaming(graph.file, graph, time, delay)
    return parse_onnx(serialized(source, made.model, "too large to be rewritten in memory"), source)


def _streaming(file: Opened, graph: Graph, time: Mapping[str, int] | None, delay: bool) -> Streaming:
    from onegru.formats.onnx.validate import Source, model_of
    from onegru.timeline.onnx import streaming_model

    source = replace(Source.of(file), file=None)
    return streaming_model(source, model_of(file), graph, time, delay)
