"""Emit new operators, and convert views to node inputs."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from onegru.core.dtypes import Array
from onegru.dataflow.build import Builder
from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import EVERY_OPSET, LoopIndex, Shape, Size
from onegru.dataflow.view import COLUMNS, ROWS, STEPS, View
from onegru.fusion.cells.cell import MissError
from onegru.fusion.nodes.sources import SlicedSource, Source

#: The first opsets with these operators, including integers and broadcasting.
_SINCE = {"Expand": 8, "Max": 8, "Min": 8, "Less": 9, "Where": 9, "Range": 11}
_ORDER = (STEPS, ROWS, COLUMNS)  # of the axes of a node's inputs


class Emitter(Builder):
    """Creates new operators for a recurrence, and reuses existing ones."""

    def __init__(
        self, flow: Flow, base: str, names: set[str], dtype: str, known: dict[Hashable, str] | None = None
    ) -> None:
        super().__init__(flow, base, names)
        self.dtype = dtype
        self.constants: dict[str, Array] = {}  # new constants, which are not in the flow yet
        # outputs and constants for reuse, by what computes them
        self.known: ChainMap[Hashable, str] = ChainMap({}, known if known is not None else {})
        self.allows_lengths = True  # whether nodes may have lengths
        self.opset = EVERY_OPSET
        self.indices: Mapping[str, LoopIndex] = {}  # iteration indices of the enclosing loop

    def op(
        self,
        kind: str,
        inputs: Sequence[str],
        hint: str,
        shape: Shape | None = None,
        output: str = "",
        **attributes: Any,
    ) -> str:
        """Add an operator with one output, or reuse an equal one."""
        if self.opset < _SINCE.get(kind, 0):
            raise MissError(f"opset {self.opset} has no suitable {kind}, which its node needs")
        key = kind, tuple(inputs), tuple(sorted(attributes.items()))
        if not output and key in self.known:
            return self.known[key]
        self.known[key] = super().op(kind, inputs, hint, shape, output, **attributes)
        return self.known[key]

    def name_of(self, hint: str, output: str) -> str:
        """Return the name of a new operator."""
        return self.fresh(hint)

    def constant(self, hint: str, array: Array) -> str:
        """Add a constant; numeric constants stay float64 until a file is written."""
        name = self.fresh(hint)
        self.constants[name] = array
        self.flow.set_dtype(name, self.dtype if array.dtype == np.float64 else array.dtype.name)
        return name

    def small_constant(self, hint: str, array: Array) -> str:
        """Return a constant of a few numbers, which may exist."""
        key = hint, array.tobytes(), self.dtype if array.dtype == np.float64 else ""
        if key not in self.known:
            self.known[key] = self.constant(hint, array)
        return self.known[key]

    def number(self, value: float) -> str:
        """Return a constant number of the recurrence's type."""
        return self.small_constant(f"number_{value:g}", np.array(value, np.float64))

    def shape(self, name: str) -> Shape:
        """Return a value's shape."""
        try:
            return super().shape(name)
        except LookupError as error:
            raise MissError(str(error)) from error

    def rows(self, view: View, hint: str, time: int | None = None) -> str:
        """Return a view as [rows, columns]; as [time, rows, columns] if `time` is the axis of steps."""
        value, roles, coordinates = view.name, list(view.roles), view.coordinates
        shape = self.shape(value)
        for axis in [axis for axis, role in enumerate(roles) if role == COLUMNS and shape[axis] == 1]:
            if roles.count(COLUMNS) > 1:  # the other axes identify the columns
                coordinates, roles[axis] = np.delete(coordinates, roles[:axis].count(COLUMNS), 0), 0
        for axis in reversed(range(len(roles))):
            role = roles[axis]
            if axis == time or isinstance(role, str):
                continue
            if isinstance(role, LoopIndex):
                value = self._iteration_slice(value, role, axis, hint)
            else:
                value = self.gather(value, role, axis, hint)
            del roles[axis]
            time = time - 1 if time is not None and axis < time else time
        if time is not None:
            roles[time] = STEPS
        shape = self.shape(value)
        order = [axis for kind in _ORDER for axis in range(len(roles)) if roles[axis] == kind]
        kept = [axis for axis in order if not (roles[axis] == ROWS and shape[axis] == 1)]
        # A Reshape cannot also have a dynamic number of steps.
        is_dynamic = time is not None and isinstance(shape[roles.index(STEPS)], str)
        if kept != sorted(kept) or (is_dynamic and order != sorted(order)):
            value = self.transpose(value, order, hint)
            roles, shape = [roles[axis] for axis in order], self.shape(value)
        counts = list(map(roles.count, _ORDER))
        sizes = tuple(int(size) for size, role in zip(shape, roles, strict=True) if role == COLUMNS)
        width = int(np.prod(sizes))
        wanted = list(_ORDER if time is not None else _ORDER[1:])
        if roles != wanted:
            value = self._flat(value, roles, counts, width, hint)
        columns = np.ravel_multi_index(tuple(coordinates), sizes) if sizes else np.zeros(1, int)
        if not np.array_equal(columns, np.arange(width)):
            axis = len(wanted) - 1
            indices = self.constant(f"{hint}_columns", columns.astype(np.int64))
            shape = (*self.shape(value)[:axis], len(columns))
            value = self.op("Gather", [value, indices], hint, shape, axis=axis)
        return value

    def _iteration_slice(self, value: str, index: LoopIndex, axis: int, hint: str) -> str:
        """Return the slice that an iteration of the enclosing loop reads."""
        name = next((name for name, known in self.indices.items() if known == index), None)
        if name is None or self.flow.shape(name) is None:
            raise MissError("its input is a slice that a single step cannot read")
        if self.shape(name):
            name = self.op("Reshape", [name, self.ints()], "index", ())
        shape = self.shape(value)
        return self.op("Gather", [value, name], hint, (*shape[:axis], *shape[axis + 1 :]), axis=axis)

    def _flat(self, value: str, roles: list[Any], counts: list[int], width: int, hint: str) -> str:
        """Reshape to [time,] one axis of rows and one axis of columns."""
        shape = self.shape(value)
        times, rows, columns = counts
        if rows <= 1 and columns <= 1 and roles == sorted(roles, key=_ORDER.index):
            missing = [times] if not rows else []
            missing += [times + 1] if not columns else []
            return self.unsqueeze(value, missing, hint)
        fixed = [size for size, role in zip(shape, roles, strict=True) if role == ROWS]
        many = [size for size in fixed if size != 1]
        if len(many) == 1 and columns == 1 and roles == sorted(roles, key=_ORDER.index):
            axes = [axis for axis, role in enumerate(roles) if role == ROWS and shape[axis] == 1]
            return self.squeeze(value, axes, hint)
        count: Size = -1
        known: list[int] = [size for size in fixed if isinstance(size, int)]
        if len(known) == len(fixed):
            count = int(np.prod(known))
        lead: list[Size] = []
        if times:
            steps = shape[roles.index(STEPS)]
            if isinstance(steps, str) and count == -1 and roles[:2] == [STEPS, ROWS] and rows == 1:
                count = 0  # keep this axis
            if isinstance(steps, str) and (count == -1 or roles.index(STEPS) != 0):
                raise MissError("its input has several batch axes, and a dynamic number of steps")
            lead = [0 if isinstance(steps, str) else steps]
        target = [*lead, count, width]
        rows_name: Size = fixed[0] if count == 0 else count if count != -1 else f"{value}#rows"
        steps_of = [size for size, role in zip(shape, roles, strict=True) if role == STEPS]
        result = (*steps_of, rows_name, width)
        numbers = [size for size in target if isinstance(size, int)]
        return self.op("Reshape", [value, self.ints(*numbers)], hint, result)

    def sequence(self, source: Source, hint: str, reverse: bool) -> str:
        """Return the inputs of all steps as [time, rows, columns], in time order."""
        if isinstance(source, SlicedSource):
            view = source.view
            value = view.name
            if source.count is not None:
                value = self.slice(value, source.axis, source.start, source.count, hint)
            value = self.rows(view.renamed(value), hint, source.axis)
            return self.reverse(value, 0, hint) if (source.step < 0) != reverse else value
        views = source.views[::-1] if reverse else source.views
        values = [self.unsqueeze(self.rows(view, hint), [0], hint) for view in views]
        if len(values) == 1:
            return values[0]
        return self.op("Concat", values, hint, (len(values), *self.shape(values[0])[1:]), axis=0)

    def shaped(self, value: str, name: str, shape: Shape) -> None:
        """Give [rows, columns] the shape and name of a replaced value."""
        axes, rank = [], len(shape)
        if rank == 1:
            self.squeeze(value, [0], "h", name)
            return
        wide = [axis for axis in range(rank - 1) if shape[axis] != 1]
        if len(wide) > 1:
            raise MissError("its state has several batch axes")
        rows = wide[0] if wide else rank - 2
        axes = [axis for axis in range(rank - 1) if axis != rows]
        if axes:
            self.unsqueeze(value, axes, "h", name)
        else:
            self.op("Identity", [value], "h", self.shape(value), name)
