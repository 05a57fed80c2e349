"""`onegru.make_streaming`: make a model run in chunks, and compare."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from onegru.core.arguments import flag, node_names
from onegru.core.dtypes import check_group_size
from onegru.core.errors import FormatError, SpecError, needs_extra
from onegru.formats.opened import Kind, open_model
from onegru.rewriting.check import Check, as_target, wanted_check
from onegru.rewriting.rewrite import NodeReport, Rewriting
from onegru.rewriting.streaming import describe_changes
from onegru.rewriting.streaming_ir import make_ir_streaming


def make_streaming(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    time: Mapping[str, int] | None = None,
    delay: bool = False,
    quantize: bool | Collection[str] = False,
    group_size: int | None = None,
    opset: int | None = None,
    check: bool | Check = True,
) -> Rewriting:
    """Convert a model for streaming, so that it runs in chunks of any size.

        onegru.make_streaming("model.onnx", "streaming.onnx")
        stream = onegru.load("streaming.onnx").stream()

    The states of GRUs, LSTMs and RNNs, and the last steps before causal convolutions, become inputs and
    outputs. The file's metadata name them and their initial values, zeros by default. The check runs the
    source on random sequences, and the target on chunks of them.

    Args:
        source: the path of an ONNX model, or of an OpenVINO IR (its .xml).
        target: the file of the same kind to write. It may be the source, and is replaced only after the check
            has passed. Default: None (write nothing).
        time: the time axis of inputs, by name. Default: None (the axis along which the GRUs run).
        delay: whether to delay outputs by the steps that a convolution looks ahead. With False, such a model
            raises SpecError.
        quantize: whether to store W and R in float32 GRU nodes as int8 as well, or the names of the nodes,
            such as those from `onegru.quantize`. Only for ONNX models.
        group_size: with `quantize`, the number of weights of a row that share a scale: 32, 64 or 128, from
            opset 21 on. Default: None (the whole row).
        opset: with `quantize`, the ONNX opset of the target, 13 or newer. Default: None (the source's opset).
        check: whether to compare the target with the source, or a `Check` with inputs and tolerance. Default:
            True, with a tolerance of 1e-5 for float32, 1e-9 for float64, 1e-2 for float16, 5e-2 for bfloat16,
            and 0.1 with `quantize`. With False, the target must still load.

    Returns:
        the changes to each node, and the difference of each output.

    Raises:
        SpecError: an argument is invalid, or a node cannot run in chunks; the error names it.
        FormatError: the file is broken, the target differs from the source, or the check is inconclusive.
            Nothing is written then.
        MissingExtraError: a required package is not installed.
        OSError: a file cannot be read or written.
    """
    wanted = wanted_check(check)
    names = node_names("quantize", quantize)
    group = check_group_size(group_size)
    if not names:
        for name, value in (("group_size", group_size), ("opset", opset)):
            if value is not None:
                raise SpecError.of(name, "has no effect without quantize; remove it")
    file = open_model("source", source)
    is_ir = file.kind is Kind.OPENVINO
    path, label = as_target(file, target, ".xml" if is_ir else ".onnx")
    if file.kind not in (Kind.ONNX, Kind.OPENVINO):
        raise FormatError(f"{file}: {file.kind.words}; must be an ONNX model or an OpenVINO IR")
    wait = flag("delay", delay)
    if is_ir:
        if names:
            raise SpecError.of("quantize", f"has no effect, because {file} is an OpenVINO IR; remove it")
        result = make_ir_streaming(file, label, wanted, time, wait)
    else:
        with needs_extra("onnx", "onnx", str(file)):
            from onegru.rewriting.nodes.changes import RewriteOptions
            from onegru.rewriting.nodes.plan import check_target_opset
            from onegru.rewriting.streaming_onnx import make_onnx_streaming
        if opset is not None:
            check_target_opset(opset)
        options = RewriteOptions(opset=opset, quantize=names, group_size=group) if names else None
        result = make_onnx_streaming(file, label, wanted, time, wait, options)
    nodes, more = describe_changes(result.made)
    opsets: tuple[int, ...] = () if result.opset is None else (result.opset, result.opset)
    others: tuple[str, ...] = ()
    if (rewritten := result.rewritten) is not None:
        opsets, others = rewritten.opsets, tuple(rewritten.others)
        for summary in rewritten.nodes:
            nodes[summary.name] = [*nodes.get(summary.name, ()), *summary.done]
    if path is not None:
        result.write(path)
    return Rewriting(
        source=str(file),
        target=None if path is None else str(path),
        opsets=opsets,
        nodes=tuple(NodeReport(name, tuple(words)) for name, words in nodes.items()),
        others=others,
        notes=(*result.notes, *more),
        outputs=result.outputs,
    )
