"""Represent one operator of a model, and the known sizes of its values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from onegru.core.dtypes import Array

#: A size: a number, or a name that means the same size everywhere.
Size = int | str
Shape = tuple[Size, ...]
#: The sign between the factors in a product's name. Names of sizes in files do not contain it.
TIMES = "·"
#: Elements of a tensor whose elements are followed as sizes.
MOST_SIZES = 16


class LoopIndex(NamedTuple):
    """Index that depends on a loop's iteration: base + sign·iteration, or size + base + sign·iteration."""

    sign: int
    base: int
    size: Size = 0  # -1 for the size of the axis with this index


@dataclass(eq=False, slots=True)
class Op:
    """Operator of a flow."""

    kind: str  # ONNX's name for it
    inputs: tuple[str, ...]  # its inputs, "" for an omitted one
    outputs: tuple[str, ...]  # its outputs, "" for an unused one
    attributes: Mapping[str, Any] = field(default_factory=dict)  # its attributes
    bodies: Mapping[str, Any] = field(default_factory=dict)  # its subgraphs, by the attribute's name
    origin: Any = None  # its counterpart in the file; None for a new one
    name: str = ""  # its name in the file, or ""

    @property
    def label(self) -> str:
        """Return its kind for messages: OpenVINO's layers without their domain."""
        return self.kind.rpartition("::")[2] if self.kind.startswith("openvino::") else self.kind

    def input(self, index: int) -> str:
        """Return the input with an index; "" for none."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def output(self, index: int) -> str:
        """Return the output with an index; "" if it is omitted."""
        return self.outputs[index] if index < len(self.outputs) else ""

    def reads(self) -> Iterator[str]:
        """Yield its inputs, including those of its bodies."""
        yield from filter(None, self.inputs)
        for body in self.bodies.values():
            yield from body.free()


#: Opset of graphs without an ONNX opset: it includes every operator.
EVERY_OPSET = 1000


class Facts(Protocol):
    """Known facts about a graph's values."""

    indices: dict[str, LoopIndex]

    def ints(self, op: Op, attribute: str, index: int) -> list[int] | None:
        """Return integers from an operator's attribute, or else from the constant input with this index."""

    def as_sizes(self, name: str) -> tuple[Size, ...] | None:
        """Return a small integer tensor as its elements, if they are sizes or constants; else None."""

    def shape(self, name: str) -> Shape | None:
        """Return a value's shape; None if even its rank is unknown."""

    def fill_value(self, name: str) -> Size | float | None:
        """Return the number or size that all elements equal; None if they differ or are unknown."""

    def find_producer(self, name: str) -> Op | None:
        """Return the operator of a value."""

    def constant(self, name: str) -> Array | None:
        """Return the value of a constant; else None."""

    def dtype(self, name: str) -> str | None:
        """Return a value's element type by NumPy's name; None if unknown."""

    def resolve(self, name: str) -> str:
        """Return the original name of a value that others only pass on."""


def as_ints(array: Array | None) -> list[int] | None:
    """Return the elements of an array of integers; None for another array."""
    return None if array is None or array.dtype.kind not in "iu" else [int(item) for item in array.ravel()]


def as_sizes(array: Array | None) -> Shape | None:
    """Return the elements of a short list of whole numbers; None for another array."""
    if array is None or array.dtype.kind not in "iubf" or array.ndim > 1 or array.size > MOST_SIZES:
        return None
    is_whole = bool(np.isfinite(array).all() and (array == np.floor(array)).all())
    return tuple(int(item) for item in array.ravel()) if is_whole else None
