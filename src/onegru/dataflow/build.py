"""Create new operators of a graph, in the order of execution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onegru.core.dtypes import Array
from onegru.dataflow.flow import Flow
from onegru.dataflow.names import fresh_name
from onegru.dataflow.operator import Op, Shape


class Builder:
    """Builder of a flow's new operators, in the form of ONNX's newest opset."""

    def __init__(self, flow: Flow, base: str, names: set[str]) -> None:
        self.flow = flow
        self.base = base  # the prefix of their names
        self.names = names  # all names in use, including new ones
        self.ops: list[Op] = []

    def fresh(self, hint: str) -> str:
        """Return a new name that contains the hint."""
        return fresh_name(f"{self.base}/{hint}", self.names)

    def op(
        self,
        kind: str,
        inputs: Sequence[str],
        hint: str,
        shape: Shape | None = None,
        output: str = "",
        **attributes: Any,
    ) -> str:
        """Add an operator with one output of this shape; return `output` or a new name for it."""
        output = output or self.fresh(hint)
        name = self.name_of(f"{hint}/{kind}", output)
        self.ops.append(Op(kind, tuple(inputs), (output,), attributes, name=name))
        if shape is not None:
            self.flow.set_shape(output, shape)
        return output

    def name_of(self, hint: str, output: str) -> str:
        """Return the name of an operator with this output."""
        return output

    def constant(self, hint: str, array: Array) -> str:
        """Add a constant."""
        name = self.fresh(hint)
        self.flow.add_constant(name, array)
        return name

    def small_constant(self, hint: str, array: Array) -> str:
        """Add a small constant, named by its values."""
        return self.constant(hint, array)

    def ints(self, *values: int) -> str:
        """Add a list of integers."""
        return self.small_constant("int64_" + "_".join(map(str, values)), np.array(values, np.int64))

    def scalar(self, value: int) -> str:
        """Add an integer of rank 0."""
        return self.small_constant(f"int64_scalar_{value}", np.array(value, np.int64))

    def shape(self, name: str) -> Shape:
        """Return a value's shape."""
        shape = self.flow.shape(name)
        if shape is None:
            raise LookupError(f"the shape of {name!r} is not known")
        return shape

    # Changes of axes

    def transpose(self, value: str, perm: Sequence[int], hint: str, output: str = "") -> str:
        """Add a Transpose, unless no axis moves."""
        if list(perm) == sorted(perm) and not output:
            return value
        shape = self.shape(value)
        sizes = tuple(shape[axis] for axis in perm)
        return self.op("Transpose", [value], hint, sizes, output, perm=tuple(perm))

    def squeeze(self, value: str, axes: Sequence[int], hint: str, output: str = "") -> str:
        """Add a Squeeze."""
        shape = tuple(size for axis, size in enumerate(self.shape(value)) if axis not in axes)
        if not axes and not output:
            return value
        return self.op("Squeeze", [value, self.ints(*axes)], hint, shape, output)

    def unsqueeze(self, value: str, axes: Sequence[int], hint: str, output: str = "") -> str:
        """Add an Unsqueeze; `axes` are axes of the result."""
        rest = iter(self.shape(value))
        rank = len(self.shape(value)) + len(axes)
        shape = tuple(1 if axis in axes else next(rest) for axis in range(rank))
        return self.op("Unsqueeze", [value, self.ints(*axes)], hint, shape, output)

    def gather(self, value: str, index: int, axis: int, hint: str, output: str = "") -> str:
        """Return one slice, without its axis."""
        shape = self.shape(value)
        if index == 0 and shape[axis] == 1:
            return self.squeeze(value, [axis], hint, output)
        shape = (*shape[:axis], *shape[axis + 1 :])
        return self.op("Gather", [value, self.scalar(index)], hint, shape, output, axis=axis)

    def slice(self, value: str, axis: int, start: int, count: int, hint: str) -> str:
        """Return a part of an axis."""
        shape = self.shape(value)
        if shape[axis] == count:
            return value
        inputs = [value, self.ints(start), self.ints(start + count), self.ints(axis)]
        return self.op("Slice", inputs, hint, (*shape[:axis], count, *shape[axis + 1 :]))

    def reverse(self, value: str, axis: int, hint: str) -> str:
        """Reverse an axis."""
        inputs = [value, self.ints(-1), self.ints(-(2**63) + 1), self.ints(axis), self.ints(-1)]
        return self.op("Slice", inputs, hint, self.shape(value))
