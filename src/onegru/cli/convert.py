"""`onegru convert`: layers from one file to another, checked before the target is replaced."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from onegru.cli.model_changes import AsJson, Overwrite, opened
from onegru.cli.outputs import print_json
from onegru.cli.screen import ProgressBar, Screen, ruled_table, safe, say
from onegru.cli.tables import left_out_words, ulp_words
from onegru.core.dtypes import is_int8
from onegru.core.errors import SpecError
from onegru.core.wording import count
from onegru.engines.storage import lossless_storage
from onegru.formats.opened import Kind
from onegru.formats.save import SUFFIXES
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack, layers_of
from onegru.models.convert_layers import OutputCheck, convert_layers
from onegru.models.inspect import report
from onegru.models.load import load
from onegru.models.load_layers import left_out
from onegru.models.select_layers import read_source
from onegru.runtimes.known_issues import Verdict

_OF_MODELS = "Of an ONNX or OpenVINO target"

_SourceArgument = Annotated[
    Path,
    typer.Argument(
        metavar="SOURCE", help="A model (.onnx, .xml) or a checkpoint (.safetensors, .pt, .keras, .tflite)."
    ),
]
_NodesOption = Annotated[
    list[str] | None,
    typer.Option("--node", metavar="NAME", help="The GRU to take; several make a stack, lowest first."),
]
_KerasVersionOption = Annotated[
    str | None,
    typer.Option(
        "--keras-version", metavar="2.3", help="The Keras that saved SOURCE, if the file does not say."
    ),
]
_OpsetOption = Annotated[
    int | None,
    typer.Option("--opset", metavar="N", help="ONNX: 1 to 22.", rich_help_panel=_OF_MODELS),
]
_LayoutOption = Annotated[
    int | None,
    typer.Option("--layout", help="ONNX: 0 for time first, 1 for batch first.", rich_help_panel=_OF_MODELS),
]
_CellOption = Annotated[
    bool | None,
    typer.Option("--cell", help="IR: cells, which run a single step.", rich_help_panel=_OF_MODELS),
]
_InitialHOption = Annotated[
    bool | None,
    typer.Option(
        "--initial-h/--no-initial-h",
        help="Inputs for initial states; default yes.",
        rich_help_panel=_OF_MODELS,
    ),
]
_LengthsOption = Annotated[
    bool | None,
    typer.Option(
        "--lengths/--no-lengths",
        help="An input for lengths; default no: OpenVINO ignores them where sizes are open.",
        rich_help_panel=_OF_MODELS,
    ),
]
_BatchSizeOption = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        metavar="SIZE",
        help="A fixed batch size; default any.",
        rich_help_panel=_OF_MODELS,
    ),
]
_SeqLengthOption = Annotated[
    int | None,
    typer.Option(
        "--seq-length",
        metavar="SIZE",
        help="A fixed number of steps; default any.",
        rich_help_panel=_OF_MODELS,
    ),
]


def convert_command(
    source: _SourceArgument,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help=f"Where to: {', '.join(SUFFIXES)}.")],
    nodes: _NodesOption = None,
    keras_version: _KerasVersionOption = None,
    opset: _OpsetOption = None,
    layout: _LayoutOption = None,
    cell: _CellOption = None,
    initial_h: _InitialHOption = None,
    lengths: _LengthsOption = None,
    batch_size: _BatchSizeOption = None,
    seq_length: _SeqLengthOption = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Take a GRU, or a stack of them, out of one file and write it to another, of any kind.

    Nothing is written if the two differ by more than rounding, on random inputs. A whole ONNX model is
    changed by `onegru rewrite`, `fuse`, `stream` and `quantize`.

    Example: onegru convert model.onnx model.xml

    Example: onegru convert checkpoint.pt gru.onnx --node rnn --layout 1
    """
    options: dict[str, int | bool | None] = {
        "opset": opset,
        "layout": layout,
        "cell": cell,
        "initial_h": initial_h,
        "sequence_lens": lengths,
        "batch_size": batch_size,
        "seq_length": seq_length,
    }
    file = opened(source, target, list(SUFFIXES), overwrite)
    takes_out = (nodes or None, keras_version, cell, initial_h, lengths, batch_size, seq_length)
    is_whole = all(item is None for item in takes_out)
    if is_whole and file.kind is Kind.ONNX and target.suffix.lower() == ".onnx":
        raise SpecError.of(
            "TARGET",
            "an ONNX model, as SOURCE is: `onegru rewrite` changes a whole model; name a GRU to take "
            "out with --node",
        )
    with ProgressBar(f"loading {source.name}"):
        layers = read_source(file, nodes or [], keras_version)
    with ProgressBar(f"writing {target.name}"):
        checks = convert_layers(layers, target, options)
    agrees = all(item.agrees for item in checks)
    verdicts = _other_runtimes(target) if agrees else []
    others = left_out(file, nodes or (), keras_version) if agrees else ()
    if as_json:
        document = {
            "source": str(source),
            "target": str(target),
            "written": agrees,
            "outputs": [{**dataclasses.asdict(item), "agrees": item.agrees} for item in checks],
            "left_out": others,
            "other_runtimes": [dataclasses.asdict(verdict) for verdict in verdicts],
        }
        print_json(document)
    else:
        _show(Screen(), layers, target, checks)
        _show_others(Screen(), others, verdicts)
    if not agrees:
        raise typer.Exit(1)


def _show_others(console: Console, others: Sequence[str], verdicts: Sequence[Verdict]) -> None:
    """What the source has beside, and how other runtimes fail on the target."""
    if others:
        say(console, left_out_words(others))
    for verdict in verdicts:
        who = f"{verdict.runtime} {verdict.version} {verdict.effect} it"
        remedy = "; --no-lengths leaves them out" if verdict.reason.startswith("ignores lengths") else ""
        say(console, f"[yellow]{who}[/]: {safe(verdict.reason)}{remedy}")


def _other_runtimes(target: Path) -> list[Verdict]:
    """The known issues of other runtimes with the target."""
    if target.suffix.lower() not in (".onnx", ".xml"):
        return []
    return list(dict.fromkeys(verdict for item in report(load(target)) for verdict in item.others))


def _show(console: Console, layers: GRU | Stack, target: Path, checks: Sequence[OutputCheck]) -> None:
    for layer in layers_of(layers):
        console.print(safe(repr(layer)), highlight=False)
    table = ruled_table(["output"], ["max abs", "max ULP", "allowed"])
    table.add_column("")
    for item in checks:
        where = list(item.difference.where or ())
        words = "[green]agrees[/]" if item.agrees else f"[red]differs[/], most at {where}"
        figures = (
            f"{item.difference.max_abs:.3g}",
            ulp_words(item.difference.max_ulp),
            f"{item.tolerance:.3g}",
        )
        table.add_row(safe(item.output), *figures, words)
    console.print(table)
    agrees = all(item.agrees for item in checks)
    steps = max((item.steps for item in checks), default=0)
    numbers = sum(item.compared for item in checks)
    say(console, f"{numbers:,} numbers compared, over {count(steps, 'step')}")
    if any(item.in_float32 for item in checks):
        say(console, "OpenVINO computes float64 in float32 between the layers, which is allowed for")
    say(console, f"{'wrote' if agrees else 'did not write'} {safe(str(target))}")
    if agrees and any(is_int8(lossless_storage(layer.weights)) for layer in layers_of(layers)):
        say(console, "quantized weights were dequantized: the same numbers, in float32")
