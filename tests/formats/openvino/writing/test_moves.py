"""Moves of axes, composed and written in few operators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onegru.core.dtypes import Array
from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import Op
from onegru.dataflow.table.moving import AxisOrder, axis_order_of
from onegru.formats.openvino.writing.moves import compose, is_still, ops_of_move

MOVES: dict[str, Callable[[Array, tuple[int, ...]], Array]] = {
    "Transpose": lambda array, axes: array.transpose(axes),
    "Squeeze": lambda array, axes: array.squeeze(axes),
    "Unsqueeze": lambda array, axes: np.expand_dims(array, axes),
}


def draw(rng: np.random.Generator, array: Array) -> tuple[str, tuple[int, ...]]:
    """A random move of an array's axes."""
    ones = [axis for axis, size in enumerate(array.shape) if size == 1]
    kind = str(rng.choice(["Transpose", "Squeeze", "Unsqueeze"]))
    if kind == "Squeeze" and ones:
        return kind, (int(rng.choice(ones)),)
    if kind == "Unsqueeze" and array.ndim < 5:
        return kind, (int(rng.integers(array.ndim + 1)),)
    return "Transpose", tuple(map(int, rng.permutation(array.ndim)))


def test_moves_compose_to_few_steps() -> None:
    rng = np.random.default_rng(0)
    most = 0
    for _ in range(500):
        shape = tuple(int(size) for size in rng.choice([1, 1, 2, 3, 4], rng.integers(1, 5)))
        start = rng.standard_normal(shape)
        array, axes = start, None
        for _ in range(rng.integers(1, 5)):
            kind, numbers = draw(rng, array)
            flow = Flow([], ["x"], [], {}, {"x": array.shape})
            name = "perm" if kind == "Transpose" else "axes"
            more = axis_order_of(flow, Op(kind, ("x",), ("y",), {name: numbers}))
            assert more is not None
            axes = more if axes is None else compose(axes, more)
            array = MOVES[kind](array, numbers)
        assert axes is not None
        found = _applied(start, axes, shape)
        np.testing.assert_array_equal(found, array)
        assert is_still(axes, shape) <= (found.shape == start.shape)
        most = max(most, len(ops_of_move(axes, shape)))
    assert most <= 2


def _applied(array: Array, axes: AxisOrder, shape: tuple[int, ...]) -> Array:
    if is_still(axes, shape):
        return array
    for op in ops_of_move(axes, shape):
        (numbers,) = op.attributes.values()
        array = MOVES[op.kind](array, numbers)
    return array
