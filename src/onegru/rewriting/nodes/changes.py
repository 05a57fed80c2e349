"""Change layout, types or directions of one GRU node.

Each function takes a `GruNodeConfig`, returns one or two new ones, and adds the required nodes around it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from onnx import NodeProto

from onegru.core.dtypes import Array, default_float_mode
from onegru.core.errors import SpecError
from onegru.engines.storage import quantizable
from onegru.formats.onnx.dequantized import int8_opset, quantized_inputs
from onegru.formats.onnx.validate import is_onnx
from onegru.operators.onnx import NEWEST
from onegru.rewriting.nodes.node_config import GruNodeConfig, require
from onegru.rewriting.nodes.scope import Draft

_SWAPPED = (1, 0, 2)
_TO_TIME_FIRST = (1, 2, 0, 3)
_TO_BATCH_FIRST = (2, 0, 1, 3)


def to_layout(new: Draft, config: GruNodeConfig, layout: int) -> GruNodeConfig:
    """Change the layout, and add Transposes unless they cancel out."""
    inputs = {port: _swapped_input(new, config, port) for port in ("X", "initial_h") if port in config.inputs}
    outputs = {}
    if "Y" in config.outputs:
        # From the node's layout to the graph's layout, and back.
        perm, back = (_TO_TIME_FIRST, _TO_BATCH_FIRST) if layout else (_TO_BATCH_FIRST, _TO_TIME_FIRST)
        outputs["Y"] = _swapped_output(new, config, "Y", perm, back)
    if "Y_h" in config.outputs:
        outputs["Y_h"] = _swapped_output(new, config, "Y_h", _SWAPPED, _SWAPPED)
    return replace(config.with_names(inputs, outputs), layout=layout)


def _swapped_input(new: Draft, config: GruNodeConfig, port: str) -> str:
    producer = new.scope.producers.get(config.inputs[port])
    if producer is not None and _perm(producer) == _SWAPPED:
        new.scope.retired.add(config.inputs[port])
        return str(producer.input[0])
    return new.op("Transpose", [config.inputs[port]], port, perm=_SWAPPED)


def _swapped_output(
    new: Draft, config: GruNodeConfig, port: str, perm: tuple[int, ...], back: tuple[int, ...]
) -> str:
    scope, value = new.scope, config.outputs[port]
    consumers = scope.consumers.get(value, [])
    if len(consumers) == 1 and value not in scope.outputs and _perm(consumers[0]) == back:
        new.dropped.add(consumers[0].output[0])
        return str(consumers[0].output[0])
    return _returned(new, config, port, "Transpose", perm=perm)


def _perm(node: NodeProto) -> tuple[int, ...] | None:
    """Return a Transpose's permutation; None for other nodes."""
    if node.op_type != "Transpose" or not is_onnx(node) or len(node.input) != 1 or len(node.output) != 1:
        return None
    return tuple(next((item.ints for item in node.attribute if item.name == "perm"), ()))


def to_float16(new: Draft, config: GruNodeConfig) -> GruNodeConfig:
    """Convert the node to float16, with Casts around it."""
    dtype, _ = require(new.scope, config, "float16")
    inputs = {}
    for port in ("X", "W", "R", "B", "initial_h"):
        if port not in config.inputs:
            continue
        array = new.scope.constant(config.inputs[port])
        if array is None:
            inputs[port] = new.op("Cast", [config.inputs[port]], port, dtype="float16")
        else:
            inputs[port] = new.scope.shared(f"{config.inputs[port]}/float16", _as_float16(config, array))
    outputs = {port: _returned(new, config, port, "Cast", dtype=dtype) for port in config.outputs}
    return replace(config.with_names(inputs, outputs), dtype="float16")


def _returned(new: Draft, config: GruNodeConfig, port: str, kind: str, **attributes: Any) -> str:
    """Add a node after an output of the GRU node; return the output's new name."""
    value = new.fresh(port)
    new.op_after(kind, [value], port, config.outputs[port], **attributes)
    return value


def _as_float16(config: GruNodeConfig, array: Array) -> Array:
    with default_float_mode(), np.errstate(over="ignore"):
        converted = array.astype(np.float16)
    lost = np.isfinite(array.astype(np.float64)) & ~np.isfinite(converted)
    if np.any(lost):
        raise SpecError.of(
            "float16", f"{config.label} has a weight of {array[lost][0]:g}; must be within ±65504"
        )
    return converted


def to_int8(new: Draft, config: GruNodeConfig, group: int) -> GruNodeConfig:
    """Store W and R as int8 with a scale per row, or per `group` weights of a row."""
    scope = new.scope
    if scope.opset < (least := int8_opset(group)):
        what = f"weights in int8{', in groups' if group else ''}"
        raise SpecError.of(
            "opset", f"{scope.opset}; must be at least {least} for {what}; add --opset {least}"
        )
    inputs = {}
    for port in ("W", "R"):
        name = config.inputs[port]
        array = quantizable("quantize", f"{config.label}: {port}", scope.constant(name), group)
        q, scale, attributes = quantized_inputs(array, group)
        values = [scope.shared(f"{name}/int8", q), scope.shared(f"{name}/scale", scale)]
        inputs[port] = new.op("DequantizeLinear", values, port, **attributes)
        if q.ndim == 2:
            inputs[port] = new.op("Reshape", [inputs[port], scope.integers(*array.shape)], port)
    return config.with_names(inputs)


def to_two_directions(new: Draft, config: GruNodeConfig) -> list[GruNodeConfig]:
    """Split a bidirectional node into a forward and a reverse node."""
    scope = new.scope
    axes = NEWEST.direction_axes(config.layout)
    halves: list[GruNodeConfig] = []
    for index, direction in enumerate(("forward", "reverse")):
        half = replace(
            config,
            base=f"{config.base}/{direction}",
            direction=direction,
            activations=(config.activations[index],),
        )
        inputs = {}
        for port, name in config.inputs.items():
            what, place = f"{direction}/{port}", scope.integers(index)
            has_part = port in axes
            inputs[port] = new.folded("Gather", [name, place], what, axis=axes[port]) if has_part else name
        outputs = {port: scope.names.fresh(f"{half.base}/{port}") for port in config.outputs}
        halves.append(replace(half, name=scope.names.fresh(half.base), inputs=inputs, outputs=outputs))
    for port, output in config.outputs.items():
        new.op_after("Concat", [half.outputs[port] for half in halves], port, output, axis=axes[port])
    return halves
