"""`onegru rewrite`: change the opset, layout or form of the GRU nodes of an ONNX model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from onegru.cli import options
from onegru.cli.model_changes import check_of, open_source, show_rewriting
from onegru.cli.options import Number, Text, argument, option
from onegru.cli.screen import ProgressBar
from onegru.rewriting.rewrite import RUNTIMES, rewrite

OnnxSource = Annotated[Path, argument("SOURCE", "ONNX model (.onnx).")]
OnnxTarget = Annotated[Path, argument("TARGET", "Target file (.onnx).")]
Layout = Annotated[Number, option("--layout", "Layout of the GRUs: 0 for time first, 1 for batch first.")]
Float16 = Annotated[bool, option("--float16", "Convert GRU nodes to float16, with Casts around them.")]
Split = Annotated[
    bool, option("--bidirectional-split", "Split each bidirectional node into a forward and a reverse node.")
]
Decompose = Annotated[bool, option("--decompose", "Replace GRU and AUGRU nodes with elementary operators.")]
Runtime = Annotated[
    Text,
    option(
        "--for RUNTIME",
        "Change only nodes that onnxruntime or openvino gets wrong.",
        autocompletion=lambda incomplete: [name for name in RUNTIMES if name.startswith(incomplete)],
    ),
]


def rewrite_command(
    source: OnnxSource,
    target: OnnxTarget,
    opset: options.Opset = None,
    layout: Layout = None,
    float16: Float16 = False,
    split: Split = False,
    decompose: Decompose = False,
    runtime: Runtime = None,
    inputs: options.CheckInputs = None,
    dims: options.CheckDims = None,
    default_dim: options.CheckDefaultDim = None,
    tolerance: options.CheckTolerance = None,
    no_check: options.NoCheck = False,
    overwrite: options.Overwrite = False,
    as_json: options.TargetJson = False,
) -> None:
    """Rewrite the GRU nodes of an ONNX model, and keep its other nodes.

    onegru compares TARGET with SOURCE, and writes it only if they agree up to rounding.

    Example: onegru rewrite model.onnx other.onnx --opset 22 --layout 1

    Example: onegru rewrite model.onnx other.onnx --for openvino
    """
    file = open_source(source, target, [".onnx"], overwrite)
    check = check_of(file, inputs, dims, default_dim, tolerance, no_check)
    with ProgressBar(f"rewriting {source.name}"):
        report = rewrite(
            file,
            target,
            opset=opset,
            layout=layout,
            dtype="float16" if float16 else None,
            split=split,
            decompose=decompose,
            runtime=runtime,  # type: ignore[arg-type]  # checked by `rewrite`
            check=check,
        )
    show_rewriting(report, as_json=as_json)
