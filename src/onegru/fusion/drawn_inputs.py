"""Generate random inputs for operators, with sizes that fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from onegru.core.dtypes import Array
from onegru.core.errors import BROKEN
from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import LoopIndex, Op, Shape, Size
from onegru.dataflow.table import Call, UnknownOpError
from onegru.dataflow.table.cutting import Slice
from onegru.fusion.float64 import Float64Values

LEAST_STEPS = 4  # the smallest size for dynamic dimensions
_MOST_ELEMENTS = 2**24


class DrawnSizes(dict[str, int]):
    """A number for each named size: at least `least`, and the same for all sizes if `equal`."""

    def __init__(self, equal: bool = False, least: Mapping[Size, int] | None = None) -> None:
        super().__init__()
        self.equal = equal
        self.least = least or {}

    def of(self, size: Size) -> int:
        """Return the number for a size."""
        if isinstance(size, int):
            return size
        least = max(self.least.values(), default=0) if self.equal else self.least.get(size, 0)
        return self.setdefault(size, max(least, LEAST_STEPS + (0 if self.equal else len(self) % 3)))

    def shape(self, shape: Shape) -> tuple[int, ...]:
        """Return the numbers for a shape."""
        return tuple(map(self.of, shape))


#: Computes a loop, and adds its outputs to the values.
RunLoop = Callable[[Op, Float64Values, DrawnSizes], None]


def least_sizes(flow: Flow, ops: Iterable[Op]) -> dict[Size, int]:
    """Return the smallest sizes of dynamic axes that operators index at fixed positions."""
    least: dict[Size, int] = {}
    for op in ops:
        shape, call = flow.shape(op.inputs[0]) if op.inputs else None, Call(op, flow)
        needed: dict[int, int] = {}  # the smallest size of each indexed axis
        try:
            if isinstance(call.operator, Slice):
                selections = (call.operator.selections(call) or {}).items()
                needed = {axis: max(item.first + item.size, -item.first) for axis, item in selections}
            elif op.kind == "Gather" and (index := call.constant(1)) is not None and index.size:
                needed = {call.axis(0): max(int(index.max()) + 1, -int(index.min()))}
        except (UnknownOpError, *BROKEN):
            continue
        for axis, size in needed.items():
            if shape is not None and isinstance(shape[axis], str):
                least[shape[axis]] = max(size, least.get(shape[axis], 0))
    return least


def random_value(flow: Flow, name: str, sizes: DrawnSizes, rng: np.random.Generator, factor: float) -> Array:
    """Return random values of a value's type and shape, scaled by `factor`."""
    shape = flow.shape(name)
    if shape is None:
        raise UnknownOpError(f"the shape of {name!r} is unknown")
    numbers = sizes.shape(shape)
    if np.prod(numbers, dtype=float) > _MOST_ELEMENTS:
        raise UnknownOpError(f"{name!r} is too large")
    dtype = flow.dtype(name)
    if dtype == "bool":
        return rng.random(numbers) < 0.6
    if dtype in ("int32", "int64"):
        return rng.integers(0, LEAST_STEPS + 2, numbers).astype(dtype)
    values = rng.standard_normal(numbers) * factor
    return np.asarray(values * rng.choice([1.0, 1.0, 0.1, 3.0, -1.0], numbers))


def loop_index(flow: Flow, name: str, sizes: DrawnSizes, index: LoopIndex, iteration: int) -> Array:
    """Return the loop index of one of the first iterations."""
    number = index.base + index.sign * iteration + (sizes.of(index.size) if index.size != 0 else 0)
    return np.full(sizes.shape(flow.shape(name) or ()), number, np.int64)
