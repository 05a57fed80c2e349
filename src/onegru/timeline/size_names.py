"""Name the sizes of states after the dimensions of the model's inputs."""

from __future__ import annotations

import math
from itertools import chain

from onegru.core.errors import SpecError
from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import Op, Size
from onegru.timeline.analysis import TimeAnalysis
from onegru.timeline.axes import Axis
from onegru.timeline.pairs import values_before


class SizeNames:
    """Names of dynamic sizes in the inputs of a model."""

    def __init__(self, analysis: TimeAnalysis) -> None:
        self.analysis = analysis
        self.flow = analysis.flow
        sizes = (str(size) for name in self.flow.inputs for size in self.flow.shape(name) or ())
        self.names = {declared_name(size) for size in sizes if size.startswith("dim:")}
        # Names of sizes that states need to be equal, and a name for both.
        self.common_names: dict[str, str] = {}

    def is_named(self, name: str, axis: int) -> bool:
        """Whether an input has the size of this axis, by a name."""
        size = (self.flow.shape(name) or {axis: ""})[axis]
        return isinstance(size, str) and declared_name(size) in self.names

    def declared(self, name: str) -> tuple[int | str, ...]:
        """Return the shape of an input, as in the file."""
        shape = self.flow.shape(name) or ()
        return tuple(size if isinstance(size, int) else declared_name(size) for size in shape)

    def size(self, value: str, axis: int) -> Size | tuple[Size, ...]:
        """Return a size of a value; several factors if it is their product and some are dynamic."""
        stated = (self.flow.shape(value) or {axis: ""})[axis]
        if self._is_known(stated):
            return stated
        sizes = tuple(map(self._size_of, self._factors(value, axis)))
        sizes = tuple(size for size in sizes if size != 1) or (1,)
        numbers = [size for size in sizes if isinstance(size, int)]
        if len(numbers) == len(sizes):
            return math.prod(numbers)
        return sizes[0] if len(sizes) == 1 else sizes

    def unify(self, value: str, own_axis: int) -> None:
        """Record that inputs that are broadcast to a value need one size along an axis, and so one name."""
        own, axes = self.size(value, own_axis), self.analysis.axes
        factors = axes.main((self.analysis.axes_of.get(value) or ())[own_axis])
        for name in values_before(self.flow, value).intersection(self.analysis.inputs):
            for index, size in enumerate(self.flow.shape(name) or ()):
                is_same = axes.main((self.analysis.axes_of.get(name) or ())[index]) == factors
                if is_same and isinstance(own, str) and isinstance(size, str):
                    first, second = (self.shared(declared_name(item)) for item in (own, size))
                    self.common_names |= {second: first} if first != second else {}

    def shared(self, name: str) -> str:
        """Return the common name of equal sizes of states."""
        while name in self.common_names:
            name = self.common_names[name]
        return name

    def _factors(self, value: str, axis: int) -> Axis:
        """Return the factors of an axis, divided only where the sizes of the parts are known."""
        axes = self.analysis.axes
        found: list[int] = []
        for factor in chain.from_iterable((self.analysis.axes_of.get(value) or ())[axis : axis + 1]):
            parts = axes.flat((factor,))
            is_number = isinstance(axes.sizes_of(factor)[0], int)
            is_divided = not is_number or all(self._is_known(self._size_of(part)) for part in parts)
            found += parts if is_divided else (factor,)
        return tuple(found)

    def _is_known(self, size: Size) -> bool:
        return isinstance(size, int) or declared_name(size) in self.names

    def _size_of(self, factor: int) -> Size:
        """Return the size of a factor: a number, or its name in an input, if there is one."""
        sizes = self.analysis.axes.sizes_of(factor)
        if isinstance(sizes[0], int) or self.analysis.axes.is_changed(factor):
            return sizes[0]
        known = list(filter(self._is_known, sizes))
        return min(known or sizes, key=lambda size: isinstance(size, str))

    def sources(self, value: str, axis: int) -> tuple[int, list[tuple[str, int]]] | None:
        """Return a dynamic size as a number times axes of inputs; None if that is not certain."""
        factors, number, input_axes = self._factors(value, axis), 1, list[tuple[str, int]]()
        known = {
            size: (name, index)
            for name in self.flow.inputs
            for index, size in enumerate(self.flow.shape(name) or ())
            if isinstance(size, str)
        }
        for factor in factors:
            sizes = set(self.analysis.axes.sizes_of(factor))
            own = self._size_of(factor)
            names = sizes & known.keys()
            if isinstance(own, int) and not names:
                number *= own
            elif len(names) != 1 or isinstance(own, int) or self.analysis.axes.is_changed(factor):
                return None  # one of several axes may have size 1 and belong to the others
            else:
                input_axes.append(known[str(names.pop())])
        return (number, input_axes) if input_axes else None

    def first_shape(self, op: Op, value: str, axis: int, steps: int) -> tuple[int | str, ...]:
        """Return the shape of this number of steps of an operator's input."""
        rank = len(self.analysis.axes_of[value] or ())
        found: list[int | str] = []
        for index in range(rank):
            size = steps if index == axis else self.size(value, index)
            if index != axis:
                self.unify(value, index)
            if isinstance(size, tuple):
                raise refusal_error(op, "its earlier steps have a size that is a product of dynamic sizes")
            found.append(self.named(op, size))
        return tuple(found)

    def named(self, op: Op, size: Size) -> int | str:
        """Return a size, as in an input."""
        if isinstance(size, int):
            return size
        name = declared_name(size)
        if name not in self.names:
            raise refusal_error(op, "its state has a size that no input has" + f" ({name})" * bool(name))
        return name


def name_of(op: Op) -> str:
    """Return the name of an operator, or of its first output."""
    return op.name or next(filter(None, op.outputs))


def declared_name(size: str) -> str:
    """Return the name of a size in the file, without the prefix in a flow."""
    return size.removeprefix("dim:")


def dtype_of(flow: Flow, op: Op, value: str) -> str:
    """Return the element type of an operator's input or output."""
    dtype = flow.dtype(value)
    if dtype is None:
        raise refusal_error(op, f"the element type of {value!r} is not known")
    return dtype


def plain(name: str) -> str:
    """Return an operator's name without the slashes of PyTorch's exporter."""
    return name.strip("/").replace("/", "_")


def refusal_error(op: Op, why: str) -> SpecError:
    """Return the error for an operator whose changes cannot be made."""
    return SpecError(f"{op.kind} node {name_of(op)!r}: cannot run in chunks, because {why}")
