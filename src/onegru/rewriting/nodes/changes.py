"""Changes of one GRU node, and the table `CHANGES` of them.

Each function takes a `GruNodeConfig`, returns those that remain, and adds the required nodes around them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from onnx import NodeProto

from onegru.core.compare import QUANTIZED
from onegru.core.dtypes import Array, default_float_mode
from onegru.core.errors import SpecError
from onegru.engines.storage import quantizable
from onegru.formats.onnx.dequantized import int8_opset, quantized_inputs
from onegru.formats.onnx.validate import is_onnx
from onegru.operators.onnx import NEWEST
from onegru.rewriting.nodes.decompose import decompose
from onegru.rewriting.nodes.node_config import GruNodeConfig, require_type_and_size
from onegru.rewriting.nodes.scope import Draft, Scope

#: The oldest opset whose Cast names the type by a number, as in all later opsets.
FLOAT16_OPSET = 6

# Permutations between the layouts: of X, initial_h and Y_h, and of Y.
_SWAP_AXES = (1, 0, 2)
_TO_TIME_FIRST = (1, 2, 0, 3)
_TO_BATCH_FIRST = (2, 0, 1, 3)


@dataclass(frozen=True, slots=True)
class RewriteOptions:
    """Options for the GRU nodes of a model; see `onegru.rewriting.rewrite.rewrite`."""

    opset: int | None = None
    layout: int | None = None
    float16: bool = False
    quantize: bool | frozenset[str] = False
    group_size: int = 0
    split: bool = False
    decompose: bool = False
    runtime: str | None = None

    @property
    def decomposes_augru(self) -> bool:
        """Whether AUGRU nodes are decomposed. OpenVINO needs this, because it does not read functions."""
        return self.decompose or self.runtime == "openvino"

    @property
    def reads_weights(self) -> bool:
        """Whether weights must be constants, if they can."""
        return bool(self.quantize or self.float16 or self.split or self.decompose)

    def quantizes(self, node: NodeProto) -> bool:
        """Whether to store a node's weights as int8."""
        name = node.name or next(filter(None, node.output), "")
        return self.quantize if isinstance(self.quantize, bool) else name in self.quantize


class Change(NamedTuple):
    """A row of `CHANGES`."""

    #: Whether the change is requested and has an effect on a node.
    is_requested: Callable[[Scope, GruNodeConfig, RewriteOptions], object]
    #: Adds nodes and a description to the draft; returns the GRU nodes that remain.
    apply: Callable[[Draft, GruNodeConfig, RewriteOptions], list[GruNodeConfig]]
    #: Returns the configurations that `apply` would return, without names, to look up their known issues.
    preview: Callable[[GruNodeConfig], list[GruNodeConfig]] = lambda config: [config]


def _requests_layout(scope: Scope, config: GruNodeConfig, options: RewriteOptions) -> bool:
    if options.layout is None:
        return config.layout == 1 and scope.opset < 14 and not options.decompose
    return options.layout != config.layout


def _to_layout(draft: Draft, config: GruNodeConfig, _: RewriteOptions) -> list[GruNodeConfig]:
    """Change the layout to the other one, and add Transposes unless they cancel out."""
    draft.done.append(f"layout {config.layout} became {1 - config.layout}")
    ports = [port for port in ("X", "initial_h") if port in config.inputs]
    inputs = {port: _swapped_input(draft, config, port) for port in ports}
    outputs = {}
    if "Y" in config.outputs:
        # From the node's layout to the graph's layout, and back.
        perm, back = (_TO_BATCH_FIRST, _TO_TIME_FIRST)[:: -1 if config.layout == 0 else 1]
        outputs["Y"] = _swapped_output(draft, config, "Y", perm, back)
    if "Y_h" in config.outputs:
        outputs["Y_h"] = _swapped_output(draft, config, "Y_h", _SWAP_AXES, _SWAP_AXES)
    return _other_layout(config.with_names(inputs, outputs))


def _other_layout(config: GruNodeConfig) -> list[GruNodeConfig]:
    return [replace(config, layout=1 - config.layout)]


def _swapped_input(draft: Draft, config: GruNodeConfig, port: str) -> str:
    scope, value = draft.scope, config.inputs[port]
    producer = scope.producers.get(value)
    if producer is not None and _permutation(producer) == _SWAP_AXES and value not in scope.taken_outputs:
        scope.released_inputs.add(value)
        return str(producer.input[0])
    return draft.op("Transpose", [value], port, perm=_SWAP_AXES)


def _swapped_output(
    draft: Draft, config: GruNodeConfig, port: str, perm: tuple[int, ...], back: tuple[int, ...]
) -> str:
    scope, value = draft.scope, config.outputs[port]
    consumers = scope.consumers.get(value, [])
    if len(consumers) == 1 and value not in scope.outputs and _permutation(consumers[0]) == back:
        output = str(consumers[0].output[0])
        if output not in scope.released_inputs:  # a GRU node that skips the Transpose reads `value`
            scope.taken_outputs.add(output)
            return output
    return _add_after(draft, config, port, "Transpose", perm=perm)


def _permutation(node: NodeProto) -> tuple[int, ...] | None:
    """Return a Transpose's permutation; None for other nodes."""
    if node.op_type != "Transpose" or not is_onnx(node) or len(node.input) != 1 or len(node.output) != 1:
        return None
    return tuple(next((item.ints for item in node.attribute if item.name == "perm"), ()))


def _to_float16(draft: Draft, config: GruNodeConfig, _: RewriteOptions) -> list[GruNodeConfig]:
    """Convert the node to float16, with Casts around it."""
    dtype = require_type_and_size(draft.scope, config, "float16")[0]
    if draft.scope.opset < FLOAT16_OPSET:
        raise SpecError.of("opset", f"{draft.scope.opset}; must be at least {FLOAT16_OPSET} for float16")
    draft.done.append(f"{dtype} became float16")
    inputs = {}
    for port in ("X", "W", "R", "B", "initial_h"):
        if port not in config.inputs:
            continue
        array = draft.scope.constant(config.inputs[port])
        if array is None:
            inputs[port] = draft.op("Cast", [config.inputs[port]], port, dtype="float16")
        else:
            wanted = f"{config.inputs[port]}/float16"
            inputs[port] = draft.scope.shared_constant(wanted, _as_float16(config, array))
    outputs = {port: _add_after(draft, config, port, "Cast", dtype=dtype) for port in config.outputs}
    return _with_float16(config.with_names(inputs, outputs))


def _with_float16(config: GruNodeConfig) -> list[GruNodeConfig]:
    return [replace(config, dtype="float16")]


def _add_after(draft: Draft, config: GruNodeConfig, port: str, kind: str, **attributes: Any) -> str:
    """Add a node after an output of the GRU node; return the output's new name."""
    value = draft.fresh(port)
    draft.op_after(kind, [value], port, config.outputs[port], **attributes)
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


def to_int8(draft: Draft, config: GruNodeConfig, options: RewriteOptions) -> list[GruNodeConfig]:
    """Store W and R as int8 with a scale per row, or per group of weights of a row."""
    scope, group = draft.scope, options.group_size
    if scope.opset < (least := int8_opset(group)):
        what = f"weights in int8{', in groups' if group else ''}"
        raise SpecError.of(
            "opset", f"{scope.opset}; must be at least {least} for {what}; add --opset {least}"
        )
    row = f"{f'{group} weights of a ' * (group > 0)}row"
    draft.done.append(f"W and R became int8, with a scale for each {row}")
    inputs = {}
    for port in ("W", "R"):
        name = config.inputs[port]
        array = quantizable("quantize", f"{config.label}: {port}", scope.constant(name), group)
        q, scale, attributes = quantized_inputs(array, group)
        values = [scope.shared_constant(f"{name}/int8", q), scope.shared_constant(f"{name}/scale", scale)]
        inputs[port] = draft.op("DequantizeLinear", values, port, **attributes)
        if q.ndim == 2:
            inputs[port] = draft.op("Reshape", [inputs[port], scope.integers(*array.shape)], port)
    return [config.with_names(inputs)]


def _split(draft: Draft, config: GruNodeConfig, _: RewriteOptions) -> list[GruNodeConfig]:
    """Split a bidirectional node into a forward and a reverse node."""
    draft.done.append("bidirectional became a forward and a reverse node")
    scope = draft.scope
    axes = NEWEST.direction_axes(config.layout)
    parts: list[GruNodeConfig] = []
    for index, part in enumerate(_directions_of(config)):
        direction, inputs = part.direction, {}
        for port, name in config.inputs.items():
            inputs[port] = name
            if port in axes:
                gathered = [name, scope.integers(index)]
                inputs[port] = draft.folded("Gather", gathered, f"{direction}/{port}", axis=axes[port])
        outputs = {port: scope.names.fresh(f"{part.base}/{port}") for port in config.outputs}
        parts.append(replace(part, name=scope.names.fresh(part.base), inputs=inputs, outputs=outputs))
    for port, output in config.outputs.items():
        draft.op_after("Concat", [part.outputs[port] for part in parts], port, output, axis=axes[port])
    return parts


def _directions_of(config: GruNodeConfig) -> list[GruNodeConfig]:
    return [
        replace(config, base=f"{config.base}/{direction}", direction=direction, activations=(pair,))
        for direction, pair in zip(("forward", "reverse"), config.activations, strict=True)
    ]


#: All changes, by name in a plan; `rewrite` applies them in this order.
CHANGES = {
    "layout": Change(_requests_layout, _to_layout, _other_layout),
    "float16": Change(
        lambda _, config, options: options.float16 and config.dtype != "float16", _to_float16, _with_float16
    ),
    "decompose": Change(lambda _, config, options: options.decompose, decompose, lambda config: []),
    "split": Change(
        lambda _, config, options: options.split and len(config.activations) == 2, _split, _directions_of
    ),
    QUANTIZED: Change(lambda _, config, options: options.quantizes(config.origin), to_int8),
}
