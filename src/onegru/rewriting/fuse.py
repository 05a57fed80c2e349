"""`onegru.fuse`: replace decomposed GRUs by nodes, and compare."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onegru.core.arguments import check_function
from onegru.core.compare import TOLERANCE_FUSED, Comparison
from onegru.core.errors import needs_extra
from onegru.core.wording import count
from onegru.drawing.card import Card, CardReport
from onegru.formats.opened import Kind, Opened, open_model
from onegru.models.fusing import Decomposed, find_in_ir, nothing_found, replace_decomposed
from onegru.rewriting.check import Check, as_target, output_facts, wanted_check
from onegru.rewriting.compare import check_result
from onegru.timeline.unread import warn_of_unread

if TYPE_CHECKING:
    from onegru.formats.onnx.validate import ModelProto
    from onegru.formats.openvino.document import IrDocument
    from onegru.fusion.search import Fused, NearMiss, Progress


@dataclass(frozen=True, slots=True)
class Fusion(CardReport):
    """Result of `fuse`: fused GRUs and near misses.

    Attributes:
        source: the file that was read.
        target: the file that was written; None if no target was requested.
        fused: the recurrences that became GRU nodes.
        near_misses: recurrences that look like GRUs, each with the part that does not fit.
        nodes: the number of nodes in source and target, including subgraphs.
        notes: further changes and facts, as text.
        outputs: the results of the check; empty without a check.
    """

    source: str
    target: str | None
    fused: tuple[Fused, ...]
    near_misses: tuple[NearMiss, ...]
    nodes: tuple[int, int]
    notes: tuple[str, ...]
    outputs: tuple[Comparison, ...]

    def __repr__(self) -> str:
        old, new = self.nodes
        missed = f", {count(len(self.near_misses), 'near miss')}" if self.near_misses else ""
        return f"Fusion({self.source!r}: {count(len(self.fused), 'GRU')}, {old} nodes become {new}{missed})"

    def _card(self) -> Card:
        old, new = self.nodes
        facts = [
            ("nodes", f"{old:,} become {new:,}"),
            *(("near miss", item.reason) for item in self.near_misses),
        ]
        if self.target is not None:
            facts.insert(0, ("written", self.target))
        rows = [
            (item.place, item.form, f"{item.input_size} → {item.hidden_size}", item.direction)
            for item in self.fused
        ]
        headings = ("where", "form", "input → hidden", "direction")
        return f"Fusion · {self.source}", [*facts, *output_facts(self.outputs)], headings, rows


Fusion.__module__ = "onegru.reports"


def fuse(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    check: bool | Check = True,
    progress: Progress | None = None,
) -> Fusion:
    """Fuse decomposed GRUs of a model into GRU nodes.

    onegru finds single steps, unrolled steps and loops; docs/guides/fusing.md lists the supported patterns.
    The rest of the model stays unchanged. Each match is proved by algebra and verified by a numeric check.
    Then the target is compared with the source.

    Args:
        source: the path of an ONNX model, or of an OpenVINO IR (its .xml).
        target: the file of the same kind to write. It may be the source, and is replaced only after the check
            has passed. Default: None (write nothing).
        check: whether to compare the target with the source on random inputs, or a `Check` with inputs and
            tolerance. Default: True, with a tolerance of 1e-5 for float32, 1e-9 for float64, 1e-2 for float16
            and 5e-2 for bfloat16, for the type of the output or of a GRU node. With False, the source need
            not run.
        progress: a function that is called from time to time with the number of searched nodes and the total.
            Default: None (no calls).

    Returns:
        the fused recurrences, the near misses, and the difference of each output.

    Raises:
        SpecError: an argument is invalid.
        FormatError: the file is broken, or contains nothing that can be fused; or the target differs from the
            source, or the check is inconclusive. Nothing is written then.
        MissingExtraError: a required package is not installed.
        OSError: a file cannot be read or written.
    """
    file = open_model("source", source)
    is_ir = file.kind is Kind.OPENVINO
    path, label = as_target(file, target, ".xml" if is_ir else ".onnx")
    wanted = wanted_check(check)
    check_function("progress", progress)
    fuse_file = _fuse_ir if is_ir else _fuse_onnx
    found, notes, outputs = fuse_file(file, path, label, wanted, progress)
    return Fusion(
        source=str(file),
        target=None if path is None else str(path),
        fused=found.fused,
        near_misses=found.near_misses,
        nodes=found.nodes,
        notes=tuple(notes),
        outputs=outputs,
    )


_Done = tuple["Decomposed[ModelProto] | Decomposed[IrDocument]", list[str], tuple[Comparison, ...]]


def _fuse_onnx(
    file: Opened, target: Path | None, label: Path, check: Check | None, progress: Progress | None
) -> _Done:
    with needs_extra("onnx", "onnx", str(file)):
        from onegru.formats.onnx.parse import parse_onnx, read_onnx
        from onegru.formats.onnx.validate import Source, read_model
        from onegru.rewriting.external_data import write_model
    source = Source.of(file)
    found, result, notes = _search_onnx(file, progress)
    changed = source.changed(label)
    model = read_model(changed, result)
    made = parse_onnx(result, changed, model)
    warn_of_unread(made)
    outputs, more = check_result(
        lambda: read_onnx(file, keep_parsed=True),
        made,
        label,
        check,
        TOLERANCE_FUSED,
        written=(result, model),
    )
    if target is not None:
        write_model(source, found.model, result, target)
    return found, [*notes, *more], outputs


def _fuse_ir(
    file: Opened, target: Path | None, label: Path, check: Check | None, progress: Progress | None
) -> _Done:
    from onegru.formats.openvino.reader import read_ir

    graph = read_ir(file)  # first, because it rejects malicious files
    found = find_in_ir(file, progress)
    if not found.fused:
        raise nothing_found(str(file), found.near_misses)
    warn_of_unread(graph)
    outputs, notes = check_result(lambda: graph, found.model.graph(label), label, check, TOLERANCE_FUSED)
    if target is not None:
        found.model.write(target)
    return found, list(notes), outputs


def _search_onnx(
    file: Opened, progress: Progress | None = None
) -> tuple[Decomposed[ModelProto], bytes, list[str]]:
    """Fuse an ONNX model; return the search result, the serialized target, and notes."""
    from onegru.formats.onnx.functions.inline import all_nodes
    from onegru.formats.onnx.parse import model_opset
    from onegru.formats.onnx.validate import Source, model_of
    from onegru.rewriting.external_data import embed_external, external_notes, serialize_model

    source, model = Source.of(file), model_of(file)
    had = len(model.functions)
    notes = embed_external(source, model, len(file.data))
    found = replace_decomposed(source, model, progress)
    if not found.fused:
        kinds = {node.op_type for node in all_nodes(found.model.graph.node)}
        raise nothing_found(source.name, found.near_misses, model_opset(source, found.model), kinds)
    if len(found.model.functions) < had:
        notes.append("functions that contain GRU nodes were inlined")
    return found, serialize_model(source, found.model), [*notes, *external_notes(found.model)]
