"""Sizes with a number added."""

from __future__ import annotations

from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import Size
from onegru.dataflow.table import Elements, operator_of


def as_linear(flow: Flow, name: str) -> tuple[Size, int] | None:
    """A size, or 0, and what is added to it to give the one element of a value; None for others."""
    offset = 0
    for _ in range(20):
        name = flow.resolve(name)
        sizes = flow.sizes(name)
        if sizes is not None:
            if len(sizes) != 1:
                return None
            return (0, sizes[0] + offset) if isinstance(sizes[0], int) else (sizes[0], offset)
        op = flow.producer(name)
        if op is None:
            return None
        if operator_of(op.kind).elements is Elements.KEPT:
            name = op.inputs[0]
            continue
        if op.kind not in ("Add", "Sub"):
            return None
        known = [flow.sizes(item) for item in op.inputs]
        fixed = [place for place, item in enumerate(known) if item is not None and len(item) == 1]
        numbers = [place for place in fixed if isinstance((known[place] or ("",))[0], int)]
        if len(numbers) != 1 or (op.kind == "Sub" and numbers[0] == 0):
            return None
        (number,) = known[numbers[0]] or (0,)
        offset += int(number) if op.kind == "Add" else -int(number)
        name = op.inputs[1 - numbers[0]]
    return None
