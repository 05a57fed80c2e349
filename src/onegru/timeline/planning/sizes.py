"""Plan sizes and values that depend on the number of steps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from onegru.dataflow.operator import Op
from onegru.dataflow.table import Move, operator_of
from onegru.dataflow.table.recurrences import find_recurrence
from onegru.dataflow.table.windows import Resize
from onegru.timeline.planning.context import COUNTS, PlannerPart
from onegru.timeline.planning.plan import TimeExtent


class SizesPlanner(PlannerPart):
    """Planner that follows step counts, and rejects those that a chunk would count again."""

    def count_steps(self, op: Op, inputs: list[str]) -> None:
        """Record outputs that depend on the number of steps, for an operator without streamed inputs."""
        outputs, counting = [name for name in op.outputs if name], self.context.counting
        counted = counting.intersection(inputs)
        if op.kind in ("Shape", "Size"):
            counted |= self.context.streamed.intersection(inputs)
        if not counted:
            return
        sizes = self.context.sizes_in(op.outputs[0])
        is_followed = op.kind == "Shape" or all(
            map(self.context.steps_in, map(self.context.sizes_in, counted))
        )
        if (
            sizes is not None
            and is_followed
            and (op.kind != "Shape" or inputs[0] in self.analysis.integers_of or not counted & counting)
        ):
            counting.update(outputs if self.context.steps_in(sizes) else ())
        elif (is_filled := self._plan_fill(op)) or self._plan_range(op):
            self.context.streamed.update(outputs)
            self.context.generated.update(outputs)
            self.context.step_indices.update(() if is_filled else outputs)
        else:
            counting.update(outputs)

    def _plan_fill(self, op: Op) -> bool:
        """Plan an operator that repeats its input for each step of another value; return whether it does."""
        shape_input = operator_of(op.kind).shape_input
        if shape_input is None or self.analysis.moves[id(op)] is None:
            return False
        name, sizes = op.outputs[0], self.context.sizes_in(op.inputs[shape_input])
        steps, axes = self.context.steps_in(sizes), self.analysis.axes_of.get(name)
        extents = {self.context.extent(value) for values in steps for value in values}
        if sizes is None or axes is None or len(steps) != 1 or len(steps[0]) != 1 or len(extents) != 1:
            return False
        if op.kind == "Expand":
            shape = self.analysis.shape(op.inputs[0])
            if op.inputs[0] in self.context.counting or shape is None or len(shape) > len(sizes):
                return False
            pairs = zip(shape[::-1], sizes[::-1], strict=False)
            if any(size != 1 and self.context.steps_in((wanted,)) for size, wanted in pairs):
                return False
        (extent,) = extents
        self.context.extents[name] = extent.after_waiting(extent.left_pad)
        return len(self.context.timed(name)) == 1

    def _plan_range(self, op: Op) -> bool:
        """Plan a Range that numbers steps, and continues from the last chunk; return whether it does."""
        size, step = self.analysis.range_counts.get(id(op), ("", 0))
        steps = self.context.steps_in((size,))
        is_open = not self.context.steps and self.context.counting.isdisjoint(op.inputs[::2])
        if not steps or not is_open or not self.context.is_only_time(op.outputs[0], 0):
            return False
        extent = self.context.extent(steps[0][0])
        # Step indices have no leading padding.
        self.context.extents[op.outputs[0]] = extent.after_waiting(extent.left_pad)
        self.context.changes.numbered.append((op, step))
        return True

    def follow_indices(self, op: Op, inputs: list[str]) -> None:
        """Record values that are computed from constants and step indices, which only apply to one chunk."""
        if self.context.generated.isdisjoint(inputs):
            return
        sizes = operator_of(op.kind).size_inputs
        reads_indices = not self.context.step_indices.isdisjoint(inputs)
        others = {name for index, name in enumerate(op.inputs) if index not in sizes} - self.context.generated
        others = {name for name in others & self.analysis.dynamic if self.context.sizes_in(name) is None}
        if not others:
            self.context.generated.update(filter(None, op.outputs))
            if reads_indices or operator_of(op.kind).start_value is not None:
                self.context.step_indices.update(filter(None, op.outputs))
        elif reads_indices and not others <= self.context.streamed:
            self.context.refuse(
                "mixes", "combines the step index with an input that has no time axis, such as lengths"
            )

    def check_numbers(
        self, op: Op, inputs: list[str], moves: list[Move], timed: Mapping[str, list[int]]
    ) -> None:
        """Reject operators that may not use values that depend on steps, or on the number of steps."""
        kind, indices, recurrence = op.kind, operator_of(op.kind).size_inputs, find_recurrence(op)
        if recurrence is not None:  # its initial state and lengths are checked there
            indices = (recurrence.lengths, *(first for first, _ in recurrence.states))
        data = {name for index, name in enumerate(op.inputs) if index not in indices}
        data |= {*op.reads()}.difference(op.inputs)
        if not self.context.counting.isdisjoint(data.intersection(inputs)):
            self.context.refuse("mixes", COUNTS)
        for index in indices if recurrence is None else ():
            name = op.input(index)
            if name in self.context.streamed:
                self.context.refuse("mixes", "has sizes or indices that are computed from steps")
            if name not in self.context.counting or kind in ("Reshape", "Expand", "Resize"):
                continue
            is_time = kind == "Split" and self.analysis.call(op).axis(0) in timed[op.inputs[0]]
            if not is_time and (kind != "Slice" or not self._cuts_only_time(op, index, moves, timed)):
                self.context.refuse("mixes", COUNTS)

    def _cuts_only_time(self, op: Op, index: int, moves: list[Move], timed: Mapping[str, list[int]]) -> bool:
        """Whether a Slice with bounds that count steps only has these bounds on time, and keeps its axes."""
        axes = self.flow.ints(op, "axes", 3)
        sizes, rank = self.context.sizes_in(op.inputs[index]), len(self.analysis.axes_of[op.inputs[0]] or ())
        if index > 2 or axes is None or any(move.to is None for move in moves):
            return False
        counted = [
            axis % rank
            for item, axis in enumerate(axes)
            if sizes is None or self.context.steps_in(sizes[item : item + 1])
        ]
        return set(counted) <= set(timed[op.inputs[0]])

    def plan_reshape(self, op: Op, axes: list[int], extent: TimeExtent) -> None:
        """Record a Reshape to a fixed number of steps that differs from its input's."""
        # Known sizes are stored again, because they may depend on the number of steps.
        if op.kind != "Reshape":
            return
        reshaped = [(op, axis) for axis in axes]
        if (sizes := self.flow.constant(op.inputs[1])) is not None:
            is_held = self.flow.holds(op.inputs[1])
            self.context.changes.reshaped += [
                item for item in reshaped if not is_held or sizes.ravel()[item[1]] > 0
            ]
            return
        wanted = self.context.sizes_in(op.inputs[1])
        if wanted is None:
            wanted = None if op.inputs[1] in self.context.counting else self.flow.as_sizes(op.inputs[1])
        if wanted is None:
            self.context.refuse("unknown", "has sizes that onegru cannot trace to the inputs")
            return
        for axis, size in enumerate(wanted):
            steps = self.context.steps_in((size,))
            if axis not in axes and steps:
                self.context.refuse("mixes", COUNTS)
            elif axis in axes and steps:
                is_same = len(steps[0]) == 1 and self.context.extent(steps[0][0]) == extent
                self.context.changes.reshaped += [] if is_same and not extent.delay else [(op, axis)]
            elif axis in axes and size not in (0, -1):
                self.context.changes.reshaped.append((op, axis))

    def check_expand(self, op: Op, timed: Mapping[str, list[int]], extent: TimeExtent) -> None:
        """Check that an Expand or a Resize along time keeps the number of steps."""
        port = 1 if op.kind == "Expand" else 3
        name = op.input(port)
        if not name:
            return
        sizes, rank = self.context.sizes_in(name), len(self.analysis.axes_of[op.outputs[0]] or ())
        if sizes is None:
            self.context.refuse("unknown", "has sizes that onegru cannot trace to the inputs")
            return
        operator, shape = operator_of(op.kind), self.analysis.shape(op.inputs[0]) or ()
        axes = range(rank - len(sizes), rank)
        named = operator.axes(self.analysis.call(op)) if isinstance(operator, Resize) else axes
        own = dict(enumerate(shape, rank - len(shape)))
        for index, (axis, size) in enumerate(zip(named, sizes, strict=True)):
            steps, is_time = self.context.steps_in((size,)), axis in timed[op.outputs[0]]
            is_same = bool(steps) and size in self.analysis.measured_sizes
            wanted = self.context.extent(steps[0][0]) if is_same else extent
            is_same = is_same and (wanted.delay, wanted.extra) == (extent.delay, extent.extra)
            if is_time and size == own.get(axis) and size != 1:
                self.context.changes.resized.append((op, index, axis))
                continue
            if (steps and not is_time) or (is_time and not (is_same or (size == 1 and op.kind == "Expand"))):
                self.context.refuse("mixes", "resizes time" if is_time and op.kind == "Resize" else COUNTS)

    def is_repeated(self, name: str, axis: int) -> bool:
        """Whether all elements of a value along an axis are equal."""
        array, op = self.flow.constant(name), self.flow.find_producer(name)
        if array is not None:
            return bool(array.size) and bool(np.all(array == np.take(array, [0], axis)))
        if op is None or op.kind != "Expand":
            return self.flow.fill_value(name) is not None
        before, after = self.analysis.shape(op.inputs[0]), self.analysis.shape(name)
        if before is None or after is None:
            return False
        own = axis - len(after) + len(before)
        return own < 0 or before[own] == 1
