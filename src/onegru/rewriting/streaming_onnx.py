"""Convert a whole-sequence ONNX model to one that runs in chunks."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

from onegru.core.compare import QUANTIZED
from onegru.formats.graph import Graph
from onegru.formats.onnx.parse import model_opset, parse_onnx, read_onnx
from onegru.formats.onnx.validate import ModelProto, Source, model_of, read_model
from onegru.formats.opened import Opened
from onegru.models.model import Model
from onegru.models.streaming import forms_of_onnx
from onegru.rewriting.check import Check
from onegru.rewriting.external_data import embed_external, external_notes, serialize_model, write_model
from onegru.rewriting.nodes.changes import RewriteOptions
from onegru.rewriting.nodes.model_pass import Rewritten, rewrite_model
from onegru.rewriting.streaming import Chunked, check_chunks, make_chunked


def make_onnx_streaming(
    file: Opened,
    target: Path,
    check: Check | None,
    time: Mapping[str, int] | None,
    delay: bool,
    options: RewriteOptions | None = None,
) -> Chunked:
    """Change an ONNX model, and compare it with its source."""
    onnx_source, model = Source.of(file), model_of(file)
    notes = embed_external(onnx_source, model, len(file.data))
    source = read_onnx(file, keep_parsed=True)
    # With embedded external data, the model differs from the file.
    in_memory = replace(onnx_source, file=None)
    graph = parse_onnx(serialize_model(onnx_source, model), in_memory, deepcopy(model)) if notes else source
    sizes = None if check is None else check.dims
    forms = forms_of_onnx(onnx_source, model, graph, time, delay, sizes)
    made = make_chunked(file, graph, notes, time, forms)
    data = serialize_model(onnx_source, made.model)
    whole = None if check is None else Model(source)

    rewritten: Rewritten | None = None
    changed: ModelProto = made.model

    def read() -> Graph:
        is_last = options is None or rewritten is not None
        model = read_model(onnx_source.changed(target), data) if is_last else changed
        return parse_onnx(data, onnx_source.changed(target), model)

    outputs = check_chunks(whole, read, made, check, target, notes)
    if options is not None:
        rewritten = rewrite_model(onnx_source, changed, len(data), options)
        changed = rewritten.model
        data = serialize_model(onnx_source, changed)
        notes += rewritten.notes
        is_int8 = QUANTIZED in rewritten.dtypes
        outputs = check_chunks(whole, read, made, check, target, notes, is_int8)

    if rewritten is None:
        notes += external_notes(changed)

    def write(path: Path) -> None:
        write_model(onnx_source, changed, data, path)

    return Chunked(made, rewritten, outputs, notes, model_opset(onnx_source, made.model), write)
