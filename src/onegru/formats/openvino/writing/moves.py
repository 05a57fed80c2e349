"""Combine consecutive axis moves into as few operators as possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, islice

from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import Op, Shape
from onegru.dataflow.table.moving import AxisOrder, ops_that_move_axes

_MOST_TRIED = 100


def compose(first: AxisOrder, second: AxisOrder) -> AxisOrder:
    """Return the move that equals two consecutive moves."""
    return tuple(None if axis is None else first[axis] for axis in second)


def ignoring_ones(axes: AxisOrder, shape: Shape) -> AxisOrder:
    """Return the move without the sources of axes of size 1, which are interchangeable."""
    return tuple(None if axis is None or shape[axis] == 1 else axis for axis in axes)


def is_still(axes: AxisOrder, shape: Shape) -> bool:
    """Whether a move has no effect."""
    return ignoring_ones(axes, shape) == ignoring_ones(tuple(range(len(shape))), shape)


def ops_of_move(axes: AxisOrder, shape: Shape) -> list[Op]:
    """Return the operators for a move, as in `ops_that_move_axes`."""
    wanted = ignoring_ones(axes, shape)
    rank = len(shape)
    ones = [axis for axis in range(rank) if shape[axis] == 1 or axis not in axes]
    spare = [index for index, axis in enumerate(wanted) if axis is None]
    best: list[Op] | None = None
    for gone, new in islice(_choices(ones, spare), _MOST_TRIED):
        left = [axis for axis in range(rank) if axis not in gone]
        target = [axis for index, axis in enumerate(wanted) if index not in new]
        free = iter(axis for axis in left if axis in ones)
        order = [next(free) if axis is None else axis for axis in target]
        found = ops_that_move_axes(gone, [left.index(axis) for axis in order], new)
        if best is None or len(found) < len(best):
            best = found
    return best or []


def sliced_before(flow: Flow, op: Op, source: str, axes: AxisOrder, name: str) -> Op | None:
    """Return a Slice of the original value that replaces a Slice of its moved value."""
    before, after = flow.shape(source), flow.shape(op.outputs[0])
    starts, ends = flow.ints(op, "starts", 1), flow.ints(op, "ends", 2)
    if before is None or after is None or starts is None or ends is None or len(after) != len(axes):
        return None
    cut = flow.ints(op, "axes", 3) or list(range(len(starts)))
    strides = flow.ints(op, "steps", 4) or [1] * len(starts)
    indices = [axis % len(axes) for axis in cut]
    sources = [axes[index] for index in indices]
    if len(set(cut)) < len(cut) or any(axis is None for axis in sources):
        return None
    sizes = list(before)
    for index, axis in zip(indices, sources, strict=True):
        sizes[axis or 0] = after[index]
    flow.set_shape(name, tuple(sizes))
    more = {"starts": starts, "ends": ends, "axes": sources, "steps": strides}
    return Op("Slice", (source,), (name,), more, name=name)


def _choices(ones: Sequence[int], spare: Sequence[int]) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Yield axes of size 1 to drop and to add, the fewest first."""
    over = len(ones) - len(spare)
    for gone in combinations(ones, max(over, 0)):
        for new in combinations(spare, max(-over, 0)):
            yield gone, new
    if over == 0:
        for gone in combinations(ones, min(1, len(ones))):  # an axis that moves
            for new in combinations(spare, min(1, len(spare))):
                yield gone, new
