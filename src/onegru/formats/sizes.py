"""Sizes that a graph computes from shapes: whether the lengths of a GRU node cover all steps of its X.

An exporter without lengths makes them from X's own shape (Shape or ShapeOf, Gather, Broadcast) or writes X's
number of steps as a constant. Whatever is not recognized here is unknown.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

from onegru.core.dtypes import Array
from onegru.core.spec import reversed_directions
from onegru.dataflow.deep import answered_once
from onegru.formats.graph import GruStep

_Size = int | tuple[str, int]  # a number, or whatever size this axis of this value has

_SAME_NUMBERS = frozenset({"Cast", "Convert", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_REPEATED_NUMBERS = frozenset({"Broadcast", "Expand", "Tile"})
_SAME_SHAPE = frozenset(
    {"Cast", "Convert", "Identity", "Relu", "ReLU", "LeakyRelu", "Elu", "Sigmoid", "Tanh", "Clip", "Clamp"}
    | {"Sqrt", "Exp", "Log", "Abs", "Neg", "Negative", "Dropout", "PRelu", "PReLU", "HardSigmoid", "Gelu"}
)
_BROADCASTING = frozenset({"Add", "Sub", "Subtract", "Mul", "Multiply", "Div", "Divide"})

_MOST_ELEMENTS = 64  # how long a list is worth a look


class Sizes(ABC):
    """The sizes in one graph. Values go by name; a reader says what produces them.

    Args:
        shape: what the file says of a value's shape.
        integers: a value, if it is a constant of integers.
    """

    def __init__(
        self,
        shape: Callable[[str], Sequence[int | None] | None],
        integers: Callable[[str], Array | None],
    ) -> None:
        self._stated = shape
        self.integers = integers
        self._shapes: dict[str, tuple[_Size, ...] | None] = {}
        self._lists: dict[str, tuple[_Size, ...] | None] = {}
        self._repeated: dict[str, _Size | None] = {}
        self._grus: dict[str, GruStep] = {}

    @abstractmethod
    def producer(self, value: str) -> tuple[str, Sequence[str]] | None:
        """The type of the node whose first output a value is, and its inputs, of which there is at least one.

        None if there is no such node, or if it is a GRU.
        """

    @abstractmethod
    def axes(self, value: str) -> Sequence[int] | None:
        """The constant axes, or sizes, of the Transpose, Squeeze or Reshape whose output a value is."""

    def add(self, node: GruStep) -> GruStep:
        """The node with what is known of its X and lengths; nodes are added in running order."""
        self._grus.update(dict.fromkeys(node.outputs.values(), node))
        return replace(node, x_shape=self.x_shape(node), full_length=self.are_full(node))

    def x_shape(self, node: GruStep) -> tuple[int | None, ...] | None:
        """What is known of the shape of a GRU node's X."""
        sizes = self._shape(node.inputs["X"])
        return None if sizes is None else tuple(size if isinstance(size, int) else None for size in sizes)

    def are_full(self, node: GruStep) -> bool:
        """Whether a GRU node's lengths are X's number of steps, in every row of every run."""
        lengths = node.operator.input("sequence_lens")
        if lengths is None or lengths.name not in node.inputs:
            return True
        steps = self._gru_sizes(node).get("T")
        return steps is not None and self._each(node.inputs[lengths.name]) == steps

    def _gru_sizes(self, node: GruStep) -> dict[str, _Size]:
        """The sizes of a GRU node's axes, by their letters."""
        hidden_size = node.attributes.get("hidden_size")
        sizes: dict[str, _Size] = {"H": hidden_size} if isinstance(hidden_size, int) else {}
        sizes["D"] = len(reversed_directions(node.attributes.get("direction")))
        axes = _axes_of(node, "X")
        X = self._shape(node.inputs["X"]) or ()
        return {**sizes, **dict(zip(axes, X, strict=True))} if len(X) == len(axes) else sizes

    @answered_once("_repeated")
    def _each(self, value: str) -> _Size | None:
        """What every number of a value is; None if that is not known."""
        array = self.integers(value)
        if array is not None:
            return int(array.flat[0]) if array.size and array.min() == array.max() else None
        producer = self.producer(value)
        if producer is None:
            return None
        kind, inputs = producer
        if kind in _SAME_NUMBERS | _REPEATED_NUMBERS:
            return self._each(inputs[0])
        elements = self._elements(value)
        return elements[0] if elements and len(set(elements)) == 1 else None

    @answered_once("_lists")
    def _elements(self, value: str) -> tuple[_Size, ...] | None:
        """The numbers of a short list; None if they are not known."""
        array = self.integers(value)
        if array is not None:
            return tuple(array.ravel().tolist()) if array.size <= _MOST_ELEMENTS else None
        producer = self.producer(value)
        if producer is None:
            return None
        kind, inputs = producer
        if kind in ("Shape", "ShapeOf"):
            return self._shape(inputs[0])
        if kind == "Concat":
            parts = [self._elements(name) for name in inputs[:_MOST_ELEMENTS]]
            known = [part for part in parts if part is not None]
            whole = tuple(size for part in known for size in part)
            return whole if len(known) == len(inputs) and len(whole) <= _MOST_ELEMENTS else None
        first = self._elements(inputs[0])
        if first is None or kind in _SAME_NUMBERS:
            return first
        rest = [self.integers(name) for name in inputs[1:]]
        if kind == "Gather" and rest and rest[0] is not None:
            at = rest[0].ravel().tolist()
            fits = all(-len(first) <= index < len(first) for index in at)
            return tuple(first[index] for index in at) if fits else None
        numbers = [int(array.flat[0]) for array in rest if array is not None and array.size == 1]
        if kind == "Slice" and 2 <= len(numbers) == len(rest):
            start, end, *others = numbers
            return first[start:end] if set(others) <= {0, 1} else None  # along axis 0, each one
        return None

    @answered_once("_shapes")
    def _shape(self, value: str) -> tuple[_Size, ...] | None:
        """The sizes of a value's axes; one that is not known is named by the value's own axis."""
        stated, traced = self._stated(value), self._traced(value)
        if stated is None or (traced is not None and len(traced) != len(stated)):
            return traced
        traced = traced or tuple((value, axis) for axis in range(len(stated)))
        return tuple(other if size is None else size for size, other in zip(stated, traced, strict=True))

    def _traced(self, value: str) -> tuple[_Size, ...] | None:
        """The sizes of a value's axes as its producer makes them of those of its inputs."""
        if (node := self._grus.get(value)) is not None:
            sizes = self._gru_sizes(node)
            axes = _axes_of(node, next(name for name, given in node.outputs.items() if given == value))
            return tuple(sizes.get(letter, (value, axis)) for axis, letter in enumerate(axes))
        producer = self.producer(value)
        if producer is None:
            array = self.integers(value)
            return None if array is None else array.shape
        kind, inputs = producer
        first = self._shape(inputs[0])
        if first is None or kind in _SAME_SHAPE:
            return first
        if kind in ("Transpose", "Squeeze", "Reshape"):
            return _moved(kind, value, first, self.axes(value))
        if kind in _BROADCASTING and len(inputs) == 2:
            second = self._shape(inputs[1])
            return None if second is None else _broadcast(value, first, second)
        return None


def _axes_of(node: GruStep, name: str) -> str:
    return next(port.axes for port in node.ports if port.name == name)


def _moved(
    kind: str, value: str, sizes: tuple[_Size, ...], axes: Sequence[int] | None
) -> tuple[_Size, ...] | None:
    """The sizes after a Transpose or Squeeze with these axes, or a Reshape with these sizes."""
    if axes is None:
        return None
    rank = len(sizes)
    if kind == "Reshape":  # 0 keeps a size, -1 is what is left
        found = [sizes[axis] if size == 0 and axis < rank else size for axis, size in enumerate(axes)]
        numbers = [size for size in found if isinstance(size, int) and size > 0]
        if all(isinstance(size, int) for size in sizes) and len(numbers) == len(found) - 1:
            left = math.prod(size for size in sizes if isinstance(size, int)) // math.prod(numbers)
            found = [left if size == -1 else size for size in found]
        return tuple(
            (value, axis) if isinstance(size, int) and size < 1 else size for axis, size in enumerate(found)
        )
    axes = [axis + rank if axis < 0 else axis for axis in axes]
    if kind == "Squeeze":
        return tuple(size for axis, size in enumerate(sizes) if axis not in axes)
    return tuple(sizes[axis] for axis in axes) if sorted(axes) == list(range(rank)) else None


def _broadcast(value: str, a: tuple[_Size, ...], b: tuple[_Size, ...]) -> tuple[_Size, ...]:
    rank = max(len(a), len(b))
    found: list[_Size] = []
    for axis, sizes in enumerate(zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True)):
        larger = {size for size in sizes if size != 1}
        found.append(larger.pop() if len(larger) == 1 else (value, axis) if larger else 1)
    return tuple(found)
