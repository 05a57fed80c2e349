"""The decomposed GRUs of a whole model made GRU nodes, and checked before anything is written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onegru.core.arguments import check_function, file_path
from onegru.core.compare import TOLERANCE_FUSED
from onegru.core.errors import needs_extra
from onegru.formats.opened import Kind, Opened, open_model
from onegru.models.fusing import (
    Decomposed,
    DecomposedIr,
    find_in_ir,
    nothing_found,
    replace_decomposed,
)
from onegru.models.random_inputs import Dims
from onegru.rewriting.check import Check, OutputReport, check_target
from onegru.rewriting.compare import check_result
from onegru.system.atomic_write import write_files

if TYPE_CHECKING:
    from onegru.fusion.search import Fused, NearMiss, Progress


@dataclass(frozen=True, slots=True)
class Fusion:
    """What became of a model's decomposed GRUs.

    Attributes:
        source: the file that was read.
        target: the file that was written.
        fused: the recurrences that became GRU nodes.
        missed: near misses, each with the part that does not fit.
        nodes: how many nodes the source has, those in bodies included, and how many the target has.
        notes: what else there is to know.
        outputs: the results of the check; empty if it was not asked for.
    """

    __module__ = "onegru"

    source: str
    target: str
    fused: tuple[Fused, ...]
    missed: tuple[NearMiss, ...]
    nodes: tuple[int, int]
    notes: tuple[str, ...]
    outputs: tuple[OutputReport, ...]


def fuse(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    inputs: Mapping[str, object] | None = None,
    dims: Dims | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    check: bool = True,
    progress: Progress | None = None,
) -> Fusion:
    """Make GRU nodes of the GRUs that a model has decomposed into other operators; the rest stays as it is.

    Single steps, steps that follow each other, and loops become nodes; docs/guides/fusing.md says which.
    Each match is proved by algebra and verified by a numeric check; then the whole target is compared with
    the source.

    Args:
        source: an ONNX model, or an OpenVINO IR (its .xml).
        target: the file of the same kind to write, which may be the source; it is replaced only once the
            result has passed the check.
        inputs: an array for each of the model's inputs, to check with; random by default.
        dims: sizes of open dimensions of random inputs, by name ("X.0" for one without), and whole shapes of
            inputs, by their names.
        seed: of the random inputs.
        tolerance: the largest absolute difference to allow, times the largest number of the output if that is
            above 1. By default 1e-5 for float32, 1e-9 for float64, 1e-2 for float16 and 5e-2 for bfloat16, of
            the output or of a GRU node: the source rounds after each operator; or more where the model
            enlarges a rounding of its inputs to more.
        check: whether to check the target against the source. The source need not run without it.
        progress: called now and then with the number of nodes searched and of all.

    Returns:
        what was fused, what came near, and how far the outputs lie apart.

    Raises:
        SpecError: an argument is not legal.
        FormatError: the file is broken, holds nothing that can be fused, the target differs from the
            source, or a comparison would prove nothing; nothing is written then.
        MissingExtraError: a package that this needs is not installed.
        OSError: a file cannot be read or written.
    """
    file, target = open_model("source", source), file_path("target", target)
    is_ir = file.kind is Kind.OPENVINO
    check_target(target, ".xml" if is_ir else ".onnx")
    wanted = Check.of(check, inputs, dims, seed, tolerance)
    check_function("progress", progress)
    fuse_file = _fuse_ir if is_ir else _fuse_onnx
    found, notes, outputs = fuse_file(file, target, wanted, progress)
    return Fusion(
        source=str(file),
        target=str(target),
        fused=found.fused,
        missed=found.missed,
        nodes=found.nodes,
        notes=tuple(notes),
        outputs=outputs,
    )


_Done = tuple["Decomposed | DecomposedIr", list[str], tuple[OutputReport, ...]]


def _fuse_onnx(file: Opened, target: Path, wanted: Check, progress: Progress | None) -> _Done:
    with needs_extra("onnx", "onnx", str(file)):
        from onegru.formats.onnx.parse import parse_onnx, read_onnx
        from onegru.formats.onnx.validate import Source
    found, result, notes = fuse_onnx(file, progress)
    made = parse_onnx(result, Source(str(target)))
    outputs, more = check_result(
        lambda: read_onnx(file, again=True), made, target, wanted, TOLERANCE_FUSED, data=result
    )
    write_files([(target, lambda file: file.write(result))])
    return found, [*notes, *more], outputs


def _fuse_ir(file: Opened, target: Path, wanted: Check, progress: Progress | None) -> _Done:
    from onegru.formats.openvino.reader import read_ir
    from onegru.formats.openvino.writer import write_pair

    graph = read_ir(file)  # first, as it refuses hostile files
    found = find_in_ir(file, progress)
    if not found.fused:
        raise nothing_found(str(file), found.missed)
    outputs, notes = check_result(lambda: graph, found.graph(target), target, wanted, TOLERANCE_FUSED)
    write_pair(target, found.shifted, [found.weights.tobytes()])
    return found, [*notes], outputs


def fuse_onnx(file: Opened, progress: Progress | None = None) -> tuple[Decomposed, bytes, list[str]]:
    """Fuse an ONNX model; returns what was found, the result in one file, and what else was done.

    Raises:
        FormatError: it is broken, or holds nothing that can be fused.
    """
    from onegru.formats.onnx.parse import model_opset
    from onegru.formats.onnx.validate import Source, model_of
    from onegru.rewriting.model_pass import embed_external, one_file

    place, model = Source.of(file), model_of(file)
    had = len(model.functions)
    notes = embed_external(place, model, len(file.data))
    found = replace_decomposed(place, model, progress)
    if not found.fused:
        raise nothing_found(place.name, found.missed, model_opset(place, found.model))
    if len(found.model.functions) < had:
        notes.append("functions that hold GRU nodes were inlined")
    return found, one_file(place, found.model), notes
