"""`onegru score`: run a model over the rows of Parquet files."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from onegru.cli import options
from onegru.cli.inputs import parse_axes, parse_pairs
from onegru.cli.options import ANY_FILE, Number, Text, Texts, argument, option, path
from onegru.cli.outputs import print_json
from onegru.cli.screen import CountingBar, ProgressBar, Screen, safe, say
from onegru.core.errors import SpecError
from onegru.core.wording import count, duration

ScoreModel = Annotated[Path, argument("MODEL", ANY_FILE)]
ScoreFiles = Annotated[list[str], argument("INPUT...", "Parquet files, folders or patterns.")]
ScoreFolder = Annotated[Path, option("-o, --out FOLDER", "Folder for the results, as Parquet.", parser=path)]
ScoreColumns = Annotated[
    Texts,
    option(
        "-i, --input, --column NAME=COLUMN",
        "Column for an input of the model, such as X=events. Default: the input's name.",
    ),
]
Results = Annotated[
    Texts,
    option(
        "--output, --result NAME[=COLUMN]",
        "Output to write, and the name of its column. Default: all outputs of a model, or Y_h (the last "
        "state) of layers. Layers also have Y (all states) and states (the last state of each layer).",
    ),
]
Keep = Annotated[str, option("--keep COLUMN,...", "Columns to copy to the results, such as id,day.")]
ScoreNodes = Annotated[
    Texts,
    option("--node NAME", "GRU to run, if the file has several. Repeat for a stack, lowest layer first."),
]
OnError = Annotated[
    str,
    option(
        "--on-error raise or skip or null",
        "Action for invalid rows (null, empty, of the wrong width, or with a NaN): raise an error, skip "
        "the row, or write null outputs.",
    ),
]
Memory = Annotated[str, option("--memory SIZE", "Memory limit, such as 500MB.")]
Pad = Annotated[
    bool,
    option(
        "--pad",
        "Pad rows of different lengths to one batch. The model must ignore padding. Layers always pad.",
    ),
]
Batch = Annotated[Number, option("--batch STEPS", "Maximum steps in a batch, including padding.", min=1)]
ScoreThreads = Annotated[
    Number, option("--threads N", "Number of compute threads. Default: all cores.", min=1)
]
Ray = Annotated[
    Text,
    option(
        "--ray ADDRESS",
        "Ray cluster: auto, HOST:PORT, or local for this machine's CPUs. --memory and --threads then apply "
        "to each worker. Default for --threads: 1.",
    ),
]


if TYPE_CHECKING:
    from onegru.scoring.score import Scoring

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{prefix}B": 1000**power for power, prefix in enumerate("KMG", 1)}
_UNITS |= {f"{prefix}IB": 1024**power for power, prefix in enumerate("KMG", 1)}


def score_command(
    model: ScoreModel,
    inputs: ScoreFiles,
    output: ScoreFolder,
    columns: ScoreColumns = None,
    results: Results = None,
    keep: Keep = "",
    nodes: ScoreNodes = None,
    axes: options.Axes = None,
    on_error: OnError = "raise",
    weight_storage: options.WeightStorage = None,
    activation_storage: options.ActivationStorage = None,
    memory: Memory = "1GiB",
    pad: Pad = False,
    batch: Batch = None,
    threads: ScoreThreads = None,
    ray: Ray = None,
    as_json: options.Json = False,
) -> None:
    """Run a model over the sequences in Parquet files, and write the results as Parquet.

    Sequences can have different lengths. The results have the rows of the input, in the same order. If a run
    was stopped, the same command resumes it.

    Example: onegru score model.pt logs/ -o scores/ --column X=events --keep id,day
    """
    from onegru.scoring import Scorer, score  # needs pyarrow

    scorer = Scorer(
        model,
        inputs=parse_pairs("--column", columns or []),
        outputs=None if results is None else parse_pairs("--output", results, bare_names=True),
        keep=[name for name in keep.split(",") if name],
        nodes=nodes or [],
        axes=parse_axes(axes or []),
        pad=pad,
        batch=batch,
        on_error=on_error,
        weight_storage=weight_storage,
        activation_storage=activation_storage,
        num_threads=threads,
    )
    size = parse_size(memory)
    execute = None
    if ray is not None:
        from onegru.scoring import on_ray

        execute = on_ray(ray)
    with ProgressBar(f"loading {model.name}"):
        _ = scorer.program
    if not as_json and not (output / "_SUCCESS").exists() and (parts := [*output.glob("part-*.parquet")]):
        say(Screen(), f"{safe(str(output))} has {count(len(parts), 'part')} of an earlier run; resuming")
    try:
        with CountingBar("rows", f"scoring with {model.name}") as bar:
            found = score(scorer, inputs, output, memory=size, progress=bar.progress, execute=execute)
    except KeyboardInterrupt:
        raise typer.Abort("run the same command again to resume") from None
    if as_json:
        print_json(dataclasses.asdict(found))
    else:
        _show(Screen(), found, "skipped" if on_error == "skip" else "without outputs")


def _show(screen: Console, found: Scoring, what: str) -> None:
    """Print what was scored. `what` is the result for rows on which the model failed."""
    folder = safe(found.output)
    if not found.rows_now and found.parts_before == found.parts:
        say(screen, f"{folder} is complete: {count(found.rows, 'row')}; nothing to do")
    else:
        rate = f", {found.rows_now / found.seconds:,.0f} rows/s" if found.rows_now else ""
        before = f", {found.parts_before} of them from an earlier run" if found.parts_before else ""
        say(screen, f"scored {count(found.rows_now, 'row')} in {duration(found.seconds)}{rate}")
        say(screen, f"wrote {folder}: {count(found.rows, 'row')} in {count(found.parts, 'file')}{before}")
    if found.skipped:
        say(screen, f"{count(found.skipped, 'row')} {what}; {folder}/_errors lists the rows and reasons")


def parse_size(text: str) -> int:
    """Return a number of bytes from a text such as 500MB or 1GiB."""
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,3})?) ?([A-Za-z]*)", text)
    if match is None or match[2].upper() not in _UNITS:
        raise SpecError.of("--memory", f"{text!r}; must be a size, such as 500MB or 1GiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])
