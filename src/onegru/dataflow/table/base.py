"""The properties of operators: a class for each family, a row for each kind.

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
from onegru.dataflow.operator import EVERY_OPSET, Facts, Op, Shape, Size
from onegru.dataflow.view import View

Sizes = tuple[Size, ...]
Hazard = Literal["", "reverses", "remembers", "mixes", "unknown"]

#: What stands for "to the end" in bounds.
ENDLESS = 2**31 - 1
_MAX_ELEMENTS = 2**25


class UnknownOpError(Exception):
    """It is not known what an operator does."""


class LargeResultError(UnknownOpError):
    """A result would be too large to be computed ahead."""


class Elements(enum.Flag):
    """How an operator that only moves elements arranges those of its first input."""

    NEW = 0
    KEPT = enum.auto()  # all of them, in their order, in another shape at most
    PERMUTED = enum.auto()  # all of them, in another order
    CUT = enum.auto()  # some of them
    JOINED = enum.auto()  # after those of others
    REPEATED = enum.auto()


@dataclass(frozen=True, slots=True)
class Move:
    """How an operator treats one axis of one input."""

    input: int  # the input's index
    axis: int  # its axis
    to: int | None  # the axis of the output; None if it has none for it
    output: int = 0  # the output's index
    hazard: Hazard = ""  # what is wrong if the axis is time; "" for nothing
    message: str = ""  # the same as text, to follow the node's name
    pad_begin: int = 0  # steps that are added at either end; less than 0 for steps that are cut off
    pad_end: int = 0
    reach: int = 0  # how many earlier steps each step of the output needs


class Parameter(NamedTuple):
    """Integers that are an attribute in some opsets and an input in others."""

    input: int  # the input's index
    since: int = 1  # the first opset in which they are the input


class Ahead(NamedTuple):
    """How an operator is computed for many values at once, with a leading axis for them."""

    changed: Mapping[str, Any] = {}  # its parameters and attributes that change
    repeat: bool = False  # whether inputs that are the same for all values get the axis, too
    widen: bool = False  # whether inputs of lower rank get axes of size 1 after the leading one


class Call:
    """An operator in its graph, and what is known of its inputs."""

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
        """The shape of an input."""
        shape = self.shapes[index] if index < len(self.shapes) else None
        if shape is None:
            raise UnknownOpError
        return shape

    def rank(self, index: int = 0) -> int:
        """The rank of an input."""
        return len(self.shape(index))

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.op.attributes.get(name, default)

    def numbers(self, name: str, default: Iterable[int] = ()) -> list[int]:
        """An attribute of integers."""
        value = self.op.attributes.get(name)
        if value is None:
            return list(default)
        found = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        if not all(isinstance(item, int) for item in found):
            raise UnknownOpError
        return found

    def axis(self, default: int | None = None) -> int:
        """The attribute `axis`, of the first input, not negative."""
        axis: int = self.op.attributes["axis"] if default is None else self.get("axis", default)
        return axis % self.rank()

    def constant(self, index: int) -> Array | None:
        """An input, if it is a constant."""
        name = self.op.input(index)
        return self.facts.constant(name) if name else None

    def is_given(self, index: int) -> bool:
        """Whether an input is there."""
        return bool(self.op.input(index))

    def ints(self, name: str) -> list[int] | None:
        """A parameter; None if it is not there or not known."""
        if name in self.op.attributes:
            return self.numbers(name)
        array = self.constant(self.operator.parameters[name].input)
        return None if array is None or array.dtype.kind not in "iu" else [int(i) for i in array.ravel()]

    def has(self, name: str) -> bool:
        """Whether a parameter is there, known or not."""
        return name in self.op.attributes or self.is_given(self.operator.parameters[name].input)

    def known(self, name: str) -> list[int] | None:
        """A parameter; None if it is not there."""
        found = self.ints(name)
        if found is None and self.has(name):
            raise UnknownOpError
        return found


class Arrays(Call):
    """An operator and the arrays that it computes with, None for an input left out."""

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
        """An input."""
        return self.inputs[index] if index < len(self.inputs) else None

    def is_given(self, index: int) -> bool:
        """Whether an input is there."""
        return self.constant(index) is not None

    def array(self, index: int = 0) -> Array:
        """An input that has to be there."""
        array = self.inputs[index]
        if array is None:
            raise ValueError(index)
        return array

    @property
    def arrays(self) -> list[Array]:
        """All inputs."""
        return [self.array(index) for index in range(len(self.inputs))]


def bound(shape: Iterable[int]) -> None:
    """Refuse to compute what is too large."""
    if math.prod(shape) > _MAX_ELEMENTS:
        raise LargeResultError


class Operator:
    """A kind of operator; this base class knows nothing about it."""

    understood: frozenset[str] = frozenset()  # the attributes that `along` has understood
    max_inputs: int = ENDLESS  # how many inputs it has understood
    parameters: Mapping[str, Parameter] = {}  # attributes in some opsets that are inputs in others
    size_inputs: tuple[int, ...] = ()  # inputs that are used only as numbers, such as sizes and indices
    type_inputs: tuple[int, ...] = ()  # inputs that are used only for their element type
    elements: ClassVar[Elements] = Elements.NEW  # how it arranges the elements of its first input
    casts: ClassVar[bool] = False  # whether it changes their type, which may round them
    pointwise: ClassVar[bool] = False  # whether it works element by element, with broadcasting
    computes: bool = False  # whether it has a `value`
    keeps_zeros: bool = False  # whether zeros as inputs result in zeros
    ones_at: tuple[int, ...] = ()  # the inputs at which ones leave the other as it is
    dtype: str | int | None = None  # see `dtype_of`
    resizes: ClassVar[bool] = False  # whether it may change the size of an axis that stays
    window: Literal["", "conv", "pool"] = ""  # whether it is a convolution or a pooling
    accumulates: float | None = None  # where it adds up or multiplies along an axis, what it begins with
    filled_by: int | None = None  # the input that says how often it repeats a number
    # Of a recurrence, the input of each initial state and the output of the last one.
    states: tuple[tuple[int, int], ...] = ()

    has_shape: ClassVar[bool] = False
    has_view: ClassVar[bool] = False
    has_sizes: bool = False

    def __init__(self, kind: str, words: str = "", **facts: Any) -> None:
        """Make a row; `words` are the names of further attributes that it supports."""
        self.kind = kind  # ONNX's name; others begin with their domain, as "com.microsoft::Gelu"
        self.understood = frozenset((*words.split(), *self.parameters))
        for name, fact in facts.items():
            assert hasattr(self, name), name
            setattr(self, name, fact)

    def __init_subclass__(cls) -> None:
        cls.has_shape = cls.shape is not Operator.shape
        cls.has_view = cls.source is not Operator.source
        cls.has_sizes = cls.sizes is not Operator.sizes

    def understands(self, op: Op) -> bool:
        """Whether all that an operator says is known."""
        return self.understood.issuperset(op.attributes) and len(op.inputs) <= self.max_inputs

    def shape(self, call: Call, output: int) -> Shape | None:
        """The shape of an output; None if it is not known."""
        return None

    def dtype_of(self, op: Op) -> str | int | None:
        """The type of what it gives, or the input that it is that of; None if it is not known."""
        return self.dtype

    def least_rank(self, call: Call, output: int) -> int:
        """How many axes an output has at least, where its shape is not known."""
        return 0

    def sizes(self, call: Call, parts: list[Sizes]) -> Sizes | None:
        """The elements of its output, of those of its inputs, where these are sizes."""
        return None

    def value(self, call: Arrays) -> Sequence[Array]:
        """What it gives."""
        raise UnknownOpError

    def along(self, call: Call) -> Iterable[Move]:
        """Where each axis of each input goes, and what is wrong if it is time; other axes are new."""
        raise UnknownOpError

    def source(self, call: Call, view: View) -> list[tuple[Array, View]]:
        """What the columns of a view of its output are taken from: (columns, view) pairs."""
        raise UnknownOpError

    def ahead(self, call: Call, varies: Sequence[bool]) -> Ahead:
        """How it is computed for many values of those inputs that vary."""
        raise UnknownOpError

    def drops_ones(self, op: Op) -> bool:
        """Whether it drops every axis of size 1, whichever those are."""
        return False

    def pads_with_zeros(self, call: Call) -> bool:
        """Whether what it pads with are zeros that count like any others."""
        return False


class SameShape(Operator):
    """An operator whose outputs have the shape of its first input."""

    def shape(self, call: Call, output: int) -> Shape | None:
        return call.shape()


OPERATORS: dict[str, Operator] = {}
_UNKNOWN = Operator("")


def register(*operators: Operator) -> None:
    """Put operators into the table."""
    for operator in operators:
        assert operator.kind not in OPERATORS, operator.kind
        OPERATORS[operator.kind] = operator


def operator_of(kind: str) -> Operator:
    """What is known of a kind."""
    return OPERATORS.get(kind, _UNKNOWN)


def evaluate(
    kind: str, attributes: Mapping[str, Any], inputs: Sequence[Array | None], outputs: int = 1
) -> Sequence[Array]:
    """What an operator gives, computed by NumPy in the element types of its inputs."""
    call = Arrays(kind, attributes, inputs, outputs)
    try:
        with np.errstate(all="ignore"):
            return call.operator.value(call)
    except BROKEN as error:
        raise UnknownOpError(f"{kind}: {error}") from error


def movers(elements: Elements, *, casts: bool = False, without: tuple[str, ...] = ()) -> frozenset[str]:
    """The kinds that do no more to elements than this."""
    return frozenset(
        kind
        for kind, item in OPERATORS.items()
        if item.elements and item.elements in elements and (casts or not item.casts) and kind not in without
    )


def along(
    call: Call, axes: Iterable[int], hazard: Hazard = "mixes", message: str = "", keeps: bool = True
) -> Iterable[Move]:
    """These axes of the first input have something done to them, the others stay."""
    rank = call.rank()
    done, to = {axis % rank for axis in axes}, 0
    for axis in range(rank):
        if axis in done and not keeps:
            yield Move(0, axis, None, 0, hazard, message)
            continue
        what = (hazard, message) if axis in done else ("", "")
        yield from (Move(0, axis, to, output, *what) for output in range(len(call.op.outputs)))
        to += 1
