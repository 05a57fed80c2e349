"""Quantize the GRU layers of an IR to int8."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from pathlib import Path

from onegru.core.compare import QUANTIZED, TOLERANCE_REWRITTEN
from onegru.core.errors import FormatError, SpecError
from onegru.dataflow.edit import Edit
from onegru.dataflow.operator import Op
from onegru.engines.storage import quantizable
from onegru.formats.opened import Opened
from onegru.formats.openvino.gru_layers import dequantized
from onegru.formats.openvino.reader import read_ir
from onegru.formats.openvino.writing.edit import EditedIr
from onegru.models.fusing import fusing_hint
from onegru.rewriting.check import Check
from onegru.rewriting.compare import check_result
from onegru.rewriting.rewrite import NodeReport, Rewriting

# The input indices of W and R.
_W_AND_R: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("openvino::GRUSequence", "openvino::AUGRUSequence"), (3, 4)),
    **dict.fromkeys(("openvino::GRUCell", "openvino::AUGRUCell"), (2, 3)),
}


def quantize_ir(
    file: Opened,
    target: Path | None,
    label: Path,
    check: Check | None,
    names: Collection[str] | None,
    group: int,
) -> Rewriting:
    """Store W and R of GRU layers as int8, compare the IR with its source, and write it."""
    graph = read_ir(file, keep_parsed=True)
    nested = {gru.name for gru in graph.grus if gru.bodies}
    if inner := sorted(nested if names is None else nested.intersection(names)):
        raise SpecError.of(
            "nodes", f"{inner[0]!r} is in a body; must be outside of bodies: name the other layers (--node)"
        )
    ir = EditedIr(graph)
    chosen = [op for op in ir.graph.flow.ops if op.kind in _W_AND_R and (names is None or op.name in names)]
    if not chosen:
        hint = fusing_hint(file) or "there is nothing to quantize"
        raise FormatError(f"{file}: has no GRU layer; {hint}")
    shared: dict[str, str] = {}
    for op in chosen:
        for port, index in zip("WR", _W_AND_R[op.kind], strict=True):
            name = op.inputs[index]
            if name not in shared:
                shared[name] = _quantized(ir.edit, op, port, name, group)
            ir.edit.set_input(op, index, shared[name])
    document = ir.document()
    outputs, notes = check_result(
        lambda: graph, document.graph(label), label, check, TOLERANCE_REWRITTEN, {QUANTIZED}
    )
    if target is not None:
        document.write(target)
    words = f"W and R in int8{f', a scale for each {group} weights' if group else ''}"
    return Rewriting(
        source=str(file),
        target=None if target is None else str(target),
        opsets=(),
        nodes=tuple(NodeReport(op.name, (words,)) for op in chosen),
        others=(),
        notes=notes,
        outputs=outputs,
    )


def _quantized(edit: Edit, op: Op, port: str, name: str, group: int) -> str:
    """Replace a weight of a layer by int8 values and scales; return the product's name."""
    flow, label = edit.flow, f"GRU layer {op.name!r}"
    array = quantizable("nodes", f"{label}: {port}", flow.constant(name), group)
    if group and array.shape[-1] % group:
        raise SpecError.of(
            "group_size", f"{group}; must divide the {array.shape[-1]} columns of {port} of {label}, in an IR"
        )
    return dequantized(edit, functools.partial(edit.add, before=op), name, array, group)
