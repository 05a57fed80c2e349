"""Recognize values of the form size · factor + offset."""

from __future__ import annotations

from collections.abc import Callable

from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import TIMES, Size
from onegru.dataflow.table import Elements, operator_of


def as_linear(
    flow: Flow, name: str, sizes_of: Callable[[str], tuple[Size, ...] | None] | None = None
) -> tuple[Size, int] | None:
    """Return a size, or 0, and the number that is added to it for a value's only element; else None."""
    sizes_of, times, offset = sizes_of or flow.as_sizes, 1, 0
    for _ in range(20):
        name = flow.resolve(name)
        sizes = sizes_of(name)
        if sizes is not None:
            if len(sizes) != 1:
                return None
            if isinstance(sizes[0], int):
                return 0, sizes[0] * times + offset
            return sizes[0] if times == 1 else f"{sizes[0]}{TIMES}{times}", offset
        op = flow.find_producer(name)
        if op is None:
            return None
        if operator_of(op.kind).elements is Elements.KEPT:
            name = op.inputs[0]
            continue
        if op.kind not in ("Add", "Sub", "Mul"):
            return None
        known = [sizes_of(item) for item in op.inputs]
        fixed = [index for index, item in enumerate(known) if item is not None and len(item) == 1]
        numbers = [index for index in fixed if isinstance((known[index] or ("",))[0], int)]
        if len(numbers) != 1 or (op.kind == "Sub" and numbers[0] == 0):
            return None
        (number,) = known[numbers[0]] or (0,)
        if op.kind == "Mul":
            times *= int(number)
        else:
            offset += times * int(number) * (1 if op.kind == "Add" else -1)
        name = op.inputs[1 - numbers[0]]
    return None
