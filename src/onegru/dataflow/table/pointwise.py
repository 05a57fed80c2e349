"""Describe elementwise operators, with a row for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from onegru.core.activations import ACTIVATIONS, AS_OPERATORS
from onegru.core.dtypes import Array
from onegru.core.elementary import NumpyElementary
from onegru.dataflow.operator import TIMES, Shape, Size
from onegru.dataflow.table.base import (
    ArrayCall,
    Call,
    Move,
    Operator,
    SameShape,
    Sizes,
    UnknownOpError,
    Vectorization,
    check_size,
    register,
)

_Compute = Callable[[ArrayCall], Array]  # computes the value of an operator
_MAX_NAME = 200  # characters in the name of a product of sizes


def broadcast(shapes: Iterable[Shape]) -> Shape:
    """Return the output shape of an elementwise operator."""
    shapes = list(shapes)
    rank = max(map(len, shapes))
    result: list[Size] = []
    for axis in range(-rank, 0):
        sizes = [shape[axis] for shape in shapes if len(shape) >= -axis]
        others = [size for size in sizes if size != 1]
        fixed = [size for size in others if isinstance(size, int)]
        result.append(fixed[0] if fixed else others[0] if others else 1)
    return tuple(result)


class Pointwise(Operator):
    """Elementwise operator with broadcasting."""

    pointwise: ClassVar[bool] = True
    dtype: str | int | None = 0
    of_integers: Callable[[int, int], int] | None = None  # its value for two integers, if sizes are followed
    neutral: int | None = None  # the size that leaves another size unchanged
    scalars: bool = False  # whether its inputs after the first are scalars, which do not broadcast

    def __init__(
        self, kind: str, compute: _Compute | None = None, attributes: str = "", **facts: Any
    ) -> None:
        super().__init__(kind, attributes, **facts)
        self.compute = compute  # its value; None if onegru does not compute it
        self.computes = compute is not None
        self.follows_sizes = self.of_integers is not None or facts.get("follows_sizes", False)

    def shape(self, call: Call, output: int) -> Shape | None:
        return call.shape() if self.scalars else broadcast([call.shape(k) for k in range(len(call.shapes))])

    def as_sizes(self, call: Call, parts: list[Sizes]) -> Sizes | None:
        if len(parts) == 1:  # Floor and Ceil keep whole numbers
            return parts[0]
        first, second = same_length(parts)
        found = [self._of_sizes(a, b) for a, b in zip(first, second, strict=True)]
        known = [size for size in found if size is not None]
        return tuple(known) if len(known) == len(found) else None

    def _of_sizes(self, a: Size, b: Size) -> Size | None:
        if isinstance(a, int) and isinstance(b, int) and self.of_integers is not None:
            return self.of_integers(a, b)
        if b == self.neutral:
            return a
        if a == self.neutral and self.kind in ("Add", "Mul"):
            return b
        return name if self.kind == "Mul" and len(name := f"{a}{TIMES}{b}") <= _MAX_NAME else None

    def value(self, call: ArrayCall) -> Sequence[Array]:
        if self.compute is None:
            raise UnknownOpError
        return [np.asarray(self.compute(call))]

    def moves(self, call: Call) -> Iterator[Move]:
        """Yield the moves of axes, which are aligned at the end."""
        shapes = call.shapes[:1] if self.scalars else call.shapes
        given = (k for k in range(1, len(call.shapes)) if call.is_given(k))
        if self.scalars and any(size != 1 for k in given for size in call.shape(k)):
            raise UnknownOpError
        if any(shape is None and call.is_given(index) for index, shape in enumerate(shapes)):
            raise UnknownOpError
        known = [shape or () for shape in shapes]
        rank = max(map(len, known), default=0)
        wide = {rank - len(shape) + axis for shape in known for axis, size in enumerate(shape) if size != 1}
        for index, shape in enumerate(known):
            for axis, size in enumerate(shape):
                to = rank - len(shape) + axis
                if size != 1 or to not in wide:
                    yield from (Move(index, axis, to, output) for output in range(len(call.op.outputs)))

    def vectorization(self, call: Call, varies: Sequence[bool]) -> Vectorization:
        if any(varies[1:]) and self.scalars:
            raise UnknownOpError(f"{self.kind} has parameters that are not constant")
        return Vectorization(widen=not self.scalars)


def same_length(parts: list[Sizes]) -> list[Sizes]:
    """Repeat single elements to the length of the longest list."""
    length = max(map(len, parts))
    return [part * (length // len(part)) for part in parts]


class Equal(Pointwise):
    """Comparison of sizes: 1 if equal, 0 if they cannot be equal, because sizes are not negative."""

    def _of_sizes(self, a: Size, b: Size) -> Size | None:
        numbers = [item for item in (a, b) if isinstance(item, int)]
        if (len(numbers) == 1 and numbers[0] >= 0) or (not numbers and a != b):
            return None  # sizes with different names may be equal
        return int(a == b)


class Div(Pointwise):
    def as_sizes(self, call: Call, parts: list[Sizes]) -> Sizes | None:
        is_whole = (call.facts.dtype(call.op.inputs[0]) or "").startswith(("int", "uint"))
        pairs = zip(*same_length(parts), strict=True)
        if not is_whole and any(isinstance(a, int) and isinstance(b, int) and a % b for a, b in pairs):
            return None  # a fraction is not a size
        return super().as_sizes(call, parts)


class Where(Pointwise):
    def as_sizes(self, call: Call, parts: list[Sizes]) -> Sizes | None:
        chosen, *ways = same_length(parts)
        if not all(isinstance(item, int) for item in chosen):
            return None
        return tuple(first if item else second for item, first, second in zip(chosen, *ways, strict=True))


class PRelu(Pointwise):
    def vectorization(self, call: Call, varies: Sequence[bool]) -> Vectorization:
        if not varies[0]:
            raise UnknownOpError("its PRelu has slopes that are not constant")
        return super().vectorization(call, varies)


class CastLike(SameShape, Pointwise):
    type_inputs: tuple[int, ...] = (1,)

    def moves(self, call: Call) -> Iterator[Move]:
        yield from (Move(0, axis, axis) for axis in range(call.rank()))
        yield from (Move(1, axis, None) for axis in range(call.rank(1)))


# Values


def _unary(function: Callable[[Array], Any]) -> _Compute:
    return lambda call: np.asarray(function(call.array())).astype(call.array().dtype, copy=False)


def _power(x: Array, exponent: Array) -> Array:
    """Return the power in the type of x, for any type of the exponent."""
    return np.asarray(np.power(x, exponent)).astype(x.dtype, copy=False)


def _binary(function: Callable[[Array, Array], Any]) -> _Compute:
    def compute(call: ArrayCall) -> Array:
        result, *others = call.arrays
        for other in others:
            check_size(np.broadcast(result, other).shape)
            result = np.asarray(function(result, other))
        return result

    return compute


def _divide(first: Array, second: Array) -> Array:
    if first.dtype.kind in "iu":
        return np.asarray((first - np.fmod(first, second)) // second)  # towards zero
    return np.asarray(first / second)


def _whole(function: Callable[[Array, Array], Any]) -> _Compute:
    """Return a function that computes integers only, because others would have jumps."""

    def compute(call: ArrayCall) -> Array:
        if any(array.dtype.kind not in "iu" for array in call.arrays) or not np.all(call.array(1)):
            raise UnknownOpError
        return _binary(function)(call)

    return compute


def _clip(call: ArrayCall) -> Array:
    x = call.array()
    ends = (call.get(name, call.constant(index)) for index, name in enumerate(("min", "max"), 1))
    for end, function in zip(ends, (np.maximum, np.minimum), strict=True):
        x = x if end is None else function(x, np.asarray(end, x.dtype))
    return x


def _activation(name: str) -> Pointwise:
    """Return the operator of an activation function."""
    kind = ACTIVATIONS[name]

    def compute(call: ArrayCall) -> Array:
        alpha, beta = (call.get(key, kind.default(key) or 0.0) for key in ("alpha", "beta"))
        result = np.asarray(kind.compute(NumpyElementary(), call.array(), alpha, beta))
        return result.astype(call.array().dtype, copy=False)

    return Pointwise(name, compute, " ".join(kind.parameters), keeps_zeros=kind.keeps_zero)


# Operators whose values are not computed.
_WITHOUT_VALUE = (
    *("Mish", "HardSwish", "Sign", "Round", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan"),
    *("Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Mean"),
)

register(
    Pointwise("Neg", _unary(np.negative), keeps_zeros=True),
    Pointwise("Reciprocal", _unary(lambda x: 1 / x)),
    Pointwise("Exp", _unary(np.exp)),
    Pointwise("Log", _unary(np.log)),
    Pointwise("Abs", _unary(np.abs), keeps_zeros=True),
    Pointwise("Sqrt", _unary(np.sqrt), keeps_zeros=True),
    Pointwise("Floor", _unary(np.floor), keeps_zeros=True, follows_sizes=True),
    Pointwise("Ceil", _unary(np.ceil), keeps_zeros=True, follows_sizes=True),
    Pointwise("Not", _unary(np.logical_not), dtype="bool"),
    *map(_activation, AS_OPERATORS),
    Pointwise("Clip", _clip, "min max", max_inputs=3, scalars=True),
    Pointwise("Erf", keeps_zeros=True),
    *(Pointwise(kind) for kind in _WITHOUT_VALUE),
    *(Pointwise("Selu", None, "alpha gamma"), Pointwise("Celu", None, "alpha")),
    Pointwise("Gelu", None, "approximate"),
    *(Pointwise("openvino::Swish"), Pointwise("openvino::FloorMod")),
    Pointwise("openvino::FakeQuantize", max_inputs=5),
    Pointwise("openvino::Divide", _whole(np.floor_divide)),
    *(Pointwise(f"com.microsoft::{name}Gelu", None, "alpha") for name in ("", "Fast", "Quick")),
    Pointwise("Mod", lambda call: _whole(np.fmod if call.get("fmod") else np.mod)(call), "fmod"),
    Pointwise("BitShift", None, "direction"),
    Pointwise("IsNaN", dtype="bool"),
    Pointwise("IsInf", None, "detect_negative detect_positive", dtype="bool"),
    Pointwise("Xor", dtype="bool"),
    CastLike("CastLike", lambda call: call.array().astype(call.array(1).dtype), "saturate", dtype=1),
    Pointwise("Add", _binary(np.add), of_integers=lambda a, b: a + b, neutral=0),
    Pointwise("Sub", _binary(np.subtract), of_integers=lambda a, b: a - b, neutral=0),
    Pointwise("Mul", _binary(np.multiply), of_integers=lambda a, b: a * b, neutral=1, factor_inputs=(1, 0)),
    Div(
        "Div",
        _binary(_divide),
        of_integers=lambda a, b: a // b if a * b >= 0 else -(-a // b),
        neutral=1,
        factor_inputs=(1,),
    ),
    Pointwise("Max", _binary(np.maximum), of_integers=max),
    Pointwise("Min", _binary(np.minimum), of_integers=min),
    *(Pointwise("Sum", _binary(np.add)), Pointwise("Pow", _binary(_power))),
    Pointwise("And", _binary(np.logical_and), dtype="bool", factor_inputs=(1, 0)),
    Pointwise("Or", _binary(np.logical_or), dtype="bool"),
    Pointwise("Less", _binary(np.less), dtype="bool"),
    Pointwise("LessOrEqual", _binary(np.less_equal), dtype="bool"),
    Pointwise("Greater", _binary(np.greater), dtype="bool"),
    Pointwise("GreaterOrEqual", _binary(np.greater_equal), dtype="bool"),
    Equal("Equal", _binary(np.equal), dtype="bool", follows_sizes=True),
    Where("Where", lambda call: np.where(*call.arrays), dtype=1, follows_sizes=True),
    PRelu(
        "PRelu",
        lambda call: np.where(call.array() < 0, call.array(1) * call.array(), call.array()),
        keeps_zeros=True,
    ),
)
