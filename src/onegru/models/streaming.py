"""A model of whole sequences, made to run in chunks of time in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onegru.core.errors import SpecError
from onegru.formats.graph import Graph
from onegru.formats.opened import Kind


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
    from onegru.formats.onnx.validate import Source, model_of, serialized
    from onegru.timeline.onnx import streaming_model

    source = replace(Source.of(graph.file), file=None)
    made = streaming_model(source, model_of(graph.file), graph, time, delay)
    return parse_onnx(serialized(source, made.model, "too large to be rewritten in memory"), source)
