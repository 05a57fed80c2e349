"""Add states and caches to a model, so that it runs in chunks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from onegru.core.errors import SpecError
from onegru.dataflow.edit import END, Edit
from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import Op
from onegru.dataflow.table.cutting import Slice
from onegru.dataflow.table.recurrences import recurrence_of
from onegru.dataflow.table.windows import Window
from onegru.formats.stream_note import State
from onegru.timeline.analysis import TimeAnalysis
from onegru.timeline.edits.counts import continue_range, continue_sum, new_state, size_of, take_first
from onegru.timeline.edits.sizes import SizesRewriter, with_equal_sizes
from onegru.timeline.planning.plan import Cache, StreamingPlan
from onegru.timeline.size_names import SizeNames, declared_name, dtype_of, name_of, plain, refusal_error
from onegru.timeline.starts import evaluated

_MOST_ELEMENTS = 1 << 21  # of a state that is followed element by element


@dataclass(frozen=True, slots=True)
class Streaming:
    """Result of a rewrite for streaming."""

    states: tuple[State, ...]  # the new states
    input_axes: Mapping[str, int]  # the time axis of each input with one
    delays: Mapping[str, int]  # the delayed outputs, and their delays in steps
    output_axes: Mapping[str, int | None]  # the same for outputs; None for an output of the newest step
    model: Any = None  # the model in its format
    steps: int = 0  # fixed steps in each run of a source with a dynamic size; 0: any number


class InitialState(NamedTuple):
    """Part of an input from which a recurrence starts."""

    value: str
    op: Op  # the recurrence
    last: int  # its output with the last state


class StreamingRewriter:
    """Rewriter that stages the changes of a plan."""

    def __init__(self, analysis: TimeAnalysis, plan: StreamingPlan, edit: Edit) -> None:
        self.analysis = analysis
        self.flow = analysis.flow
        self.plan = plan
        self.edit = edit
        self.size_names = SizeNames(analysis)
        self.states: list[State] = []
        self.joined: dict[tuple[str, int, int, bool, float, bool], str] = {}
        self.initial_states: dict[str, list[InitialState]] = {}  # by input
        self.delayed_outputs: dict[str, str] = {}

    def edited(self) -> Streaming:
        """Make all changes."""
        plan, edit = self.plan, self.edit
        sizes_rewriter = SizesRewriter(self.analysis, plan, edit, self.size_names)
        for op in plan.full_length:
            edit.set_input(op, recurrence_of(op).lengths, "")
        for op, port in plan.zero_states:
            edit.set_input(op, port, "")
        for op, axis in plan.whole:
            sizes_rewriter.take_all(op, axis)
        for op in plan.latest:
            sizes_rewriter.take_latest(op)
        for op, axis in plan.reshaped:
            if self.flow.holds(op.inputs[1]):
                sizes_rewriter.open_reshape(op, axis)
            else:
                sizes_rewriter.keep_axis(op, axis)
        early: list[Cache] = []  # the caches that supply the first steps of a run
        for first in plan.first_steps:
            early += [cache for cache in plan.caches if cache.op is first.op][: first.earlier_caches]
        for cache in early:
            self._add_cache(cache)
        for first in plan.first_steps:
            self.states.append(take_first(edit, self.size_names, self.analysis.opset, first))
        for cache in plan.caches:
            if not any(cache is other for other in early):
                self._add_cache(cache)
        for op, axis in plan.removed_padding:
            self._unpad(op, axis)
        self.states += [continue_sum(edit, self.size_names, op, axis) for op, axis in plan.accumulated]
        self.states += [continue_range(edit, op, step) for op, step in plan.numbered]
        for op, index, axis in plan.resized:
            sizes_rewriter.open_size(op, index, axis)
        for op, port, axis in plan.repeated:
            sizes_rewriter.take_one(op, port, axis)
        for name, steps in plan.waiting.items():
            self._delay_output(name, steps)
        for op in plan.recurrent:
            self._open_states(op)
        for name, initial_states in self.initial_states.items():
            self._join_states(name, initial_states)
        for name, delayed in self.delayed_outputs.items():
            self._rename(name, delayed)
        for name, axis in plan.input_axes.items():
            if not self.size_names.is_named(name, axis):
                edit.sizes[name, axis] = "frames"
        for name in self.flow.outputs:
            self._name_output(name)
        self.states = with_equal_sizes(self.size_names, edit, self.states)
        timed = {*plan.output_axes, *plan.newest}
        axes = {name: plan.output_axes.get(name) for name in self.flow.outputs if name in timed}
        return Streaming(tuple(self.states), plan.input_axes, plan.delays, axes)

    def all_states(self, known: Sequence[tuple[str, str]]) -> list[State]:
        """Return the new states, and the states that the model had before."""
        new, declared = {item.input for item in self.states}, self.size_names.declared
        old = [State(taker, output, "", declared(taker)) for output, taker in known if taker not in new]
        return [*self.states, *old]

    def _name_output(self, value: str) -> None:
        """Name the dynamic sizes of an output as in the inputs."""
        for axis, stated in enumerate(self.flow.shape(value) or ()):
            is_time = self.plan.output_axes.get(value) == axis
            is_one = isinstance(stated, str) and len(self.analysis.factors(value, axis)) == 1
            size = self.size_names.size(value, axis) if is_one else 0
            if is_time and self.plan.delays:  # the first chunk has fewer steps
                self.edit.sizes[value, axis] = f"{value}_frames"
            elif isinstance(size, str) and declared_name(size) in self.size_names.names:
                self.edit.sizes[value, axis] = declared_name(size)
            elif is_time:
                self.edit.sizes[value, axis] = "frames"

    # Changes

    def _unpad(self, op: Op, axis: int) -> None:
        """Remove the padding or the cut along time from an operator."""
        if op.kind in ("Pad", "Slice", "Split", "Concat"):
            value = self.edit.input_of(op, 1 if op.kind == "Concat" else 0)
            others = self._others(op, axis)
            if not others:
                self.edit.replace_operator(op, "Identity", [value])
                self.edit.staged(op).outputs = [op.outputs[0]]
            elif op.kind == "Pad":
                self.edit.set_ints(op, "pads", others)
                if len(op.inputs) > 3:
                    self.edit.set_input(op, 3, "")  # all axes
            else:
                for index, name in enumerate(("starts", "ends", "axes")):
                    self.edit.set_ints(op, name, others[index::3])
                if len(op.inputs) > 4:
                    self.edit.set_input(op, 4, "")
            return
        call = self.analysis.call(op)
        assert isinstance(call.operator, Window)
        self.edit.set(op, auto_pad=None, pads=call.operator.pads_without(call, axis))

    def _others(self, op: Op, axis: int) -> list[int]:
        """Return the pads, or start, end and axis, of an operator along its other axes."""
        call = self.analysis.call(op)
        rank = call.rank()
        if op.kind in ("Concat", "Split"):
            return []
        if op.kind == "Pad":
            moves = [move for move in self.analysis.moves[id(op)] or () if move.axis != axis]
            pads = [0] * (2 * rank)
            for move in moves:
                pads[move.axis], pads[move.axis + rank] = move.pad_begin, move.pad_end
            return pads if any(pads) else []
        front = self.plan.cut_steps.get((id(op), axis))
        found: list[int] = [] if front is None else [front, END, axis]
        for other in (item for item in range(rank) if item != axis):
            assert isinstance(call.operator, Slice)
            bounds = call.operator.bounds(call, other)
            if bounds is None or bounds[2] != 1:
                raise refusal_error(op, "it slices the time axis, and another axis with a stride")
            if bounds != (0, None, 1):
                found += [bounds[0], END if bounds[1] is None else bounds[1], other]
        return found

    def _add_cache(self, cache: Cache) -> None:
        """Prepend the last steps of a value to those of a chunk."""
        op, port, axis, initial, steps, waits, fill, is_paced = cache
        edit = self.edit
        value, now = op.inputs[port], edit.input_of(op, port)
        key = (now, initial, steps, waits, fill, is_paced)
        if key in self.joined:
            edit.set_input(op, port, self.joined[key])
            return
        base = name_of(op)
        shape = self.size_names.first_shape(op, value, axis, initial)
        is_open = steps != initial or is_paced
        state = new_state(edit, op, "cache", dtype_of(self.flow, op, value), shape, axis if is_open else None)
        joined = new = edit.add("Concat", [state.input, now], f"{base}/joined", before=op, axis=axis)
        if is_paced:
            source, time = next(iter(self.plan.input_axes.items()))
            size = size_of(edit, op, self.analysis.opset, source, time)
            new = edit.add("Slice", [joined, edit.ints(0), size, edit.ints(axis)], f"{base}/now", before=op)
            bounds = [size, edit.ints(END), edit.ints(axis)]
            edit.add("Slice", [joined, *bounds], f"{base}/left", output=state.output)
        else:
            edit.slice(joined, axis, -steps if steps else END, END, f"{base}/last", output=state.output)
        if waits:
            new = edit.slice(joined, axis, 0, -steps, f"{base}/waited", before=op)
        self.joined[key] = new
        edit.set_input(op, port, new)
        start = np.full([1] * len(shape), fill) if fill else None
        self.states.append(replace(state, steps=initial if is_paced else steps, start=start))

    def _delay_output(self, name: str, steps: int) -> None:
        """Delay an output by a number of steps."""
        self.delayed_outputs[name] = self.edit.add("Identity", [name], f"{name}/held")
        end = self.edit.new_producers[self.delayed_outputs[name]]
        # The cache gets the name of the operator that computes the output.
        end.name, own = name_of(self.flow.producers[name]), end.name
        self._add_cache(Cache(end, 0, self.plan.output_axes[name], steps, steps, waits=True))
        end.name = own

    def _rename(self, name: str, delayed: str) -> None:
        """Rename an output to its delayed value, and let all operators read the current one."""
        try:
            self.edit.rename({name: self.edit.fresh(f"{name}/now"), delayed: name})
        except LookupError as error:
            raise refusal_error(self.flow.producers[name], f"a subgraph reads {name!r}, an output") from error

    def _open_states(self, op: Op) -> None:
        """Replace the initial states of a recurrence by inputs, and add its last states as outputs."""
        edit, base = self.edit, name_of(op)
        for (first, last), what in zip(recurrence_of(op).states, ("state", "cell"), strict=False):
            old = edit.input_of(op, first)
            if (outside := self.analysis.unstreamed_input(old, self.plan.input_axes)) is not None:
                self.initial_states.setdefault(outside, []).append(InitialState(old, op, last))
                continue
            input_name, output_name = (edit.fresh(f"{plain(base)}_{what}_{way}") for way in ("in", "out"))
            before, rows, after = self._state_shape(op)
            start = self.analysis.start_of(op, old) if old else None
            if start is not None and (many := start.shape[len(before)]) > 1:
                if len(rows) > 1:
                    raise refusal_error(op, "its initial values differ between rows")
                rows = (many,)
            shape = (*before, *rows, *after)
            dtype = dtype_of(self.flow, op, op.inputs[0])
            edit.add_input(input_name, dtype, shape)
            edit.add_output(output_name, dtype, shape)
            if len(rows) == 1:
                edit.set_input(op, first, input_name)
                if (known := edit.ensure_output(op, last, output_name)) != output_name:
                    edit.add("Identity", [known], f"{output_name}/same", output=output_name)
            else:  # one input has the states as several axes
                sizes = [-1 if isinstance(size, str) else size for size in rows]
                one = edit.ints(*before, -1, *after)
                given = edit.add("Reshape", [input_name, one], f"{input_name}/rows", before=op)
                edit.set_input(op, first, given)
                known = edit.output_of(op, last)
                known = known or edit.ensure_output(op, last, edit.fresh(f"{output_name}/rows"))
                several = edit.ints(*before, *sizes, *after)
                edit.add("Reshape", [known, several], f"{output_name}/axes", output=output_name)
            if start is not None:  # the rows' other axes have one value
                start = start.reshape(*before, *[1] * (len(rows) - 1), -1, *after) if start.any() else None
            self.states.append(State(input_name, output_name, base, shape, start=start))

    def _join_states(self, name: str, parts: list[InitialState]) -> None:
        """Return the last states of recurrences that start from parts of an input."""
        op, edit, shape = parts[0].op, self.edit, self.flow.shape(name) or ()
        starts = [part.value for part in parts]
        few, more = (_joins(self.flow, name, starts, size) for size in (2, 3))
        ways = [way for way in few if way in more]
        sizes = [size if isinstance(size, int) else -1 for size in shape]
        if (
            not ways
            or not self.analysis.is_only_initial_state(name)
            or (sizes.count(-1) > 1 and not ways[0][2])
        ):
            raise _not_joined(name, parts, self.analysis.is_only_initial_state(name))
        order, axis, has_shape = ways[0]
        given = edit.fresh(f"{plain(name_of(op))}_state_out" if len(parts) == 1 else f"{name}_out")
        ends = [
            edit.output_of(one, last) or edit.ensure_output(one, last, edit.fresh(f"{given}/part"))
            for _, one, last in (parts[index] for index in order)
        ]
        if has_shape:
            edit.add("Concat", ends, f"{given}/joined", output=given, axis=axis)
        else:
            joined = edit.add("Concat", ends, f"{given}/joined", axis=axis)
            edit.add("Reshape", [joined, edit.ints(*sizes)], f"{given}/shape", output=given)
        dims = self.size_names.declared(name)
        edit.add_output(given, self.flow.dtype(name) or "float32", dims)
        self.states.append(State(name, given, name_of(op), dims))

    def _state_shape(self, op: Op) -> tuple[tuple[int, ...], tuple[int | str, ...], tuple[int, ...]]:
        """Return the sizes of a state before its rows, of its rows (one or more axes), and after them."""
        recurrence = recurrence_of(op)
        is_batch_first = recurrence.is_batch_first(op)
        R = self.flow.shape(op.inputs[recurrence.recurrent_weights])
        if R is None or not isinstance(R[-1], int) or not isinstance(R[0], int):
            raise refusal_error(op, "the shape of R is not known")
        size = self.size_names.size(op.inputs[0], 0 if is_batch_first else 1)
        self.size_names.unify(op.inputs[0], 0 if is_batch_first else 1)
        sizes = size if isinstance(size, tuple) else (size,)
        rows = tuple(self.size_names.named(op, item) for item in sizes)
        if sum(isinstance(item, str) for item in rows) > 1:
            raise refusal_error(
                op, f"its batch size is a product of dynamic sizes ({', '.join(map(str, rows))})"
            )
        return ((), rows, (R[0], R[-1])) if is_batch_first else ((R[0],), rows, (R[-1],))


def _not_joined(name: str, parts: Sequence[InitialState], is_only_initial: bool) -> SpecError:
    """Return the error for states that are not exactly the parts of an input."""
    labels = ", ".join(dict.fromkeys(repr(name_of(part.op)) for part in parts))
    why = "each must start from its own part, and all parts must be used"
    if not is_only_initial:
        why = "no other operator may use it"
    return refusal_error(parts[0].op, f"input {name!r} is the initial state of {labels}; {why}")


def _joins(
    flow: Flow, name: str, starts: Sequence[str], size: int
) -> list[tuple[tuple[int, ...], int, bool]]:
    """Return the ways to concatenate values to an input: order, axis, and whether the shapes agree."""
    shape = tuple(item if isinstance(item, int) else size for item in flow.shape(name) or ())
    count = math.prod(shape)
    whole = np.arange(count if count <= _MOST_ELEMENTS else 0, dtype=np.float64)
    given = {name: whole.reshape(shape if whole.size == count else -1)}
    values = [evaluated(flow, start, size, given) for start in starts]
    arrays = [array for array in values if array is not None and array.size and array.dtype == whole.dtype]
    if len(arrays) < len(values):
        return []
    order = sorted(range(len(arrays)), key=lambda index: float(arrays[index].flat[0]))
    found = []
    for axis in range(arrays[0].ndim):
        try:
            joined = np.concatenate([arrays[index] for index in order], axis)
        except ValueError:  # different shapes
            continue
        if np.array_equal(joined.ravel(), whole):
            found.append((tuple(order), axis, joined.shape == shape))
    return found
