"""`onegru stream`: make a model run in chunks."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from onegru.cli import options
from onegru.cli.model_changes import check_of, open_source, refuse, show_rewriting
from onegru.cli.options import GROUP_SIZE, OPSET, QUANTIZED_NODES, Number, Texts, option
from onegru.cli.screen import ProgressBar, Screen, safe, say
from onegru.core.dtypes import in_groups
from onegru.core.errors import SpecError
from onegru.quantization.report import int8_usage
from onegru.rewriting.make_streaming import make_streaming

_int8 = partial(option, group="Weights in int8")

Time = Annotated[Texts, option("--time INPUT=AXIS", "Time axis of an input, if it cannot be inferred.")]
Delay = Annotated[bool, option("--delay", "Allow look-ahead by delaying the outputs.")]
InInt8 = Annotated[bool, _int8("--quantize", "Store the weights W and R of GRU nodes as int8.")]
StreamNodes = Annotated[Texts, _int8(*QUANTIZED_NODES)]
StreamGroupSize = Annotated[Number, _int8(*GROUP_SIZE)]
StreamOpset = Annotated[Number, _int8(*OPSET)]


def stream_command(
    source: options.Source,
    target: options.Target,
    time: Time = None,
    delay: Delay = False,
    quantize: InInt8 = False,
    nodes: StreamNodes = None,
    group_size: StreamGroupSize = None,
    opset: StreamOpset = None,
    inputs: options.CheckInputs = None,
    dims: options.CheckDims = None,
    default_dim: options.CheckDefaultDim = None,
    tolerance: options.CheckTolerance = None,
    no_check: options.NoCheck = False,
    overwrite: options.Overwrite = False,
    as_json: options.TargetJson = False,
) -> None:
    """Make a model stream: its states become inputs and outputs, so that it runs in chunks.

    onegru compares the chunks of TARGET with whole sequences in SOURCE, and writes TARGET only if they agree
    up to rounding. `onegru.load(TARGET).stream()` carries the states.

    Example: onegru stream model.onnx streaming.onnx

    Example: onegru stream model.onnx small.onnx --delay --quantize
    """
    if not quantize:
        refuse({"--node": nodes, "--group-size": group_size, "--opset": opset}, "without --quantize")
    file = open_source(source, target, [".onnx", ".xml"], overwrite)
    check = check_of(file, inputs, dims, default_dim, tolerance, no_check)
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
    """Return the time axes."""
    found = {}
    for text in texts:
        name, _, axis = text.rpartition("=")
        if not name or not axis.isascii() or not axis.isdigit() or len(axis) > 2:
            raise SpecError.of("--time", f"{text!r}; must be INPUT=AXIS, such as X=1")
        found[name] = int(axis)
    return found
