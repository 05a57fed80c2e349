"""Describe the properties of operators: a class for each family, a row for each kind.

A kind that is not in the table is a plain `Operator`. Its properties are unknown, and callers reject it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from onegru.core.dtypes import Array
from onegru.core.errors import BROKEN
from onegru.dataflow.operator import EVERY_OPSET, Facts, Op, Shape, Size, as_ints
from onegru.dataflow.view import View

Sizes = tuple[Size, ...]
#: Why an operator gives other results in chunks. It "reverses" time, "remembers" earlier steps, which a state
#: could carry, or "mixes" all steps of a run. Its effect may also be "unknown"; "" for no reason.
Hazard = Literal["", "reverses", "remembers", "mixes", "unknown"]

#: "To the end" in bounds.
ENDLESS = 2**31 - 1
#: The message for an axis that is summed.
SUMS = "sums over all steps of a run"
_MAX_ELEMENTS = 2**25


class UnknownOpError(Exception):
    """Raised if no rule applies, or a rule needs something unknown; callers have a fallback."""


class LargeResultError(UnknownOpError):
    """Raised for a result that is too large to be folded."""


class Elements(enum.Flag):
    """Arrangement of the first input's elements by an operator that only moves elements."""

    NEW = 0
    KEPT = enum.auto()  # all of them, in their order, perhaps in another shape
    PERMUTED = enum.auto()  # all of them, in another order
    CUT = enum.auto()  # some of them
    JOINED = enum.auto()  # after those of others
    REPEATED = enum.auto()


@dataclass(frozen=True, slots=True)
class Move:
    """Treatment of one axis of one input by an operator."""

    input: int  # the input's index
    axis: int  # its axis
    to: int | None  # the axis of the output; None if it is dropped
    output: int = 0  # the output's index
    hazard: Hazard = ""  # the reason against streaming if the axis is time
    message: str = ""  # the reason as text, which follows the node's name
    pad_begin: int = 0  # padding at either end, in steps; negative for steps that are cut off
    pad_end: int = 0  # a convolution with trailing padding has look-ahead
    reach: int = 0  # the receptive field minus 1: further steps that each step of the output needs


class AttributeOrInput(NamedTuple):
    """Integers that are an attribute in some opsets and an input in others."""

    input: int  # the input's index
    since: int = 1  # the first opset where they are the input


class Vectorization(NamedTuple):
    """Changes of an operator in a loop so that it computes all iterations at once, along a new first axis."""

    changed: Mapping[str, Any] = {}  # its changed parameters and attributes
    repeat: bool = False  # whether inputs that are the same in all iterations also get the axis
    widen: bool = False  # whether inputs of lower rank get axes of size 1 after the new one


class Call:
    """Call of an operator in a graph, with the known facts about its inputs."""

    __slots__ = ("facts", "op", "operator", "opset", "shapes")

    def __init__(
        self, op: Op, facts: Facts, shapes: Sequence[Shape | None] | None = None, opset: int = EVERY_OPSET
    ) -> None:
        self.op = op
        self.facts = facts
        if shapes is None:
            shapes = [facts.shape(name) if name else () for name in op.inputs]
        self.shapes = shapes
        self.opset = opset
        self.operator = operator_of(op.kind)

    def shape(self, index: int = 0) -> Shape:
        """Return the shape of an input."""
        shape = self.shapes[index] if index < len(self.shapes) else None
        if shape is None:
            raise UnknownOpError
        return shape

    def rank(self, index: int = 0) -> int:
        """Return the rank of an input."""
        return len(self.shape(index))

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""
        return self.op.attributes.get(name, default)

    def numbers(self, name: str, default: Iterable[int] = ()) -> list[int]:
        """Return an attribute of integers."""
        value = self.op.attributes.get(name)
        if value is None:
            return list(default)
        found = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        if not all(isinstance(item, int) for item in found):
            raise UnknownOpError
        return found

    def axis(self, default: int | None = None) -> int:
        """Return the attribute `axis` as a non-negative axis of the first input."""
        axis: int = self.op.attributes["axis"] if default is None else self.get("axis", default)
        return axis % self.rank()

    def constant(self, index: int) -> Array | None:
        """Return an input, if it is a constant."""
        name = self.op.input(index)
        return self.facts.constant(name) if name else None

    def is_given(self, index: int) -> bool:
        """Whether an input is given."""
        return bool(self.op.input(index))

    def ints(self, name: str) -> list[int] | None:
        """Return a parameter; None if it is not given or not known."""
        if name in self.op.attributes:
            return self.numbers(name)
        return as_ints(self.constant(self.operator.parameters[name].input))

    def has_parameter(self, name: str) -> bool:
        """Whether a parameter is given, known or not."""
        return name in self.op.attributes or self.is_given(self.operator.parameters[name].input)

    def known_ints(self, name: str) -> list[int] | None:
        """Return a parameter, which must be known; None if it is not given."""
        found = self.ints(name)
        if found is None and self.has_parameter(name):
            raise UnknownOpError
        return found


class ArrayCall(Call):
    """Call of an operator on arrays, None for an omitted input."""

    __slots__ = ("inputs",)

    def __init__(
        self, kind: str, attributes: Mapping[str, Any], inputs: Sequence[Array | None], outputs: int = 1
    ) -> None:
        self.op = Op(kind, (), ("",) * outputs, attributes)
        self.operator = operator_of(kind)
        self.inputs = inputs
        self.shapes = [None if item is None else item.shape for item in inputs]
        self.opset = EVERY_OPSET

    def constant(self, index: int) -> Array | None:
        """Return an input."""
        return self.inputs[index] if index < len(self.inputs) else None

    def is_given(self, index: int) -> bool:
        """Whether an input is given."""
        return self.constant(index) is not None

    def array(self, index: int = 0) -> Array:
        """Return a required input."""
        array = self.inputs[index]
        if array is None:
            raise ValueError(index)
        return array

    @property
    def arrays(self) -> list[Array]:
        """Return all inputs."""
        return [self.array(index) for index in range(len(self.inputs))]


def check_size(shape: Iterable[int]) -> None:
    """Raise LargeResultError if a result is too large to compute."""
    if math.prod(shape) > _MAX_ELEMENTS:
        raise LargeResultError


class Operator:
    """Row of the table: the properties of a kind of operator. This base class knows none."""

    supported: frozenset[str] = frozenset()  # the attributes that `moves` supports
    max_inputs: int = ENDLESS  # the number of inputs that it supports
    parameters: Mapping[str, AttributeOrInput] = {}  # attributes in some opsets that are inputs in others
    size_inputs: tuple[int, ...] = ()  # inputs that only determine sizes or indices
    type_inputs: tuple[int, ...] = ()  # inputs that only determine an element type
    elements: ClassVar[Elements] = Elements.NEW  # arrangement of the first input's elements
    casts: ClassVar[bool] = False  # whether it changes their type, which may round them
    pointwise: ClassVar[bool] = False  # whether it is an elementwise operator with broadcasting
    computes: bool = False  # whether it has a `value`
    keeps_zeros: bool = False  # whether zeros as inputs result in zeros, for all attributes
    factor_inputs: tuple[int, ...] = ()  # factors and divisors: ones there leave the other input unchanged
    dtype: str | int | None = None  # see `dtype_of`
    resizes: ClassVar[bool] = False  # whether it may change the size of an axis that it keeps
    window: Literal["", "conv", "pool"] = ""  # whether it is a convolution or a pooling
    start_value: float | None = None  # the value before the first step of a cumulative sum or product
    shape_input: int | None = None  # the input with the sizes to which it repeats elements
    # For a recurrence: the input of each initial state, and the output of the last state.
    states: tuple[tuple[int, int], ...] = ()

    has_shape: ClassVar[bool] = False  # whether it has a rule `shape`
    has_source: ClassVar[bool] = False  # whether it has a rule `source`
    follows_sizes: bool = False  # whether it has a rule `as_sizes`

    def __init__(self, kind: str, attributes: str = "", **facts: Any) -> None:
        """Create a row; `attributes` are the names of the attributes that it supports, except parameters."""
        self.kind = kind  # ONNX's name; others begin with their domain, as "com.microsoft::Gelu"
        self.supported = frozenset((*attributes.split(), *self.parameters))
        for name, fact in facts.items():
            assert hasattr(self, name), name
            setattr(self, name, fact)

    def __init_subclass__(cls) -> None:
        cls.has_shape = cls.shape is not Operator.shape
        cls.has_source = cls.source is not Operator.source
        cls.follows_sizes = cls.as_sizes is not Operator.as_sizes

    def supports(self, op: Op) -> bool:
        """Whether all attributes and inputs of an operator are supported."""
        return self.supported.issuperset(op.attributes) and len(op.inputs) <= self.max_inputs

    def shape(self, call: Call, output: int) -> Shape | None:
        """Return the shape of an output; None if unknown."""
        return None

    def dtype_of(self, op: Op) -> str | int | None:
        """Return the type of its outputs, or the index of the input with that type; None if unknown."""
        return self.dtype

    def least_rank(self, call: Call, output: int) -> int:
        """Return the minimum rank of an output whose shape is unknown."""
        return 0

    def as_sizes(self, call: Call, parts: list[Sizes]) -> Sizes | None:
        """Return its output as sizes, from its inputs as sizes; None if they are no sizes."""
        return None

    def value(self, call: ArrayCall) -> Sequence[Array]:
        """Return its outputs."""
        raise UnknownOpError

    def moves(self, call: Call) -> Iterable[Move]:
        """Yield where each input axis goes, and the hazard if it is time; other output axes are new."""
        raise UnknownOpError

    def source(self, call: Call, view: View) -> list[tuple[Array, View]]:
        """Return (columns, view) pairs: the sources of the columns of a view of its output."""
        raise UnknownOpError

    def vectorization(self, call: Call, varies: Sequence[bool]) -> Vectorization:
        """Return its vectorization if these inputs vary between iterations."""
        raise UnknownOpError

    def drops_unit_axes(self, op: Op) -> bool:
        """Whether it drops every axis of size 1."""
        return False

    def pads_with_zeros(self, call: Call) -> bool:
        """Whether it pads with plain zeros, in contrast to a number that stands for zero."""
        return False


class SameShape(Operator):
    """Operator whose outputs have the shape of its first input."""

    def shape(self, call: Call, output: int) -> Shape | None:
        return call.shape()


OPERATORS: dict[str, Operator] = {}
_UNKNOWN = Operator("")


def register(*operators: Operator) -> None:
    """Add operators to the table."""
    for operator in operators:
        assert operator.kind not in OPERATORS, operator.kind
        OPERATORS[operator.kind] = operator


def operator_of(kind: str) -> Operator:
    """Return the row of a kind."""
    return OPERATORS.get(kind, _UNKNOWN)


def evaluate(
    kind: str, attributes: Mapping[str, Any], inputs: Sequence[Array | None], outputs: int = 1
) -> Sequence[Array]:
    """Return an operator's outputs, computed by NumPy in the element types of its inputs."""
    call = ArrayCall(kind, attributes, inputs, outputs)
    try:
        with np.errstate(all="ignore"):
            return call.operator.value(call)
    except BROKEN as error:
        raise UnknownOpError(f"{kind}: {error}") from error


def movers(elements: Elements, *, casts: bool = False, without: tuple[str, ...] = ()) -> frozenset[str]:
    """Return the kinds that do no more to elements than this."""
    return frozenset(
        kind
        for kind, item in OPERATORS.items()
        if item.elements and item.elements in elements and (casts or not item.casts) and kind not in without
    )


def input_moves(
    call: Call, axes: Iterable[int], hazard: Hazard = "mixes", message: str = "", keeps: bool = True
) -> Iterable[Move]:
    """Yield the moves of the first input: these axes with a hazard, and the others unchanged."""
    rank = call.rank()
    done, to = {axis % rank for axis in axes}, 0
    for axis in range(rank):
        if axis in done and not keeps:
            yield Move(0, axis, None, 0, hazard, message)
            continue
        reason = (hazard, message) if axis in done else ("", "")
        yield from (Move(0, axis, to, output, *reason) for output in range(len(call.op.outputs)))
        to += 1
