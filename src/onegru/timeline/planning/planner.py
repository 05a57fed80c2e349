"""Plan the streaming of a model, operator by operator."""

from __future__ import annotations

import re
from collections.abc import Mapping

from onegru.core.errors import SpecError
from onegru.core.wording import count
from onegru.dataflow.loops.port_loops import LOOP, TENSOR_ITERATOR
from onegru.dataflow.operator import Op
from onegru.dataflow.table import Move, operator_of
from onegru.dataflow.table.recurrences import find_recurrence
from onegru.dataflow.table.windows import adds_no_bias
from onegru.formats.graph import Graph
from onegru.timeline.analysis import TimeAnalysis, time_axis
from onegru.timeline.find_time import find_time
from onegru.timeline.finding import Finding, finding_of
from onegru.timeline.planning.context import (
    COUNTS,
    IN_LOOP,
    NOT_ONLY_TIME,
    ONE_FOR_ALL,
    UNKNOWN,
    PlanContext,
    PlannerPart,
)
from onegru.timeline.planning.padding import PaddingPlanner
from onegru.timeline.planning.plan import Cache, StreamingPlan, TimeExtent
from onegru.timeline.planning.recurrences import RecurrencesPlanner
from onegru.timeline.planning.sizes import SizesPlanner
from onegru.timeline.planning.slices import SlicesPlanner

_MOST_NAMED = 5  # operators in a message

_LOOPS = {"Loop", "Scan", LOOP, TENSOR_ITERATOR}

_QUANTIZED = re.compile("[Qq]uantize|^QLinear|Integer$")  # operators that quantizers insert


def plan_streaming(
    graph: Graph, analysis: TimeAnalysis, time: Mapping[str, int], delay: bool
) -> StreamingPlan:
    """Return the changes that a model needs to run in chunks of time."""
    states = {taker for _, taker in graph.states}
    example = next((info.name for info in graph.inputs if info.name not in states), "X")
    plan = Planner(analysis, find_time(analysis, time, example), delay).plan()
    if plan.refusals or plan.delays:  # leading steps may cancel delays before an output
        planner = Planner(analysis, find_time(analysis, time, example), True, may_cancel=True)
        later = planner.plan()
        plan = later if not later.refusals and planner.has_cancelled_delays(later) else plan
    if plan.refusals:
        named = list({item.message: item for item in reversed(plan.refusals)}.values())[::-1][:_MOST_NAMED]
        listed = "; ".join(map(str, named))
        more = len(plan.refusals) - len(named)
        listed += f"; and {more} more" * (more > 0)
        if any(_QUANTIZED.search(finding.operator) for finding in plan.refusals):
            listed += "; convert the model for streaming before you quantize it"
        raise SpecError(f"{graph.path}: cannot run in chunks, because {listed}")
    return plan


class Planner(PlannerPart):
    """Planner of the changes that a model needs to run in chunks of time."""

    def __init__(
        self, analysis: TimeAnalysis, time: set[int], may_delay: bool, may_cancel: bool = False
    ) -> None:
        super().__init__(PlanContext(analysis, time, may_delay, may_cancel))
        self.padding = PaddingPlanner(self.context)
        self.sizes = SizesPlanner(self.context)
        self.slices = SlicesPlanner(self.context)
        self.recurrences = RecurrencesPlanner(self.context)

    def plan(self) -> StreamingPlan:
        """Return the changes."""
        context, plan = self.context, StreamingPlan()
        for name in filter(context.streamed.__contains__, self.analysis.inputs):
            plan.input_axes[name] = axis = self._only_axis(name)
            context.note_extent(name, TimeExtent())
            size = (self.analysis.shape(name) or ())[axis]
            if isinstance(size, int) and context.steps not in (0, size):
                words = f"{name!r} has {size} steps, and another input has {context.steps}; must be equal"
                raise SpecError.of("time", words)
            context.steps = size if isinstance(size, int) else context.steps
        planned = [(op, self._planned(op)) for op in self.analysis.ops]
        # Other operators that no output depends on are removed with the values that they read.
        carried = [op for op in self.analysis.recurrent if id(op) in context.carried]
        unread = {id(op): 0 for op, changes in planned if op.kind == "Concat" and changes.removed_padding}
        unread |= {id(op): 1 for op, changes in planned if changes.whole}
        needed = self.analysis.needed(carried, unread)
        for op, changes in planned:
            if needed.intersection(op.outputs):
                plan.add(changes)
        for op, port, axis, *_ in plan.caches:
            if not context.is_only_time(op.inputs[port], axis):
                plan.refusals.append(finding_of(op, "unknown", NOT_ONLY_TIME))
        plan.refusals, plan.lasting = (list(dict.fromkeys(found)) for found in (plan.refusals, plan.lasting))
        for name in self.flow.outputs:
            if name not in self.analysis.states.values():
                self._plan_output(plan, name)
        return plan

    def has_cancelled_delays(self, plan: StreamingPlan) -> bool:
        """Whether nothing is delayed that is an output, or needs a step in each run."""
        ops = [op for op in self.analysis.ops if operator_of(op.kind).states or operator_of(op.kind).window]
        waiting = [name for op in ops for name in op.outputs if self.context.extent(name).delay > 0]
        return not plan.delays and not waiting

    def _only_axis(self, name: str) -> int:
        axes = self.context.timed(name)
        if len(axes) > 1:
            raise SpecError.of("time", f"{name!r} has several time axes, {axes}; must have one")
        return axes[0]

    def _plan_output(self, plan: StreamingPlan, name: str) -> None:
        """Record the time axis and the delay of an output."""
        extent = self.context.extents.get(name)
        axes = self.context.timed(name)
        if name in self.context.counting:
            why = "is computed from the number of steps in a run"
            plan.refuse(Finding("unknown", "output", name, why))
        if name not in self.context.streamed:
            return
        if name in self.context.newest and not axes:
            plan.newest.append(name)
            return
        if len(axes) != 1 or not self.context.is_time_first(name, axes[0]):
            why = "has steps along an axis that is not only the time axis"
            plan.refuse(Finding("unknown", "output", name, why))
        if not axes:
            return
        plan.output_axes[name] = axes[0]
        if extent is None:
            return
        if (steps := extent.steps_to_wait) > 0 and not self.context.is_only_time(name, axes[0]):
            plan.refusals.append(Finding("unknown", "output", name, NOT_ONLY_TIME))
        elif steps > 0:
            plan.waiting[name] = steps
            extent = extent.after_waiting(steps)
        is_longer = extent.left_pad > 0 or extent.delay < 0 or extent.right_pad > extent.delay
        if is_longer or extent.right_pad < 0:
            steps = extent.extra
            why = f"has {count(abs(steps), 'step')} {'more' if steps > 0 else 'less'} than the input"
            plan.refusals.append(Finding("unknown", "output", name, why))
        elif extent.delay:
            plan.delays[name] = extent.delay

    def _planned(self, op: Op) -> StreamingPlan:
        """Return the changes of an operator, and the first reason against streaming it."""
        self.context.begin(op)
        self._plan_op(op)
        changes = self.context.changes
        del changes.refusals[1:], changes.lasting[1:]
        for name in filter(self.context.extents.__contains__, op.outputs):
            self.context.note_extent(name, self.context.extents[name])
        return changes

    def _plan_op(self, op: Op) -> None:
        """Find the reasons against streaming an operator, and record its changes."""
        outputs = [name for name in op.outputs if name]
        kind, moves = op.kind, self.analysis.moves[id(op)]
        front = self.padding.front(op, self._concat_axis(op)) if kind == "Concat" else ""
        inputs = [name for name in op.reads() if name != front]
        if kind in ("Shape", "Size") or not self.context.streamed.intersection(inputs):
            self.sizes.count_steps(op, inputs)
            return
        self.context.streamed.update(outputs)
        timed = {name: self.context.timed(name) for name in (*inputs, *outputs)}
        gives_time = any(timed[name] for name in outputs)
        with_steps = [
            name for name in inputs if name in self.context.streamed and name not in self.context.newest
        ]
        if not with_steps and not gives_time and self.context.counting.isdisjoint(inputs):
            self.context.newest.update(outputs)
            return
        if moves is None or any(self.analysis.axes_of.get(name) is None for name in (*with_steps, *outputs)):
            self.context.refuse("unknown", IN_LOOP if kind in _LOOPS else UNKNOWN)
            return
        if (axes := self.analysis.whole_gather(op)) is not None and axes[0] in timed[op.inputs[0]]:
            self.context.changes.whole.append((op, axes[1]))
            self.context.extents[op.outputs[0]] = self.context.extent(op.inputs[0])
            return
        timed_ports = [index for index, name in enumerate(op.inputs) if name in with_steps and timed[name]]
        self.sizes.check_numbers(op, inputs, moves, timed)
        self.sizes.follow_indices(op, inputs)
        lost = {self.analysis.axes.find(factor) for factor in self.analysis.divided.get(id(op), ())}
        if lost & self.context.time:
            self.context.refuse("unknown", "splits the time axis into several axes")
            return
        self._check_rule(op, moves, timed_ports, timed)
        joins_steps = kind == "Concat" and self._concat_axis(op) in timed[op.outputs[0]]
        extent = self._extent(op, moves, timed_ports, joins_steps)
        self.context.extents.update(dict.fromkeys(outputs, extent))
        if id(op) in self.analysis.divided:
            self.sizes.plan_reshape(op, timed[op.outputs[0]], extent)
            return
        if operator_of(kind).drops_unit_axes(op):
            self.context.refuse("unknown", "removes the time axis if a run has a single step")
        if kind in ("Expand", "Resize"):
            self.sizes.check_expand(op, timed, extent)
        self.context.newest.update(name for name in outputs if not timed[name])
        if joins_steps:
            self.padding.plan_concat(op, self._concat_axis(op), extent)
            return
        if kind == "Flatten":
            return
        if (recurrence := find_recurrence(op)) is not None:
            self.recurrences.plan(op, moves, timed, extent)
        self._check_constants(op, timed)
        if recurrence is not None:
            return
        for move in moves:
            if move.input in timed_ports and move.axis in timed[op.inputs[move.input]]:
                self._plan_move(op, move, extent)
        if any(len(timed[name]) > 1 for name in outputs):
            self.context.refuse("mixes", "combines each step of a run with every other")

    def _extent(self, op: Op, moves: list[Move], timed_ports: list[int], joins_steps: bool) -> TimeExtent:
        """Return the steps of an operator's inputs, after they are aligned and delayed as needed."""
        operator = operator_of(op.kind)
        # Along any axis: a Pad with other values than zero does not return zeros.
        pads_zeros = op.kind == "Pad" and operator.pads_with_zeros(self.analysis.call(op))
        is_moved = joins_steps or op.kind in ("Slice", "Split") or pads_zeros
        extents = [self.context.extent(op.inputs[index]) for index in timed_ports]
        is_ahead = any(move.pad_end > 0 for move in moves)
        if not (is_moved or operator.keeps_zeros or (adds_no_bias(op, operator) and not is_ahead)):
            extents = [self._wait_for_zeros(op, *item) for item in zip(timed_ports, extents, strict=True)]
        takes_zeros = is_moved or operator.keeps_zeros or bool(operator.window)
        if any(item.left_pad for item in extents) and (len(timed_ports) > 1 or not takes_zeros):
            self.context.refuse_uncarried("reads leading zeros that another operator added")
        return self._align(op, timed_ports, extents)

    def _check_rule(
        self, op: Op, moves: list[Move], timed_ports: list[int], timed: Mapping[str, list[int]]
    ) -> None:
        """Check a rule that does not state the time axis, or combines one value of a run with all steps."""
        kind = op.kind
        if kind in ("Reshape", "Flatten"):
            return
        stated = {(move.input, move.axis, None if move.to is None else move.output) for move in moves}
        for output, name in enumerate(op.outputs):
            if not name or (operator_of(kind).states and output):
                continue
            for index in timed_ports:
                for axis in timed[op.inputs[index]]:
                    if not {(index, axis, None), (index, axis, output)} & stated and not (
                        operator_of(kind).window == "pool" and output
                    ):
                        self.context.refuse("unknown", UNKNOWN)
        runs_along_time = operator_of(kind).states and time_axis(op) in timed[op.inputs[0]]  # checked later
        is_timed = any(timed[name] for name in op.outputs if name)
        if is_timed and not runs_along_time and not self.context.newest.isdisjoint(op.reads()):
            self.context.refuse("mixes", ONE_FOR_ALL)

    def _check_constants(self, op: Op, timed: Mapping[str, list[int]]) -> None:
        """Check an operator with separate constants for each step, such as a table of positions."""
        changes, recurrence = self.context.changes, find_recurrence(op)
        removed_inputs = {index for _, index in changes.zero_states}
        removed_inputs |= {recurrence.lengths} if recurrence is not None and changes.full_length else set()
        for move in (*self.analysis.static_moves.get(id(op), ()), *(self.analysis.moves[id(op)] or ())):
            name, output = op.inputs[move.input], op.outputs[move.output]
            if name in self.context.streamed or not output or move.to not in timed[output]:
                continue
            if (self.analysis.shape(name) or {move.axis: ""})[move.axis] == 1 or move.input in removed_inputs:
                continue
            if operator_of(op.kind).pointwise and self.sizes.is_repeated(name, move.axis):
                changes.repeated.append((op, move.input, move.axis))
            else:
                self.context.refuse("mixes", COUNTS)

    def _concat_axis(self, op: Op) -> int:
        """Return the axis along which a Concat joins."""
        axis: int = op.attributes.get("axis", 0)
        return axis % len(self.analysis.axes_of[op.outputs[0]] or (0,))

    def _wait_for_zeros(self, op: Op, index: int, extent: TimeExtent) -> TimeExtent:
        """Delay by the number of leading zeros, unless they are known or were cut off."""
        # A convolution's cache contains the zeros that it reads.
        axis = self.context.timed(op.inputs[index])[0]
        moves = self.analysis.moves[id(op)] or ()
        reaches = [
            move.reach - move.pad_begin
            for move in moves
            if move.reach and (move.input, move.axis) == (index, axis)
        ]
        steps = extent._replace(left_pad=extent.left_pad - max(reaches, default=0)).steps_to_wait
        if steps <= 0:
            return extent
        self.context.changes.caches.append(Cache(op, index, axis, steps, steps, waits=True))
        return extent.after_waiting(steps)

    def _align(self, op: Op, timed_ports: list[int], extents: list[TimeExtent]) -> TimeExtent:
        """Delay the inputs that are ahead of others, and return their common extent."""
        if not extents:
            return TimeExtent()
        latest = max(extents)
        for index, item in zip(timed_ports, extents, strict=True):
            if item.right_pad - item.delay != latest.right_pad - latest.delay:
                self.context.refuse_uncarried("has inputs with different step counts")
            elif item.delay != latest.delay and not self.context.may_delay and latest.delay > 0:
                self.context.refuse_uncarried("has an input whose steps come later than other inputs")
            elif item.delay != latest.delay:
                axis, steps = self.context.timed(op.inputs[index])[0], latest.delay - item.delay
                self.context.changes.caches.append(Cache(op, index, axis, 0, steps, waits=True))
        return latest

    def _plan_move(self, op: Op, move: Move, extent: TimeExtent) -> None:
        """Find the reasons against time along an axis of an operator."""
        kind, operator = op.kind, operator_of(op.kind)
        if kind == "Split" and move.output and self.slices.cut(op, move.axis, extent) is not None:
            return  # the output is not used
        if kind == "Slice" and self.slices.plan_first(op, move.axis, extent):
            if not self.context.is_only_time(op.inputs[0], move.axis):
                self.context.refuse("unknown", NOT_ONLY_TIME)
            return
        if (
            kind in ("Slice", "Split")
            and move.to is not None
            and (cut := self.slices.cut(op, move.axis, extent)) is not None
        ):
            self.slices.plan(op, move, extent, *cut)
            return
        if kind == "Resize" and self.analysis.call(op).is_given(3):
            return  # its sizes were checked before
        if operator.start_value is not None and move.hazard and not self.analysis.call(op).get("reverse"):
            if self.context.is_only_time(op.inputs[0], move.axis):
                self.context.changes.accumulated.append((op, move.axis))
            else:
                self.context.refuse("unknown", NOT_ONLY_TIME)
            return
        if move.hazard:
            self.context.refuse(move.hazard, move.message)
            return
        if operator.window == "pool" and any(map(self.context.is_read, op.outputs[1:])):
            self.context.refuse("unknown", "returns the indices of steps in a run")
        changes = move.pad_begin or move.pad_end or move.reach
        if (changes or move.to is None) and not self.context.is_only_time(op.inputs[move.input], move.axis):
            self.context.refuse("unknown", NOT_ONLY_TIME)
            return
        if move.to is None and kind == "Gather" and self.flow.ints(op, "", 1) != [-1]:
            self.context.changes.latest.append(op)
        if move.to is None and kind == "Slice" and not self.slices.ends_with_time(op, move.axis):
            self.context.refuse("remembers", "selects the last step by a fixed index")
        if move.to is None:
            if extent.right_pad or extent.delay:
                self.context.refuse_uncarried("selects the last step, which comes later or is unknown")
            return
        if not (move.pad_begin or move.pad_end or move.reach):
            if extent.left_pad and operator.window == "conv" and not adds_no_bias(op, operator):
                self.context.refuse_uncarried("adds to leading zeros that another operator added")
            return
        if move.pad_end > 0 > extent.right_pad:
            self.context.refuse_uncarried(f"{move.message}, and replaces some of its last steps")
        if operator.window:
            self.padding.plan_window(op, move, extent)
        else:
            self.padding.plan_pad(op, move, extent)
