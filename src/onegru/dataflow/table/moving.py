"""Describe operators that reorder, add, drop and join axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np

from onegru.core.dtypes import Array
from onegru.core.errors import BROKEN
from onegru.dataflow.operator import Facts, Op, Shape, Size
from onegru.dataflow.table.base import (
    OPERATORS,
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
from onegru.dataflow.view import COLUMNS, ROWS, Role, View

#: The input axis for each output axis, as in Transpose; None for a new one of size 1.
AxisOrder = tuple[int | None, ...]


class Moving(Operator):
    """Operator whose output has only elements of its inputs."""

    computes: bool = True
    dtype: str | int | None = 0


class AxisMove(Moving):
    """Operator that reorders, drops and adds axes. `axes` describes it completely."""

    elements: ClassVar[Elements] = Elements.KEPT
    keeps_zeros: bool = True

    def axes(self, call: Call) -> AxisOrder:
        """Return the input axis for each output axis."""
        return tuple(range(call.rank()))

    def shape(self, call: Call, output: int) -> Shape | None:
        shape = call.shape()
        return tuple(1 if axis is None else shape[axis] for axis in self.axes(call))

    def as_sizes(self, call: Call, parts: list[Sizes]) -> Sizes | None:
        return parts[0] if Elements.KEPT in self.elements else None

    def value(self, call: ArrayCall) -> Sequence[Array]:
        x, axes = call.array(), self.axes(call)
        kept = [axis for axis in axes if axis is not None]
        x = np.squeeze(x, tuple(axis for axis in range(x.ndim) if axis not in kept))
        x = np.transpose(x, [sorted(kept).index(axis) for axis in kept])
        return [np.expand_dims(x, tuple(to for to, axis in enumerate(axes) if axis is None))]

    def moves(self, call: Call) -> Iterable[Move]:
        axes = self.axes(call)
        for axis in range(call.rank()):
            yield Move(0, axis, axes.index(axis) if axis in axes else None)

    def source(self, call: Call, view: View) -> list[tuple[Array, View]]:
        shape, axes = call.shape(), self.axes(call)
        rows = [axis for to, axis in enumerate(axes) if axis is not None and view.roles[to] == ROWS]
        order = [axis for axis in rows if shape[axis] != 1]
        if order != sorted(order):
            raise UnknownOpError
        roles: list[Role] = [0] * len(shape)
        columns: dict[int, int] = {}
        for to, axis in enumerate(axes):
            if axis is not None:
                roles[axis] = view.roles[to]
                if view.roles[to] == COLUMNS:
                    columns[axis] = view.coordinate_row(to)
        coordinates = view.coordinates[[columns[axis] for axis in sorted(columns)]]
        return [(view.columns, View(call.op.inputs[0], tuple(roles), coordinates))]


class Identity(SameShape, AxisMove):
    def moves(self, call: Call) -> Iterable[Move]:
        return input_moves(call, ())

    def value(self, call: ArrayCall) -> Sequence[Array]:
        return [call.array()]

    def vectorization(self, call: Call, varies: Sequence[bool]) -> Vectorization:
        if any(varies[1:]):
            raise UnknownOpError(f"{self.kind} has parameters that are not constant")
        return Vectorization()


class Dropout(Identity):
    elements: ClassVar[Elements] = Elements.NEW  # in training

    def moves(self, call: Call) -> Iterable[Move]:
        mode = call.op.inputs[2] if call.is_given(2) else ""
        if (mode and call.facts.fill_value(mode) != 0) or (call.opset < 7 and not call.get("is_test", 0)):
            raise UnknownOpError("generates random values")
        return super().moves(call)

    def value(self, call: ArrayCall) -> Sequence[Array]:
        self._check(call, len(call.inputs))
        return super().value(call)

    def source(self, call: Call, view: View) -> list[tuple[Array, View]]:
        self._check(call, len(call.op.inputs))
        return super().source(call, view)

    def _check(self, call: Call, inputs: int) -> None:
        if inputs > 2 or len(call.op.outputs) > 1:
            raise UnknownOpError("may be in training mode")


class Cast(Identity):
    casts: ClassVar[bool] = True
    _TYPES = ("float16", "float32", "float64", "int32", "int64", "bool")

    def dtype_of(self, op: Op) -> str | int | None:
        return str(op.attributes.get("dtype"))

    def value(self, call: ArrayCall) -> Sequence[Array]:
        dtype = call.get("dtype")
        if dtype not in self._TYPES:
            raise ValueError(dtype)
        return [call.array().astype(dtype)]

    def source(self, call: Call, view: View) -> list[tuple[Array, View]]:
        before, after = call.facts.dtype(call.op.inputs[0]), call.get("dtype")
        if after not in ("float16", "bfloat16", "float32", "float64") or before not in ("bool", after):
            raise UnknownOpError("rounds its input")  # not a part of a cell
        return super().source(call, view)


class Transpose(AxisMove):
    elements: ClassVar[Elements] = Elements.PERMUTED

    def axes(self, call: Call) -> AxisOrder:
        return tuple(axis % call.rank() for axis in call.get("perm", range(call.rank())[::-1]))

    def vectorization(self, call: Call, varies: Sequence[bool]) -> Vectorization:
        return Vectorization({"perm": (0, *(axis + 1 for axis in self.axes(call) if axis is not None))})


class Squeeze(AxisMove):
    parameters: Mapping[str, AttributeOrInput] = {"axes": AttributeOrInput(1, since=13)}
    size_inputs: tuple[int, ...] = (1,)
    max_inputs: int = 2

    def axes(self, call: Call) -> AxisOrder:
        axes, shape = call.known_ints("axes"), call.shape()
        gone = [axis for axis, size in enumerate(shape) if size == 1]
        if axes is not None and not len(axes):
            raise UnknownOpError("its axes are empty, which runtimes interpret differently")
        if axes is not None:
            gone = [axis % len(shape) for axis in axes]
        elif any(isinstance(size, str) for size in shape):
            raise UnknownOpError("may remove an axis of dynamic size")
        return tuple(axis for axis in range(len(shape)) if axis not in gone)

    def drops_unit_axes(self, op: Op) -> bool:
        return not ("axes" in op.attributes or any(op.inputs[1:]))

    def vectorization(self, call: Call, varies: Sequence[bool]) -> Vectorization:
        kept = self.axes(call)
        return Vectorization({"axes": [axis + 1 for axis in range(call.rank()) if axis not in kept]})


class Unsqueeze(AxisMove):
    parameters: Mapping[str, AttributeOrInput] = {"axes": AttributeOrInput(1, since=13)}
    size_inputs: tuple[int, ...] = (1,)
    max_inputs: int = 2

    def least_rank(self, call: Call, output: int) -> int:
        return call.rank() + len(call.known_ints("axes") or ())

    def axes(self, call: Call) -> AxisOrder:
        axes = call.known_ints("axes") or []
        rank = call.rank() + len(axes)
        new, rest = {axis % rank for axis in axes}, iter(range(rank))
        return tuple(None if axis in new else next(rest) for axis in range(rank))

    def vectorization(self, call: Call, varies: Sequence[bool]) -> Vectorization:
        return Vectorization({"axes": [to + 1 for to, axis in enumerate(self.axes(call)) if axis is None]})


class Reshape(Moving):
    """Reshape. `timeline.axes` follows its axes by their sizes."""

    parameters: Mapping[str, AttributeOrInput] = {"shape": AttributeOrInput(1, since=5)}
    size_inputs: tuple[int, ...] = (1,)
    elements: ClassVar[Elements] = Elements.KEPT
    keeps_zeros: bool = True

    def shape(self, call: Call, output: int) -> Shape | None:
        given, op = call.shape(), call.op
        wanted = tuple(call.get("shape", ())) or call.facts.as_sizes(op.inputs[1])
        if wanted is None:
            return None
        sizes = [
            given[axis] if size == 0 and not call.get("allowzero") else size
            for axis, size in enumerate(wanted)
        ]
        if -1 not in sizes:
            return tuple(sizes)
        free_axis = sizes.index(-1)
        left: list[Size] = list(given)
        for size in [size for size in sizes if size != -1]:
            if size in left and isinstance(size, str):
                left.remove(size)
            elif isinstance(size, str):
                return tuple(f"{op.outputs[0]}#{axis}" if s == -1 else s for axis, s in enumerate(sizes))
        names = [size for size in left if isinstance(size, str)]
        fixed = math.prod(size for size in left if isinstance(size, int))
        count, over = divmod(fixed, math.prod(s for s in sizes if isinstance(s, int) and s != -1))
        sizes[free_axis] = count
        if over or len(names) > 1 or (names and count != 1):
            sizes[free_axis] = f"{op.outputs[0]}#{free_axis}"
        elif names:
            sizes[free_axis] = names[0]
        return tuple(sizes)

    def as_sizes(self, call: Call, parts: list[Sizes]) -> Sizes | None:
        return parts[0]

    def value(self, call: ArrayCall) -> Sequence[Array]:
        x, wanted = call.array(), call.ints("shape")
        if wanted is None:
            raise ValueError("shape")
        if not call.get("allowzero"):
            wanted = [x.shape[axis] if size == 0 else size for axis, size in enumerate(wanted)]
        return [x.reshape(wanted)]

    def source(self, call: Call, view: View) -> list[tuple[Array, View]]:
        source, target = call.shape(), call.facts.shape(call.op.outputs[0])
        if target is None:
            raise UnknownOpError
        first = view.roles.index(COLUMNS) if COLUMNS in view.roles else len(view.roles)
        fixed = [size for size in target[first:] if isinstance(size, int)]
        if any(role != COLUMNS for role in view.roles[first:]) or len(fixed) < len(target) - first:
            raise UnknownOpError
        count, split, product = int(np.prod(fixed)), len(source), 1
        while split and product < count and isinstance(source[split - 1], int):
            split -= 1
            product *= int(source[split])
        if product != count:
            raise UnknownOpError
        before, after, roles = source[:split], target[:first], view.roles[:first]
        if all(role == ROWS for role in roles):
            inner: list[Role] = [ROWS] * split
        else:  # indices are only followed through unchanged axes
            kept = [item for item in zip(after, roles, strict=True) if item != (1, ROWS)]
            wide = [size for size in before if size != 1]
            if [size for size, _ in kept if size != 1] != wide or any(size == 1 for size, _ in kept):
                raise UnknownOpError
            passed = iter(role for _, role in kept)
            inner = [ROWS if size == 1 else next(passed) for size in before]
        zeros = np.zeros(view.width, np.int64)
        flat = np.ravel_multi_index(tuple(view.coordinates), tuple(fixed)) if fixed else zeros
        sizes = [int(size) for size in source[split:]]
        coordinates = (
            np.stack(np.unravel_index(flat, sizes)) if sizes else np.zeros((0, view.width), np.int64)
        )
        return [(view.columns, View(call.op.inputs[0], (*inner, *[COLUMNS] * len(sizes)), coordinates))]

    def vectorization(self, call: Call, varies: Sequence[bool]) -> Vectorization:
        """Vectorize for output sizes with at most one dynamic size."""
        shape = call.facts.shape(call.op.outputs[0])
        if shape is None or 0 in shape:
            raise UnknownOpError("its sizes are dynamic")
        return Vectorization({"shape": [size if isinstance(size, int) else -1 for size in shape]})


class Flatten(Moving):
    elements: ClassVar[Elements] = Elements.KEPT

    def value(self, call: ArrayCall) -> Sequence[Array]:
        x, axis = call.array(), call.get("axis", 1)
        return [x.reshape(math.prod(x.shape[:axis]), -1)]

    def source(self, call: Call, view: View) -> list[tuple[Array, View]]:
        if call.get("axis", 1) != 1 or call.rank() != 2:
            raise UnknownOpError
        return [(view.columns, view.renamed(call.op.inputs[0]))]


class Concat(Moving):
    elements: ClassVar[Elements] = Elements.JOINED

    def shape(self, call: Call, output: int) -> Shape | None:
        shape, axis = call.shape(), call.axis()
        sizes = [other[axis] for other in call.shapes if other is not None]
        fixed = [size for size in sizes if isinstance(size, int)]
        whole: Size = sum(fixed) if len(fixed) == len(sizes) else f"{call.op.outputs[0]}#{axis}"
        return (*shape[:axis], whole, *shape[axis + 1 :])

    def as_sizes(self, call: Call, parts: list[Sizes]) -> Sizes | None:
        return tuple(size for part in parts for size in part)

    def value(self, call: ArrayCall) -> Sequence[Array]:
        check_size([sum(array.size for array in call.arrays)])
        return [np.concatenate(call.arrays, call.get("axis"))]

    def moves(self, call: Call) -> Iterator[Move]:
        for index in range(len(call.op.inputs)):
            yield from (Move(index, axis, axis) for axis in range(call.rank(index)))

    def source(self, call: Call, view: View) -> list[tuple[Array, View]]:
        axis, names = call.axis(), call.op.inputs
        sizes = [call.shape(index)[axis] for index in range(len(names))]
        fixed = [size for size in sizes if isinstance(size, int)]
        if len(fixed) < len(sizes):
            raise UnknownOpError
        ends, role = np.cumsum(fixed), view.roles[axis]
        if isinstance(role, int):
            chosen = int(np.searchsorted(ends, role, "right"))
            start = int(ends[chosen - 1]) if chosen else 0
            return [(view.columns, view.replaced(names[chosen], {axis: role - start}, {}))]
        if role != COLUMNS:
            raise UnknownOpError
        row = view.coordinate_row(axis)
        owners = np.searchsorted(ends, view.coordinates[row], "right")
        parts = []
        for chosen in np.unique(owners):
            columns = np.flatnonzero(owners == chosen)
            coordinates = view.coordinates[:, columns].copy()
            coordinates[row] -= int(ends[chosen - 1]) if chosen else 0
            parts.append((columns, View(names[chosen], view.roles, coordinates)))
        return parts

    def vectorization(self, call: Call, varies: Sequence[bool]) -> Vectorization:
        return Vectorization({"axis": call.axis() + 1}, repeat=True)


def axis_order_of(facts: Facts, op: Op) -> AxisOrder | None:
    """Return the new order of an operator's input axes; None if unknown, or for other operators."""
    operator = operator_of(op.kind)
    if not isinstance(operator, AxisMove) or op.kind not in AXIS_MOVING_KINDS:
        return None
    try:
        return operator.axes(Call(op, facts))
    except (UnknownOpError, *BROKEN):
        return None


register(
    *(Identity("Identity"), Dropout("Dropout", "ratio seed is_test", max_inputs=3)),
    *(Cast("Cast", "dtype saturate"), Transpose("Transpose", "perm")),
    *(Squeeze("Squeeze"), Unsqueeze("Unsqueeze"), Reshape("Reshape", "allowzero", max_inputs=2)),
    *(Flatten("Flatten", "axis"), Concat("Concat", "axis")),
)

#: Transpose, Squeeze, Unsqueeze and Identity, which depend on axes and not on sizes.
AXIS_MOVING_KINDS = frozenset(
    kind
    for kind, item in OPERATORS.items()
    if isinstance(item, AxisMove) and item.elements and not item.casts
)


def ops_that_move_axes(dropped: Sequence[int], order: Sequence[int], added: Sequence[int]) -> list[Op]:
    """Return the fewest operators that move axes, still without inputs and outputs."""
    moves = [
        Op("Squeeze", (), (), {"axes": tuple(dropped)}, name=""),
        Op("Transpose", (), (), {"perm": tuple(order)}, name=""),
        Op("Unsqueeze", (), (), {"axes": tuple(added)}, name=""),
    ]
    needed = (bool(dropped), list(order) != sorted(order), bool(added))
    return [op for op, is_needed in zip(moves, needed, strict=True) if is_needed]
