"""Run a model over Parquet files, and resume stopped runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onegru._native
from onegru.core.arguments import check_function, file_path, integer, shown
from onegru.core.errors import FormatError, SpecError
from onegru.core.machine import memory_size
from onegru.scoring.dataset import Part, Plan, find_files, make_plan
from onegru.scoring.folder import Folder, refuse_differences
from onegru.scoring.pipeline import Job, Progress
from onegru.scoring.programs.source import model_digest
from onegru.scoring.scorer import Scorer

#: Default memory limit of a run.
MEMORY = 1 << 30

# Memory of a process that scores nothing: Python, NumPy, Arrow, ONNX Runtime, a small model.
_BASE = 256 << 20
# Copies of a part's rows in memory at most: being read, waiting, being computed (in Arrow's and in the
# model's layout), as outputs, and being written; and the memory that allocators keep.
_COPIES = 12
_LEAST_PART = 1 << 20
_LARGEST_ROW = 80  # number of largest rows that fit in memory, because some dozens may be decoded at once

#: Function that scores parts of a job.
Execute = Callable[[Job, Sequence[Part], Callable[[int], None]], None]


@dataclass(frozen=True, slots=True)
class Scoring:
    """Result of a run of `score`.

    Attributes:
        output: the folder of results.
        files: the number of files that were read.
        rows: the number of rows in the results.
        skipped: the number of rows that were skipped, or have null outputs; `_errors/` in the folder lists
            them.
        parts: the number of files with results.
        parts_before: the number of them that existed before the run.
        rows_now: the number of rows that this run scored.
        seconds: the duration of the run.
    """

    output: str
    files: int
    rows: int
    skipped: int
    parts: int
    parts_before: int
    rows_now: int
    seconds: float

    __module__ = "onegru.scoring"


def score(
    scorer: Scorer,
    inputs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    memory: int = MEMORY,
    progress: Progress | None = None,
    execute: Execute | None = None,
) -> Scoring:
    """Score the rows of Parquet files, and write them as Parquet, in the order of the input.

    Reading, computing and writing overlap. Each file of the results is written atomically. After a crash or
    Ctrl-C, the same call scores the missing rows. If the run is complete, it does nothing.

    Args:
        scorer: the model, its columns, and the handling of invalid rows.
        inputs: Parquet files, folders of them, patterns such as "logs/*.parquet".
        output: the folder of results: new, empty, or from an earlier run with the same arguments and files.
            If that run has written no part, the arguments may differ. It must not be in a folder that is
            read.
        memory: memory limit of the process in bytes, at most the machine's memory; see
            docs/guides/scoring.md.
        progress: called with the number of finished rows and of all rows.
        execute: the function that does the work, such as `on_ray(…)`. Default: None (this process).

    Raises:
        SpecError: an argument is invalid, a column is missing or does not fit, or the folder has results of
            another run, or a run is active in it.
        FormatError: a file is broken, a row cannot be run (with on_error="raise"), or a row takes too much
            memory.
        OSError: a file cannot be read or written.
    """
    if not isinstance(scorer, Scorer):
        raise SpecError.of("scorer", f"{shown(scorer)}; must be a Scorer")
    check_function("progress", progress)
    memory = integer("memory", memory, 1)
    began = time.perf_counter()
    memory = min(memory, memory_size())
    folder = Folder(file_path("output", output))
    paths = find_files(inputs, folder.path)
    for path in paths:
        if Path(os.path.realpath(folder.path)) in Path(os.path.realpath(path)).parents:
            raise SpecError(f"{path}: is in the folder of results; must be outside")
    # Before the folder is locked, so that a rejected run does not create one.
    plan = make_plan(scorer, paths, _part_bytes(folder.path, memory, folder.manifest()))
    manifest = _manifest(scorer, plan)
    with folder.locked():
        before = folder.manifest()
        if before is not None:
            refuse_differences(folder.path, before, manifest)
        folder.clear_leftovers()
        if before is None:
            folder.begin(manifest)
        parts = plan.parts
        done = folder.done(len(parts))
        rows_now = 0
        if len(done) < len(parts) or not folder.is_complete:
            folder.remove_success()
            rows_now = _run(scorer, plan, folder, memory, done, progress, execute)
            counts = [folder.counts(part.number, part.rows, scorer.on_error == "skip") for part in parts]
            rows, skipped = (sum(column) for column in zip(*counts, strict=True))
            folder.succeed({"rows": rows, "skipped": skipped, "parts": len(parts)})
        else:
            totals = folder.success()
            rows, skipped = totals["rows"], totals["skipped"]
    return Scoring(
        output=str(folder.path),
        files=len(paths),
        rows=rows,
        skipped=skipped,
        parts=len(parts),
        parts_before=len(done),
        rows_now=rows_now,
        seconds=time.perf_counter() - began,
    )


def _run(
    scorer: Scorer,
    plan: Plan,
    folder: Folder,
    memory: int,
    done: set[int],
    progress: Progress | None,
    execute: Execute | None,
) -> int:
    """Score the missing parts, and return their number of rows."""
    parts = [part for part in plan.parts if part.number not in done]
    total, rows_now = (sum(part.rows for part in some) for some in (plan.parts, parts))
    finished = total - rows_now

    def on_rows(rows: int) -> None:
        nonlocal finished
        finished += rows
        if progress is not None:
            progress(finished, total)

    on_rows(0)
    job = Job(scorer, plan, str(folder.path), (memory - _BASE) // _LARGEST_ROW)
    (execute or Job.run)(job, parts, on_rows)
    return rows_now


def _part_bytes(output: Path, memory: int, before: dict[str, Any] | None) -> int:
    """Return the memory of a part: as in the earlier run, or as much as the limit allows."""
    most = (memory - _BASE) // _COPIES
    wanted = _LEAST_PART
    if before is not None:
        wanted = before.get("part_bytes", 0)
        if not isinstance(wanted, int) or wanted < _LEAST_PART:
            raise FormatError(f"{output}: its record of a run is broken")
    if most < wanted:
        least = -(-(_BASE + _COPIES * wanted) // 10**6)
        why = "" if before is None else ", because this run began with larger parts"
        raise SpecError.of("memory", f"{memory // 10**6} MB; must be at least {least} MB{why}")
    return most if before is None else wanted


def _manifest(scorer: Scorer, plan: Plan) -> dict[str, Any]:
    """Return the data that identify a run, in JSON types."""
    return {
        "onegru": onegru._native.version(),
        "model": model_digest(scorer.model),
        **scorer.arguments(),
        "schema": scorer.schema(plan.schema).to_string(show_field_metadata=False, show_schema_metadata=False),
        "inputs": [
            {"path": os.path.realpath(path), "size": file.size, "mtime_ns": file.mtime_ns}
            for path, file in plan.files.items()
        ],
        "part_bytes": plan.part_bytes,
    }
