"""Rewriting the GRU nodes of an ONNX model: options of `onegru convert`, and the report."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from onegru.cli.fusing import decomposed_words, near_miss_words, saving_words
from onegru.cli.inputs import gather_inputs, parse_axes, parse_dims, parse_pairs
from onegru.cli.outputs import print_json
from onegru.cli.screen import Screen, ruled_table, safe, say, waiting
from onegru.core.dtypes import Array
from onegru.core.errors import SpecError
from onegru.core.wording import count
from onegru.formats.opened import Opened
from onegru.models.load import load
from onegru.models.model import Model
from onegru.quantization.quantize import quantize
from onegru.quantization.report import Quantization, table_rows
from onegru.quantization.subject import MODES
from onegru.rewriting.check import OutputReport
from onegru.rewriting.fuse import Fusion, fuse
from onegru.rewriting.rewrite import RUNTIMES, Rewriting, rewrite


def _runtimes(incomplete: str) -> list[str]:
    return [name for name in RUNTIMES if name.startswith(incomplete)]


#: From so many dB on, a ratio of signal to noise says no more than rounding does.
_NOISELESS = 100.0

Float16 = Annotated[
    bool, typer.Option("--float16", help="Convert GRU nodes to float16, with Casts around them.")
]
Quantize = Annotated[
    bool, typer.Option("--quantize", help="Store W and R of GRU nodes in int8, with DequantizeLinear nodes.")
]
KeepSnr = Annotated[
    float | None,
    typer.Option(
        "--keep-snr",
        metavar="DB",
        help="With --quantize: only those GRUs with which every output keeps this ratio of signal to noise.",
    ),
]
Samples = Annotated[
    list[str] | None,
    typer.Option(
        "--samples",
        metavar="FILE",
        help="With --quantize: Parquet files, a folder or a pattern, whose rows to measure with, one by one.",
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="NAME=COLUMN",
        help="With --samples: the column of one of the model's inputs; by default that of its name.",
    ),
]
Rows = Annotated[
    int | None,
    typer.Option(
        "--rows", metavar="N", min=1, help="With --samples: how many rows at most, the first ones; 100."
    ),
]
GroupSize = Annotated[
    int | None,
    typer.Option(
        "--group-size",
        metavar="N",
        help="With --quantize: a scale for each 32, 64 or 128 weights of a row, from opset 21 on.",
    ),
]
Streaming = Annotated[
    bool,
    typer.Option(
        "--streaming",
        help="Make a model of whole sequences run in chunks: its states become inputs and outputs.",
    ),
]
TimeAxes = Annotated[
    list[str] | None,
    typer.Option(
        "--time", metavar="INPUT=AXIS", help="With --streaming: the axis of time of an input, if not clear."
    ),
]
Delay = Annotated[
    bool,
    typer.Option("--delay", help="With --streaming: outputs may come later, where a node looks ahead."),
]
Split = Annotated[
    bool,
    typer.Option("--bidirectional-split", help="Split bidirectional nodes into a forward and a reverse one."),
]
Decompose = Annotated[bool, typer.Option("--decompose", help="Express GRU nodes with other operators.")]
Fuse = Annotated[
    bool, typer.Option("--fuse", help="Replace GRUs that are decomposed into other operators with GRU nodes.")
]
ForRuntime = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="RUNTIME",
        autocompletion=_runtimes,
        help="Change only what onnxruntime or openvino fails on.",
    ),
]
Tolerance = Annotated[
    float | None, typer.Option("--tolerance", metavar="X", help="The largest difference that is allowed.")
]
NoCheck = Annotated[
    bool,
    typer.Option(
        "--no-check", help="Write without running and comparing, for models that onegru cannot run."
    ),
]


def convert_model(
    source: Opened,
    target: Path,
    *,
    dims: list[str] | None,
    tolerance: float | None,
    no_check: bool,
    as_json: bool,
    fused: bool,
    inputs: list[str] | None = None,
    keep_snr: float | None = None,
    samples: list[str] | None = None,
    columns: list[str] | None = None,
    axes: list[str] | None = None,
    rows: int | None = None,
    time: list[str] | None = None,
    **options: Any,
) -> None:
    """Rewrite the GRU nodes of an ONNX model, or make some, and print what was done.

    Args:
        source: the model.
        target: the file to write.
        dims: sizes of open dimensions, as NAME=SIZE.
        tolerance: as for `onegru.rewriting.rewrite.rewrite`.
        no_check: whether to write without running the models.
        as_json: whether to print JSON.
        fused: whether decomposed GRUs become GRU nodes first.
        inputs: [NAME=]FILE of the inputs to check and to measure with; None for random ones.
        keep_snr: as for `onegru.quantize`, to choose the GRU nodes that become int8.
        samples: Parquet files, whose rows are the inputs to measure with, the first row also that to check
            with.
        columns: of inputs in them, as NAME=COLUMN.
        axes: of inputs, as NAME=AXIS,...
        rows: how many rows to take at most.
        time: the axis of time of inputs, as INPUT=AXIS.
        options: of `onegru.rewriting.rewrite.rewrite`.

    Raises:
        OneGRUError: as `onegru.rewriting.rewrite.rewrite` does; nothing is written then.
        OSError: a file cannot be read or written.
    """
    of_quantize = {"--keep-snr": keep_snr, "--samples": samples}
    of_samples = {"--column": columns, "--axes": axes, "--rows": rows}
    of_check = {"--dim": dims, "--input": inputs, "--tolerance": tolerance, **of_quantize}
    _refuse(of_check, no_check, "with --no-check")
    without = {**of_quantize, "--group-size": options["group_size"]}
    _refuse(without, not options["quantize"], "without --quantize")
    _refuse(of_samples, not samples, "without --samples")
    if samples and inputs:
        raise SpecError("--samples: given with --input; must be one of them")
    if keep_snr is not None and not isinstance(options["quantize"], bool):
        raise SpecError("--node: given with --keep-snr, which chooses the GRUs; must be one of them")
    if time:
        options["time"] = _axes_of(time)
    measured: Quantization[Model] | None = None
    values: Mapping[str, Array] | None = None
    given: list[dict[str, Array]] = []
    if inputs:
        values, _ = gather_inputs(load(source.path, fuse=fused), inputs, None, dims or [], draws=False)
    sizes = parse_dims(dims or [])
    words = "the inputs given" if inputs else "random inputs, which say little: -i or --samples for your own"
    if samples:
        from onegru.scoring.samples import ROWS, read_samples  # which needs pyarrow

        with waiting(f"reading {samples[0]}"):
            pairs = parse_pairs("--column", columns or [])
            given = read_samples(
                load(source.path, fuse=fused),
                samples,
                inputs=pairs,
                axes=parse_axes(axes or []),
                rows=rows or ROWS,
            )
        values = given[0]
        words = f"the first {count(len(given), 'row')} of {', '.join(samples)}"
    if options["quantize"] and not no_check:
        with waiting(f"measuring {source.path.name}") as watch:
            measured = quantize(
                load(source.path, fuse=fused),
                given or values,
                keep_snr=keep_snr,
                group_size=options["group_size"],
                among=("W8A8", "W8A16", "float32"),  # what a file holds in int8, or as it is
                dims=sizes or None,
                progress=watch.progress,
            )
        if keep_snr is not None:
            options["quantize"] = _names_in_int8(measured, keep_snr)
    with waiting(f"converting {source.path.name}") as watch:
        checks: dict[str, Any] = {
            "dims": sizes or None,
            "inputs": values,
            "tolerance": tolerance,
            "check": not no_check,
        }
        report: Rewriting | Fusion
        if not fused:
            report = rewrite(source, target, **checks, **options)
        elif any(value not in (None, False) for value in options.values()):
            report = rewrite(source, target, **checks, **options, fuse=True, progress=watch.progress)
        else:
            report = fuse(source, target, **checks, progress=watch.progress)
    if as_json:
        document = dataclasses.asdict(report)
        if measured is not None:
            document["quantization"] = {
                "grus": [dataclasses.asdict(gru) for gru in measured.grus],
                "modes": {mode: dataclasses.asdict(item) for mode, item in measured.modes.items()},
                "chosen": dataclasses.asdict(measured.chosen),
                "weight_storage": measured.weight_storage,
                "activation_storage": measured.activation_storage,
            }
        print_json(document)
    elif isinstance(report, Fusion):
        show_fusion(Screen(), report)
    else:
        show_report(Screen(), report)
        if measured is not None:
            _show_measured(Screen(), measured, target, words, keep_snr is not None)


def _refuse(options: Mapping[str, object], is_useless: bool, when: str) -> None:
    """Raise SpecError if options are given that have no effect."""
    given = [name for name, value in options.items() if value not in (None, [])]
    if is_useless and given:
        raise SpecError(f"{' and '.join(given)}: given {when}, where it has no effect; must be left out")


def _axes_of(texts: list[str]) -> dict[str, int]:
    """The axes of time.

    Raises:
        SpecError: a text is not INPUT=AXIS.
    """
    found = {}
    for text in texts:
        name, _, axis = text.rpartition("=")
        if not name or not axis.isascii() or not axis.isdigit() or len(axis) > 2:
            raise SpecError(f"--time: {text!r}; must be INPUT=AXIS, such as X=1")
        found[name] = int(axis)
    return found


def _names_in_int8(measured: Quantization[Model], keep_snr: float) -> list[str]:
    """The GRU nodes that become int8.

    Raises:
        SpecError: no GRU node becomes int8.
    """
    names = [gru.name for gru in measured.grus if MODES[gru.mode][0] == "int8"]
    if not names and not any(gru.modes for gru in measured.grus):
        reasons = ", ".join(f"{gru.name!r} {gru.reason}" for gru in measured.grus)
        raise SpecError(f"--keep-snr: no GRU node can be kept in int8: {reasons}")
    if not names:
        most = measured.modes["W8A16"].snr
        raise SpecError(
            f"--keep-snr: {keep_snr:g} dB; no GRU node keeps as much in int8 (all in W8A16: {most:.1f} dB)"
        )
    return names


def _show_measured(
    console: Console, measured: Quantization[Model], target: Path, inputs: str, is_chosen: bool
) -> None:
    """A table of the modes that onegru can run GRUs in, and how to run the target as was chosen."""
    table = ruled_table(["GRU"], MODES)
    if is_chosen:
        table.add_column("kept in")
    for row in table_rows(measured):
        if row[0] == "all":
            table.add_section()
        table.add_row(*map(safe, row if is_chosen else row[:-1]))
    console.print(table)
    say(console, f"signal to noise in onegru, against float32, and the time of a pass, on {safe(inputs)}")
    if is_chosen:
        kept = f"weight_storage={measured.weight_storage}, activation_storage={measured.activation_storage}"
        say(console, f"to run it so: onegru.load({safe(repr(str(target)))}, {safe(kept)})")


def show_fusion(console: Console, report: Fusion) -> None:
    """Lines for each GRU that was found, then a table of how far the outputs differ."""
    say(console, f"wrote {safe(report.target)}, {saving_words(report.nodes, report.fused)}")
    _show_fused(console, report)
    say(console, *map(safe, report.notes))
    _show_outputs(console, report)


def show_report(console: Console, report: Rewriting) -> None:
    """Lines for each GRU that was found and for each change, then a table of how far the outputs differ."""
    old, new = report.opsets
    opset = f"opset {new}" if old == new else f"opset {old} became {new}"
    say(console, f"wrote {safe(report.target)}, {opset}")
    _show_fused(console, report)
    lines: list[str] = []
    for node in report.nodes:
        lines.append(f"[bold]{safe(node.name)}[/]")
        lines += (f"  {safe(words)}" for words in node.done or ("unchanged",))
        lines += (f"  because the runtime {safe(words)}" for words in node.reasons)
    lines += (f"{safe(words)}: converted" for words in report.others)
    say(console, *lines, *map(safe, report.notes))
    _show_outputs(console, report)


def compared_words(outputs: Sequence[OutputReport]) -> str:
    """How much was compared."""
    own = [item for item in outputs if item.runtime == outputs[0].runtime]
    words = f"{sum(item.compared for item in own):,} numbers compared"
    if steps := max((item.steps or 0 for item in own), default=0):
        words += f", over {count(steps, 'step')}"
    if all(item.moved is not None for item in own):
        words += f"; {sum(item.moved or 0 for item in own):,} change with the random inputs"
    if left_out := sum(item.left_out for item in own):
        words += f"; {left_out:,} left out, as they are not finite in the source"
    return words


def _show_fused(console: Console, report: Rewriting | Fusion) -> None:
    say(console, *decomposed_words(report.fused), *near_miss_words(report.missed))


def _show_outputs(console: Console, report: Rewriting | Fusion) -> None:
    if not report.outputs:
        console.print("not checked", highlight=False)
        return
    is_noisy = any(item.snr is not None and item.snr < _NOISELESS for item in report.outputs)
    table = ruled_table(["output", "run by"], ["max abs", "max ULP", *["SNR"] * is_noisy])
    for item in report.outputs:
        figures = [f"{item.max_abs:.2g}", str(item.max_ulp)]
        if is_noisy:
            figures.append("" if item.snr is None else f"{item.snr:.1f} dB")
        table.add_row(safe(item.name), item.runtime, *figures)
    console.print(table)
    console.print("differences are from the source, which onegru ran on the same inputs", highlight=False)
    say(console, compared_words(report.outputs))
