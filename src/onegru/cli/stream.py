"""`onegru stream`: make a model run in chunks."""

from __future__ import annotations

from typing import Annotated

import typer

from onegru.cli.model_changes import (
    AnySource,
    AnyTarget,
    AsJson,
    CheckDefaultDim,
    CheckDims,
    CheckInputs,
    NoCheck,
    Overwrite,
    Tolerance,
    check_of,
    opened,
    refuse,
    show_rewriting,
)
from onegru.cli.screen import ProgressBar, Screen, safe, say
from onegru.core.dtypes import in_groups
from onegru.core.errors import SpecError
from onegru.quantization.report import int8_usage
from onegru.rewriting.make_streaming import make_streaming

_IN_INT8 = "Weights in int8"


_TimeOption = Annotated[
    list[str] | None,
    typer.Option("--time", metavar="INPUT=AXIS", help="Time axis of an input, if it cannot be inferred."),
]
_DelayOption = Annotated[
    bool, typer.Option("--delay", help="Allow look-ahead: outputs can come some steps later.")
]
_QuantizeOption = Annotated[
    bool,
    typer.Option(
        "--quantize", help="Store the weights W and R of GRU nodes as int8.", rich_help_panel=_IN_INT8
    ),
]
_NodesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--node",
        metavar="NAME",
        help="GRU to quantize. Repeat for several. Default: all.",
        rich_help_panel=_IN_INT8,
    ),
]
_GroupSizeOption = Annotated[
    int | None,
    typer.Option(
        "--group-size",
        metavar="N",
        help="One scale for every 32, 64 or 128 weights. Needs opset 21.",
        rich_help_panel=_IN_INT8,
    ),
]
_OpsetOption = Annotated[
    int | None,
    typer.Option(
        "--opset",
        metavar="N",
        help="Opset of TARGET, 1 to onnx's newest.",
        rich_help_panel=_IN_INT8,
    ),
]


def stream_command(
    source: AnySource,
    target: AnyTarget,
    time: _TimeOption = None,
    delay: _DelayOption = False,
    quantize: _QuantizeOption = False,
    nodes: _NodesOption = None,
    group_size: _GroupSizeOption = None,
    opset: _OpsetOption = None,
    inputs: CheckInputs = None,
    dims: CheckDims = None,
    default_dim: CheckDefaultDim = None,
    tolerance: Tolerance = None,
    no_check: NoCheck = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Make a model stream: its states become inputs and outputs, so that it runs in chunks.

    onegru compares the chunks of TARGET with whole sequences in SOURCE, and writes TARGET only if they agree
    up
    to rounding. `onegru.load(TARGET).stream()` carries the states.

    Example: onegru stream model.onnx streaming.onnx

    Example: onegru stream model.onnx small.onnx --delay --quantize
    """
    if not quantize:
        refuse({"--node": nodes, "--group-size": group_size, "--opset": opset}, "without --quantize")
    file = opened(source, target, [".onnx", ".xml"], overwrite)
    check = check_of(source, inputs, dims, default_dim, tolerance, no_check)
    with ProgressBar(f"converting {source.name}"):
        report = make_streaming(
            file,
            target,
            time=_axes_of(time) if time else None,
            delay=delay,
            quantize=nodes or quantize,
            group_size=group_size,
            opset=opset,
            check=check,
        )
    show_rewriting(report, as_json=as_json)
    if quantize and not as_json:
        names = [node.name for node in report.nodes]
        kept = in_groups("int8", group_size or 0) or ""
        wanted = dict.fromkeys(nodes or names, kept)
        say(Screen(), *map(safe, int8_usage(str(target), names, wanted, {})))


def _axes_of(texts: list[str]) -> dict[str, int]:
    """The time axes."""
    found = {}
    for text in texts:
        name, _, axis = text.rpartition("=")
        if not name or not axis.isascii() or not axis.isdigit() or len(axis) > 2:
            raise SpecError.of("--time", f"{text!r}; must be INPUT=AXIS, such as X=1")
        found[name] = int(axis)
    return found
