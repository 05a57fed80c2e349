"""Plan slices along the time axis."""

from __future__ import annotations

from onegru.core.wording import count
from onegru.dataflow.linear import as_linear
from onegru.dataflow.operator import TIMES, Op
from onegru.dataflow.table import ENDLESS, Elements, Move, UnknownOpError, operator_of
from onegru.dataflow.table.cutting import Slice
from onegru.timeline.planning.context import NOT_ONLY_TIME, ONE_BY_ONE, PlannerPart, later_words
from onegru.timeline.planning.plan import Cache, FirstSteps, TimeExtent


class SlicesPlanner(PlannerPart):
    """Planner of Slices along time."""

    def cut(self, op: Op, axis: int, extent: TimeExtent) -> tuple[int, int] | None:
        """Return the leading and trailing steps of a whole run that a Slice cuts off; None if unknown."""
        call, more = self.analysis.call(op), extent.extra
        if op.kind == "Split":
            return self._all_but_first(op) if axis == call.axis(0) else None
        rank = call.rank()
        try:
            axes, strides = call.known_ints("axes") or list(range(rank)), call.known_ints("steps")
        except UnknownOpError:
            return None
        cut_axes = [item % rank for item in axes]
        if axis not in cut_axes:
            return None
        index = cut_axes.index(axis)
        start, end = (self._bound(op, name, port, index) for name, port in (("starts", 1), ("ends", 2)))
        if start is None or end is None or (strides and strides[index] != 1):
            return None
        times, front = start
        if (
            times == 0 > front
            and self.context.steps
            and 0 <= self.context.steps + more + front <= extent.left_pad
        ):
            front += self.context.steps + more  # no more than zeros, so not the last steps of any run
        elif times == -1:
            front = max(more + front, 0)
        if front < 0 or times == 1:
            return None
        times, last = end
        if times == 0 and (last < 0 or last >= ENDLESS):
            return front, -min(last, 0)
        if times == 0 and self.context.steps:
            times, last = 1, last - self.context.steps
        return (front, max(more - last, 0)) if times == 1 else None

    def _all_but_first(self, op: Op) -> tuple[int, int] | None:
        """Return the steps of a Split's parts after the first, if they are unused and of fixed size."""
        sizes = op.attributes.get("split") or (
            self.flow.as_sizes(op.inputs[1]) if len(op.inputs) > 1 else None
        )
        others = [size for size in (sizes or ())[1:] if isinstance(size, int)]
        is_read = any(map(self.context.is_read, op.outputs[1:]))
        return None if is_read or sizes is None or len(others) != len(op.outputs) - 1 else (0, sum(others))

    def _bound(self, op: Op, name: str, port: int, index: int) -> tuple[int, int] | None:
        """Return a bound of a Slice: a factor of the input's number of steps, and a constant to add."""
        known = self.flow.ints(op, name, port)
        if known is not None:
            return 0, known[index]
        value, sign = op.input(port), 1
        while (before := self.flow.find_producer(value)) is not None and (
            before.kind == "Neg" or operator_of(before.kind).elements is Elements.KEPT
        ):
            value, sign = before.inputs[0], -sign if before.kind == "Neg" else sign
        sizes = self.flow.as_sizes(value)
        linear = as_linear(self.flow, value) if sizes is None else (sizes[index if len(sizes) > 1 else 0], 0)
        if linear is None or not isinstance(linear[0], str):
            return None
        size = linear[0].removesuffix(f"{TIMES}-1")
        size_sign = 1 if size == linear[0] else -1
        more = self.context.extra_steps.get(size)
        return None if more is None else (sign * size_sign, sign * (size_sign * more + linear[1]))

    def ends_with_time(self, op: Op, axis: int) -> bool:
        """Whether a Slice selects the last step of any number of steps."""
        starts, ends, axes = (
            self.flow.ints(op, name, port) for port, name in enumerate(("starts", "ends", "axes"), 1)
        )
        rank = len(self.analysis.axes_of[op.inputs[0]] or ())
        index = axis if axes is None else [item % rank for item in axes].index(axis)
        return starts is not None and ends is not None and starts[index] == -1 and ends[index] >= ENDLESS

    def plan_first(self, op: Op, axis: int, extent: TimeExtent) -> bool:
        """Plan a Slice of a run's first steps, which Concats prepend to other steps."""
        call, output = self.analysis.call(op), op.outputs[0]
        operator, takers = call.operator, self.flow.consumers.get(output, [])
        if not isinstance(operator, Slice) or output in self.flow.outputs or extent.left_pad:
            return False
        bounds = [operator.bounds(call, item) for item in range(call.rank())]
        first, steps, stride = bounds.pop(axis) or (0, None, 0)
        if first or stride != 1 or steps is None or steps < 1 or {*bounds} - {(0, None, 1)}:
            return False
        is_front = all(
            taker.kind == "Concat"
            and taker.inputs.index(output) == 0
            and taker.attributes.get("axis", 0) % call.rank() == axis
            for taker in takers
        )
        if is_front:
            self.context.first_steps[output] = steps
            changes = self.context.changes
            changes.first_steps.append(FirstSteps(op, axis, steps, earlier_caches=len(changes.caches)))
        return is_front

    def plan(self, op: Op, move: Move, extent: TimeExtent, front: int, back: int) -> None:
        """Plan a Slice along time: zeros are removed, leading steps delay it, trailing ones come later."""
        later = max(front - extent.left_pad, 0)
        if (front or back) and not self.context.is_only_time(op.inputs[0], move.axis):
            self.context.refuse("unknown", NOT_ONLY_TIME)
            return
        if (later or back) and not self.context.may_delay and self._takes_steps_apart(op, move, extent):
            self.context.refuse_uncarried(ONE_BY_ONE)
            return
        if later and not self.context.may_delay and extent.delay + later > 0:
            words = later_words(extent.delay + later)
            self.context.refuse_uncarried(f"drops the first {count(later, 'step')}: {words}")
        elif later:
            self.context.changes.caches.append(Cache(op, 0, move.axis, extent.left_pad, front))
            self.context.changes.cut_steps[id(op), move.axis] = front
        zeros = max(extent.left_pad - front, 0)
        delay, right_pad = extent.delay + later, extent.right_pad - back
        wait = min(-delay, -right_pad) if delay < 0 > right_pad else 0
        if wait:  # the leading steps of the first chunk are cut off at its end
            self.context.changes.caches.append(Cache(op, 0, move.axis, 0, wait, waits=True))
        self.context.extents[op.outputs[0]] = TimeExtent(delay + wait, zeros, right_pad + wait)
        self.context.changes.removed_padding.append((op, move.axis))

    def _takes_steps_apart(self, op: Op, move: Move, extent: TimeExtent) -> bool:
        """Whether Slices select single steps of a fixed number, each for a copy of a layer."""
        others = [other for other in self.flow.consumers[op.inputs[0]] if other.kind == "Slice"]
        cuts = {id(other): self.cut(other, move.axis, extent) for other in others}
        single = {cut for cut in cuts.values() if cut and sum(cut) == self.context.steps + extent.extra - 1}
        return len(single) > 1 and cuts[id(op)] in single
