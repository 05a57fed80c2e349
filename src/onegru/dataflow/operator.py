"""One operator of a model, and the known sizes of its values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from onegru.core.dtypes import Array

#: A size: fixed, or the name of one that is the same wherever the name stands.
Size = int | str
Shape = tuple[Size, ...]
#: Stands between the factors in the name of a product of sizes; no file's name of a size has it.
TIMES = "·"
#: Of a tensor whose elements are followed as sizes.
MOST_SIZES = 16


class LoopIndex(NamedTuple):
    """An index that depends on a loop's iteration: base + sign·iteration, or size + base + sign·iteration."""

    sign: int
    base: int
    size: Size = 0


@dataclass(eq=False, slots=True)
class Op:
    """An operator of a flow."""

    kind: str  # ONNX's name for it
    inputs: tuple[str, ...]  # the values that it takes, "" for one left out
    outputs: tuple[str, ...]  # the values that it gives, "" for one that nobody takes
    attributes: Mapping[str, Any] = field(default_factory=dict)  # its attributes
    bodies: Mapping[str, Any] = field(default_factory=dict)  # the flows within it, by the attribute's name
    origin: Any = None  # what stands for it in the file; None for a new one
    name: str = ""  # its name in the file, if it has one

    @property
    def label(self) -> str:
        """Its kind for messages: OpenVINO's layers without their domain."""
        return self.kind.rpartition("::")[2] if self.kind.startswith("openvino::") else self.kind

    def input(self, index: int) -> str:
        """The input value with an index; "" for none."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def output(self, index: int) -> str:
        """The output at a position; "" if it is omitted."""
        return self.outputs[index] if index < len(self.outputs) else ""

    def taken(self) -> Iterator[str]:
        """The values that it takes, those of its bodies included."""
        yield from filter(None, self.inputs)
        for body in self.bodies.values():
            yield from body.free()


#: Of graphs that are of none of ONNX's opsets: every operator is there.
EVERY_OPSET = 1000


class Facts(Protocol):
    """What a graph knows of its values."""

    indices: dict[str, LoopIndex]

    def ints(self, op: Op, attribute: str, index: int) -> list[int] | None:
        """Integers that are an attribute of an operator, or else the constant input with this index."""

    def sizes(self, name: str) -> tuple[Size, ...] | None:
        """The elements of a small integer tensor, if they are sizes or constants; else None."""

    def shape(self, name: str) -> Shape | None:
        """A value's shape; None if even its rank is not known."""

    def fill(self, name: str) -> Size | float | None:
        """The number or size that every element of a value is; None if they differ or are not known."""

    def producer(self, name: str) -> Op | None:
        """The operator that gives a value."""

    def constant(self, name: str) -> Array | None:
        """The value of a constant; None for anything else."""

    def dtype(self, name: str) -> str | None:
        """A value's element type by NumPy's name; None if it is not known."""

    def resolve(self, name: str) -> str:
        """The first name of a value that others only pass on."""


def as_sizes(array: Array | None) -> Shape | None:
    """The elements of a short list of whole numbers; None for another array."""
    if array is None or array.dtype.kind not in "iubf" or array.ndim > 1 or array.size > MOST_SIZES:
        return None
    is_whole = bool(np.isfinite(array).all() and (array == np.floor(array)).all())
    return tuple(int(item) for item in array.ravel()) if is_whole else None
