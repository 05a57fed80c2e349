"""Convert a whole-sequence IR to one that runs in chunks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from onegru.formats.opened import Opened
from onegru.formats.openvino.document import IrDocument
from onegru.formats.openvino.reader import read_ir
from onegru.models.fusing import with_sequences
from onegru.models.model import Model
from onegru.models.streaming import forms_of_ir
from onegru.rewriting.check import Check
from onegru.rewriting.streaming import Chunked, check_chunks, make_chunked


def make_ir_streaming(
    file: Opened, target: Path, check: Check | None, time: Mapping[str, int] | None, delay: bool
) -> Chunked:
    """Change an IR, and compare it with its source; arguments and errors as in `make_onnx_streaming`."""
    graph, notes = with_sequences(file, read_ir(file, keep_parsed=True)), list[str]()
    made = make_chunked(file, graph, notes, time, forms_of_ir(graph, time, delay))
    document: IrDocument = made.model
    whole = None if check is None else Model(graph)
    outputs = check_chunks(whole, lambda: document.graph(target), made, check, target, notes)
    return Chunked(made, None, outputs, notes, None, document.write)
