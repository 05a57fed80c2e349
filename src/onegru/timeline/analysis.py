"""Identify the axes of a model's values."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from onegru.core.dtypes import Array
from onegru.core.errors import BROKEN
from onegru.dataflow.flow import Flow
from onegru.dataflow.linear import as_linear
from onegru.dataflow.operator import MOST_SIZES, Op, Shape, Size, as_sizes
from onegru.dataflow.table import Call, Elements, Move, UnknownOpError, movers, operator_of
from onegru.dataflow.table.recurrences import find_recurrence
from onegru.dataflow.walk import moved_from, moved_to
from onegru.timeline.axes import Axis, EqualAxes, parts_of
from onegru.timeline.starts import constant_start

_NONE: frozenset[str] = frozenset()
# kinds of operators that only move or join elements; that may also cut; that keep or repeat elements
MOVE_KINDS = movers(Elements.KEPT | Elements.PERMUTED | Elements.JOINED, casts=True)
CUT_KINDS = MOVE_KINDS | movers(Elements.CUT)
COPY_KINDS = movers(Elements.KEPT | Elements.REPEATED, casts=True, without=("Flatten",))


class MeasuredSize(NamedTuple):
    """Size that a Shape returns."""

    axis: Axis
    value: str  # the value with this axis


class TimeAnalysis:
    """Axes of a model's values, and the moves of axes from value to value."""

    def __init__(self, flow: Flow, states: Mapping[str, str], opset: int) -> None:
        self.flow = flow
        self.states = states  # the inputs that are states, and the outputs that are their next values
        self.opset = opset
        self.axes = EqualAxes()
        self.axes_of: dict[str, tuple[Axis, ...] | None] = {}  # of each value; None for an unknown rank
        self.moves: dict[int, list[Move] | None] = {}  # by the operator's id; None if it has no rule
        self.static_moves: dict[int, list[Move]] = {}  # of inputs that do not depend on the model's inputs
        self.measured_sizes: dict[str, MeasuredSize] = {}  # by their new names
        self.derived_sizes: dict[str, frozenset[str]] = {}  # computed sizes, and the measured ones in them
        self.integers_of: dict[str, tuple[Size, ...]] = {}  # the elements of each value of such sizes
        self.range_counts: dict[int, tuple[str, int]] = {}  # the end and the increment of a Range, by its id
        self.divided: dict[int, set[int]] = {}  # factors that each followed Reshape divides, perhaps none
        self.inputs = [name for name in flow.inputs if not flow.holds(name)]
        self.dynamic = set(self.inputs)  # values that depend on inputs
        self.from_states = {name: frozenset({name}) for name in states}  # the states in each value
        # The next states that depend on each value.
        self.to_states: dict[str, frozenset[str]] = {name: frozenset({name}) for name in states.values()}
        for op in flow.ops:
            dynamic_inputs = [name for name in op.reads() if name in self.dynamic]
            if dynamic_inputs:
                made_of = _NONE.union(*(self.from_states.get(name, _NONE) for name in dynamic_inputs))
                self.dynamic.update(filter(None, op.outputs))
                if made_of and op.kind not in ("Shape", "Size"):
                    self.from_states.update({name: made_of for name in op.outputs if name})
        for op in reversed(flow.ops):
            ends = _NONE.union(*(self.to_states.get(name, _NONE) for name in op.outputs))
            for name in op.reads() if ends else ():
                self.to_states[name] = self.to_states.get(name, _NONE) | ends
        for name in self.inputs:
            shape = flow.shape(name)
            self.axes_of[name] = None if shape is None else tuple(map(self.axes.new, shape))
        self.ops = [op for op in flow.ops if any(name in self.dynamic for name in op.reads())]
        self.recurrent = [op for op in self.ops if operator_of(op.kind).states]
        for op in self.ops:
            self._find_axes(op)

    # Which axes are the same

    def shape(self, name: str) -> Shape | None:
        """Return a value's shape; if only its rank is known, with names for the sizes."""
        shape, axes = self.flow.shape(name), self.axes_of.get(name)
        if shape is None and axes is not None:
            return tuple(f"{name}#{axis}" for axis in range(len(axes)))
        return shape

    def call(self, op: Op) -> Call:
        """Return an operator with the shapes of its inputs."""
        shapes = tuple(self.shape(name) if name else None for name in op.inputs)
        return Call(op, self.flow, shapes, self.opset)

    def _find_axes(self, op: Op) -> None:
        """Find the axes of an operator's outputs."""
        call, operator = self.call(op), operator_of(op.kind)
        moves: list[Move] | None = None
        self._find_integers(op)
        if op.bodies or not operator.supports(op):
            pass
        elif op.kind in ("Reshape", "Flatten"):
            moves = self._regroup_axes(op, call)
        else:
            try:
                every = [move for move in operator.moves(call) if move.output < len(op.outputs)]
                moves = [move for move in every if op.inputs[move.input] in self.dynamic]
                self.static_moves[id(op)] = [
                    move for move in every if op.inputs[move.input] not in self.dynamic
                ]
                if any(name in self.dynamic and self.axes_of.get(name) is None for name in op.inputs):
                    moves = None
                elif any(move.axis >= len(self.axes_of[op.inputs[move.input]] or ()) for move in moves):
                    moves = None  # contradictory ranks
            except (UnknownOpError, *BROKEN):
                moves = None
        self.moves[id(op)] = moves
        for output, name in enumerate(op.outputs):
            if name and name not in self.axes_of:
                self.axes_of[name] = self._output_axes(op, output, moves)
        if operator.shape_input is not None and moves is not None:
            self._fill_axes(op, self.integers_of.get(op.inputs[operator.shape_input]), moves)
        if op.kind == "Range" and (range_count := self._range_count(op)) is not None:
            self.range_counts[id(op)] = range_count
            self._fill_axes(op, range_count[:1], [])

    def _find_integers(self, op: Op) -> None:
        """Name the sizes that Shape returns, and follow integers that are computed from such names."""
        if op.bodies or not op.outputs or not op.inputs:
            return
        integers = self.integers_of.get(op.inputs[0]) if op.kind == "Shape" else None
        if integers is not None and len(self.flow.shape(op.inputs[0]) or ()) == 1:
            found: tuple[Size, ...] | None = (len(integers),)
        elif op.kind == "Shape":
            axes = self.axes_of.get(op.inputs[0])
            if axes is None:
                return
            names = [f"@{len(self.measured_sizes) + index}" for index in range(len(axes))]
            measured = (MeasuredSize(axis, op.inputs[0]) for axis in axes)
            self.measured_sizes.update(zip(names, measured, strict=True))
            found = tuple(names)[op.attributes.get("start", 0) : op.attributes.get("end")]
        elif not operator_of(op.kind).follows_sizes or any(
            name in self.dynamic for name in op.inputs[1:] if op.kind in ("Slice", "Gather", "Reshape")
        ):
            return
        else:
            inputs = [name for name in op.inputs if name]
            parts = [self.sizes_in(name) for name in inputs]
            try:
                known, call = [part for part in parts if part is not None], Call(op, self.flow, ())
                found = call.operator.as_sizes(call, known) if known and len(known) == len(parts) else None
            except (UnknownOpError, ArithmeticError, LookupError, ValueError):
                return
            if found is None and all(
                part is not None or name not in self.dynamic for name, part in zip(inputs, parts, strict=True)
            ):
                found = self._derived_sizes(op, known)
        if found is not None and len(found) <= MOST_SIZES:
            self.integers_of[op.outputs[0]] = found

    def _derived_sizes(self, op: Op, known: list[tuple[Size, ...]]) -> tuple[Size, ...] | None:
        """Return names for results of fixed sizes that do not show their origin, such as halves."""
        numbers, measured = self.flow.constant(op.outputs[0]), self.measured_sizes.keys()
        if numbers is None or numbers.ndim > 1 or numbers.size > MOST_SIZES:
            return None
        parts = {part for sizes in known for size in sizes for part in parts_of(size)}
        sources = {source for part in parts for source in self.derived_sizes.get(part, {part} & measured)}
        names = tuple(f"@{len(self.derived_sizes) + index}of" for index in range(numbers.size))
        self.derived_sizes |= dict.fromkeys(names, frozenset(sources))
        return names

    def sizes_in(self, name: str) -> tuple[Size, ...] | None:
        """Return integers as numbers and measured sizes; None if they are not known."""
        if name in self.dynamic:
            return self.integers_of.get(name)
        return as_sizes(self.flow.constant(name))

    def _range_count(self, op: Op) -> tuple[str, int] | None:
        """Return the measured size that a Range counts up to, and its integer increment; None for others."""

        def sizes_of(name: str) -> tuple[Size, ...] | None:
            sizes, known = self.sizes_in(name), self.flow.as_sizes(name)
            if sizes is None or known is None or len(sizes) != len(known):
                return sizes
            return tuple(b if isinstance(b, int) else a for a, b in zip(sizes, known, strict=True))

        first, step = (self.flow.number(name) for name in op.inputs[::2])
        linear = as_linear(self.flow, op.inputs[1], sizes_of)
        if linear is None or step is None or step < 1 or step % 1 or first != linear[1]:
            return None
        parts = parts_of(linear[0])
        sizes = [part for part in parts if part in self.measured_sizes]
        numbers = [int(part) for part in parts if part.isdecimal()]
        is_each = len(sizes) == 1 and len(numbers) == len(parts) - 1 and math.prod(numbers) == step
        return (sizes[0], int(step)) if is_each else None

    def _fill_axes(self, op: Op, sizes: tuple[Size, ...] | None, moves: list[Move]) -> None:
        """Set the axes of a value that an operator makes in these sizes: they equal the measured axes."""
        axes = self.axes_of.get(op.outputs[0])
        if sizes is None or (axes is not None and len(axes) < len(sizes)):
            return
        rank, measured = len(sizes) if axes is None else len(axes), self.measured_sizes
        found = list(axes or map(self.axes.new, [""] * rank))
        for axis, size in enumerate(sizes, rank - len(sizes)):
            parts = parts_of(size)
            numbers = [part for part in parts if part.isdecimal()]
            if len(numbers) != len(parts) - 1 or measured.keys().isdisjoint(parts):
                continue  # the order of a product is unknown: use the order of the value that it joins
            factors = tuple(
                factor
                for part in parts
                for factor in (measured[part].axis if part in measured else self.axes.new(int(part)))
            )
            if any(move.to == axis for move in moves):
                self.axes.join(found[axis], factors)
            else:
                found[axis] = factors
        self.axes_of[op.outputs[0]] = tuple(found)

    def _output_axes(self, op: Op, output: int, moves: list[Move] | None) -> tuple[Axis, ...] | None:
        """Return the axes of an output, as the inputs' axes move to it."""
        shape = self.flow.shape(op.outputs[output])
        if moves is None:  # the operator may keep the axes
            source = next((name for name in op.inputs if name in self.dynamic), "")
            axes = self.axes_of.get(source)
            if axes is None or (shape is not None and len(shape) != len(axes)):
                return None if shape is None else tuple(map(self.axes.new, shape))
            return axes
        found: dict[int, Axis] = {}
        for move in moves:
            axes = self.axes_of[op.inputs[move.input]]
            if move.to is None or move.output != output or axes is None:
                continue
            if move.to in found:
                self.axes.join(found[move.to], axes[move.axis])
            found.setdefault(move.to, axes[move.axis])
        if shape is None and not found:
            return None
        if shape is None:
            other_axes = {
                move.to for move in self.static_moves[id(op)] if move.to is not None and move.output == output
            }
            rank = max(
                operator_of(op.kind).least_rank(self.call(op), output),
                *(axis + 1 for axis in {*found, *other_axes}),
            )
        else:
            rank = len(shape)
        sizes: list[Size | None] = [None] * rank if shape is None else list(shape)
        changed = {
            move.to
            for move in moves
            if operator_of(op.kind).resizes and (move.hazard or move.pad_begin + move.pad_end - move.reach)
        }
        if op.kind == "Concat":
            changed.add(op.attributes.get("axis", 0) % rank)
        name = op.outputs[output]
        return tuple(
            self.axes.resized(
                found[axis], size or (f"{name}#{axis}" if axis in changed else None), axis in changed
            )
            if axis in found
            else self.axes.new(size or "")
            for axis, size in enumerate(sizes)
        )

    def _regroup_axes(self, op: Op, call: Call) -> list[Move] | None:
        """Find the axes of the output of a Reshape or Flatten; it has no moves."""
        axes, before = self.axes_of.get(op.inputs[0]), call.shapes[0]
        after = self.flow.shape(op.outputs[0])
        if axes is None or before is None:
            return None
        if op.kind == "Flatten":
            cut = call.get("axis", 1)
            cut += len(axes) * (cut < 0)
            parts = [axes[:cut], axes[cut:]]
            self.axes_of[op.outputs[0]] = tuple(
                tuple(item for axis in part for item in axis) or self.axes.new(1) for part in parts
            )
            return []
        if after is None:
            return None
        found, divided = self.axes.regroup(axes, before, after)
        self.divided[id(op)] = divided
        self.axes_of[op.outputs[0]] = tuple(
            self.axes.new(size) if axis is None else axis for axis, size in zip(found, after, strict=True)
        )
        return []

    # Lost steps
    def is_carried(self, op: Op) -> bool:
        """Whether the states of a recurrence are states of the stream."""
        return all(
            any(
                self.states[state] in self.to_states.get(op.output(last), _NONE)
                for state in self.from_states.get(op.input(first), _NONE)
            )
            for first, last in operator_of(op.kind).states
        )

    def needed(self, recurrent: list[Op], unread: Mapping[int, int] | None = None) -> set[str]:
        """Return the values that outputs and recurrences depend on, except those only for a new state."""
        # `unread` has the index of an input that a change removes, by the operator's id.
        needed = {name for name in self.flow.outputs if name not in self.states.values()}
        needed.update(name for op in recurrent for name in (*op.inputs, *op.outputs))
        for op in reversed(self.ops):
            if needed.intersection(op.outputs):
                index = (unread or {}).get(id(op), -1)
                needed.update(op.reads() if index < 0 else (*op.inputs[:index], *op.inputs[index + 1 :]))
        return needed - {""}

    def whole_gather(self, op: Op) -> tuple[int, int] | None:
        """Return the axis that a Gather reads completely, and the axis of its indices; None for others."""
        for move in (self.moves[id(op)] or ()) if op.kind == "Gather" else ():
            if move.input == 0 and move.axis == self.call(op).axis(0) and move.to is not None:
                return None if move.hazard else (move.axis, move.to - move.axis)
        return None

    def moved_to(self, name: str, kinds: Collection[str] = MOVE_KINDS) -> set[str]:
        """Return the values that contain this one, moved or joined with others."""
        return set(moved_to(self.flow, name, kinds))

    def factors(self, name: str, axis: int) -> Axis:
        """Return the factors of an axis."""
        axes = self.axes_of.get(name)
        return () if axes is None or axis >= len(axes) else self.axes.flat(axes[axis])

    def start_of(self, op: Op, name: str) -> Array | None:
        """Return the initial state of a recurrence, with equal rows as one; None if it is computed."""
        recurrence = find_recurrence(op)
        batch = 0 if recurrence is not None and recurrence.is_batch_first(op) else 1
        return (
            np.zeros((1, 1, 1)) if self.flow.fill_value(name) == 0 else constant_start(self.flow, name, batch)
        )

    def unstreamed_input(self, name: str, streamed: Collection[str]) -> str | None:
        """Return the input of the model, except these, that contains a value; None for others."""
        *_, source = moved_from(self.flow, name, CUT_KINDS)
        return source if source in self.inputs and source not in streamed else None

    def is_only_initial_state(self, name: str) -> bool:
        """Whether recurrences use the parts of an input only as initial states."""
        parts = self.moved_to(name, CUT_KINDS)
        ops = [(op, part) for part in parts for op in self.flow.consumers.get(part, ())]
        return parts.isdisjoint(self.flow.outputs) and all(
            op.kind == "Shape"
            or (op.kind in CUT_KINDS and part in op.inputs[:1])
            or (operator_of(op.kind).states and part not in _without_states(op))
            for op, part in ops
        )


def _without_states(op: Op) -> list[str]:
    """Return the inputs of a recurrence except its initial states."""
    states = {first for first, _ in operator_of(op.kind).states}
    return [name for index, name in enumerate(op.inputs) if index not in states]


def time_axis(op: Op) -> int:
    """Return the time axis of a recurrence's sequence."""
    recurrence = find_recurrence(op)
    return 0 if recurrence is None else recurrence.time_axis(op)
