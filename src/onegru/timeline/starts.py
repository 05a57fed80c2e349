"""What a state is before the first step, where constants and sizes determine it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from onegru.core.dtypes import Array
from onegru.core.errors import BROKEN
from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import TIMES, Op, Size
from onegru.dataflow.table import LargeResultError, UnknownOpError, evaluate, operator_of


def constant_start(flow: Flow, name: str, rows: int) -> Array | None:
    """An initial state that depends on constants and sizes alone; None for another one.

    Args:
        flow: the model.
        name: the state.
        rows: its axis of rows, which has size 1 in the result if all rows are the same.
    """
    array = flow.constant(name)
    found = [array] if array is not None else [evaluated(flow, name, size, {}) for size in (2, 3)]
    first = found[0]
    if first is None or first.ndim != 3 or not first.size or not np.isfinite(first).all():
        return None
    row = first.take([0], rows)
    rest = [None if item is None else item.take([0], rows) for item in found[1:]]
    is_same = all(item is not None and np.array_equal(item, row) for item in rest)
    return row if is_same and all((item == row).all() for item in found if item is not None) else array


def evaluated(flow: Flow, name: str, size: int, given: Mapping[str, Array]) -> Array | None:
    """A value, computed from constants, sizes and given values alone; None if it depends on more.

    Args:
        flow: the model.
        name: the value.
        size: what each open size is.
        given: the given values.
    """
    values: dict[str, Array | None] = {"": None, **given}
    waiting, ops = [name], dict[int, Op]()
    while waiting:
        last = waiting.pop()
        op = flow.producers.get(last)
        if last in values:
            continue
        if op is None:
            values[last] = flow.constant(last)
        elif op.kind != "Shape" and (not operator_of(op.kind).computes or op.bodies):
            return None
        elif id(op) not in ops:
            ops[id(op)] = op
            waiting += op.inputs if op.kind != "Shape" else ()
    try:
        for op in sorted(ops.values(), key=flow.position):
            if op.kind == "Shape":
                shape = flow.shape(op.inputs[0]) or ()
                part = shape[op.attributes.get("start", 0) : op.attributes.get("end")]
                values[op.outputs[0]] = np.array([_number(item, size) for item in part], np.int64)
            else:
                arrays = [values[item] for item in op.inputs]
                results = evaluate(op.kind, op.attributes, arrays, len(op.outputs))
                values.update(zip(op.outputs, results, strict=False))
    except (LargeResultError, UnknownOpError, *BROKEN):
        return None
    return values.get(name)


def _number(item: Size, size: int) -> int:
    """An open size as a number; it may be the name of a product."""
    if isinstance(item, int):
        return item
    return math.prod(int(part) if part.isdecimal() else size for part in item.split(TIMES))
