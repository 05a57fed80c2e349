"""Find operators whose results change when a model runs in chunks."""

from __future__ import annotations

from collections.abc import Iterator

from onegru.core.errors import SpecError
from onegru.dataflow.operator import Op, Size
from onegru.dataflow.table import Elements, Hazard, Move, movers, operator_of
from onegru.dataflow.table.cutting import Slice
from onegru.dataflow.table.recurrences import recurrence_of
from onegru.dataflow.walk import moved_from, moved_to, reachable
from onegru.timeline.analysis import COPY_KINDS, CUT_KINDS, TimeAnalysis, time_axis
from onegru.timeline.axes import Axis
from onegru.timeline.finding import Finding, finding_of
from onegru.timeline.planning.context import ONE_FOR_ALL, UNKNOWN
from onegru.timeline.planning.plan import StreamingPlan
from onegru.timeline.planning.planner import Planner

_NONE: frozenset[str] = frozenset()

#: Operators that read a part of a run's only step, and so lose no step.
_TAKES_PARTS = movers(Elements.CUT) | {"GatherElements", "GatherND"}


class LossFinder:
    """Finder of operators that a plan rejects, and of steps that no state carries."""

    def __init__(self, analysis: TimeAnalysis) -> None:
        self.analysis = analysis
        self.flow = analysis.flow
        self.carried = {id(op) for op in analysis.recurrent if analysis.is_carried(op)}
        time_axes: list[tuple[Axis, Size]] = []
        for op in analysis.recurrent:
            axes, shape = analysis.axes_of.get(op.inputs[0]), analysis.shape(op.inputs[0])
            axis = time_axis(op)
            if id(op) in self.carried and axes is not None and shape is not None and len(axes) == 3:
                time_axes.append((axes[axis], shape[axis]))
        # The factors of time axes; empty if no recurrence carries a state.
        self.time = {factor for factors, _ in time_axes for factor in analysis.axes.main(factors)}
        # Whether a run has one step.
        self.is_single_step = bool(time_axes) and all(size == 1 for _, size in time_axes)
        self.streamed = {name for name in analysis.inputs if name not in analysis.states and self.timed(name)}
        self.planner, self.plan = Planner(analysis, self.time, may_delay=False), StreamingPlan()
        self.previous_steps: dict[str, int] = {}  # steps of the previous run at the start of each value

    def findings(self) -> list[Finding]:
        """Return the operators that compute other results in chunks than in one run."""
        state_faults = [] if self.is_single_step else list(dict.fromkeys(self._state_faults()))
        if not self.time:
            why = "starts over in each run if it runs along time, which is unknown"
            return state_faults + [
                finding_of(op, "unknown", why) for op in self.analysis.recurrent if id(op) not in self.carried
            ]
        planned = [] if self.is_single_step else self._planned()
        needed, judged = self.analysis.needed(self.analysis.recurrent), list[Finding]()
        for op in self.analysis.ops:
            faults = [(hazard, why) for hazard, why in self._judge(op) if not self._keeps_step(op, hazard)]
            if faults and needed.intersection(op.outputs):
                judged.append(finding_of(op, *faults[0]))
        for name in self.flow.outputs:
            is_new = name not in self.analysis.states.values() and not self._has_one_step(name)
            if self.previous_steps.get(name) and is_new:
                why = f"outputs {self.previous_steps[name]} steps of the previous run again"
                judged.append(Finding("unknown", "output", name, why))
        if not state_faults and not judged:
            counted = [op for op, _ in (*self.plan.accumulated, *self.plan.numbered)]
            return planned + [finding_of(op, "remembers", "counts from the first step") for op in counted]
        # Once an operator has lost steps, the effect of later ones may be unknown.
        named = {item.subject for item in judged}
        judged += [item for item in planned if item.message != UNKNOWN and item.subject not in named]
        order = {finding_of(op, "unknown", "").subject: number for number, op in enumerate(self.analysis.ops)}
        return state_faults + sorted(judged, key=lambda item: order.get(item.subject, len(order)))

    def _planned(self) -> list[Finding]:
        """Return the operators that the streaming plan rejects, except for steps that the model can carry."""
        try:
            self.plan = self.planner.plan()
        except SpecError as error:
            name = next((name for name in self.analysis.inputs if repr(name) in str(error)), "")
            if len(self.planner.context.timed(name)) > 1:
                return [Finding("mixes", "input", name, "has several time axes")]
            return [Finding("unknown", "input", name, "has a different number of steps than other inputs")]
        return self.plan.lasting

    def _keeps_step(self, op: Op, hazard: Hazard) -> bool:
        """Whether a model always runs one step, and an operator loses no part of it."""
        # Such a run has no other step to omit, reverse or count, and states supply earlier ones. Only
        # operators that start from scratch in each run remain: recurrences, sums from the first step, and
        # steps that are padded or constant.
        operator, moves = operator_of(op.kind), self.analysis.moves[id(op)]
        if not self.is_single_step or hazard in ("reverses", "mixes"):
            return self.is_single_step
        if operator.states:  # it cannot repeat steps of the last run, if its input has only one
            return (
                hazard == "unknown" and moves is not None and self._has_one_step(op.inputs[0], time_axis(op))
            )
        if op.bodies or "::" in op.label:
            return False
        if moves is None:
            return True
        if op.kind == "Concat":
            return op.inputs[0] in self.streamed and all(
                name in self.streamed or name in self.analysis.from_states for name in op.inputs
            )
        along = [move for move in moves if self._is_along(op, move)]
        takes_more = any(move.pad_begin < 0 or move.pad_end < 0 or move.reach for move in along)
        if takes_more and self._has_one_step(op.inputs[0]):
            return False  # no state prepended others
        is_padded = any(move.pad_begin > 0 or move.pad_end > 0 for move in along)
        return op.kind in _TAKES_PARTS or (bool(operator.window) and not is_padded)

    def _has_one_step(self, value: str, *given: int) -> bool:
        """Whether a value of a one-step model has size 1 along these axes, or along time."""
        shape, axes = self.flow.shape(value), given or self.timed(value)
        return self.is_single_step and bool(axes) and shape is not None and all(shape[i] == 1 for i in axes)

    def _is_along(self, op: Op, move: Move) -> bool:
        """Whether an axis of an operator is the time axis."""
        name = op.inputs[move.input]
        return name in self.streamed and move.axis in self.timed(name)

    def timed(self, name: str) -> list[int]:
        """Return the time axes of a value."""
        axes = self.analysis.axes_of.get(name) or ()
        return [index for index, axis in enumerate(axes) if self.analysis.axes.goes_along(axis, self.time)]

    def _state_faults(self) -> Iterator[Finding]:
        """Find faults of recurrences that carry states, regardless of the time axis elsewhere."""
        for op in self.analysis.recurrent:
            if id(op) not in self.carried:
                continue
            if (unknown := self._where_time_begins(op)) is not None:
                yield finding_of(unknown, "unknown", UNKNOWN)
            for first, last in recurrence_of(op).states:
                given = self.analysis.moved_to(op.outputs[last], CUT_KINDS) | self.analysis.moved_to(
                    op.outputs[0], CUT_KINDS
                )
                states = self.analysis.from_states.get(op.inputs[first], _NONE)
                if not any(op.inputs[first] in self.analysis.moved_to(state, CUT_KINDS) for state in states):
                    yield finding_of(op, "unknown", "starts from a value that each run computes from a state")
                elif not any(self.analysis.states[state] in given for state in states):
                    yield finding_of(op, "unknown", "ends in a state that is changed before the next run")

    def _where_time_begins(self, op: Op) -> Op | None:
        """Return the operator that creates a recurrence's time axis; None if it is an input's."""
        known, axes, producers = self.analysis.axes_of, self.analysis.axes, self.flow.producers
        sequence, begins = known.get(op.inputs[0]), op
        time = axes.main(sequence[time_axis(op)]) if sequence is not None and len(sequence) == 3 else set()

        def before(current: Op | None) -> list[Op | None]:
            return [
                producers.get(name)
                for name in (() if current is None else current.reads())
                if name in self.analysis.dynamic and name not in self.analysis.states
                if any(axes.goes_along(axis, time) for axis in known.get(name) or ())
                or (not time and (current is op or known.get(name) is None))
            ]

        first: list[Op | None] = [op]
        for current in reachable(first, before):
            if current is None:
                return None
            begins = begins if before(current) else current
        return begins

    def _judge(self, op: Op) -> Iterator[tuple[Hazard, str]]:
        """Find faults of an operator, and record previous steps in its outputs."""
        outputs = [name for name in op.outputs if name]
        kind, moves = op.kind, self.analysis.moves[id(op)]
        is_streamed = not self.streamed.isdisjoint(op.reads())
        if kind in ("Shape", "Size") or not (is_streamed or moves is None or id(op) in self.analysis.divided):
            return
        self.streamed.update(outputs if is_streamed else ())
        timed = {name: self.timed(name) for name in (*op.reads(), *outputs)}
        gives_time = any(timed[name] for name in outputs)
        if moves is None:
            takes_time = any(timed[name] and name in self.streamed for name in op.reads())
            if gives_time or takes_time:
                yield "unknown", UNKNOWN
            return
        previous = max(self.previous_steps.get(name, 0) for name in op.inputs)
        self.previous_steps.update(dict.fromkeys(outputs, previous))
        if kind == "Concat" and (along := self._along_time(op)) is not None:
            yield from self._judge_concat(op, along)
            return
        if id(op) in self.analysis.divided or kind == "Flatten" or self.analysis.whole_gather(op) is not None:
            return
        if operator_of(kind).states:
            yield from self._judge_recurrence(op, moves)
            return
        for move in moves:
            if self._is_along(op, move):
                yield from self._judge_move(op, move)
        for name in op.inputs if gives_time and not self.is_single_step else ():
            if name in self.planner.context.step_indices and self.plan.numbered:
                yield "mixes", "computes with the index of each step, which starts over in each run"
            elif name in self.analysis.from_states and name not in self.streamed:
                yield ("remembers", "reads the last run's steps") if timed[name] else ("mixes", ONE_FOR_ALL)

    def _judge_move(self, op: Op, move: Move) -> Iterator[tuple[Hazard, str]]:
        """Find faults if an axis of an operator is the time axis."""
        if move.hazard:
            yield move.hazard, move.message
            return
        if not (move.pad_begin or move.pad_end or move.reach):
            return
        name = op.outputs[move.output]
        steps = self.previous_steps.get(op.inputs[move.input], 0)
        steps += move.pad_begin + min(move.pad_end, 0) - move.reach
        self.previous_steps[name] = max(0, steps)
        if move.pad_begin > 0 or move.pad_end > 0 or steps < 0:
            yield "remembers", f"{move.message}; no state carries the steps of earlier runs"

    def _judge_recurrence(self, op: Op, moves: list[Move]) -> Iterator[tuple[Hazard, str]]:
        sequence, is_carried = op.inputs[0], id(op) in self.carried
        if not self.is_single_step and self._stops_early(op):
            yield "unknown", "stops at lengths that count from the first step of each run"
        if self.previous_steps.get(sequence):
            yield "unknown", f"runs through {self.previous_steps[sequence]} steps of the previous run again"
        for move in moves:
            if sequence not in self.streamed or move.axis not in self.timed(sequence) or move.output:
                continue
            yield from self._judge_move(op, move)
            if move is moves[0] and not is_carried:
                yield "remembers", "starts from its initial state in each run; no input carries its state"
        for first, _ in recurrence_of(op).states:
            if op.input(first) in self.streamed and not is_carried:
                yield "mixes", "starts from a value of the same run"

    def _stops_early(self, op: Op) -> bool:
        """Whether a recurrence has computed or constant lengths that differ from the number of steps."""
        name = op.input(recurrence_of(op).lengths)
        is_given = name in self.analysis.dynamic and name not in self.planner.context.counting
        if not name or is_given or op in self.plan.full_length:
            return False
        # A plan does not count the steps that a model carries from the last run.
        copied = map(self.analysis.sizes_in, moved_from(self.flow, name, COPY_KINDS))
        sizes = next((item for item in copied if item is not None), (0,))
        axes, measured = self.analysis.axes, self.analysis.measured_sizes
        steps = axes.main((self.analysis.axes_of.get(op.inputs[0]) or ((),) * 3)[time_axis(op)])
        return any(size not in measured or axes.main(measured[str(size)].axis) != steps for size in sizes)

    # Steps before a run's own

    def _along_time(self, op: Op) -> int | None:
        """Return the axis along which a Concat joins steps; None if it joins other axes."""
        axes = self.analysis.axes_of.get(op.outputs[0])
        if axes is None:
            return None
        axis = op.attributes.get("axis", 0) % len(axes)
        names = [name for name in op.inputs if name in self.streamed]
        return axis if any(axis in self.timed(name) for name in names) else None

    def _judge_concat(self, op: Op, axis: int) -> Iterator[tuple[Hazard, str]]:
        """Check a Concat along time: carried steps come first, and the last steps go to the next run."""
        first = op.inputs[0]
        shape = self.flow.shape(first)
        count = shape[axis] if shape is not None else None
        is_front = len(op.inputs) == 2 and first not in self.streamed and op.inputs[1] in self.streamed
        if not is_front or not isinstance(count, int):
            yield "remembers", "joins steps of a run with other values"
            return
        self.previous_steps[op.outputs[0]] = count + self.previous_steps.get(op.inputs[1], 0)
        states = self.analysis.from_states.get(first, _NONE)
        if not any(
            self._is_kept(op.outputs[0], axis, count, self.analysis.states[state]) for state in states
        ):
            yield "remembers", f"inserts {count} steps before each run; no state carries the last steps"

    def _is_kept(self, joined: str, axis: int, count: int, state: str) -> bool:
        """Whether the last steps of a value become a state's next value."""
        if self.is_single_step:
            return state in self.analysis.to_states.get(joined, _NONE)
        copies = moved_to(self.flow, joined, ("Identity", "Cast"))
        return any(
            op.kind == "Slice"
            and self._is_tail(op, axis, count)
            and state in self.analysis.moved_to(op.outputs[0])
            for name in copies
            for op in self.flow.consumers.get(name, ())
        )

    def _is_tail(self, op: Op, axis: int, count: int) -> bool:
        call = self.analysis.call(op)
        assert isinstance(call.operator, Slice)
        bounds = [call.operator.bounds(call, other) for other in range(call.rank())]
        size = call.shape()[axis]
        wanted = (size - count if isinstance(size, int) else -count, None, 1)
        return all(item == (wanted if other == axis else (0, None, 1)) for other, item in enumerate(bounds))
