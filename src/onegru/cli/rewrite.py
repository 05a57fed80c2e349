"""`onegru rewrite`: change the opset, layout or form of the GRU nodes of an ONNX model."""

from __future__ import annotations

from onegru.cli import options
from onegru.cli.model_changes import check_of, opened, show_rewriting
from onegru.cli.screen import ProgressBar
from onegru.rewriting.rewrite import rewrite


def rewrite_command(
    source: options.OnnxSource,
    target: options.OnnxTarget,
    opset: options.Opset = None,
    layout: options.Layout = None,
    float16: options.Float16 = False,
    split: options.Split = False,
    decompose: options.Decompose = False,
    runtime: options.Runtime = None,
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
