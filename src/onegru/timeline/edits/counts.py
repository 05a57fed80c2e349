"""Continue sums, products and step numbers from chunk to chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from onegru.dataflow.edit import END, Edit
from onegru.dataflow.operator import Op
from onegru.dataflow.table import operator_of
from onegru.formats.stream_note import State
from onegru.timeline.planning.plan import FirstSteps
from onegru.timeline.size_names import SizeNames, dtype_of, name_of, plain, refusal_error

_COMPUTED_BOUNDS = 10  # the first opset where a Slice has computed bounds


def continue_sum(edit: Edit, size_names: SizeNames, op: Op, axis: int) -> State:
    """Continue a sum or product from the last chunk, which is prepended to keep the order."""
    base = name_of(op)
    dtype = dtype_of(edit.flow, op, op.inputs[0])
    what, begins = op.kind.removeprefix("Cum").lower(), operator_of(op.kind).start_value
    state = new_state(edit, op, what, dtype, size_names.first_shape(op, op.inputs[0], axis, 1))
    parts = [state.input, edit.input_of(op, 0)]
    joined = edit.add("Concat", parts, f"{base}/joined", before=op, axis=axis)
    sums = edit.add(op.kind, [joined, edit.input_of(op, 1)], f"{base}/sums", before=op)
    edit.slice(sums, axis, -1, END, f"{base}/last", output=state.output)
    bounds = (0, -1) if op.attributes.get("exclusive") else (1, END)
    edit.replace_operator(op, "Slice", [sums, *map(edit.ints, (*bounds, axis))])
    return replace(state, start=np.full([1] * len(state.first_shape), begins) if begins else None)


def continue_range(edit: Edit, op: Op, step: int) -> State:
    """Continue a Range after the steps of all earlier chunks, which a state counts as integers."""
    base, dtype = name_of(op), dtype_of(edit.flow, op, op.outputs[0])
    state = new_state(edit, op, "steps", "int64", (1,))
    own = edit.add("Range", op.inputs, f"{base}/own", before=op)
    edit.flow.set_dtype(own, dtype)
    count = edit.add("Shape", [own], f"{base}/shape", before=op)
    edit.flow.set_dtype(count, "int64")
    edit.add("Add", [state.input, count], f"{base}/steps", output=state.output)
    before = edit.add("Mul", [state.input, edit.ints(step)], f"{base}/before", before=op)
    numbers = edit.add("Cast", [own], f"{base}/integers", before=op, dtype="int64")
    numbers = edit.add("Add", [numbers, before], f"{base}/numbers", before=op)
    numbers = edit.add("Cast", [numbers], f"{base}/cast", before=op, dtype=dtype)
    edit.replace_operator(op, "Reshape", [numbers, edit.ints(-1)])  # the new operator has no attributes
    return state


def take_first(edit: Edit, size_names: SizeNames, opset: int, first: FirstSteps) -> State:
    """Restrict an operator to the first steps of a run, which a state stores across chunks."""
    op, axis, steps, copies, _ = first
    base, now = name_of(op), edit.input_of(op, 0)
    shape = size_names.first_shape(op, op.inputs[0], axis, 0)
    state = new_state(edit, op, "first", dtype_of(edit.flow, op, op.inputs[0]), shape, axis)
    joined = edit.add("Concat", [state.input, now], f"{base}/all", before=op, axis=axis)
    edit.slice(joined, axis, 0, steps, f"{base}/first", output=state.output)
    bounds = [size_of(edit, op, opset, state.input, axis), edit.ints(steps), edit.ints(axis)]
    if not copies:
        edit.replace_operator(op, "Slice", [joined, *bounds])
    else:
        new = edit.add("Slice", [joined, *bounds], f"{base}/new", before=op)
        parts = [*[new] * copies, now]
        edit.set_input(op, 0, edit.add("Concat", parts, f"{base}/padded", before=op, axis=axis))
    return state


def size_of(edit: Edit, op: Op, opset: int, value: str, axis: int) -> str:
    """Add operators that compute a size of a value, as a bound of a Slice."""
    if opset < _COMPUTED_BOUNDS:
        raise refusal_error(
            op, f"a Slice has no computed bounds before opset {_COMPUTED_BOUNDS}; convert the model"
        )
    shape = edit.add("Shape", [value], f"{name_of(op)}/shape", before=op)
    edit.flow.set_dtype(shape, "int64")
    return edit.slice(shape, 0, axis, axis + 1, f"{name_of(op)}/size", before=op)


def new_state(
    edit: Edit, op: Op, what: str, dtype: str, shape: Sequence[int | str], open_axis: int | None = None
) -> State:
    """Add a state that begins with zeros, and may later have another number of steps."""
    base = name_of(op)
    input_name, output_name = (edit.fresh(f"{plain(base)}_{what}_{way}") for way in ("in", "out"))
    declared, later = (
        [f"{name}_frames" if index == open_axis else size for index, size in enumerate(shape)]
        for name in (input_name, output_name)
    )
    edit.add_input(input_name, dtype, declared)
    edit.add_output(output_name, dtype, later)
    return State(input_name, output_name, base, tuple(shape))
