"""Make sizes and step indices independent of the number of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from onegru.dataflow.edit import END, Edit
from onegru.dataflow.operator import Op, Size
from onegru.formats.stream_note import State
from onegru.timeline.analysis import TimeAnalysis
from onegru.timeline.planning.plan import StreamingPlan
from onegru.timeline.size_names import SizeNames, name_of, refusal_error


class SizesRewriter:
    """Rewriter that stages a plan's changes of sizes and step indices."""

    def __init__(
        self, analysis: TimeAnalysis, plan: StreamingPlan, edit: Edit, size_names: SizeNames
    ) -> None:
        self.analysis = analysis
        self.flow = analysis.flow
        self.plan = plan
        self.edit = edit
        self.size_names = size_names

    def take_all(self, op: Op, time_axis: int) -> None:
        """Replace a Gather of all steps by its input, with the other axes of its indices."""
        value, indexed = self.edit.input_of(op, 0), self.analysis.call(op).axis(0)
        rank = len(self.analysis.shape(op.inputs[1]) or ())
        if others := [indexed + axis for axis in range(rank) if axis != time_axis]:
            axes = self.edit.ints(*others)
            value = self.edit.add("Unsqueeze", [value, axes], f"{name_of(op)}/axes", before=op)
        self.edit.replace_operator(op, "Identity", [value])

    def take_latest(self, op: Op) -> None:
        """Let a Gather count from the end of time."""
        index = self.flow.constant(op.inputs[1])
        assert index is not None
        self.edit.set_input(op, 1, self.edit.constant("onegru/latest", np.full_like(index, -1)))

    def keep_axis(self, op: Op, axis: int) -> None:
        """Let a Reshape with computed sizes keep the steps of its input."""
        sizes: list[int | str] = []
        axes_of = self.analysis.axes_of
        before, after = axes_of.get(op.inputs[0]) or (), axes_of[op.outputs[0]] or ()
        shape = self.flow.shape(op.outputs[0]) or ()
        if len(shape) != len(after):
            raise refusal_error(op, "the rank of its output is not known")
        for index, size in enumerate(shape):
            if index == axis:
                sizes.append(0 if index < len(before) and before[index] == after[index] else -1)
            elif index < len(before) and before[index] == after[index]:
                sizes.append(0)
            else:
                sizes.append(size if isinstance(size, int) else self._computed_size(op, index))
        self._reshape_to(op, sizes)

    def open_reshape(self, op: Op, axis: int) -> None:
        """Let a Reshape compute the number of steps."""
        array = self.flow.constant(op.inputs[1])
        assert array is not None
        sizes: list[int | str] = [int(size) for size in array.ravel()]
        axes_of = self.analysis.axes_of
        before, after = axes_of.get(op.inputs[0]) or (), axes_of[op.outputs[0]] or ()
        if axis < len(before) and before[axis] == after[axis]:
            sizes[axis] = 0  # the input's size
        elif -1 not in sizes:
            sizes[axis] = -1
        else:
            other, known = sizes.index(-1), self.flow.shape(op.outputs[0]) or ()
            if other < len(before) and before[other] == after[other]:
                sizes[other] = 0
            elif len(known) == len(sizes) and isinstance(size := known[other], int):
                sizes[other] = size
            else:
                sizes[other] = self._computed_size(op, other)
            sizes[axis] = -1
        self._reshape_to(op, sizes)

    def _computed_size(self, op: Op, axis: int) -> str:
        """Add operators that compute a dynamic size of a Reshape's output from the sizes of inputs."""
        factors = self.size_names.sources(op.outputs[0], axis)
        if factors is None or any(self.plan.input_axes.get(name) == other for name, other in factors[1]):
            why = "its sizes contain a fixed number of steps, and a dynamic size that no input has"
            raise refusal_error(op, why)
        number, input_axes = factors
        edit, base = self.edit, name_of(op)
        found = [] if number == 1 else [edit.ints(number)]
        for name, other in input_axes:
            shape = edit.add("Shape", [name], f"{base}/shape", before=op)
            edit.flow.set_dtype(shape, "int64")
            found.append(edit.add("Gather", [shape, edit.ints(other)], f"{base}/size", before=op, axis=0))
        while len(found) > 1:
            found[-2:] = [edit.add("Mul", found[-2:], f"{base}/size", before=op)]
        return found[0]

    def _reshape_to(self, op: Op, sizes: Sequence[int | str]) -> None:
        """Set the sizes of a Reshape: numbers (0: the input's size), and computed sizes."""
        edit, numbers = self.edit, [size for size in sizes if isinstance(size, int)]
        if len(numbers) == len(sizes):
            edit.set_input(op, 1, edit.ints(*numbers))
        else:
            parts = [size if isinstance(size, str) else edit.ints(size) for size in sizes]
            edit.set_input(op, 1, edit.add("Concat", parts, f"{name_of(op)}/sizes", before=op, axis=0))
        if "allowzero" in op.attributes:
            self.edit.set(op, allowzero=None)

    def open_size(self, op: Op, index: int, axis: int) -> None:
        """Let a Resize or an Expand keep the number of steps of its input."""
        edit, base, port = self.edit, name_of(op), 1 if op.kind == "Expand" else 3
        sizes = edit.input_of(op, port)
        if op.kind == "Expand":  # 1 keeps a size
            own = edit.ints(1)
        else:
            shape = edit.add("Shape", [edit.input_of(op, 0)], f"{base}/shape", before=op)
            own = edit.slice(shape, 0, axis, axis + 1, f"{base}/sizes", before=op)
        first, last = (
            edit.slice(sizes, 0, *bounds, f"{base}/sizes", before=op)
            for bounds in ((0, index), (index + 1, END))
        )
        edit.set_input(op, port, edit.add("Concat", [first, own, last], f"{base}/sizes", before=op, axis=0))

    def take_one(self, op: Op, index: int, axis: int) -> None:
        """Let an operator read one of an input's steps, which are all equal."""
        value = self.edit.input_of(op, index)
        self.edit.set_input(op, index, self.edit.slice(value, axis, 0, 1, f"{value}/one", before=op))


def with_equal_sizes(size_names: SizeNames, edit: Edit, states: Sequence[State]) -> list[State]:
    """Give sizes of states that must be equal one name, in inputs, outputs and the states."""

    def one(shape: Sequence[Size]) -> tuple[Size, ...]:
        return tuple(size_names.shared(size) if isinstance(size, str) else size for size in shape)

    for name in size_names.flow.inputs if size_names.common_names else ():
        for axis, size in enumerate(size_names.declared(name)):
            if size in size_names.common_names:
                edit.sizes[name, axis] = size_names.shared(str(size))
    for declared in (edit.inputs, edit.outputs):
        declared |= {name: replace(item, shape=one(item.shape)) for name, item in declared.items()}
    edit.sizes |= {key: one((size,))[0] for key, size in edit.sizes.items()}
    return [replace(state, first_shape=one(state.first_shape)) for state in states]
