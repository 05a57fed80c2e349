"""Compute the value of a state before the first step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from onegru.core.dtypes import Array
from onegru.core.errors import BROKEN
from onegru.dataflow.evaluate import EvaluatedValues
from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import Op, Shape, Size
from onegru.dataflow.table import Call, UnknownOpError, operator_of
from onegru.dataflow.walk import reachable
from onegru.timeline.axes import parts_of


def constant_start(flow: Flow, name: str, batch_axis: int) -> Array | None:
    """Return an initial state that depends only on constants, for any number of rows; None for others."""
    array = flow.constant(name)
    found = evaluated(flow, name, 2, {}) if array is None else array
    if found is None or found.ndim != 3 or not found.size or not np.isfinite(found).all():
        return None
    row = found.take([0], batch_axis)
    return row if (found == row).all() else array


def evaluated(flow: Flow, name: str, size: int, given: Mapping[str, Array]) -> Array | None:
    """Return a value, computed from constants and given values; None if it depends on others."""
    # Dynamic sizes are `size`. They may only determine the lengths of axes, but no number and no index.
    values = EvaluatedValues(flow, given)
    counting = set[str]()  # values computed from dynamic sizes
    producers = {value: op for value, op in flow.producers.items() if value not in given}

    def inputs(value: str) -> Sequence[str]:
        op = producers.get(value)
        return () if op is None or op.kind == "Shape" else op.inputs

    ops = {producers[value] for value in reachable([name], inputs) if value in producers}
    if any(not operator_of(op.kind).computes or op.bodies for op in ops):
        return None
    try:
        for op in sorted(ops, key=flow.position):
            if op.kind == "Shape":
                shape = flow.shape(op.inputs[0]) or ()
                part = shape[op.attributes.get("start", 0) : op.attributes.get("end")]
                values[op.outputs[0]] = np.array([_as_number(item, size) for item in part], np.int64)
                counting.update(op.outputs if _open_axes(part) else ())
                continue
            if not _allows_any_length(flow, op, counting):
                return None
            values.run(op)
        return None if name in counting else values[name]
    except (UnknownOpError, *BROKEN):
        return None


def _allows_any_length(flow: Flow, op: Op, counting: set[str]) -> bool:
    """Whether an operator treats axes of any length alike; add outputs that count to `counting`."""
    call, operator = Call(op, flow), operator_of(op.kind)
    data = [index for index, name in enumerate(op.inputs) if name and index not in operator.size_inputs]
    if any(op.inputs[index] in counting for index in data):
        counting.update(op.outputs)
        return flow.as_sizes(op.outputs[0]) is not None
    if any(name in counting and flow.as_sizes(name) is None for name in op.inputs):
        return False
    if (
        operator.shape_input is None
        and op.kind not in ("Reshape", "Tile")
        and not counting.isdisjoint(op.inputs)
    ):
        return False
    if op.kind == "Reshape":
        before, after = call.shape(), flow.shape(op.outputs[0])
        return after is not None and (
            _elements_before(before) == _elements_before(after)
            or not (_open_axes(before) or _open_axes(after))
        )
    wanted = {(index, axis) for index in data for axis in _open_axes(call.shape(index))}
    kept = {
        (move.input, move.axis)
        for move in (operator.moves(call) if wanted else ())
        if not move.hazard and move.to is not None and not (move.pad_begin or move.pad_end or move.reach)
    }
    return operator.supports(op) and wanted <= kept


def _open_axes(shape: Shape) -> list[int]:
    return [axis for axis, size in enumerate(shape) if isinstance(size, str)]


def _elements_before(shape: Shape) -> set[int]:
    """Return the number of elements before each dynamic axis, where the sizes are fixed."""
    sizes = [size if isinstance(size, int) else 1 for size in shape]
    return {math.prod(sizes[:axis]) for axis in _open_axes(shape)}


def _as_number(item: Size, size: int) -> int:
    """Return a dynamic size as a number; it may be the name of a product."""
    if isinstance(item, int):
        return item
    return math.prod(int(part) if part.isdecimal() else size for part in parts_of(item))
