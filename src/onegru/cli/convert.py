"""`onegru convert`: layers from one file to another, checked before the target is replaced."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from onegru.cli.inputs import AxesOption, DimOption, InputOption
from onegru.cli.outputs import check_not_read, model_files, print_json
from onegru.cli.rewrite import (
    Columns,
    Decompose,
    Delay,
    Float16,
    ForRuntime,
    Fuse,
    GroupSize,
    KeepSnr,
    NoCheck,
    Quantize,
    Rows,
    Samples,
    Split,
    Streaming,
    TimeAxes,
    Tolerance,
    convert_model,
)
from onegru.cli.screen import Screen, ruled_table, safe, say, waiting
from onegru.cli.tables import left_out_words
from onegru.core.dtypes import is_int8
from onegru.core.errors import SpecError
from onegru.core.wording import count
from onegru.engines.storage import lossless_storage
from onegru.formats.opened import Kind, open_layers
from onegru.formats.save import SUFFIXES
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack, layers_of
from onegru.models.convert_layers import OutputCheck, convert_layers
from onegru.models.inspect import report
from onegru.models.load import load
from onegru.models.load_layers import left_out
from onegru.models.select_layers import read_source
from onegru.runtimes.known_issues import Verdict


def _check_target(target: Path, overwrite: bool) -> None:
    suffix = target.suffix.lower()
    if suffix not in SUFFIXES:
        raise SpecError(f"TARGET: {str(target)!r}; must end in {', '.join(SUFFIXES)}")
    if not target.parent.is_dir():
        raise SpecError(f"TARGET: folder {str(target.parent)!r} does not exist")
    for path in model_files(target):
        if path.is_dir():
            raise SpecError(f"TARGET: {str(path)!r} is a folder; must be a file")
        if path.exists() and not overwrite:
            raise SpecError(f"TARGET: {str(path)!r} exists; replace it with --overwrite")


def convert_command(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE", help="A model (.onnx, .xml) or a checkpoint (.safetensors, .pt, .keras)."
        ),
    ],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help=f"Where to: {', '.join(SUFFIXES)}.")],
    nodes: Annotated[
        list[str] | None,
        typer.Option(
            "--node",
            metavar="NAME",
            help="The GRU to convert; several make a stack, lowest first. With --quantize: one to store in "
            "int8; by default all.",
        ),
    ] = None,
    keras_version: Annotated[
        str | None,
        typer.Option(
            "--keras-version",
            metavar="2.3",
            help="The Keras version that saved the model, if the file does not say.",
        ),
    ] = None,
    opset: Annotated[
        int | None,
        typer.Option(
            "--opset",
            metavar="N",
            help="The opset of an ONNX target: 1 to 22 for layers, for a model up to onnx's newest.",
        ),
    ] = None,
    layout: Annotated[
        int | None,
        typer.Option("--layout", help="The layout of an ONNX target: 0 for time first, 1 for batch first."),
    ] = None,
    cell: Annotated[
        bool | None, typer.Option("--cell", help="Write an IR of cells, which run a single step.")
    ] = None,
    initial_h: Annotated[
        bool | None,
        typer.Option(
            "--initial-h/--no-initial-h", help="Whether the target has inputs for initial states (default)."
        ),
    ] = None,
    lengths: Annotated[
        bool | None,
        typer.Option(
            "--lengths/--no-lengths", help="Whether it has an input for lengths; by default an IR does."
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", metavar="SIZE", help="A fixed batch size; default any.")
    ] = None,
    seq_length: Annotated[
        int | None,
        typer.Option("--seq-length", metavar="SIZE", help="A fixed number of steps; default any."),
    ] = None,
    float16: Float16 = False,
    quantize: Quantize = False,
    group_size: GroupSize = None,
    keep_snr: KeepSnr = None,
    inputs: InputOption = None,
    samples: Samples = None,
    columns: Columns = None,
    axes: AxesOption = None,
    rows: Rows = None,
    split: Split = False,
    streaming: Streaming = False,
    time: TimeAxes = None,
    delay: Delay = False,
    decompose: Decompose = False,
    runtime: ForRuntime = None,
    fused: Fuse = False,
    dims: DimOption = None,
    tolerance: Tolerance = None,
    no_check: NoCheck = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a TARGET that exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Convert GRUs to another kind of file, or rewrite those of an ONNX model, and compare on random inputs.

    From ONNX to ONNX the whole model is rewritten: its GRU nodes as asked for, the rest as it is. With
    --fuse, GRUs that are decomposed into other operators become GRU nodes first; only --fuse goes from one
    OpenVINO IR to another, too. Else a GRU, or a stack of them, is taken out of SOURCE and written by itself.
    Nothing is written if source and target differ by more than rounding allows.

    Example: onegru convert model.onnx model.xml

    Example: onegru convert model.onnx other.onnx --opset 22 --layout 1

    Example: onegru convert model.onnx other.onnx --for openvino

    Example: onegru convert model.onnx fused.onnx --fuse

    Example: onegru convert model.onnx small.onnx --quantize --keep-snr 40 -i x.npy

    Example: onegru convert model.onnx small.onnx --quantize --samples logs/ --column X=events

    Example: onegru convert model.onnx streaming.onnx --streaming
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
    of_layers = {
        "--node": None if quantize else nodes,
        "--keras-version": keras_version,
        "--cell": cell,
        "--initial-h": initial_h,
        "--lengths": lengths,
        "--batch-size": batch_size,
        "--seq-length": seq_length,
    }
    of_model = {
        "--float16": float16,
        "--quantize": quantize,
        "--group-size": group_size,
        "--keep-snr": keep_snr,
        "--input": inputs,
        "--samples": samples,
        "--column": columns,
        "--axes": axes,
        "--rows": rows,
        "--bidirectional-split": split,
        "--streaming": streaming,
        "--time": time,
        "--delay": delay,
        "--decompose": decompose,
        "--for": runtime,
        "--fuse": fused,
        "--dim": dims,
        "--tolerance": tolerance,
        "--no-check": no_check,
    }
    file = open_layers("SOURCE", source)
    for path in model_files(target):
        check_not_read(f"TARGET {path}", path, file, "the source")
    options_of_model = [name for name, value in of_model.items() if value]
    is_ir = fused and target.suffix.lower() == ".xml" and file.kind is Kind.OPENVINO
    if is_ir and (other := [name for name in options_of_model if name not in _OF_FUSING]):
        raise SpecError(f"{other[0]}: rewrites an ONNX model; must not be given for an IR")
    is_rewriting = is_ir or _is_rewriting(file.kind, target, of_layers, of_model)
    _check_target(target, overwrite)
    if is_rewriting:
        convert_model(
            file,
            target,
            dims=dims,
            tolerance=tolerance,
            no_check=no_check,
            as_json=as_json,
            fused=fused,
            inputs=inputs,
            keep_snr=keep_snr,
            samples=samples,
            columns=columns,
            axes=axes,
            rows=rows,
            time=time,
            streaming=streaming,
            delay=delay,
            opset=opset,
            layout=layout,
            dtype="float16" if float16 else None,
            quantize=list(nodes or []) or quantize if quantize else False,
            group_size=group_size,
            split=split,
            decompose=decompose,
            runtime=runtime,
        )
        return
    with waiting(f"loading {source.name}"):
        layers = read_source(file, nodes or [], keras_version)
    with waiting(f"writing {target.name}"):
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
        if others:
            say(Screen(), left_out_words(others))
        for verdict in verdicts:
            who = f"{verdict.runtime} {verdict.version} {verdict.effect} it"
            remedy = "; --no-lengths leaves them out" if verdict.reason.startswith("ignores lengths") else ""
            say(Screen(), f"[yellow]{who}[/]: {safe(verdict.reason)}{remedy}")
    if not agrees:
        raise typer.Exit(1)


def _other_runtimes(target: Path) -> list[Verdict]:
    """The known issues of other runtimes with the target."""
    if target.suffix.lower() not in (".onnx", ".xml"):
        return []
    return list(dict.fromkeys(verdict for item in report(load(target)) for verdict in item.others))


_OF_FUSING = ("--fuse", "--dim", "--input", "--tolerance", "--no-check")


def _is_rewriting(
    source: Kind, target: Path, of_layers: Mapping[str, object], of_model: Mapping[str, object]
) -> bool:
    """Whether a model is rewritten, or layers are taken out of it; a mixture of options is refused."""
    taking = next((name for name, value in of_layers.items() if value not in (None, [])), None)
    rewriting = next((name for name, value in of_model.items() if value), None)
    from_onnx_to_onnx = target.suffix.lower() == ".onnx" and source is Kind.ONNX
    if rewriting is not None and (taking is not None or not from_onnx_to_onnx):
        files = ".onnx to .onnx, or .xml to .xml" if rewriting == "--fuse" else ".onnx to .onnx"
        other = f"with {taking}, which takes layers out" if from_onnx_to_onnx else f"other than {files}"
        raise SpecError(f"{rewriting}: rewrites a whole model; must not be given {other}")
    return from_onnx_to_onnx and taking is None


def _show(console: Console, layers: GRU | Stack, target: Path, checks: Sequence[OutputCheck]) -> None:
    for layer in layers_of(layers):
        console.print(safe(repr(layer)), highlight=False)
    table = ruled_table(["output"], ["max abs", "max ULP", "allowed"])
    table.add_column("")
    for item in checks:
        words = "agrees" if item.agrees else f"differs, most at {list(item.difference.where or ())}"
        figures = (f"{item.difference.max_abs:.3g}", str(item.difference.max_ulp), f"{item.tolerance:.3g}")
        table.add_row(safe(item.output), *figures, words)
    console.print(table)
    agrees = all(item.agrees for item in checks)
    steps = max((item.steps for item in checks), default=0)
    numbers = sum(item.compared for item in checks)
    say(console, f"{numbers:,} numbers compared, over {count(steps, 'step')}")
    say(console, f"{'wrote' if agrees else 'did not write'} {safe(str(target))}")
    if agrees and any(is_int8(lossless_storage(layer.weights)) for layer in layers_of(layers)):
        say(console, "quantized weights were dequantized: the same numbers, in float32")
