"""What `onegru inspect` ends with: the commands that go with a file."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from onegru.core.dtypes import is_int8
from onegru.formats.opened import Kind
from onegru.models.inspect import Inspection
from onegru.rewriting.rewrite import RUNTIMES


def next_steps(found: Inspection) -> Iterator[tuple[str, str]]:
    """What can be done with a file, and the command that does it."""
    file = shlex.quote(found.path)
    is_onnx = found.kind == Kind.ONNX.words
    if found.decomposed:
        yield "decomposed", f"onegru fuse {file} TARGET"
    if found.streaming.startswith("once rewritten"):
        delay = " --delay" if "--delay" in found.streaming else ""
        yield "streams after", f"onegru stream {file} TARGET{delay}"
    if is_onnx and any(
        gru.dtype == "float32" and gru.parameters and not is_int8(gru.lossless_storage) for gru in found.grus
    ):
        yield "weights in int8", f"onegru quantize {file} TARGET"
    fails = {verdict.runtime for gru in found.grus for verdict in gru.others}
    for runtime in RUNTIMES if is_onnx else ():
        if runtime in fails:
            yield f"right in {runtime} after", f"onegru rewrite {file} TARGET --for {runtime}"
    if found.other_nodes is None and found.grus:
        node = f" --node {shlex.quote(found.grus[0].name)}" if len(found.grus) > 1 else ""
        yield "as a model", f"onegru convert {file} TARGET.onnx{node}"
