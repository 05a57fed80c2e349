"""Plan recurrences along the time axis, whose states become inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping

from onegru.core.wording import count
from onegru.dataflow.operator import Op
from onegru.dataflow.table import Move
from onegru.dataflow.table.recurrences import recurrence_of
from onegru.dataflow.walk import moved_from
from onegru.timeline.analysis import COPY_KINDS, time_axis
from onegru.timeline.axes import parts_of
from onegru.timeline.planning.context import COUNTS, NOT_ONLY_TIME, PlannerPart
from onegru.timeline.planning.plan import TimeExtent


class RecurrencesPlanner(PlannerPart):
    """Planner of recurrences. An extent is that of the sequence."""

    def plan(self, op: Op, moves: list[Move], timed: Mapping[str, list[int]], extent: TimeExtent) -> None:
        """Plan a recurrence with these time axes and this extent of its sequence."""
        sequence, lengths = op.inputs[0], op.input(recurrence_of(op).lengths)
        axis = time_axis(op)
        for move in moves:
            if move.axis in timed[sequence] and (move.to is None or (move.hazard and move.output == 0)):
                self.context.refuse(move.hazard, move.message)
                return
        if axis not in timed[sequence]:  # along another axis, such as the bands of a frame
            sizes = self.analysis.shape(sequence) or {axis: ""}
            if lengths and self.flow.fill_value(lengths) == sizes[axis]:
                self.context.changes.full_length.append(op)
            elif lengths in self.context.counting:
                self.context.refuse("mixes", COUNTS)
            for first, _ in recurrence_of(op).states:
                name = op.input(first)
                if name and self.flow.fill_value(name) == 0:
                    self.context.changes.zero_states.append((op, first))
                elif name in self.context.counting or (name in self.context.newest and timed[op.outputs[0]]):
                    self.context.refuse("remembers", "starts from a state that is computed in each run")
                elif name and self.flow.constant(name) is not None:
                    self.context.refuse("remembers", "starts from a constant with a row for each step")
            return
        if not self.context.is_only_time(sequence, axis):
            self.context.refuse("unknown", NOT_ONLY_TIME)
            return
        if extent.right_pad > 0 and extent.delay <= 0:
            self.context.refuse_uncarried(
                f"runs through {count(extent.right_pad, 'step')} after the last one", "unknown"
            )
        if lengths:
            if self._is_full_length(op, extent):
                self.context.changes.full_length.append(op)
            else:
                self.context.refuse_uncarried("has lengths, which count from the first step", "unknown")
        if id(op) in self.context.carried:
            self._delay_states(op, extent)
            return
        for first, _ in recurrence_of(op).states:
            name = op.input(first)
            is_computed = name in self.context.counting and self.flow.fill_value(name) != 0
            if is_computed or (
                name
                and self.analysis.unstreamed_input(name, self.context.streamed) is None
                and self.analysis.start_of(op, name) is None
            ):
                self.context.refuse("remembers", "starts from a state that is computed in each run")
                return
        for name in op.outputs[1:]:
            if (extent.delay or extent.right_pad) and self.context.is_read(name):
                self.context.refuse_uncarried("returns its last state, which comes later or is unknown")
        self.context.changes.recurrent.append(op)

    def _delay_states(self, op: Op, extent: TimeExtent) -> None:
        """Record the delay of a recurrence's external states, because it also needs a step in each run."""
        for first, _ in recurrence_of(op).states:
            state_input = self.analysis.unstreamed_input(op.input(first), self.context.streamed)
            if extent.delay > 0 and state_input is not None and state_input in self.analysis.states:
                state_output = self.analysis.states[state_input]
                self.context.changes.delays[state_output] = max(
                    extent.delay, self.context.changes.delays.get(state_output, 0)
                )

    def _is_full_length(self, op: Op, extent: TimeExtent) -> bool:
        """Whether the lengths of a recurrence are its number of steps, for all rows."""
        copied = map(
            self.context.sizes_in, moved_from(self.flow, op.inputs[recurrence_of(op).lengths], COPY_KINDS)
        )
        sizes = next((item for item in copied if item is not None), None)
        if sizes is None:
            return False
        steps = [item for item in self.context.steps_in(sizes) if len(item) == 1]
        if len(steps) != len(sizes):
            shape = self.analysis.shape(op.inputs[0]) or ()
            return all(isinstance(size, int) and size == shape[time_axis(op)] for size in sizes)
        return all(len(parts_of(size)) == 1 for size in sizes) and all(
            self.context.extent(value).extra == extent.extra for (value,) in steps
        )
