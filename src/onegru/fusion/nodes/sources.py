"""Find the inputs of a recurrence's steps: slices of one value, or one value per step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from onegru.dataflow.operator import LoopIndex, Size
from onegru.dataflow.table import UnknownOpError
from onegru.dataflow.table.cutting import reversed_axis
from onegru.dataflow.view import View
from onegru.fusion.cells.expression import Expressions


@dataclass(frozen=True, eq=False, slots=True)
class SlicedSource:
    """One value; each step reads a slice of it."""

    view: View  # the value, with the first step's index as the role of the time axis
    axis: int  # the time axis
    step: int  # 1, or -1 if the first step reads the last slice
    start: int = 0  # the first index in time
    count: int | None = None  # the number of steps; None for the size of the axis


@dataclass(frozen=True, eq=False, slots=True)
class StackedSource:
    """A value for each step."""

    views: tuple[View, ...]  # the values, in the order of the steps


Source = SlicedSource | StackedSource


def source_views(exprs: Expressions, view: View) -> list[View]:
    """Return a view, and the views of the values that it is moved from, in sequence."""
    found = [view.renamed(exprs.flow.resolve(view.name))]
    while len(found) < 30:
        last = found[-1]
        if last.name in exprs.sliced:
            found.append(exprs.slice_of(last))
            continue
        op = exprs.flow.find_producer(last.name)
        if op is None or exprs.flow.constant(last.name) is not None:
            break
        try:
            source = exprs.source(op, last)
        except UnknownOpError:
            break
        found.append(source.renamed(exprs.flow.resolve(source.name)))
    return found


def source_of_steps(exprs: Expressions, views: Sequence[View]) -> Source:
    """Return the source of the views that the steps read, one per step."""
    if len(views) == 1:
        return StackedSource(tuple(views))
    paths = [source_views(exprs, view) for view in views]
    best: Source = StackedSource(tuple(views))
    for first in paths[0]:
        others = []
        for other in paths[1:]:
            match = next((view for view in other if view.name == first.name), None)
            if match is None or len(match.roles) != len(first.roles):
                break
            others.append(match)
        else:
            found = _sliced([first, *others])
            if found is not None:
                best = found
                if not _is_reversal(exprs, first.name):
                    break
    return best


def _sliced(views: list[View]) -> SlicedSource | None:
    first = views[0]
    if not all(view.has_columns_of(first) for view in views):
        return None
    roles_of_axes = enumerate(zip(*(view.roles for view in views), strict=True))
    changing = [axis for axis, roles in roles_of_axes if len(set(roles)) > 1]
    if len(changing) != 1:
        return None
    (axis,) = changing
    positions = [view.roles[axis] for view in views]
    if not all(isinstance(position, int) for position in positions):
        return None
    indices = np.array(positions)
    step = int(indices[1] - indices[0])
    if abs(step) != 1 or np.any(np.diff(indices) != step):
        return None
    return SlicedSource(first, axis, step, int(indices.min()), len(views))


def step_before(exprs: Expressions, views: tuple[View, View]) -> View | None:
    """Return the input of the step before two steps with these inputs; None if there is none."""
    found = source_of_steps(exprs, views)
    if not isinstance(found, SlicedSource):
        return None
    first = found.start if found.step > 0 else found.start + 1
    index, shape = first - found.step, exprs.flow.shape(found.view.name)
    size = None if shape is None else shape[found.axis]
    if index < 0 or (isinstance(size, int) and index >= size):
        return None
    roles = tuple(index if axis == found.axis else role for axis, role in enumerate(found.view.roles))
    return replace(found.view, roles=roles)


def loop_source(
    exprs: Expressions, view: View, count: Size | None, through_reversals: bool
) -> SlicedSource | None:
    """Return the source of a view if a loop reads all slices of an axis; else None."""
    best: SlicedSource | None = None
    for earlier in source_views(exprs, view):
        axes = [axis for axis, role in enumerate(earlier.roles) if isinstance(role, LoopIndex)]
        if len(axes) != 1 or exprs.flow.owner(earlier.name) is exprs.flow:
            continue
        (axis,) = axes
        role = earlier.roles[axis]
        assert isinstance(role, LoopIndex)
        shape = exprs.flow.shape(earlier.name)
        step = None if shape is None else slice_step(role, shape[axis], count)
        if step is not None:
            best = SlicedSource(earlier, axis, step)
        if best is not None and not (through_reversals and _is_reversal(exprs, earlier.name)):
            break
    return best


def _is_reversal(exprs: Expressions, name: str) -> bool:
    """Whether a value is the reversal of another."""
    op = exprs.flow.find_producer(name)
    return op is not None and reversed_axis(exprs.flow.owner(name), op) is not None


def slice_step(index: LoopIndex, size: Size, count: Size | None) -> int | None:
    """Return 1 or -1 if `count` iterations read all slices of an axis of `size`, in order; else None."""
    if size != count:
        return None
    if index.sign > 0:
        return 1 if index.base == 0 and index.size == 0 else None
    return -1 if starts_at_last(index, count) else None


def starts_at_last(index: LoopIndex, count: Size | None) -> bool:
    """Whether a decreasing index starts at the last of `count` slices."""
    if index.size == -1:  # counted from the end of the axis
        return True
    if index.size == 0:
        return isinstance(count, int) and index.base == count - 1
    return index.size == count and index.base == -1
