"""An operator as the rules see it, and what they say of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import Op, Shape

Kind = Literal["", "reverses", "remembers", "mixes", "unknown"]


class UnknownOpError(Exception):
    """What an operator does cannot be told."""


@dataclass(frozen=True, slots=True)
class Move:
    """What becomes of one axis of one input.

    Attributes:
        place: the input.
        axis: its axis.
        to: the axis of the output; None if it has none for it.
        output: the output.
        kind: what is wrong if the axis is time; "" for nothing.
        why: the same in words, behind the node's name.
        before, behind: steps that are added at either end; less than 0 for steps that are cut.
        reach: how many earlier steps each step of the output needs.
    """

    place: int
    axis: int
    to: int | None
    output: int = 0
    kind: Kind = ""
    why: str = ""
    before: int = 0
    behind: int = 0
    reach: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """An operator and what is known of its inputs."""

    op: Op
    flow: Flow
    shapes: tuple[Shape | None, ...]
    opset: int

    def shape(self, place: int = 0) -> Shape:
        """The shape of an input."""
        shape = self.shapes[place] if place < len(self.shapes) else None
        if shape is None:
            raise UnknownOpError
        return shape

    def text(self, name: str, default: str = "") -> str:
        """An attribute in words."""
        data = getattr(self.op.origin, "data", None)  # of an IR's layer
        value = self.op.attributes.get(name, default) if data is None else data.get(name, default)
        return value if isinstance(value, str) else default

    def numbers(self, name: str, default: Iterable[int] = (), place: int | None = None) -> list[int]:
        """An attribute of integers, or an input of them."""
        known = self.flow.ints(self.op, name, len(self.op.inputs) if place is None else place)
        if known is not None:
            return known
        if place is not None and place < len(self.op.inputs) and self.op.inputs[place]:
            raise UnknownOpError
        words = (getattr(self.op.origin, "data", None) or {}).get(name, "")
        try:
            return [int(word) for word in words.split(",") if word.strip()] or list(default)
        except ValueError:
            raise UnknownOpError from None

    def number(self, name: str, default: int) -> int:
        """An attribute that is an integer."""
        return self.numbers(name, [default])[0]


@dataclass(frozen=True, slots=True)
class Finding:
    """An operator on the way of time that a stream of chunks does not repeat.

    Attributes:
        kind: "reverses" time; "remembers" steps that no state carries; "mixes" all steps of a run; "unknown".
        operator: its kind.
        name: its name.
        why: what it does, behind its name.
    """

    kind: Kind
    operator: str
    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.operator} node {self.name!r} {self.why}"


def finding_of(op: Op, kind: Kind, why: str) -> Finding:
    """A finding about an operator."""
    name = op.name or next(filter(None, op.outputs), "")
    return Finding(kind, op.kind.removeprefix("openvino::"), name, why)


ENDLESS = 2**31 - 1


def slice_bounds(step: Step, axis: int) -> tuple[int, int | None, int] | None:
    """The first index that a Slice takes of an axis, where it ends (None: with the axis), and its step.

    Of an axis of known size, none is negative; of another, negative ones count from its end. None if they are
    not known.
    """
    rank, size = len(step.shape()), step.shape()[axis]
    starts, ends = (step.flow.ints(step.op, name, place) for name, place in (("starts", 1), ("ends", 2)))
    axes, steps = (step.flow.ints(step.op, name, place) for name, place in (("axes", 3), ("steps", 4)))
    has_axes = "axes" in step.op.attributes or any(step.op.inputs[3:4])
    if has_axes and axes is None:
        return None
    places = [item % rank for item in axes] if axes is not None else list(range(rank))
    if axis not in places[: None if starts is None else len(starts)]:
        return 0, None, 1
    if starts is None or ends is None or (steps is None and any(step.op.inputs[4:5])):
        return None
    index = places.index(axis)
    start, end, stride = starts[index], ends[index], steps[index] if steps else 1
    if not isinstance(size, int):
        return start, None if end >= ENDLESS else end, stride
    taken = range(size)[start:end:stride]
    return taken.start, None if taken.stop == size else taken.stop, stride
