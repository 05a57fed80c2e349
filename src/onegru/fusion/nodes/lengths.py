"""Recognize masks that are equivalent to sequence lengths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onegru.dataflow.operator import LoopIndex, Op, Size
from onegru.dataflow.table import UnknownOpError
from onegru.dataflow.view import View
from onegru.fusion.cells.cell import Mask
from onegru.fusion.cells.expression import Expressions
from onegru.fusion.nodes.sources import source_views, starts_at_last

#: The negation of each comparison.
_OPPOSITE = {
    "Less": "GreaterOrEqual",
    "LessOrEqual": "Greater",
    "Greater": "LessOrEqual",
    "GreaterOrEqual": "Less",
}


def lengths_of(
    exprs: Expressions, masks: Sequence[Mask], reverse: bool, count: Size | None = None
) -> View | None:
    """Return the value with each row's number of steps, if the masks only mask later steps; else None."""
    steps = range(len(masks))
    found = [_compared(exprs, mask) for mask in masks]
    lengths: View | None = None
    for step, item in zip(reversed(steps) if reverse else steps, found, strict=True):
        if item is None:
            return None
        index, view = item
        if isinstance(index, LoopIndex):
            starts = starts_at_last(index, count) if reverse else (index.base, index.size) == (0, 0)
            if count is None or len(masks) > 1 or (index.sign < 0) != reverse or not starts:
                return None
        elif index != step or (len(masks) == 1 and exprs.indices):
            return None
        if lengths is not None and view.key != lengths.key:
            return None
        lengths = view
    return lengths


def _compared(exprs: Expressions, mask: Mask) -> tuple[int | LoopIndex, View] | None:
    """Return the step index and the length that a mask compares."""
    inner: View | None = mask.view
    is_off, seen = mask.is_off, set[str]()
    while inner is not None and inner.name not in seen:
        seen.add(inner.name)
        views, inner = source_views(exprs, inner), None
        for view in views:
            op = exprs.flow.find_producer(view.name)
            if op is not None and op.kind in _OPPOSITE:
                return _as_less(exprs, op, view, _OPPOSITE[op.kind] if is_off else op.kind)
            if op is not None and op.kind == "Not":
                inner, is_off = view.renamed(op.inputs[0]), not is_off
                break
    return None


def _as_less(exprs: Expressions, op: Op, view: View, kind: str) -> tuple[int | LoopIndex, View] | None:
    """Return the index and the lengths of a comparison in the form index < lengths; None for others."""
    try:
        shape = exprs.shape(op.outputs[0])
        first, second = (exprs.input_view(view, name, shape) for name in op.inputs)
    except UnknownOpError:
        return None
    low, high = (first, second) if kind.startswith("Less") else (second, first)
    index = _index(exprs, low)
    if index is None:
        return None
    shift = 0 if kind in ("Less", "Greater") else -1  # inclusive
    if isinstance(index, LoopIndex):
        index = LoopIndex(index.sign, index.base + shift, index.size)
    else:
        index += shift
    sources = source_views(exprs, high)
    integers = [source for source in sources if exprs.flow.dtype(source.name) in ("int32", "int64")]
    fitting = [source for source in integers if not any(isinstance(role, LoopIndex) for role in source.roles)]
    return (index, fitting[-1]) if fitting and not fitting[-1].has_columns else None


def _index(exprs: Expressions, view: View) -> int | LoopIndex | None:
    """Return the constant number or loop index that a view contains."""
    for earlier in source_views(exprs, view):
        if earlier.name in exprs.indices:
            return exprs.indices[earlier.name]
        array = exprs.flow.constant(earlier.name)
        axes = [axis for axis, role in enumerate(earlier.roles) if isinstance(role, LoopIndex)]
        if array is None and not axes:
            p = exprs.polynomial(earlier)
            number = float(p.constant) if p.is_constant and p.constant.ndim == 0 else None
            return int(number) if number is not None and number == int(number) else None
        if len(axes) == 1:
            if _is_range(exprs, earlier, axes[0]):
                role = earlier.roles[axes[0]]
                assert isinstance(role, LoopIndex)
                return role
            continue
        if array is not None:
            p = exprs.polynomial(earlier)
            if not p.is_constant or p.constant.size != 1:
                return None
            number = float(p.constant.ravel()[0])
            return int(number) if number == int(number) else None
    return None


def _is_range(exprs: Expressions, view: View, axis: int) -> bool:
    """Whether a value counts 0, 1, 2, … along an axis."""
    array = exprs.flow.constant(view.name)
    if array is not None:
        return array.size == array.shape[axis] and bool(np.all(array.ravel() == np.arange(array.size)))
    op = exprs.flow.find_producer(view.name)
    if op is None or op.kind != "Range":
        return False
    return exprs.flow.as_sizes(op.inputs[0]) == (0,) and exprs.flow.as_sizes(op.inputs[2]) == (1,)
