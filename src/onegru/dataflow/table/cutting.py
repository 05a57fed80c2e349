"""Describe operators that select or reorder elements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from onegru.core.dtypes import Array
from onegru.core.errors import BROKEN
from onegru.dataflow.operator import Facts, LoopIndex, Op, Shape, Size
from onegru.dataflow.table.base import (
    ENDLESS,
    ArrayCall,
    AttributeOrInput,
    Call,
    Elements,
    Move,
    Operator,
    SameShape,
    Sizes,
    UnknownOpError,
    Vectorization,
    check_size,
    input_moves,
    operator_of,
    register,
)
from onegru.dataflow.table.lookups import BY_INDEX, lookup_moves, range_length
from onegru.dataflow.table.moving import Moving
from onegru.dataflow.view import COLUMNS, ROWS, Role, View


class Bounds(NamedTuple):
    """Bounds of one axis as given to ONNX's Slice: negative ones count from the end of the axis."""

    start: int
    end: int
    step: int


class Selection(NamedTuple):
    """Indices that an operator selects from one axis."""

    first: int  # negative if it counts from the end of an axis of unknown size
    size: int  # their number; -1 for all of an axis of unknown size
    step: int


def _before_selection(view: View, axis: int, selection: Selection, axis_size: Size) -> tuple[Role, Any]:
    """Return the role of an axis in the input that an operator selects from, and its column coordinates."""
    role, (first, size, step) = view.roles[axis], selection
    if first >= 0:
        if role == COLUMNS:
            return COLUMNS, first + step * view.coordinates[view.coordinate_row(axis)]
        if isinstance(role, int):
            return first + step * role, None
        if role == ROWS and size == 1:
            return first, None
        if role == ROWS and size == axis_size and step == 1 and first == 0:
            return ROWS, None
    raise UnknownOpError


def _start(start: int, step: int, size: int) -> int:
    """Return the first index of ONNX's Slice, which for a negative step may be before the beginning."""
    return 0 if step < 0 and start < -size else start


def reversed_role(role: Role, size: Size) -> Role:
    """Return the role of an axis after reversal."""
    if isinstance(role, LoopIndex):
        if role.size == 0:
            return LoopIndex(-role.sign, -1 - role.base, size)
        if role.size in (size, -1):
            return LoopIndex(-role.sign, -1 - role.base)
    if isinstance(role, int) and isinstance(size, int):
        return size - 1 - role
    raise UnknownOpError


class Reversing(Moving):
    """Operator that may reverse a whole axis."""

    elements: ClassVar[Elements] = Elements.CUT

    def reverses(self, call: Call) -> int | None:
        """Return the axis that it reverses; None for other cases."""
        return None

    def source(self, call: Call, view: View) -> list[tuple[Array, View]]:
        axis = self.reverses(call)
        if axis is None or view.roles[axis] in (ROWS, COLUMNS):
            raise UnknownOpError
        role = reversed_role(view.roles[axis], call.shape()[axis])
        return [(view.columns, view.replaced(call.op.inputs[0], {axis: role}, {}))]


class Slice(Reversing):
    parameters: Mapping[str, AttributeOrInput] = {
        name: AttributeOrInput(number, since=10)
        for number, name in enumerate(("starts", "ends", "axes", "steps"), 1)
    }
    size_inputs: tuple[int, ...] = (1, 2, 3, 4)
    max_inputs: int = 5
    resizes: ClassVar[bool] = True

    def given_bounds(self, call: Call) -> dict[int, Bounds] | None:
        """Return the bounds for each axis that has some; None if unknown."""
        starts, ends = call.ints("starts"), call.ints("ends")
        if starts is None or ends is None:
            return None
        axes = call.known_ints("axes") or range(len(starts))
        steps = call.known_ints("steps") or [1] * len(starts)
        rank = call.rank()
        bounds = zip(axes, starts, ends, steps, strict=True)
        return {axis % rank: Bounds(*item) for axis, *item in bounds}

    def selections(self, call: Call) -> dict[int, Selection] | None:
        """Return the selection from each axis, except unchanged axes; None if unknown."""
        selections: dict[int, Selection] = {}
        bounds = self.given_bounds(call)
        if bounds is None:
            return None
        for axis, (start, end, step) in bounds.items():
            size = call.shape()[axis]
            if start == 0 and end >= ENDLESS and step == 1:
                continue
            if isinstance(size, int) and step:
                indices = range(size)[_start(start, step, size) : end : step]
                selections[axis] = Selection(indices.start, len(indices), step)
            elif step == 1 and start >= 0 and start < end < ENDLESS:
                selections[axis] = Selection(start, end - start, 1)
            elif step == -1 and start in (-1, ENDLESS, 2**63 - 1) and end < -(2**31) + 2:
                selections[axis] = Selection(-1, -1, -1)  # reversed, for any size
            elif step == 1 and start < 0 and (end >= ENDLESS or start < end < 0):
                selections[axis] = Selection(start, (0 if end > 0 else end) - start, 1)  # the last elements
            else:
                return None
        return selections

    def iteration_slice(self, call: Call) -> tuple[int, LoopIndex] | None:
        """Return the axis, and the index on it, of a slice of size 1 that depends on a loop's iteration."""
        facts, inputs = call.facts, call.op.inputs
        if len(inputs) < 4 or not facts.indices or (call.ints("steps") or [1]) != [1]:
            return None
        first, last = (facts.indices.get(facts.resolve(name)) for name in inputs[1:3])
        axes = call.ints("axes")
        if first is None or last is None or axes is None or len(axes) != 1:
            return None
        is_one = last == LoopIndex(first.sign, first.base + 1, first.size)
        return (axes[0] % call.rank(), first) if is_one else None

    def reverses(self, call: Call) -> int | None:
        selections = list((self.selections(call) or {}).items())
        if len(selections) != 1:
            return None
        axis, (first, size, step) = selections[0]
        axis_size = call.shape()[axis]
        is_whole = isinstance(axis_size, int) and (first, size) == (axis_size - 1, axis_size)
        return axis if step == -1 and (is_whole or (first, size) == (-1, -1)) else None

    def least_rank(self, call: Call, output: int) -> int:
        return call.rank()

    def shape(self, call: Call, output: int) -> Shape | None:
        shape, sizes = call.shape(), list(call.shape())
        if (single := self.iteration_slice(call)) is not None:
            return (*shape[: single[0]], 1, *shape[single[0] + 1 :])
        selections = self.selections(call)
        if selections is None:
            for axis in call.ints("axes") or range(len(sizes)):
                sizes[axis] = f"{call.op.outputs[0]}#{axis % len(sizes)}"
            return tuple(sizes)
        for axis, selection in selections.items():
            sizes[axis] = selection.size if selection.size >= 0 else sizes[axis]
        return tuple(sizes)

    def as_sizes(self, call: Call, parts: list[Sizes]) -> Sizes | None:
        starts, ends = call.ints("starts"), call.ints("ends")
        steps = call.ints("steps") or [1]
        if starts is None or ends is None or len(starts) != 1:
            return None
        return parts[0][starts[0] : ends[0] if abs(ends[0]) < ENDLESS else None : steps[0]]

    def value(self, call: ArrayCall) -> Sequence[Array]:
        x, bounds = call.array(), self.given_bounds(call)
        if bounds is None:
            raise ValueError("starts")
        slices: list[slice] = [slice(None)] * x.ndim
        for axis, (start, end, step) in bounds.items():
            size = x.shape[axis]
            slices[axis] = slice(_start(start, step, size), None if step < 0 and end < -size else end, step)
        return [x[tuple(slices)]]

    def bounds(self, call: Call, axis: int) -> tuple[int, int | None, int] | None:
        """Return start, end (None: the axis's end) and step of a slice of an axis."""
        # If the axis's size is known, no bound is negative. Otherwise negative bounds count from the end.
        size = call.shape()[axis]
        named, steps = call.ints("axes"), call.ints("steps")
        if named is None and call.has_parameter("axes"):
            return None
        if named is not None and axis not in [item % call.rank() for item in named]:
            return 0, None, 1
        given = None if steps is None and call.has_parameter("steps") else self.given_bounds(call)
        if given is None or axis not in given:
            return None if given is None else (0, None, 1)
        start, end, step = given[axis]
        if not isinstance(size, int):
            return start, None if end >= ENDLESS else end, step
        chosen = range(size)[_start(start, step, size) : end : step]
        return chosen.start, None if chosen.stop == size else chosen.stop, step

    def moves(self, call: Call) -> Iterator[Move]:
        for axis, size in enumerate(call.shape()):
            bounds = self.bounds(call, axis)
            if bounds is None:
                yield Move(0, axis, axis, 0, "unknown", "slices steps with computed bounds")
                continue
            start, end, stride = bounds
            if stride < 0 and size != 1:
                yield Move(0, axis, axis, 0, "reverses", "reverses time")
            elif stride > 1 and size != 1:
                yield Move(0, axis, axis, 0, "remembers", f"keeps one step in {stride}")
            elif (start, end) == (0, None) or size == 1:
                yield Move(0, axis, axis)
            elif end is None and start == (size - 1 if isinstance(size, int) else -1):
                yield Move(0, axis, None)  # the newest step
            elif start >= 0 and (end is None or isinstance(size, int) or end < 0):
                left = 0 if end is None else end - size if isinstance(size, int) else end
                why = f"drops {start - left} steps of each run"
                yield Move(0, axis, axis, message=why, pad_begin=-start, pad_end=left)
            else:
                yield Move(0, axis, axis, 0, "remembers", BY_INDEX)

    def source(self, call: Call, view: View) -> list[tuple[Array, View]]:
        name, shape, flipped = call.op.inputs[0], call.shape(), self.reverses(call)
        if flipped is not None and view.roles[flipped] not in (ROWS, COLUMNS):
            return super().source(call, view)
        if (single := self.iteration_slice(call)) is not None:
            if view.roles[single[0]] not in (ROWS, 0):
                raise UnknownOpError
            return [(view.columns, view.replaced(name, {single[0]: single[1]}, {}))]
        selections = self.selections(call)
        if selections is None:
            raise UnknownOpError
        before = {axis: _before_selection(view, axis, item, shape[axis]) for axis, item in selections.items()}
        roles = {axis: role for axis, (role, _) in before.items()}
        columns = {axis: coordinates for axis, (_, coordinates) in before.items() if coordinates is not None}
        return [(view.columns, view.replaced(name, roles, columns))]

    def vectorization(self, call: Call, varies: Sequence[bool]) -> Vectorization:
        bounds = self.given_bounds(call)
        if not bounds:
            raise UnknownOpError("its bounds are not known")
        starts, ends, steps = map(list, zip(*bounds.values(), strict=True))
        changed = {"starts": starts, "ends": ends, "axes": [axis + 1 for axis in bounds]}
        return Vectorization(changed if set(steps) == {1} else {**changed, "steps": steps})


class Gather(Reversing):
    max_inputs: int = 2
    resizes: ClassVar[bool] = True

    def least_rank(self, call: Call, output: int) -> int:
        return call.rank() + call.rank(1) - 1

    def shape(self, call: Call, output: int) -> Shape | None:
        shape, axis = call.shape(), call.axis(0)
        return (*shape[:axis], *call.shape(1), *shape[axis + 1 :])

    def as_sizes(self, call: Call, parts: list[Sizes]) -> Sizes | None:
        data, indices = parts
        fixed = [index for index in indices if isinstance(index, int)]
        return tuple(data[index] for index in fixed) if len(fixed) == len(indices) else None

    def value(self, call: ArrayCall) -> Sequence[Array]:
        x, indices, axis = call.array(), call.array(1), call.get("axis", 0)
        check_size((x.size // max(x.shape[axis], 1), indices.size))
        return [np.asarray(np.take(x, indices, axis))]

    def reverses(self, call: Call) -> int | None:
        axis, indices = call.axis(0), call.constant(1)
        size = call.shape()[axis]
        if indices is None or not isinstance(size, int) or indices.ndim != 1:
            return None
        return axis if np.array_equal(indices % size, np.arange(size)[::-1]) else None

    def moves(self, call: Call) -> Iterator[Move]:
        indexed = call.axis(0)
        for move in lookup_moves(call, indexed, 1, call.rank(1)):
            yield self._indexed_move(call, indexed) if (move.input, move.axis) == (0, indexed) else move

    def _indexed_move(self, call: Call, indexed: int) -> Move:
        """Return the move of the indexed axis."""
        indices, size, sizes = call.constant(1), call.shape()[indexed], call.shape(1)
        wide = [axis for axis, many in enumerate(sizes) if many != 1] or [*range(len(sizes))][-1:]
        to = indexed + wide[0] if len(wide) == 1 else None
        if indices is None:
            is_whole = to is not None and range_length(call.facts, call.op.inputs[1]) == size
            return Move(0, indexed, to) if is_whole else Move(0, indexed, None, 0, "remembers", BY_INDEX)
        flat = indices.ravel()
        if (flat.size > 1 and np.all(np.diff(flat) < 0)) or self.reverses(call) == indexed:
            return Move(0, indexed, to, 0, "reverses", "reverses time")
        if flat.size == 1 and size in (1, flat[0] + 1):
            return Move(0, indexed, to if size == 1 else None)
        if flat.size == 1 and flat[0] == -1:
            return Move(0, indexed, None)  # the newest step
        whole = size if isinstance(size, int) and size < 2**20 else -1
        if to is not None and np.array_equal(flat, np.arange(whole)):
            return Move(0, indexed, to)
        return Move(0, indexed, to, 0, "remembers", BY_INDEX)

    def source(self, call: Call, view: View) -> list[tuple[Array, View]]:
        flipped = self.reverses(call)
        if flipped is not None and view.roles[flipped] not in (ROWS, COLUMNS):
            return super().source(call, view)
        axis, rank, indices, (name, at) = call.axis(0), call.rank(1), call.constant(1), call.op.inputs[:2]
        before, size = view.roles[:axis], call.shape()[axis]
        if indices is None:
            role: Role | None = call.facts.indices.get(call.facts.resolve(at))
            if role is None or rank > 1 or (rank == 1 and view.roles[axis] not in (ROWS, 0)):
                raise UnknownOpError
            return [(view.columns, View(name, (*before, role, *view.roles[axis + rank :]), view.coordinates))]
        wrapped = np.where(indices < 0, indices + (size if isinstance(size, int) else 0), indices)
        if rank > 1 or (wrapped.size and int(wrapped.min()) < 0):
            raise UnknownOpError
        if rank == 0:
            return [(view.columns, View(name, (*before, int(wrapped), *view.roles[axis:]), view.coordinates))]
        indexed_role = view.roles[axis]
        if indexed_role == COLUMNS:
            columns = {axis: wrapped[view.coordinates[view.coordinate_row(axis)]]}
            return [(view.columns, view.replaced(name, {}, columns))]
        if isinstance(indexed_role, int) or len(wrapped) == 1:
            chosen = int(wrapped[indexed_role if isinstance(indexed_role, int) else 0])
            return [(view.columns, view.replaced(name, {axis: chosen}, {}))]
        raise UnknownOpError

    def vectorization(self, call: Call, varies: Sequence[bool]) -> Vectorization:
        """Vectorize slices of varying data, or rows of a constant table."""
        axis = call.axis(0)
        if varies[0] == varies[1] or (axis and not varies[0]):
            raise UnknownOpError("its indices change")
        return Vectorization({"axis": axis + varies[0]})


class Split(Moving):
    parameters: Mapping[str, AttributeOrInput] = {"split": AttributeOrInput(1, since=13)}
    size_inputs: tuple[int, ...] = (1,)
    max_inputs: int = 2
    resizes: ClassVar[bool] = True
    elements: ClassVar[Elements] = Elements.CUT

    def parts(self, call: Call) -> list[int]:
        """Return the sizes of the parts."""
        sizes, whole, count = call.known_ints("split"), call.shape()[call.axis(0)], len(call.op.outputs)
        if sizes is not None:
            return sizes
        if not isinstance(whole, int):
            raise UnknownOpError
        part = -(-whole // count)
        return [part] * (count - 1) + [whole - part * (count - 1)]

    def shape(self, call: Call, output: int) -> Shape | None:
        shape, axis = call.shape(), call.axis(0)
        return (*shape[:axis], self.parts(call)[output], *shape[axis + 1 :])

    def value(self, call: ArrayCall) -> Sequence[Array]:
        return np.split(call.array(), np.cumsum(self.parts(call))[:-1], call.axis(0))

    def moves(self, call: Call) -> Iterable[Move]:
        split = [call.axis(0)] if len(call.op.outputs) > 1 else []
        return input_moves(call, split, "remembers", BY_INDEX)

    def source(self, call: Call, view: View) -> list[tuple[Array, View]]:
        sizes, axis, output = self.parts(call), call.axis(0), call.op.outputs.index(view.name)
        selection = Selection(sum(sizes[:output]), sizes[output], 1)
        role, coordinates = _before_selection(view, axis, selection, call.shape()[axis])
        columns = {} if coordinates is None else {axis: coordinates}
        return [(view.columns, view.replaced(call.op.inputs[0], {axis: role}, columns))]

    def vectorization(self, call: Call, varies: Sequence[bool]) -> Vectorization:
        return Vectorization({"axis": call.axis(0) + 1})


class ReverseSequence(SameShape, Reversing):
    elements: ClassVar[Elements] = Elements.NEW  # the arrangement depends on lengths
    size_inputs: tuple[int, ...] = (1,)
    max_inputs: int = 2

    def value(self, call: ArrayCall) -> Sequence[Array]:
        x, lengths = call.array(), call.array(1)
        axes = call.get("batch_axis", 1), call.get("time_axis", 0)
        moved = np.moveaxis(x, axes, (0, 1)).copy()
        for row, length in enumerate(lengths):
            moved[row, :length] = moved[row, :length][::-1]
        return [np.moveaxis(moved, (0, 1), axes)]

    def reverses(self, call: Call) -> int | None:
        axis, size = int(call.get("time_axis", 0)), call.facts.fill_value(call.op.inputs[1])
        return axis if size is not None and size == call.shape()[axis] else None

    def moves(self, call: Call) -> Iterator[Move]:
        yield from input_moves(call, [call.get("time_axis", 0)], "reverses", "reverses time")
        yield Move(1, 0, call.get("batch_axis", 1) % call.rank())


class UnknownCut(Operator):
    """Operator that selects some of the elements in an unknown way."""

    elements: ClassVar[Elements] = Elements.CUT
    resizes: ClassVar[bool] = True


def reversed_axis(facts: Facts, op: Op) -> int | None:
    """Return the axis that an operator reverses completely; None for other operators."""
    operator = operator_of(op.kind)
    try:
        return operator.reverses(Call(op, facts)) if isinstance(operator, Reversing) else None
    except (UnknownOpError, *BROKEN):
        return None


register(
    *(Slice("Slice"), Gather("Gather", "axis"), Split("Split", "axis num_outputs")),
    ReverseSequence("ReverseSequence", "batch_axis time_axis"),
    *(UnknownCut("openvino::untranslated::Split"), UnknownCut("openvino::untranslated::VariadicSplit")),
)
