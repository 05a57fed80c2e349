"""Plan padding along the time axis, and windows that extend beyond its ends."""

from __future__ import annotations

import math

from onegru.core.wording import count
from onegru.dataflow.operator import Op
from onegru.dataflow.table import Move, operator_of
from onegru.dataflow.table.windows import Window, adds_no_bias
from onegru.timeline.planning.context import NOT_ONLY_TIME, PlannerPart, later_words
from onegru.timeline.planning.plan import Cache, FirstSteps, TimeExtent


class PaddingPlanner(PlannerPart):
    """Planner of padding and its readers. An extent is that of the operator's input."""

    def plan_pad(self, op: Op, move: Move, extent: TimeExtent) -> None:
        """Plan steps that are added at either end of time; a Pad may also cut trailing steps."""
        operator = operator_of(op.kind)
        is_removable = op.kind in ("Pad", "Slice") or isinstance(operator, Window)
        if move.pad_begin < 0 or (move.pad_end < 0 and op.kind != "Pad") or not is_removable:
            self.context.refuse_uncarried(f"{move.message}, but a stream does not know where a run ends")
        elif (
            not operator.pads_with_zeros(self.analysis.call(op)) or self.context.may_cancel
        ) and self._put_in_front(op, move, extent):
            return
        left_pad = max(extent.left_pad + move.pad_begin, 0)
        self.context.extents[op.outputs[move.output]] = TimeExtent(
            extent.delay, left_pad, extent.right_pad + move.pad_end
        )
        self.context.changes.removed_padding.append((op, move.axis))

    def _put_in_front(self, op: Op, move: Move, extent: TimeExtent) -> bool:
        """Plan a first chunk with the leading steps of a Pad; return whether that is possible."""
        call = self.analysis.call(op)
        fill = self.flow.fill_value(op.inputs[2]) if call.is_given(2) else call.get("value", 0.0)
        mode = str(call.get("mode", "constant")).lower()
        if mode == "edge" and op.kind == "Pad":
            fill = None
        elif mode != "constant":
            words = f"pads time with steps of the run (mode {mode!r}); must be constant, or mode 'edge'"
            self.context.refuse_uncarried(words)
            return False
        elif (
            op.kind != "Pad"
            or not isinstance(fill, int | float)
            or fill != fill
            or (extent.left_pad and fill)
        ):
            self.context.refuse_uncarried("pads the time axis with a value that is not a known number")
            return False
        return self._begin_with(op, 0, move, extent, fill)

    def _begin_with(self, op: Op, index: int, move: Move, extent: TimeExtent, fill: float | None) -> bool:
        """Plan a first chunk with leading steps of a value; None for copies of its first step."""
        # Known leading steps can cancel a delay, as in differences.
        steps, is_delayed = move.pad_begin, extent.delay > 0
        may_cancel = is_delayed and self.context.may_cancel
        if fill == 0:
            steps = min(steps, extent.delay)
            if not may_cancel or steps < extent.delay:
                return False
        cancels_delay = may_cancel and fill is not None and steps == extent.delay
        right_pad, delay = extent.right_pad + move.pad_end, extent.delay - steps
        wait = min(-delay, -right_pad) if delay < 0 > right_pad else 0
        if is_delayed and fill != 0 and not cancels_delay:  # the first chunk may be as short as the delay
            wait = steps
        left_pad = extent.left_pad + move.pad_begin - steps
        self.context.extents[op.outputs[move.output]] = TimeExtent(delay + wait, left_pad, right_pad + wait)
        initial, changes = steps, self.context.changes
        if fill is None and steps:
            changes.first_steps.append(FirstSteps(op, move.axis, 1, steps, len(changes.caches)))
            initial = 0
        if initial or wait:
            is_paced = cancels_delay and steps > 1
            cache = Cache(op, index, move.axis, initial, wait, wait > 0, fill or 0.0, is_paced)
            changes.caches.append(cache)
        changes.removed_padding.append((op, move.axis))
        return True

    def plan_window(self, op: Op, move: Move, extent: TimeExtent) -> None:
        """Plan a convolution or pooling along time, which reads earlier steps from a cache."""
        name, right_pad = op.outputs[move.output], extent.right_pad + move.pad_end
        operator, initial = operator_of(op.kind), extent.left_pad + move.pad_begin
        pads_with_zeros = operator.pads_with_zeros(self.analysis.call(op))
        if operator.window == "conv" and initial and not pads_with_zeros:
            self.context.refuse_uncarried("pads the time axis with values other than zero")
        later, fill = move.reach - initial, 0.0
        self.context.extents[name] = TimeExtent(extent.delay + max(later, 0), max(-later, 0), right_pad)
        if later < 0 and not adds_no_bias(op, operator):
            self.context.refuse_uncarried(f"{move.message} and returns more steps than it reads")
        elif later > 0 and not self.context.may_delay and extent.delay + later > 0:
            self.context.extents[name] = TimeExtent()  # reported only once
            self.context.refuse_uncarried(f"{move.message}: {later_words(extent.delay + later)}")
        elif operator.window == "pool" and move.pad_begin and not pads_with_zeros:
            is_float = (self.flow.dtype(op.inputs[0]) or "").startswith("float")
            if op.label != "MaxPool" or extent.left_pad or not is_float:
                self.context.refuse_uncarried("pads the steps that it pools")
            fill = -math.inf  # never a maximum, because a window reads at least one step of the run
        if move.pad_begin or move.pad_end:
            self.context.changes.removed_padding.append((op, move.axis))
        if move.reach:
            self.context.changes.caches.append(
                Cache(op, move.input, move.axis, min(initial, move.reach), move.reach, fill=fill)
            )

    def front(self, op: Op, axis: int) -> str:
        """Return the zeros or first steps that a Concat puts before the first step; "" for none."""
        first, *others = op.inputs
        shape = self.flow.shape(first)
        is_front = len(others) == 1 and first not in others and axis in self.context.timed(others[0])
        is_fixed = shape is not None and axis < len(shape) and isinstance(shape[axis], int)
        is_front = is_front and others[0] in self.context.streamed
        is_known = first in self.context.first_steps or (is_fixed and self.flow.fill_value(first) == 0)
        return first if is_front and is_known else ""

    def plan_concat(self, op: Op, axis: int, extent: TimeExtent) -> None:
        """Plan a Concat along time, which may begin with a constant or a value's first steps."""
        first = op.inputs[0]
        shape = self.flow.shape(first)
        steps = None if shape is None else shape[axis]
        is_front = (
            len(op.inputs) == 2
            and (first not in self.context.streamed or first == self.front(op, axis))
            and op.inputs[1] in self.context.streamed
        )
        if not self.context.is_only_time(op.outputs[0], axis):
            self.context.refuse("unknown", NOT_ONLY_TIME)
        elif is_front and first in self.context.first_steps:
            self._join_first(op, axis, extent)
        elif not is_front or not isinstance(steps, int) or first in self.analysis.states:
            self.context.refuse_uncarried("joins steps of a run with other values")
        elif self.flow.fill_value(first) != 0:
            self.context.refuse_uncarried(f"inserts {count(steps, 'step')} at the start that are not zeros")
        elif not self._begin_with(op, 1, Move(1, axis, axis, pad_begin=steps), extent, 0.0):
            self.context.extents[op.outputs[0]] = extent._replace(left_pad=extent.left_pad + steps)
            self.context.changes.removed_padding.append((op, axis))

    def _join_first(self, op: Op, axis: int, extent: TimeExtent) -> None:
        """Plan the first steps of one value before those of another, which wait for them."""
        steps, before = self.context.first_steps[op.inputs[0]], self.context.extent(op.inputs[0])
        wait = max(min(steps - extent.delay, -extent.right_pad), 0)
        if 0 < before.delay == extent.delay:  # the first chunks may not contain them yet
            wait = steps
        delay = extent.delay + wait
        is_known = steps <= 1 - before.delay and delay <= 1  # with the first step of the run
        if extent.left_pad or not (is_known or delay == before.delay + steps):
            words = "which are not all known with the first step; change the model to repeat the first step"
            self.context.refuse_uncarried(f"inserts {count(steps, 'step')} of the run at the start, {words}")
            return
        if wait:
            self.context.changes.caches.append(Cache(op, 1, axis, 0, wait, waits=True))
        self.context.extents[op.outputs[0]] = TimeExtent(delay - steps, 0, extent.right_pad + wait)
