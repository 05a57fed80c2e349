"""`onegru convert`: convert layers from one file to another, and check before the target is replaced."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from onegru.cli import options
from onegru.cli.model_changes import open_source
from onegru.cli.options import Number, Text, Texts, argument, option
from onegru.cli.outputs import print_json
from onegru.cli.screen import ProgressBar, Screen, safe, say
from onegru.cli.tables import left_out_words, show_comparisons
from onegru.core.compare import Comparison, compared_words, merged
from onegru.core.dtypes import is_int8
from onegru.core.errors import SpecError
from onegru.engines.storage import lossless_storage
from onegru.formats.opened import Kind
from onegru.formats.save import SUFFIXES
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack, layers_of
from onegru.models.inspect import report
from onegru.models.layer_files.convert import convert_layers
from onegru.models.layer_files.load import left_out
from onegru.models.layer_files.select import read_source
from onegru.runtimes.known_issues import Verdict

_layers = partial(option, group="Options of an ONNX or OpenVINO target")

LayerSource = Annotated[
    Path, argument("SOURCE", "Model (.onnx, .xml) or checkpoint (.safetensors, .pt, .keras, .tflite).")
]
LayerTarget = Annotated[Path, argument("TARGET", f"Target file: {', '.join(SUFFIXES)}.")]
LayerNodes = Annotated[
    Texts, option("--node NAME", "GRU to convert. Repeat for a stack, lowest layer first. Default: all.")
]
KerasVersion = Annotated[
    Text,
    option("--keras-version 2.3", "Version of Keras that saved SOURCE, if the file does not contain it."),
]
LayerOpset = Annotated[Number, _layers("--opset N", "Opset of an ONNX target, 1 to 22.")]
LayerLayout = Annotated[
    Number, _layers("--layout", "Layout of an ONNX target: 0 for time first, 1 for batch first.")
]
Cell = Annotated[bool | None, _layers("--cell", "Write cells, which run one step, to an IR.")]
InitialH = Annotated[
    bool | None, _layers("--initial-h/--no-initial-h", "Add inputs for initial states. Default: yes.")
]
Lengths = Annotated[
    bool | None,
    _layers(
        "--lengths/--no-lengths",
        "Add an input for sequence lengths (OpenVINO ignores it for dynamic shapes). Default: no.",
    ),
]
BatchSize = Annotated[Number, _layers("--batch-size SIZE", "Fixed batch size. Default: dynamic.")]
SeqLength = Annotated[Number, _layers("--seq-length SIZE", "Fixed number of steps. Default: dynamic.")]


def convert_command(
    source: LayerSource,
    target: LayerTarget,
    nodes: LayerNodes = None,
    keras_version: KerasVersion = None,
    opset: LayerOpset = None,
    layout: LayerLayout = None,
    cell: Cell = None,
    initial_h: InitialH = None,
    lengths: Lengths = None,
    batch_size: BatchSize = None,
    seq_length: SeqLength = None,
    overwrite: options.Overwrite = False,
    as_json: options.TargetJson = False,
) -> None:
    """Convert a GRU layer, or a stack of layers, to another file format.

    onegru compares both files on random inputs, and writes TARGET only if they agree up to rounding. To
    change a whole ONNX model, use `onegru rewrite`, `fuse`, `stream` or `quantize`.

    Example: onegru convert model.onnx model.xml

    Example: onegru convert checkpoint.pt gru.onnx --node rnn --layout 1
    """
    form: dict[str, int | bool | None] = {
        "opset": opset,
        "layout": layout,
        "cell": cell,
        "initial_h": initial_h,
        "sequence_lens": lengths,
        "batch_size": batch_size,
        "seq_length": seq_length,
    }
    file = open_source(source, target, list(SUFFIXES), overwrite)
    layer_options = (nodes or None, keras_version, cell, initial_h, lengths, batch_size, seq_length)
    is_whole = all(item is None for item in layer_options)
    if is_whole and file.kind is Kind.ONNX and target.suffix.lower() == ".onnx":
        raise SpecError.of(
            "TARGET",
            "SOURCE and TARGET are ONNX models; to change a whole model, use `onegru rewrite`; to extract a "
            "GRU, name it with --node",
        )
    with ProgressBar(f"loading {source.name}"):
        layers = read_source(file, nodes or [], keras_version)
    with ProgressBar(f"writing {target.name}"):
        checks, made = convert_layers(layers, target, form)
    agrees = all(item.agrees for item in checks)
    items = report(made) if agrees and made is not None else ()
    verdicts = list(dict.fromkeys(verdict for item in items for verdict in item.others))
    others = left_out(file, nodes or (), keras_version) if agrees else ()
    if as_json:
        document = {
            "source": str(source),
            "target": str(target),
            "written": agrees,
            "outputs": [dataclasses.asdict(item) for item in checks],
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
    """Print the rest of the source's content, and known problems with the target."""
    if others:
        say(console, left_out_words(others))
    for verdict in verdicts:
        who = f"{verdict.runtime} {verdict.version} {verdict.effect} it"
        remedy = "; add --no-lengths" if verdict.reason.startswith("ignores lengths") else ""
        say(console, f"[yellow]{who}[/]: {safe(verdict.reason)}{remedy}")


def _show(console: Console, layers: GRU | Stack, target: Path, checks: Sequence[Comparison]) -> None:
    for layer in layers_of(layers):
        console.print(safe(repr(layer)), highlight=False)
    show_comparisons(console, [("onegru", checks, "")], with_tolerance=True)
    agrees = all(item.agrees for item in checks)
    say(console, compared_words(merged(checks)))
    say(console, *dict.fromkeys(item.reason for item in checks if item.reason))
    say(console, f"{'wrote' if agrees else 'not written:'} {safe(str(target))}")
    if agrees and any(is_int8(lossless_storage(layer.weights)) for layer in layers_of(layers)):
        say(console, "quantized weights were dequantized to float32, without loss")
