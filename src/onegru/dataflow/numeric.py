"""The operators that cells are written in, computed by NumPy in the element type of their inputs.

Each function takes an operator's attributes, its inputs (None for one left out) and the number of its
outputs. Constants are folded by them, and matches are checked with them in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from onegru.core.dtypes import Array

Attributes = Mapping[str, Any]
Inputs = list[Array | None]
Numeric = Callable[[Attributes, Inputs, int], Sequence[Array]]

_MOST_ELEMENTS = 2**25


class LargeResultError(Exception):
    """A result would be too large to be computed ahead."""


def _unary(function: Callable[[Array], Any]) -> Numeric:
    return lambda attributes, inputs, count: [_as(function(_array(inputs, 0)), _array(inputs, 0))]


def _binary(function: Callable[[Array, Array], Any]) -> Numeric:
    def run(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
        first, second = _array(inputs, 0), _array(inputs, 1)
        _bound(np.broadcast_shapes(first.shape, second.shape))
        return [np.asarray(function(first, second))]

    return run


def _many(function: Callable[[Array, Array], Any]) -> Numeric:
    def run(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
        result = _array(inputs, 0)
        for place in range(1, len(inputs)):
            _bound(np.broadcast_shapes(result.shape, _array(inputs, place).shape))
            result = np.asarray(function(result, _array(inputs, place)))
        return [result]

    return run


def _array(inputs: Inputs, place: int) -> Array:
    array = inputs[place]
    if array is None:
        raise ValueError(place)
    return array


def _as(result: Any, like: Array) -> Array:
    return np.asarray(result).astype(like.dtype, copy=False)


def _bound(shape: Sequence[int]) -> None:
    if math.prod(shape) > _MOST_ELEMENTS:
        raise LargeResultError


def _ints(attributes: Attributes, inputs: Inputs, name: str, place: int) -> list[int] | None:
    if name in attributes:
        value = attributes[name]
        return list(value) if isinstance(value, Sequence) else [value]
    if len(inputs) <= place or inputs[place] is None:
        return None
    return [int(item) for item in _array(inputs, place).ravel()]


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x), without overflow."""
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1 / (1 + e), e / (1 + e)))


def _divide(first: Array, second: Array) -> Array:
    if first.dtype.kind in "iu":
        return np.asarray(np.trunc(first / second)).astype(first.dtype)
    return np.asarray(first / second)


def _clip(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
    x = _array(inputs, 0)
    low = attributes.get("min", inputs[1] if len(inputs) > 1 else None)
    high = attributes.get("max", inputs[2] if len(inputs) > 2 else None)
    if low is not None:
        x = np.maximum(x, np.asarray(low, x.dtype))
    if high is not None:
        x = np.minimum(x, np.asarray(high, x.dtype))
    return [x]


def _hard_sigmoid(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
    x = _array(inputs, 0)
    return [_as(np.clip(attributes.get("alpha", 0.2) * x + attributes.get("beta", 0.5), 0, 1), x)]


def _leaky(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
    x = _array(inputs, 0)
    return [_as(np.where(x < 0, attributes.get("alpha", 0.01) * x, x), x)]


def _elu(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
    x = _array(inputs, 0)
    return [_as(np.where(x < 0, attributes.get("alpha", 1.0) * np.expm1(np.minimum(x, 0)), x), x)]


def _thresholded(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
    x = _array(inputs, 0)
    return [np.where(x > attributes.get("alpha", 1.0), x, np.zeros_like(x))]


def _cast(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
    x, dtype = _array(inputs, 0), attributes.get("dtype")
    if dtype is None or dtype not in _CAST_TYPES:
        raise ValueError(dtype)
    return [x.astype(dtype)]


_CAST_TYPES = ("float16", "float32", "float64", "int32", "int64", "bool")


def _transpose(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
    return [np.transpose(_array(inputs, 0), attributes.get("perm"))]


def _reshape(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
    x = _array(inputs, 0)
    wanted = [int(size) for size in _array(inputs, 1)]
    if not attributes.get("allowzero"):
        wanted = [x.shape[axis] if size == 0 else size for axis, size in enumerate(wanted)]
    return [x.reshape(wanted)]


def _flatten(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
    x, axis = _array(inputs, 0), attributes.get("axis", 1)
    return [x.reshape(math.prod(x.shape[:axis]), -1)]


def _squeeze(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
    axes = _ints(attributes, inputs, "axes", 1)
    return [np.squeeze(_array(inputs, 0), None if axes is None else tuple(axes))]


def _unsqueeze(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
    axes = _ints(attributes, inputs, "axes", 1)
    return [np.expand_dims(_array(inputs, 0), tuple(axes or ()))]


def _slice(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
    x = _array(inputs, 0)
    starts, ends = _ints(attributes, inputs, "starts", 1), _ints(attributes, inputs, "ends", 2)
    if starts is None or ends is None:
        raise ValueError("starts")
    axes = _ints(attributes, inputs, "axes", 3) or list(range(len(starts)))
    steps = _ints(attributes, inputs, "steps", 4) or [1] * len(starts)
    cut: list[slice] = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = x.shape[axis]
        stop: int | None = end
        if step < 0 and end < -size:
            stop = None
        cut[axis] = slice(start, stop, step)
    return [x[tuple(cut)]]


def _gather(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
    x, indices = _array(inputs, 0), _array(inputs, 1)
    axis = attributes.get("axis", 0)
    _bound((x.size // max(x.shape[axis], 1), indices.size))
    return [np.asarray(np.take(x, indices, axis))]


def _split(attributes: Attributes, inputs: Inputs, count: int) -> Sequence[Array]:
    x, axis = _array(inputs, 0), attributes.get("axis", 0)
    sizes = _ints(attributes, inputs, "split", 1)
    if sizes is None:
        part = -(-x.shape[axis] // count)
        sizes = [part] * (count - 1) + [x.shape[axis] - part * (count - 1)]
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def _concat(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
    _bound([sum(_array(inputs, place).size for place in range(len(inputs)))])
    return [np.concatenate([_array(inputs, place) for place in range(len(inputs))], attributes["axis"])]


def _expand(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
    x = _array(inputs, 0)
    shape = np.broadcast_shapes(x.shape, tuple(int(size) for size in _array(inputs, 1)))
    _bound(shape)
    return [np.broadcast_to(x, shape)]


def _tile(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
    x, repeats = _array(inputs, 0), _array(inputs, 1)
    _bound([size * int(number) for size, number in zip(x.shape, repeats, strict=True)])
    return [np.tile(x, repeats)]


def _constant_of_shape(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
    shape = tuple(int(size) for size in _array(inputs, 0))
    _bound(shape)
    value = np.asarray(attributes.get("value", np.zeros(1, np.float32)))
    return [np.full(shape, value.ravel()[0], value.dtype)]


def _matmul(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
    a, b = _array(inputs, 0), _array(inputs, 1)
    if a.ndim and b.ndim:
        _bound([a.size // max(a.shape[-1], 1), b.shape[-1] if b.ndim > 1 else 1])
    return [np.asarray(np.matmul(a, b))]


def _gemm(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
    a, b = _array(inputs, 0), _array(inputs, 1)
    a, b = (a.T if attributes.get("transA") else a), (b.T if attributes.get("transB") else b)
    _bound([a.shape[0], b.shape[1]])
    y = attributes.get("alpha", 1.0) * (a @ b)
    if len(inputs) > 2 and inputs[2] is not None:
        y = y + attributes.get("beta", 1.0) * _array(inputs, 2)
    return [_as(y, a)]


def _einsum(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
    arrays = [_array(inputs, place) for place in range(len(inputs))]
    _bound([array.size for array in arrays])
    return [np.asarray(np.einsum(str(attributes["equation"]), *arrays))]


def _where(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
    return [np.where(_array(inputs, 0), _array(inputs, 1), _array(inputs, 2))]


def _range(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
    start, limit, delta = (float(_array(inputs, place).ravel()[0]) for place in range(3))
    _bound([max(0, math.ceil((limit - start) / delta))])
    return [np.arange(start, limit, delta).astype(_array(inputs, 0).dtype)]


def _reverse_sequence(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
    x, lengths = _array(inputs, 0), _array(inputs, 1)
    time, batch = attributes.get("time_axis", 0), attributes.get("batch_axis", 1)
    moved = np.moveaxis(x, (batch, time), (0, 1)).copy()
    for row, length in enumerate(lengths):
        moved[row, :length] = moved[row, :length][::-1]
    return [np.moveaxis(moved, (0, 1), (batch, time))]


def _reduce(function: Callable[..., Any]) -> Numeric:
    def run(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
        axes = _ints(attributes, inputs, "axes", 1)
        if not axes:
            raise ValueError("axes")  # all of them, or none
        x = _array(inputs, 0)
        return [_as(function(x, axis=tuple(axes), keepdims=bool(attributes.get("keepdims", 1))), x)]

    return run


def _prelu(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
    x, slope = _array(inputs, 0), _array(inputs, 1)
    return [np.where(x < 0, slope * x, x)]


def _dropout(attributes: Attributes, inputs: Inputs, count: int) -> list[Array]:
    if len(inputs) > 2 or count > 1:
        raise ValueError("training")
    return [_array(inputs, 0)]


NUMERIC: dict[str, Numeric] = {
    "Dropout": _dropout,
    "Identity": _unary(lambda x: x),
    "Neg": _unary(np.negative),
    "Reciprocal": _unary(lambda x: 1 / x),
    "Exp": _unary(np.exp),
    "Log": _unary(np.log),
    "Abs": _unary(np.abs),
    "Sqrt": _unary(np.sqrt),
    "Not": _unary(np.logical_not),
    "Sigmoid": _unary(sigmoid),
    "Tanh": _unary(np.tanh),
    "Relu": _unary(lambda x: np.maximum(x, 0)),
    "Softsign": _unary(lambda x: x / (1 + np.abs(x))),
    "Softplus": _unary(lambda x: np.logaddexp(x, 0)),
    "Add": _binary(np.add),
    "Sub": _binary(np.subtract),
    "Mul": _binary(np.multiply),
    "Div": _binary(_divide),
    "Pow": _binary(np.power),
    "Less": _binary(np.less),
    "LessOrEqual": _binary(np.less_equal),
    "Greater": _binary(np.greater),
    "GreaterOrEqual": _binary(np.greater_equal),
    "Equal": _binary(np.equal),
    "And": _binary(np.logical_and),
    "Or": _binary(np.logical_or),
    "Max": _many(np.maximum),
    "Min": _many(np.minimum),
    "Sum": _many(np.add),
    "ReduceMean": _reduce(np.mean),
    "ReduceSum": _reduce(np.sum),
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
    "Clip": _clip,
    "HardSigmoid": _hard_sigmoid,
    "LeakyRelu": _leaky,
    "PRelu": _prelu,
    "Elu": _elu,
    "ThresholdedRelu": _thresholded,
    "Cast": _cast,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Slice": _slice,
    "Gather": _gather,
    "Split": _split,
    "Concat": _concat,
    "Expand": _expand,
    "Tile": _tile,
    "ConstantOfShape": _constant_of_shape,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "Where": _where,
    "Range": _range,
    "ReverseSequence": _reverse_sequence,
}
