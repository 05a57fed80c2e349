"""Read loops of every format as `Loop`."""

from __future__ import annotations

from onegru.dataflow.flow import Flow
from onegru.dataflow.loops.loop import (
    NO_LIMIT,
    Carried,
    Collected,
    Loop,
    SlicedInput,
    always_starts,
    condition_count,
    find_indices,
    never_stops,
    simplify,
)
from onegru.dataflow.loops.port_loops import read_ir_loop
from onegru.dataflow.operator import Op, Shape, Size


def read_loop(flow: Flow, op: Op) -> Loop | None:
    """Return a loop whose number of iterations is known before it runs; None for others."""
    if "ports" in op.attributes and "body" in op.bodies:
        return read_ir_loop(flow, op)
    if op.kind == "Loop" and "body" in op.bodies:
        return _read_loop(flow, op)
    if op.kind == "Scan" and "body" in op.bodies and "num_scan_inputs" in op.attributes:
        return _read_scan(flow, op)
    return None


def _read_loop(flow: Flow, op: Op) -> Loop | None:
    body = op.bodies["body"]
    initial = list(op.inputs[2:])
    states = len(initial)
    if len(body.inputs) != states + 2 or len(body.outputs) < states + 1:
        return None
    outputs = [*op.outputs, *[""] * (len(body.outputs) - 1 - len(op.outputs))]
    ends = zip(initial, body.inputs[2:], body.outputs[1 : states + 1], outputs[:states], strict=True)
    carried = [Carried(*item) for item in ends]
    collected = [
        Collected(inner, name, 0, 1, keeps_axis=False)
        for inner, name in zip(body.outputs[states + 1 :], outputs[states:], strict=True)
    ]
    loop = simplify(flow, Loop(op, body, carried, {}, collected))
    loop.indices = find_indices(loop, body.inputs[0])
    body.set_indices(loop.indices)
    sizes = flow.as_sizes(op.inputs[0]) if op.inputs and op.inputs[0] else None
    if sizes is not None and len(sizes) == 1 and not (isinstance(sizes[0], int) and sizes[0] >= NO_LIMIT):
        loop.count = sizes[0]
    elif not op.inputs or not op.inputs[0] or sizes is not None:
        loop.count = condition_count(flow, loop, body.outputs[0])
    if loop.count is None:
        return None
    first = len(op.inputs) < 2 or not op.inputs[1] or always_starts(flow, op.inputs[1], loop.count)
    if not first or not never_stops(loop, body.outputs[0]):
        return None
    _shape_outputs(flow, loop)
    return loop


def _read_scan(flow: Flow, op: Op) -> Loop | None:
    body, count = op.bodies["body"], int(op.attributes["num_scan_inputs"])
    states = len(op.inputs) - count
    if states < 0 or len(body.inputs) != len(op.inputs) or len(body.outputs) < states:
        return None
    outputs = [*op.outputs, *[""] * (len(body.outputs) - len(op.outputs))]
    ends = zip(op.inputs[:states], body.inputs[:states], body.outputs[:states], outputs[:states], strict=True)
    carried = [Carried(*item) for item in ends]

    def details(name: str, number: int) -> list[int]:
        return [int(item) for item in op.attributes.get(name, ())] or [0] * number

    axes, directions = details("scan_input_axes", count), details("scan_input_directions", count)
    sliced: dict[str, SlicedInput] = {}
    size: Size | None = None
    scanned = zip(op.inputs[states:], body.inputs[states:], axes, directions, strict=True)
    for name, inner, axis, backwards in scanned:
        shape = flow.shape(name)
        if shape is None:
            return None
        sliced[inner] = SlicedInput(name, axis % len(shape), -1 if backwards else 1, keeps_axis=False)
        size = shape[axis] if size is None or isinstance(shape[axis], int) else size
    number = len(body.outputs) - states
    axes, directions = details("scan_output_axes", number), details("scan_output_directions", number)
    collected = []
    scanned = zip(body.outputs[states:], outputs[states:], axes, directions, strict=True)
    for inner, name, axis, backwards in scanned:
        shape = body.shape(inner)
        if axis < 0 and shape is None:
            return None
        outer_axis = axis % (len(shape) + 1) if shape is not None else axis
        collected.append(Collected(inner, name, outer_axis, -1 if backwards else 1, keeps_axis=False))
    loop = simplify(flow, Loop(op, body, carried, sliced, collected, count=size))
    loop.indices = find_indices(loop, "")
    body.set_indices(loop.indices)
    if not sliced:
        return None
    _shape_outputs(flow, loop)
    return loop


def _shape_outputs(flow: Flow, loop: Loop) -> None:
    """Set the shapes of a loop's outputs, whose number of steps ONNX's own inference leaves unknown."""
    found: dict[str, Shape] = {}
    for item in loop.carried:
        shape = flow.shape(item.initial)
        if item.last and shape is not None and loop.body.shape(item.after) == shape:
            found[item.last] = shape
    for entry in loop.collected:
        shape = loop.body.shape(entry.inner)
        if entry.name and shape is not None and loop.count is not None and not entry.keeps_axis:
            found[entry.name] = (*shape[: entry.axis], loop.count, *shape[entry.axis :])
    for name, shape in found.items():
        if flow.shape(name) != shape:
            flow.set_shape(name, shape)
