"""The next commands that `onegru inspect` suggests for a file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from onegru.core.dtypes import is_int8
from onegru.formats.opened import Kind
from onegru.models.inspect import Inspection
from onegru.models.report import GruReport
from onegru.rewriting.rewrite import RUNTIMES


def next_steps(found: Inspection) -> Iterator[tuple[str, str]]:
    """Yield possible actions for a file, each with its command, which runs as printed."""
    if not found.path.isprintable():
        return
    file = shlex.quote(f"./{found.path}" if found.path.startswith("-") else found.path)
    is_onnx = found.kind == Kind.ONNX.words
    if found.decomposed:
        yield "decomposed", f"onegru fuse {file} TARGET"
    if found.streaming.startswith("supported after"):
        delay = " --delay" if "--delay" in found.streaming else ""
        yield "streams after", f"onegru stream {file} TARGET{delay}"
    operators = {gru.operator for gru in found.grus}
    is_whole = is_onnx or found.kind == Kind.OPENVINO.words
    if is_whole and not operators & _TOO_OLD and any(_can_be_int8(gru, found) for gru in found.grus):
        opset = " --opset 13" if "GRU-7" in operators else ""  # the file has one of the opsets 7 to 13
        yield "weights in int8", f"onegru quantize {file} TARGET{opset}"
    fails = {verdict.runtime for gru in found.grus for verdict in gru.others}
    if any(gru.dtype == "float64" for gru in found.grus):
        fails.discard("openvino")  # OpenVINO always computes float64 nodes in float32
    for runtime in RUNTIMES if is_onnx else ():
        if runtime in fails:
            yield f"correct in {runtime} after", f"onegru rewrite {file} TARGET --for {runtime}"
    if found.other_nodes is None and found.grus:
        names = [*dict.fromkeys(_LAYER.sub("", gru.name) for gru in found.grus)]
        named = [name for name in names if name != "GRU" and name.isprintable()]  # GRU: without a name
        if len(names) == 1 or named:
            node = f" --node {shlex.quote(named[0])}" if len(names) > 1 else ""
            yield "as a model", f"onegru convert {file} TARGET.onnx{node}"


# The end of the names of a stack's layers.
_LAYER = re.compile(r", layer \d+$")
# Models with these operators may not be convertible to an opset with int8 weights.
_TOO_OLD = {"GRU-1", "GRU-3"}


def _can_be_int8(gru: GruReport, found: Inspection) -> bool:
    is_float = gru.dtype == "float32" and gru.parameters and not is_int8(gru.lossless_storage)
    names = [other.name for other in found.grus]
    return bool(is_float) and names.count(gru.name) == 1 and "\n" not in gru.name
