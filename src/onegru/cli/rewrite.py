"""Rewriting the GRU nodes of an ONNX model: options of `onegru convert`, and the report."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from onegru.cli.fusing import decomposed_words, near_miss_words, saving_words
from onegru.cli.inputs import parse_dims
from onegru.cli.outputs import print_json
from onegru.cli.screen import Screen, ruled_table, safe, say, waiting
from onegru.core.errors import SpecError
from onegru.formats.opened import Opened
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
        options: of `onegru.rewriting.rewrite.rewrite`.

    Raises:
        OneGRUError: as `onegru.rewriting.rewrite.rewrite` does; nothing is written then.
        OSError: a file cannot be read or written.
    """
    if no_check and (dims or tolerance is not None):
        raise SpecError(
            "--no-check: given with --dim or --tolerance, which have no effect then; must be left out"
        )
    with waiting(f"converting {source.path.name}") as watch:
        checks: dict[str, Any] = {
            "dims": parse_dims(dims or []),
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
        print_json(dataclasses.asdict(report))
    elif isinstance(report, Fusion):
        show_fusion(Screen(), report)
    else:
        show_report(Screen(), report)


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
    console.print("differences are from the source, which onegru ran on random inputs", highlight=False)
