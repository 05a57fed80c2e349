"""Represent loops as recurrences over time: ONNX's Loop and Scan, OpenVINO's TensorIterator and Loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from onegru.dataflow.flow import Flow
from onegru.dataflow.linear import as_linear
from onegru.dataflow.operator import LoopIndex, Op, Size
from onegru.dataflow.table import Elements, operator_of

NO_LIMIT = 2**31 - 1  # exporters write this number of iterations if a condition ends a loop


@dataclass(frozen=True, slots=True)
class Carried:
    """Value that an iteration passes to the next."""

    initial: str  # the value before the first iteration, outside the loop
    before: str  # the body's name at the start of an iteration; "" if unused
    after: str  # the body's name at the end
    last: str  # the value after the last iteration, outside the loop; "" if unused


@dataclass(frozen=True, slots=True)
class SlicedInput:
    """Value outside the loop, with a slice for each iteration."""

    name: str  # the value
    axis: int  # the time axis
    step: int  # 1, or -1 if the first iteration reads the last slice
    keeps_axis: bool  # whether the slice keeps the time axis, with size 1


@dataclass(frozen=True, slots=True)
class Collected:
    """Values of all iterations, concatenated outside the loop."""

    inner: str  # the name in the body
    name: str  # the name outside the loop; "" if unused
    axis: int  # the time axis
    step: int  # 1, or -1 if the first iteration writes the last slice
    keeps_axis: bool  # whether the slice keeps the time axis, with size 1


@dataclass(eq=False, slots=True)
class Loop:
    """Loop of any format."""

    op: Op  # the operator
    body: Flow  # its body
    carried: list[Carried]  # the values that iterations pass on, except unchanged ones
    sliced: dict[str, SlicedInput]  # the sliced values, by the body's input
    collected: list[Collected]  # the collected values
    # final values of unchanged ones: the value outside the loop, by the output's name
    unchanged: dict[str, str] = field(default_factory=dict)
    count: Size | None = None  # the number of iterations; None if unknown before the run
    # values of the body that are iteration indices
    indices: dict[str, LoopIndex] = field(default_factory=dict)


def simplify(flow: Flow, loop: Loop) -> Loop:
    """Return the loop with references to outer values instead of values that it carries unchanged."""
    body = loop.body
    for item in list(loop.carried):
        if body.resolve(item.after) == item.before and item.initial:
            loop.carried.remove(item)
            body.set_alias(item.before, item.initial)
            if item.last:
                loop.unchanged[item.last] = item.initial
    for item in loop.carried:
        shape = flow.shape(item.initial)
        stated = body.shape(item.before)
        if shape is not None and (stated is None or len(stated) == len(shape)):
            sizes = zip(shape, shape if stated is None else stated, strict=True)
            body.set_shape(item.before, tuple(b if isinstance(b, int) else a for a, b in sizes))
    for inner, source in loop.sliced.items():
        outer = flow.shape(source.name)
        if outer is not None:
            one = (1,) if source.keeps_axis else ()
            body.set_shape(inner, (*outer[: source.axis], *one, *outer[source.axis + 1 :]))
            if (dtype := flow.dtype(source.name)) is not None:
                body.set_dtype(inner, dtype)
    return loop


def find_indices(loop: Loop, iteration: str) -> dict[str, LoopIndex]:
    """Return the body's values that are iteration indices."""
    body = loop.body
    found: dict[str, LoopIndex] = {iteration: LoopIndex(1, 0)} if iteration else {}
    for item in loop.carried:
        op = body.find_producer(body.resolve(item.after))
        if body.outer is None or op is None or op.kind not in ("Add", "Sub"):
            continue
        names = [body.resolve(name) for name in op.inputs]
        if item.before not in (names if op.kind == "Add" else names[:1]):
            continue
        step = body.as_sizes(names[1] if names[0] == item.before else names[0])
        start = as_linear(body.outer, item.initial)
        if start is not None and step in ((1,), (-1,)):
            sign = 1 if (step == (1,)) == (op.kind == "Add") else -1
            found[item.before] = LoopIndex(sign, start[1], start[0])
    for op in body.ops:
        index = _index_of(body, op, found)
        if index is not None:
            found[op.outputs[0]] = index
    return found


def _index_of(body: Flow, op: Op, found: Mapping[str, LoopIndex]) -> LoopIndex | None:
    inputs = [body.resolve(name) for name in op.inputs if name]
    if operator_of(op.kind).elements is Elements.KEPT:
        return found.get(inputs[0]) if inputs else None
    if op.kind not in ("Add", "Sub") or len(inputs) != 2:
        return None
    positions = [position for position, name in enumerate(inputs) if name in found]
    if len(positions) != 1:
        return None
    index, other = found[inputs[positions[0]]], as_linear(body, inputs[1 - positions[0]])
    if other is None:
        return None
    size, shift = other
    if positions[0] == 1 and op.kind == "Sub":  # size - index
        return LoopIndex(-index.sign, shift - index.base, size) if index.size == 0 else None
    if size != 0:
        is_sum = op.kind == "Add" and index.size == 0
        return LoopIndex(index.sign, index.base + shift, size) if is_sum else None
    return LoopIndex(index.sign, index.base + (shift if op.kind == "Add" else -shift), index.size)


def conjuncts(flow: Flow, name: str) -> Iterator[str]:
    """Yield the conditions that must all hold for this one: itself, or the inputs of And nodes."""
    waiting, seen = [name], set()
    while waiting:
        name = flow.resolve(waiting.pop())
        if name in seen:
            continue
        seen.add(name)
        op = flow.find_producer(name)
        if op is not None and op.kind == "And" and flow.constant(name) is None:
            waiting += reversed(op.inputs)
        else:
            yield name


def always_starts(flow: Flow, name: str, count: Size) -> bool:
    """Whether the first condition holds for a loop with `count` iterations, unless `count` is 0."""
    return all(_starts(flow, item, count) for item in conjuncts(flow, name))


def _starts(flow: Flow, name: str, count: Size) -> bool:
    array = flow.constant(name)
    if array is not None:
        return bool(np.all(array))
    op = flow.find_producer(name)
    if op is None or op.kind not in ("Less", "Greater"):
        return False
    low, high = op.inputs if op.kind == "Less" else op.inputs[::-1]
    return flow.as_sizes(low) == (0,) and flow.as_sizes(high) == (count,)


def condition_count(flow: Flow, loop: Loop, name: str) -> Size | None:
    """Return the number of iterations of a loop that only a comparison of its index with a size ends."""
    found = (_limit(flow, loop, item) for item in conjuncts(loop.body, name))
    return next((size for size in found if size is not None), None)


def _limit(flow: Flow, loop: Loop, name: str) -> Size | None:
    body = loop.body
    op = body.find_producer(name)
    if op is None or op.kind not in ("Less", "Greater"):
        return None
    low, high = map(body.resolve, op.inputs if op.kind == "Less" else op.inputs[::-1])
    bound = body.as_sizes(high)
    if loop.indices.get(low) != LoopIndex(1, 1) or bound is None or len(bound) != 1:
        return None
    # The first iteration precedes that condition.
    first = loop.op.input(1)
    is_checked = bool(first) and flow.constant(first) is None
    return bound[0] if is_checked or (isinstance(bound[0], int) and bound[0] > 0) else None


def never_stops(loop: Loop, name: str) -> bool:
    """Whether the condition for another iteration holds until the last one."""
    return all(_goes_on(loop, item) for item in conjuncts(loop.body, name))


def _goes_on(loop: Loop, name: str) -> bool:
    body = loop.body
    if name == body.inputs[1]:
        return True
    array = body.constant(name)
    if array is not None:
        return bool(np.all(array))
    op = body.find_producer(name)
    if op is None or op.kind not in ("Less", "Greater", "LessOrEqual", "GreaterOrEqual"):
        return False
    low, high = map(body.resolve, op.inputs if op.kind.startswith("Less") else op.inputs[::-1])
    index, bound = loop.indices.get(low), body.as_sizes(high)
    if index is None or index.sign < 0 or index.size != 0 or bound is None or len(bound) != 1:
        return False
    # The last condition that matters is the last but one, where the index is count + base - 2.
    shift = index.base - 2 + (0 if op.kind in ("Less", "Greater") else -1)
    if isinstance(bound[0], int) and isinstance(loop.count, int):
        return loop.count + shift < bound[0]
    return bound[0] == loop.count and shift < 0
