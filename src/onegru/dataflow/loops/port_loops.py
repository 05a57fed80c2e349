"""Read OpenVINO's TensorIterator and Loop as `Loop`."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations

from onegru.dataflow.flow import Flow
from onegru.dataflow.loops.loop import (
    Carried,
    Collected,
    Loop,
    SlicedInput,
    always_starts,
    condition_count,
    conjuncts,
    find_indices,
    never_stops,
    simplify,
)
from onegru.dataflow.operator import LoopIndex, Op, Shape, Size

TENSOR_ITERATOR, LOOP = "openvino::TensorIterator", "openvino::Loop"


@dataclass(frozen=True, slots=True)
class SliceSpec:
    """Slices of a port for the iterations, or from them."""

    axis: int  # the sliced axis
    start: int  # the first index; negative: from the end
    end: int  # the end, in the same way
    stride: int  # distance between slices
    part_size: int  # the size of a slice

    def step(self, shape: Shape | None) -> int | None:
        """Return 1 or -1, if the iterations read slices of size 1 of all of a value; else None."""
        if self.part_size != 1:
            return None
        size = None if shape is None or not -len(shape) <= self.axis < len(shape) else shape[self.axis]
        last = size if isinstance(size, int) else -1
        if self.stride == 1 and self.start == 0 and self.end in (-1, last):
            return 1
        return -1 if (self.stride, self.start, self.end) == (-1, -1, 0) else None


@dataclass(slots=True)
class LoopPorts:
    """Connections between the ports of a loop and of its body, by their indices."""

    # (input, the body's input, its slices)
    sliced: list[tuple[int, int, SliceSpec]] = field(default_factory=list)
    # (input, the body's input, the body's output that becomes that input in the next iteration)
    merged: list[tuple[int, int, int]] = field(default_factory=list)
    invariant: list[tuple[int, int]] = field(default_factory=list)  # (input, the body's input)
    # (output, the body's output, its slices)
    collected: list[tuple[int, int, SliceSpec]] = field(default_factory=list)
    last: list[tuple[int, int]] = field(default_factory=list)  # (output, the body's output)
    iterations: list[int] = field(default_factory=list)  # the body's inputs with the iteration index
    condition: int | None = None  # the body's output that decides about another iteration


def read_ir_loop(flow: Flow, op: Op) -> Loop | None:
    """Return a loop whose number of iterations is known before it runs; None for others."""
    body, ports = op.bodies["body"], op.attributes["ports"]
    sliced: dict[str, SlicedInput] = {}
    for outer, inner, spec in ports.sliced:
        name, shape = op.inputs[outer], flow.shape(op.inputs[outer])
        step = spec.step(shape)
        if step is None or shape is None or not 0 <= spec.axis < len(shape):
            return None
        sliced[body.inputs[inner]] = SlicedInput(name, spec.axis, step, keeps_axis=True)
    last = {body.resolve(body.outputs[inner]): op.outputs[outer] for outer, inner in ports.last}
    carried, written = [], []
    for outer, before, inner in ports.merged:
        after = body.outputs[inner]
        if (update := _written(body, body.inputs[before], after)) is not None:
            written.append((op.inputs[outer], last.pop(body.resolve(after), ""), update))
            continue
        shapes = flow.shape(op.inputs[outer]), body.shape(body.inputs[before]), body.shape(after)
        if not all(_may_equal(a, b) for a, b in combinations(shapes, 2)):
            return None
        carried.append(
            Carried(op.inputs[outer], body.inputs[before], after, last.pop(body.resolve(after), ""))
        )
    if any(flow.is_used(name) for name in last.values()):
        return None
    collected = []
    for outer, inner, spec in ports.collected:
        name, shape = body.outputs[inner], body.shape(body.outputs[inner])
        step = spec.step(None)
        if shape is None or not 0 <= spec.axis < len(shape) or shape[spec.axis] != 1 or step is None:
            if flow.is_used(op.outputs[outer]):
                return None
            continue
        collected.append(Collected(name, op.outputs[outer], spec.axis, step, keeps_axis=True))
    loop = simplify(flow, Loop(op, body, carried, sliced, collected))
    iteration = body.inputs[ports.iterations[0]] if ports.iterations else ""
    loop.indices = find_indices(loop, iteration)
    loop.body.set_indices(loop.indices)
    counts: list[Size | None] = [*_slice_counts(flow, loop)]
    if op.kind == LOOP:
        trips = flow.as_sizes(op.inputs[0])
        if trips is None or len(trips) != 1 or ports.condition is None:
            return None
        is_endless = isinstance(trips[0], int) and trips[0] < 0  # only the condition ends it
        counts.append(condition_count(flow, loop, body.outputs[ports.condition]) if is_endless else trips[0])
    if len(set(counts)) != 1 or counts[0] is None:
        return None
    loop.count = counts[0]
    if not all(_add_written(loop, flow, *item) for item in written):
        return None
    if op.kind == TENSOR_ITERATOR:
        return loop
    if ports.condition is None or not always_starts(flow, op.inputs[1], loop.count):
        return None
    return loop if _continues(loop, body.outputs[ports.condition]) else None


def _written(body: Flow, before: str, after: str) -> Op | None:
    """Return the operator that writes a row into an array that iterations pass on, without other reads."""
    # OpenVINO's frontend for TensorFlow converts a TensorArray to it. The first array may have other sizes of
    # 1, and is expanded in each iteration.
    update = body.find_producer(body.resolve(after))
    if update is None or update.kind != "openvino::ScatterUpdate":
        return None
    base = body.resolve(update.inputs[0])
    expand = body.find_producer(base)
    if base != before and (
        expand is None or expand.kind != "Expand" or body.resolve(expand.inputs[0]) != before
    ):
        return None
    takers = [*body.consumers.get(before, ()), *body.consumers.get(base, ())]
    is_row = (body.shape(update.inputs[2]) or ())[update.attributes.get("axis", 0) :][:1] == (1,)
    is_read = any(op is not update and op is not expand and op.kind != "Shape" for op in takers)
    return None if is_read or not is_row else update


def _add_written(loop: Loop, flow: Flow, array: str, name: str, update: Op) -> bool:
    """Add the rows that a loop writes into an array, or its last one; False if others are read."""
    axis, shape = update.attributes.get("axis", 0), flow.shape(array)
    size = shape[axis] if shape is not None and axis < len(shape) else None
    row, index = loop.body.resolve(update.inputs[2]), loop.body.resolve(update.inputs[1])
    if size == loop.count and loop.indices.get(index) == LoopIndex(1, 0):
        loop.collected.append(Collected(row, name, axis, 1, keeps_axis=True))
    elif size == 1 and loop.body.as_sizes(index) == (0,):
        loop.carried.append(Carried(array, "", row, name))
    else:
        return not flow.is_used(name)
    return True


def takes_parts(flow: Flow, op: Op) -> bool:
    """Whether an iteration reads more than a slice of some input, or some slices are unused."""
    sliced = op.attributes["ports"].sliced if "ports" in op.attributes else ()
    return any(spec.step(flow.shape(op.inputs[outer])) is None for outer, _, spec in sliced)


def _may_equal(first: Shape | None, second: Shape | None) -> bool:
    """Whether two shapes may be equal."""
    if first is None or second is None:
        return True
    sizes = zip(first, second, strict=False)
    return len(first) == len(second) and all(
        a == b or isinstance(a, str) or isinstance(b, str) for a, b in sizes
    )


def _slice_counts(flow: Flow, loop: Loop) -> list[Size]:
    """Return the known numbers of slices of the sliced values."""
    shapes = ((flow.shape(item.name), item.axis) for item in loop.sliced.values())
    return [shape[axis] for shape, axis in shapes if shape is not None]


def _continues(loop: Loop, name: str) -> bool:
    """Whether the condition for another iteration holds until the last one."""
    # Unlike in ONNX, a body has no input for the condition.
    return all(
        item not in loop.body.inputs and never_stops(loop, item) for item in conjuncts(loop.body, name)
    )
