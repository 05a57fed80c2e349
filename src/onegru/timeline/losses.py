"""Find operators whose results change when a model runs in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onegru.dataflow.operator import Op, Size
from onegru.dataflow.table import Hazard, Move, operator_of
from onegru.dataflow.table.cutting import Slice
from onegru.dataflow.table.recurrences import recurrent
from onegru.dataflow.walk import moved_from, moved_to
from onegru.timeline.analysis import COPIES, PARTS, TimeAnalysis, time_axis
from onegru.timeline.axes import Axis
from onegru.timeline.finding import Finding, finding_of

_NONE: frozenset[str] = frozenset()


class LossFinder:
    """What each operator along the time axis would lose."""

    def __init__(self, analysis: TimeAnalysis) -> None:
        self.analysis = analysis
        self.flow = analysis.flow
        self.carried = {id(op) for op in analysis.recurrent if analysis.is_carried(op)}
        roots: list[tuple[Axis, Size]] = []
        for op in analysis.recurrent:
            axes, shape = analysis.known.get(op.inputs[0]), analysis.shape(op.inputs[0])
            place = time_axis(op)
            if id(op) in self.carried and axes is not None and shape is not None and len(axes) == 3:
                roots.append((axes[place], shape[place]))
        self.has_roots = bool(roots)
        # The factors of axes that are time; empty if no recurrence carries a state.
        self.time = {factor for axis, _ in roots for factor in analysis.axes.main(axis)}
        self.is_single = all(size == 1 for _, size in roots)  # whether a run takes one step
        self.streamed = {name for name in analysis.inputs if name not in analysis.states and self.timed(name)}
        self.lengths: set[str] = set()
        self.lead: dict[str, int] = {}  # steps in front of a run's own
        self.hazards: list[tuple[Hazard, str]] = []  # of the operator at hand

    def findings(self) -> list[Finding]:
        """Return what a run in chunks of time computes in another way than one run."""
        is_single = self.is_single and self.has_roots
        found = [] if is_single else list(dict.fromkeys(self._of_states()))
        if not self.time:
            if is_single:
                return found
            why = "starts over in each run, if it runs along time, which is not known"
            return found + [
                finding_of(op, "unknown", why) for op in self.analysis.recurrent if id(op) not in self.carried
            ]
        needed = self.analysis.needed(self.analysis.recurrent)
        for op in self.analysis.ops:
            if any(name in self.streamed or name in self.lengths for name in op.taken()) or (
                self.analysis.moves[id(op)] is None or id(op) in self.analysis.lost
            ):
                self.hazards = []
                self._judge(op)
                if self.hazards and needed.intersection(op.outputs):
                    found.append(finding_of(op, *self.hazards[0]))
        for name in self.flow.outputs:
            if self.lead.get(name) and name not in self.analysis.states.values():
                why = f"gives {self.lead[name]} steps of the last run again"
                found.append(Finding("unknown", "output", name, why))
        return found

    def timed(self, name: str) -> list[int]:
        """The axes of a value that are time."""
        axes = self.analysis.known.get(name) or ()
        return [place for place, axis in enumerate(axes) if self.analysis.axes.goes_along(axis, self.time)]

    def _note(self, hazard: Hazard, message: str) -> None:
        self.hazards.append((hazard, message))

    def _of_states(self) -> Iterator[Finding]:
        """What is wrong with recurrences that carry states, whatever is along time elsewhere."""
        for op in self.analysis.recurrent:
            if id(op) not in self.carried:
                continue
            if (unknown := self._where_time_begins(op)) is not None:
                yield finding_of(unknown, "unknown", "has an unknown effect along time")
            for first, last in recurrent(op).states:
                given = self.analysis.moved_to(op.outputs[last], PARTS) | self.analysis.moved_to(
                    op.outputs[0], PARTS
                )
                states = self.analysis.from_states.get(op.inputs[first], _NONE)
                if not any(op.inputs[first] in self.analysis.moved_to(state, PARTS) for state in states):
                    yield finding_of(op, "unknown", "starts from what is computed from a state in each run")
                elif not any(self.analysis.states[state] in given for state in states):
                    yield finding_of(op, "unknown", "ends in a state that is changed before the next run")

    def _where_time_begins(self, op: Op) -> Op | None:
        """The operator behind which the time of a recurrence begins; None if it is an input's."""
        axes, waiting, seen = self.analysis.known.get(op.inputs[0]), [op], {id(op)}
        time = set() if axes is None or len(axes) != 3 else self.analysis.axes.main(axes[time_axis(op)])
        begins = op
        while waiting:
            current, begins_here = waiting.pop(), True
            for name in current.taken():
                if name not in self.analysis.dynamic or name in self.analysis.states:
                    continue
                axes = self.analysis.known.get(name)
                is_along = any(self.analysis.axes.goes_along(axis, time) for axis in axes or ())
                if not time:
                    is_along = axes is None or current is op
                if not is_along:
                    continue
                before = self.flow.producer(name)
                if before is None:
                    return None
                begins_here = False
                if id(before) not in seen:
                    seen.add(id(before))
                    waiting.append(before)
            begins = current if begins_here else begins
        return begins

    def _data_of(self, op: Op) -> list[str]:
        """The inputs of an operator that are not sizes; notes which outputs count steps."""
        kind = op.kind
        data = [name for place, name in enumerate(op.inputs) if place not in operator_of(kind).size_inputs]
        counts = bool(self.lengths.intersection(data)) and not self.streamed.intersection(op.taken())
        if counts or kind in ("Shape", "Size"):
            self.lengths.update(name for name in op.outputs if name and self._counts_time(name))
        return data

    def _judge(self, op: Op) -> None:
        """What is wrong with an operator; notes what its outputs are."""
        outputs = [name for name in op.outputs if name]
        inputs = [name for name in op.inputs if name]
        kind, moves, data = op.kind, self.analysis.moves[id(op)], self._data_of(op)
        if kind in ("Shape", "Size"):
            return
        if not self.streamed.intersection(op.taken()) and not (moves is None or id(op) in self.analysis.lost):
            return
        is_streamed = bool(self.streamed.intersection(op.taken()))
        if is_streamed:
            self.streamed.update(outputs)
        timed = {name: self.timed(name) for name in (*op.taken(), *outputs)}
        gives_time = any(timed[name] for name in outputs)
        if moves is None:
            takes_time = any(timed[name] and name in self.streamed for name in op.taken())
            if gives_time or takes_time:
                self._note("unknown", "has an unknown effect along time")
            return
        self.lead.update(dict.fromkeys(outputs, max((self.lead.get(name, 0) for name in inputs), default=0)))
        lost = {
            self.analysis.axes.find(factor) for factor in self.analysis.lost.get(id(op), ())
        }  # which others have joined since
        if lost & self.time and not self.is_single:
            self._note("unknown", "splits time into several axes")
        if kind == "Concat" and (along := self._along_time(op)) is not None:
            self._judge_concat(op, along)
            return
        if id(op) in self.analysis.lost or kind == "Flatten" or self.analysis.all_steps(op) is not None:
            return
        if operator_of(kind).states:
            self._judge_recurrence(op, moves, timed)
            return
        for move in moves:
            if op.inputs[move.input] in self.streamed and move.axis in timed[op.inputs[move.input]]:
                self._judge_move(op, move)
        if self.is_single:
            return
        for name in data:
            if gives_time and name in self.lengths:
                self._note("mixes", "computes with the number of steps in a run")
            elif name not in self.streamed and name not in self.analysis.from_states:
                continue
            elif gives_time and not timed[name]:
                self._note("mixes", "applies one value of a run to all of its steps")
            elif name not in self.streamed and timed[name]:
                self._note("remembers", "takes steps of the last run")
        if any(len(timed[name]) > 1 for name in outputs):
            self._note("mixes", "combines each step of a run with every other")

    def _counts_time(self, name: str) -> bool:
        """Whether integers may depend on how many steps a run has."""
        sizes = self.flow.sizes(name)
        if self.flow.constant(name) is not None:
            return False
        named = [self.analysis.axes.named(size) for size in sizes or () if isinstance(size, str)]
        return sizes is None or any(
            axis is None or self.analysis.axes.goes_along(axis, self.time) for axis in named
        )

    def _judge_move(self, op: Op, move: Move) -> None:
        """What is wrong if time goes along an axis of an operator."""
        if move.hazard:
            if not (self.is_single and move.hazard in ("reverses", "mixes")):
                self._note(move.hazard, move.message)
            return
        if not (move.pad_begin or move.pad_end or move.reach):
            return
        name = op.outputs[move.output]
        lead = self.lead.get(op.inputs[move.input], 0) + move.pad_begin + min(move.pad_end, 0) - move.reach
        self.lead[name] = max(0, lead)
        if move.pad_begin > 0 or move.pad_end > 0 or lead < 0:
            self._note("remembers", f"{move.message}; no state carries those of earlier runs")

    def _judge_recurrence(self, op: Op, moves: list[Move], timed: Mapping[str, list[int]]) -> None:
        sequence = op.inputs[0]
        if not self.is_single and self._stops_early(op):
            self._note("unknown", "stops at lengths that count from the first step of each run")
        if self.lead.get(sequence):
            self._note("unknown", f"runs through {self.lead[sequence]} steps of the last run again")
        for move in moves:
            if sequence not in self.streamed or move.axis not in timed[sequence] or move.output:
                continue
            self._judge_move(op, move)
            is_along = move is moves[0]
            if is_along and id(op) not in self.carried:
                self._note(
                    "remembers", "starts from its initial state in each run; no state carries its last one"
                )
        if not self.is_single:
            for first, _ in recurrent(op).states:
                name = op.input(first)
                if name in self.streamed and id(op) not in self.carried:
                    self._note("mixes", "starts from a value of the same run")

    def _stops_early(self, op: Op) -> bool:
        """Whether a recurrence has lengths that are not the number of steps, and that no input gives."""
        name = op.input(recurrent(op).lengths)
        if not name or (name in self.analysis.dynamic and name not in self.lengths):
            return False
        copied = map(self.flow.sizes, moved_from(self.flow, name, COPIES))
        sizes = next((item for item in copied if item is not None), None)
        axes, shape = self.analysis.known.get(op.inputs[0]), self.analysis.shape(op.inputs[0])
        if sizes is None or shape is None or axes is None:
            return True
        along = time_axis(op)
        steps = self.analysis.axes.main(axes[along])
        named = [self.analysis.axes.named(size) if isinstance(size, str) else None for size in sizes]
        return any(
            size != shape[along] and (axis is None or self.analysis.axes.main(axis) != steps)
            for size, axis in zip(sizes, named, strict=True)
        )

    # Steps in front of a run's own

    def _along_time(self, op: Op) -> int | None:
        """The axis along which a Concat joins steps; None if it joins something else."""
        axes = self.analysis.known.get(op.outputs[0])
        if axes is None:
            return None
        axis = op.attributes.get("axis", 0) % len(axes)
        names = [name for name in op.inputs if name in self.streamed]
        return axis if any(axis in self.timed(name) for name in names) else None

    def _judge_concat(self, op: Op, axis: int) -> None:
        """A Concat along time: carried steps come first, and the last ones of all are the next run's."""
        first = op.inputs[0]
        shape = self.flow.shape(first)
        count = shape[axis] if shape is not None else None
        is_front = len(op.inputs) == 2 and first not in self.streamed and op.inputs[1] in self.streamed
        if not is_front or not isinstance(count, int):
            self._note("remembers", "joins steps of a run with others")
            return
        self.lead[op.outputs[0]] = count + self.lead.get(op.inputs[1], 0)
        states = self.analysis.from_states.get(first, _NONE)
        if not any(
            self._is_kept(op.outputs[0], axis, count, self.analysis.states[state]) for state in states
        ):
            self._note("remembers", f"puts {count} steps before each run; no state carries the last ones")

    def _is_kept(self, joined: str, axis: int, count: int, state: str) -> bool:
        """Whether the last steps of a value become a state's next value."""
        if self.is_single:
            return state in self.analysis.leads_to.get(joined, _NONE)
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
