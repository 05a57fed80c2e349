"""Rows of numbers in the values of a model, followed through operators that only move elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onegru.core.dtypes import Array
from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import LoopIndex, Op, Shape, Size
from onegru.dataflow.shapes import index_slice, is_reversal, slice_ranges, split_sizes, squeezed_axes
from onegru.fusion.cells.polynomial import TooComplexError

_MOST_COLUMNS = 2**18

#: What an axis of a value is in a view: "R" a row of the batch, "F" columns, else the index that is taken.
Role = str | int | LoopIndex


@dataclass(frozen=True, eq=False, slots=True)
class View:
    """Columns of a value, in each row.

    Attributes:
        name: the value.
        roles: what each of its axes is.
        index: the index of each column along each "F" axis, [axes, columns].
    """

    name: str
    roles: tuple[Role, ...]
    index: Array

    @property
    def key(self) -> tuple[str, tuple[Role, ...], bytes]:
        """Equal for equal views."""
        return self.name, self.roles, self.index.tobytes() if len(self.index) else b""

    @property
    def width(self) -> int:
        """How many columns."""
        return int(self.index.shape[1])


def whole_view(flow: Flow, name: str) -> View | None:
    """All of the last axis of a value, whose other axes are rows; None if its size is not fixed."""
    shape = flow.shape(name)
    if not shape or not isinstance(shape[-1], int) or shape[-1] > _MOST_COLUMNS:
        return None
    return View(name, ("R",) * (len(shape) - 1) + ("F",), np.arange(shape[-1])[None])


class Views:
    """The views of the values of a flow.

    Args:
        flow: the graph, or a loop's body.
        indices: values that are indices of a loop's iteration.
        slices: for an input of a body that is a slice: the value, its axis of time, 1 or -1 for the
            direction, and whether the slice has that axis.
    """

    def __init__(
        self,
        flow: Flow,
        indices: Mapping[str, LoopIndex] | None = None,
        slices: Mapping[str, tuple[str, int, int, bool]] | None = None,
    ) -> None:
        self.flow = flow
        self.indices = dict(indices or {})
        self.slices = dict(slices or {})

    def whole(self, name: str) -> View | None:
        """All columns of a value; None if their number is not known."""
        return whole_view(self.flow, name)

    def slice_of(self, view: View) -> View:
        """What a slice is taken of."""
        name, axis, step, is_kept = self.slices[view.name]
        index = LoopIndex(1, 0) if step > 0 else LoopIndex(-1, -1, -1)
        after = view.roles[axis + 1 if is_kept else axis :]
        return View(name, (*view.roles[:axis], index, *after), view.index)

    def through(self, op: Op, view: View) -> list[tuple[Array, View]] | None:
        """What an operator that only moves elements takes its columns from: (columns, view) pairs."""
        rule = MOVES.get(op.kind)
        return None if rule is None else rule(self, op, view)

    def shape(self, name: str) -> Shape:
        """A value's shape."""
        shape = self.flow.shape(name)
        if shape is None:
            raise TooComplexError
        return shape

    def input_view(self, view: View, name: str, output_shape: Shape) -> View:
        """The view of an input of an operator that works element by element, with broadcasting."""
        shape = self.shape(name)
        missing = len(output_shape) - len(shape)
        roles: list[Role] = []
        kept: list[int] = []
        column = 0
        for axis, role in enumerate(view.roles):
            if role == "F":
                column += 1
            if axis < missing:
                continue
            size, whole = shape[axis - missing], output_shape[axis]
            if size == 1 and whole != 1:
                roles.append(0)
                continue
            if role == "F":
                kept.append(column - 1)
            roles.append(role)
        return View(name, tuple(roles), view.index[kept])


# Operators that move elements


def _same_view(at: Views, op: Op, view: View) -> list[tuple[Array, View]]:
    return [(np.arange(view.width), View(op.inputs[0], view.roles, view.index))]


def _dropout_view(at: Views, op: Op, view: View) -> list[tuple[Array, View]]:
    if len(op.inputs) > 2 or len(op.outputs) > 1:
        raise TooComplexError  # it may be training
    return _same_view(at, op, view)


def _cast_view(at: Views, op: Op, view: View) -> list[tuple[Array, View]]:
    before, after = at.flow.dtype(op.inputs[0]), op.attributes.get("dtype")
    if after not in ("float16", "bfloat16", "float32", "float64") or before not in ("bool", after):
        raise TooComplexError  # one that rounds is no part of a cell
    return _same_view(at, op, view)


def _transpose_view(at: Views, op: Op, view: View) -> list[tuple[Array, View]]:
    perm = op.attributes.get("perm", tuple(range(len(view.roles)))[::-1])
    shape = at.shape(op.inputs[0])
    order = [axis for axis in perm if view.roles[perm.index(axis)] == "R" and shape[axis] != 1]
    if order != sorted(order):
        raise TooComplexError
    roles: list[Role] = ["R"] * len(perm)
    columns: dict[int, Array] = {}
    rows = iter(view.index)
    for axis, source in enumerate(perm):
        roles[source] = view.roles[axis]
        if view.roles[axis] == "F":
            columns[source] = next(rows)
    index = [columns[axis] for axis in sorted(columns)]
    return [(np.arange(view.width), View(op.inputs[0], tuple(roles), _stacked(index, view)))]


def _stacked(rows: list[Array], view: View) -> Array:
    return np.stack(rows) if rows else np.zeros((0, view.width), np.int64)


def _squeeze_view(at: Views, op: Op, view: View) -> list[tuple[Array, View]]:
    shape = at.shape(op.inputs[0])
    axes = squeezed_axes(at.flow, op, shape)
    if axes is None:
        raise TooComplexError
    rest = iter(view.roles)
    roles = tuple(0 if axis in axes else next(rest) for axis in range(len(shape)))
    return [(np.arange(view.width), View(op.inputs[0], roles, view.index))]


def _unsqueeze_view(at: Views, op: Op, view: View) -> list[tuple[Array, View]]:
    axes = at.flow.ints(op, "axes", 1)
    if axes is None:
        raise TooComplexError
    inserted = {axis % len(view.roles) for axis in axes}
    roles, kept, column = [], [], 0
    for axis, role in enumerate(view.roles):
        if axis not in inserted:
            roles.append(role)
            kept += [column] if role == "F" else []
        column += role == "F"
    return [(np.arange(view.width), View(op.inputs[0], tuple(roles), view.index[kept]))]


def _reshape_view(at: Views, op: Op, view: View) -> list[tuple[Array, View]]:
    source, target = at.shape(op.inputs[0]), at.shape(op.outputs[0])
    first = view.roles.index("F") if "F" in view.roles else len(view.roles)
    sizes = target[first:]
    if any(role != "F" for role in view.roles[first:]) or not all(isinstance(size, int) for size in sizes):
        raise TooComplexError
    fixed = [size for size in sizes if isinstance(size, int)]
    count, split, product = int(np.prod(fixed)), len(source), 1
    while split and product < count and isinstance(source[split - 1], int):
        split -= 1
        product *= int(source[split])
    if product != count:
        raise TooComplexError
    before, after = list(source[:split]), list(target[:first])
    roles = list(view.roles[:first])
    if all(role == "R" for role in roles):
        inner: list[Role] = ["R"] * split
    else:  # indices are only followed through axes that stay
        kept = [(size, role) for size, role in zip(after, roles, strict=True) if size != 1 or role != "R"]
        wide = [size for size in before if size != 1]
        if [size for size, _ in kept if size != 1] != wide or any(size == 1 for size, _ in kept):
            raise TooComplexError
        passed = iter(role for _, role in kept)
        inner = ["R" if size == 1 else next(passed) for size in before]
    flat = np.ravel_multi_index(tuple(view.index), tuple(fixed)) if fixed else np.zeros(view.width, np.int64)
    wanted = [int(size) for size in source[split:]]
    index = np.stack(np.unravel_index(flat, wanted)) if wanted else np.zeros((0, view.width), np.int64)
    return [(np.arange(view.width), View(op.inputs[0], (*inner, *["F"] * len(wanted)), index))]


def _flatten_view(at: Views, op: Op, view: View) -> list[tuple[Array, View]]:
    if op.attributes.get("axis", 1) != 1 or len(at.shape(op.inputs[0])) != 2:
        raise TooComplexError
    return _same_view(at, op, view)


def _cut_axis(view: View, axis: int, start: int, count: int, step: int, size: Size) -> tuple[Role, Any]:
    """The role of an axis behind a cut, and its columns if it has any."""
    role = view.roles[axis]
    if role == "F":
        place = sum(other == "F" for other in view.roles[:axis])
        if start < 0:
            raise TooComplexError
        return "F", start + step * view.index[place]
    if isinstance(role, int) and start >= 0:
        return start + step * role, None
    if role == "R" and count == 1 and start >= 0:
        return start, None
    if role == "R" and count == size and step == 1 and start == 0:
        return "R", None
    raise TooComplexError


def backwards(role: Role, size: Size) -> Role:
    """The index along an axis of what is turned round along it."""
    if isinstance(role, LoopIndex):
        if role.size == 0:
            return LoopIndex(-role.sign, -1 - role.base, size)
        if role.size in (size, -1):
            return LoopIndex(-role.sign, -1 - role.base)
    if isinstance(role, int) and isinstance(size, int):
        return size - 1 - role
    raise TooComplexError


def _reverse_view(at: Views, op: Op, view: View) -> list[tuple[Array, View]] | None:
    """The view of what is turned round, where a view takes one slice of it."""
    axis = is_reversal(at.flow, op)
    if axis is None or view.roles[axis] in ("R", "F"):
        return None
    role = backwards(view.roles[axis], at.shape(op.inputs[0])[axis])
    return [(np.arange(view.width), _replaced(view, op.inputs[0], {axis: role}, {}))]


def _reverse_sequence_view(at: Views, op: Op, view: View) -> list[tuple[Array, View]]:
    found = _reverse_view(at, op, view)
    if found is None:
        raise TooComplexError
    return found


def _replaced(view: View, name: str, roles: dict[int, Role], columns: dict[int, Array]) -> View:
    index = view.index.copy()
    for axis, taken in columns.items():
        index[sum(other == "F" for other in view.roles[:axis])] = taken
    return View(name, tuple(roles.get(axis, role) for axis, role in enumerate(view.roles)), index)


def _slice_view(at: Views, op: Op, view: View) -> list[tuple[Array, View]]:
    if (turned := _reverse_view(at, op, view)) is not None:
        return turned
    shape = at.shape(op.inputs[0])
    if (single := index_slice(at.flow, op, shape)) is not None:
        if view.roles[single[0]] not in ("R", 0):
            raise TooComplexError
        return [(np.arange(view.width), _replaced(view, op.inputs[0], {single[0]: single[1]}, {}))]
    ranges = slice_ranges(at.flow, op, shape)
    if ranges is None:
        raise TooComplexError
    roles: dict[int, Role] = {}
    columns: dict[int, Array] = {}
    for axis, cut in ranges.items():
        if cut is None:
            continue
        roles[axis], taken = _cut_axis(view, axis, *cut, shape[axis])
        if taken is not None:
            columns[axis] = taken
    return [(np.arange(view.width), _replaced(view, op.inputs[0], roles, columns))]


def _split_view(at: Views, op: Op, view: View) -> list[tuple[Array, View]]:
    shape = at.shape(op.inputs[0])
    sizes = split_sizes(at.flow, op, shape)
    if sizes is None:
        raise TooComplexError
    axis, output = op.attributes.get("axis", 0) % len(shape), op.outputs.index(view.name)
    role, taken = _cut_axis(view, axis, sum(sizes[:output]), sizes[output], 1, shape[axis])
    columns = {} if taken is None else {axis: taken}
    return [(np.arange(view.width), _replaced(view, op.inputs[0], {axis: role}, columns))]


def _gather_view(at: Views, op: Op, view: View) -> list[tuple[Array, View]]:
    if (turned := _reverse_view(at, op, view)) is not None:
        return turned
    shape = at.shape(op.inputs[0])
    axis = op.attributes.get("axis", 0) % len(shape)
    indices = at.flow.constant(op.inputs[1])
    rank = len(at.shape(op.inputs[1]))
    before = view.roles[:axis]
    if indices is None:
        role: Role | None = at.indices.get(at.flow.resolve(op.inputs[1]))
        if role is None or rank > 1 or (rank == 1 and view.roles[axis] not in ("R", 0)):
            raise TooComplexError
        return [
            (
                np.arange(view.width),
                View(op.inputs[0], (*before, role, *view.roles[axis + rank :]), view.index),
            )
        ]
    size = shape[axis]
    wrapped = np.where(indices < 0, indices + (size if isinstance(size, int) else 0), indices)
    if wrapped.size and int(wrapped.min()) < 0:
        raise TooComplexError
    if rank == 0:
        roles = (*before, int(wrapped), *view.roles[axis:])
        return [(np.arange(view.width), View(op.inputs[0], roles, view.index))]
    if rank != 1:
        raise TooComplexError
    taken = view.roles[axis]
    if taken == "F":
        place = sum(other == "F" for other in before)
        columns = {axis: wrapped[view.index[place]]}
        return [(np.arange(view.width), _replaced(view, op.inputs[0], {}, columns))]
    if isinstance(taken, int) or len(wrapped) == 1:
        chosen = int(wrapped[taken if isinstance(taken, int) else 0])
        return [(np.arange(view.width), _replaced(view, op.inputs[0], {axis: chosen}, {}))]
    raise TooComplexError


def _concat_view(at: Views, op: Op, view: View) -> list[tuple[Array, View]]:
    shapes = [at.shape(name) for name in op.inputs]
    axis = op.attributes["axis"] % len(shapes[0])
    sizes = [shape[axis] for shape in shapes]
    if not all(isinstance(size, int) for size in sizes):
        raise TooComplexError
    ends = np.cumsum([int(size) for size in sizes])
    role = view.roles[axis]
    if isinstance(role, int):
        chosen = int(np.searchsorted(ends, role, "right"))
        start = int(ends[chosen - 1]) if chosen else 0
        return [(np.arange(view.width), _replaced(view, op.inputs[chosen], {axis: role - start}, {}))]
    if role != "F":
        raise TooComplexError
    place = sum(other == "F" for other in view.roles[:axis])
    owners = np.searchsorted(ends, view.index[place], "right")
    parts = []
    for chosen in np.unique(owners):
        columns = np.flatnonzero(owners == chosen)
        index = view.index[:, columns].copy()
        index[place] -= int(ends[chosen - 1]) if chosen else 0
        parts.append((columns, View(op.inputs[chosen], view.roles, index)))
    return parts


def _expand_view(at: Views, op: Op, view: View) -> list[tuple[Array, View]]:
    inner = at.input_view(view, op.inputs[0], at.shape(op.outputs[0]))
    return [(np.arange(view.width), inner)]


MOVES: dict[str, Callable[[Views, Op, View], list[tuple[Array, View]]]] = {
    "Identity": _same_view,
    "Dropout": _dropout_view,
    "Cast": _cast_view,
    "Transpose": _transpose_view,
    "Squeeze": _squeeze_view,
    "Unsqueeze": _unsqueeze_view,
    "Reshape": _reshape_view,
    "Flatten": _flatten_view,
    "Slice": _slice_view,
    "Split": _split_view,
    "Gather": _gather_view,
    "Concat": _concat_view,
    "Expand": _expand_view,
    "ReverseSequence": _reverse_sequence_view,
}
