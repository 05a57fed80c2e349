"""`onegru rewrite`: change the opset, layout or form of the GRU nodes of an ONNX model."""

from __future__ import annotations

from typing import Annotated

import typer

from onegru.cli.model_changes import (
    AsJson,
    CheckDefaultDim,
    CheckDims,
    CheckInputs,
    NoCheck,
    Opset,
    Overwrite,
    Source,
    Target,
    Tolerance,
    check_of,
    opened,
    show_rewriting,
)
from onegru.cli.screen import ProgressBar
from onegru.rewriting.rewrite import RUNTIMES, rewrite


def _runtimes(incomplete: str) -> list[str]:
    return [name for name in RUNTIMES if name.startswith(incomplete)]


def rewrite_command(
    source: Source,
    target: Target,
    opset: Opset = None,
    layout: Annotated[
        int | None,
        typer.Option("--layout", help="Layout of the GRUs: 0 for time first, 1 for batch first."),
    ] = None,
    float16: Annotated[
        bool, typer.Option("--float16", help="Convert GRU nodes to float16, with Casts around them.")
    ] = False,
    split: Annotated[
        bool,
        typer.Option(
            "--bidirectional-split", help="Split each bidirectional node into a forward and a reverse node."
        ),
    ] = False,
    decompose: Annotated[
        bool, typer.Option("--decompose", help="Replace GRU and AUGRU nodes with elementary operators.")
    ] = False,
    runtime: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="RUNTIME",
            autocompletion=_runtimes,
            help="Change only nodes that onnxruntime or openvino gets wrong.",
        ),
    ] = None,
    inputs: CheckInputs = None,
    dims: CheckDims = None,
    default_dim: CheckDefaultDim = None,
    tolerance: Tolerance = None,
    no_check: NoCheck = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Rewrite the GRU nodes of an ONNX model, and keep its other nodes.

    onegru compares TARGET with SOURCE, and writes it only if they agree up to rounding.

    Example: onegru rewrite model.onnx other.onnx --opset 22 --layout 1

    Example: onegru rewrite model.onnx other.onnx --for openvino
    """
    file = opened(source, target, [".onnx"], overwrite)
    check = check_of(source, inputs, dims, default_dim, tolerance, no_check)
    with ProgressBar(f"rewriting {source.name}"):
        report = rewrite(
            file,
            target,
            opset=opset,
            layout=layout,
            dtype="float16" if float16 else None,
            split=split,
            decompose=decompose,
            runtime=runtime,  # type: ignore[arg-type]  # which it checks
            check=check,
        )
    show_rewriting(report, as_json=as_json)
