"""Change layout, types or directions of one GRU node.

Each function takes a `GruNodeConfig`, returns one or two new ones, and adds the required nodes around it to
`Insertions`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from onnx import NodeProto

from onegru.core.dtypes import Array, default_float_mode, in_groups
from onegru.core.errors import SpecError
from onegru.engines.storage import storage_problem
from onegru.formats.onnx.dequantized import int8_opset, quantized_inputs
from onegru.formats.onnx.edit import code_of
from onegru.formats.onnx.validate import is_onnx
from onegru.operators.onnx import NEWEST
from onegru.rewriting.form import GruNodeConfig, require
from onegru.rewriting.scope import Draft, Scope

_SWAPPED = (1, 0, 2)
_TO_TIME_FIRST = (1, 2, 0, 3)
_TO_BATCH_FIRST = (2, 0, 1, 3)


@dataclass
class Insertions:
    """New nodes around a GRU node."""

    scope: Scope  # the graph of the nodes
    before: list[NodeProto] = field(default_factory=list)  # the nodes before the GRU node
    after: list[NodeProto] = field(default_factory=list)  # the nodes after the GRU node
    dropped: set[str] = field(default_factory=set)  # the outputs of Transposes that are now the node's own

    def enter(self, form: GruNodeConfig, port: str, kind: str, *more: str, **attributes: Any) -> str:
        """Add a node, with `more` inputs, before an input of the GRU node; return its output."""
        draft = Draft(self.scope, form.base)
        value = draft.op(kind, [form.inputs[port], *more], port, **attributes)
        self.before += draft.nodes
        return value

    def leave(self, form: GruNodeConfig, port: str, kind: str, **attributes: Any) -> str:
        """Add a node after an output of the GRU node; return the output's new name."""
        draft = Draft(self.scope, form.base)
        value = draft.fresh(port)
        draft.op(kind, [value], port, form.outputs[port], **attributes)
        self.after[:0] = draft.nodes
        return value


def to_layout(around: Insertions, form: GruNodeConfig, layout: int) -> GruNodeConfig:
    """Change the layout, and add Transposes unless they cancel out."""
    inputs = {port: _swapped_input(around, form, port) for port in ("X", "initial_h") if port in form.inputs}
    outputs = {}
    if "Y" in form.outputs:
        # From the node's layout to the graph's layout, and back.
        perm, back = (_TO_TIME_FIRST, _TO_BATCH_FIRST) if layout else (_TO_BATCH_FIRST, _TO_TIME_FIRST)
        outputs["Y"] = _swapped_output(around, form, "Y", perm, back)
    if "Y_h" in form.outputs:
        outputs["Y_h"] = _swapped_output(around, form, "Y_h", _SWAPPED, _SWAPPED)
    return replace(form.with_names(inputs, outputs), layout=layout)


def _swapped_input(around: Insertions, form: GruNodeConfig, port: str) -> str:
    producer = around.scope.producers.get(form.inputs[port])
    if producer is not None and _perm(producer) == _SWAPPED:
        around.scope.retired.add(form.inputs[port])
        return str(producer.input[0])
    return around.enter(form, port, "Transpose", perm=_SWAPPED)


def _swapped_output(
    around: Insertions, form: GruNodeConfig, port: str, perm: tuple[int, ...], back: tuple[int, ...]
) -> str:
    scope, value = around.scope, form.outputs[port]
    consumers = scope.consumers.get(value, [])
    if len(consumers) == 1 and value not in scope.outputs and _perm(consumers[0]) == back:
        around.dropped.add(consumers[0].output[0])
        return str(consumers[0].output[0])
    return around.leave(form, port, "Transpose", perm=perm)


def _perm(node: NodeProto) -> tuple[int, ...] | None:
    """Return a Transpose's permutation; None for other nodes."""
    if node.op_type != "Transpose" or not is_onnx(node) or len(node.input) != 1 or len(node.output) != 1:
        return None
    return tuple(next((item.ints for item in node.attribute if item.name == "perm"), ()))


def to_float16(around: Insertions, form: GruNodeConfig) -> GruNodeConfig:
    """Convert the node to float16, with Casts around it."""
    dtype, _ = require(around.scope, form, "float16")
    inputs = {}
    for port in ("X", "W", "R", "B", "initial_h"):
        if port not in form.inputs:
            continue
        array = around.scope.constant(form.inputs[port])
        if array is None:
            inputs[port] = around.enter(form, port, "Cast", to=code_of("float16"))
        else:
            inputs[port] = _constant(around.scope, form, port, "float16", partial(_as_float16, form, array))
    outputs = {port: around.leave(form, port, "Cast", to=code_of(dtype)) for port in form.outputs}
    return replace(form.with_names(inputs, outputs), dtype="float16")


def _as_float16(form: GruNodeConfig, array: Array) -> Array:
    with default_float_mode(), np.errstate(over="ignore"):
        converted = array.astype(np.float16)
    lost = np.isfinite(array.astype(np.float64)) & ~np.isfinite(converted)
    if np.any(lost):
        raise SpecError.of(
            "float16", f"{form.label} has a weight of {array[lost][0]:g}; must be within ±65504"
        )
    return converted


def to_int8(around: Insertions, form: GruNodeConfig, group: int) -> GruNodeConfig:
    """Store W and R as int8, with DequantizeLinear before the node.

    Each row has a scale, or each `group` weights of a row.
    """
    scope = around.scope
    if scope.opset < (least := int8_opset(group)):
        what = f"weights in int8{', in groups' if group else ''}"
        raise SpecError.of(
            "opset", f"{scope.opset}; must be at least {least} for {what}; add --opset {least}"
        )
    if (dtype := require(scope, form, "int8")[0]) != "float32":
        raise SpecError.of("quantize", f"{form.label} has element type {dtype}; must be float32")
    inputs = {}
    for port in ("W", "R"):
        array = scope.constant(form.inputs[port])
        if array is None:
            raise SpecError.of(
                "quantize",
                f"{form.label}: {port} is computed in each run, or an input with a default; must "
                "be a constant; to quantize only other GRU nodes, name them (--node)",
            )
        if problem := storage_problem(array, in_groups("int8", group)):
            raise SpecError.of("quantize", f"{form.label}: {port} {problem}: name the other nodes (--node)")
        q, scale, attributes = quantized_inputs(array, group)
        values = [
            _constant(scope, form, port, what, lambda constant=constant: constant)  # type: ignore[misc]
            for what, constant in (("int8", q), ("scale", scale))
        ]
        draft = Draft(scope, form.base)
        inputs[port] = draft.op("DequantizeLinear", values, port, **attributes)
        if q.ndim == 2:
            inputs[port] = draft.op("Reshape", [inputs[port], scope.integers(*array.shape)], port)
        around.before += draft.nodes
    return form.with_names(inputs)


def _constant(scope: Scope, form: GruNodeConfig, port: str, what: str, make: Callable[[], Array]) -> str:
    """Add a constant computed from a weight; nodes that share the weight share the constant."""
    name = form.inputs[port]
    scope.retired.add(name)
    return scope.shared((name, what), f"{name}/{what}", make)


def to_two_directions(around: Insertions, form: GruNodeConfig) -> list[GruNodeConfig]:
    """Split a bidirectional node into a forward and a reverse node."""
    scope = around.scope
    axes = NEWEST.direction_axes(form.layout)
    halves: list[GruNodeConfig] = []
    for index, direction in enumerate(("forward", "reverse")):
        half = replace(
            form,
            base=f"{form.base}/{direction}",
            direction=direction,
            activations=(form.activations[index],),
        )
        inputs = {port: _half(around, half, port, index, axes.get(port)) for port in form.inputs}
        outputs = {port: scope.names.fresh(f"{half.base}/{port}") for port in form.outputs}
        halves.append(replace(half, name=scope.names.fresh(half.base), inputs=inputs, outputs=outputs))
    draft = Draft(scope, form.base)
    for port, output in form.outputs.items():
        values = [half.outputs[port] for half in halves]
        draft.op("Concat", values, port, output, axis=axes[port])
    around.after[:0] = draft.nodes
    return halves


def _half(around: Insertions, form: GruNodeConfig, port: str, index: int, axis: int | None) -> str:
    """Return the part of an input for one direction, whose index along `axis` is `index`."""
    scope, name = around.scope, form.inputs[port]
    if axis is None:
        return name
    array = scope.constant(name)
    if array is not None:
        return _constant(scope, form, port, f"{form.direction}_{axis}", lambda: np.take(array, [index], axis))
    return around.enter(form, port, "Gather", scope.integers(index), axis=axis)
