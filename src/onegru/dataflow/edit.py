"""Changes of a graph, independent of the file format.

An `Edit` stages changes. The flow stays unchanged, so that results about it stay valid. The writer of each
format then applies the changes to the file's own representation. Operators have ONNX's names in the form of
its newest opset: lists of integers are inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onegru.core.dtypes import Array
from onegru.dataflow.flow import Flow
from onegru.dataflow.names import fresh_name
from onegru.dataflow.operator import Op, Size
from onegru.dataflow.table import operator_of

#: The end of an axis.
END = 2**63 - 1


@dataclass(eq=False, slots=True)
class Staged:
    """Staged changes of an operator."""

    op: Op  # the operator
    kind: str  # as in `Op`
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any] = field(default_factory=dict)  # the changed ones; None for a removed one
    is_replaced: bool = False  # whether only its outputs and its name remain


@dataclass(frozen=True, slots=True)
class Declared:
    """New input or output of the model: its element type by NumPy's name, and its shape."""

    dtype: str
    shape: tuple[Size, ...]


class Edit:
    """Staged changes of a graph."""

    def __init__(self, flow: Flow, names: set[str]) -> None:
        self.flow = flow  # only new constants are added to it
        self.names = names  # all names in use, including new ones
        self.constants: dict[str, Array] = {}
        self.inputs: dict[str, Declared] = {}  # new inputs of the model
        self.outputs: dict[str, Declared] = {}
        self.sizes: dict[tuple[str, int], Size] = {}  # of the model's inputs and outputs, by name and axis
        self.metadata: dict[str, str] = {}  # new entries
        self.not_folded: set[str] = set()  # new constant values that are nevertheless computed in each run
        self._staged: dict[int, Staged] = {}
        self._before: dict[int, list[Op]] = {}
        self._last: list[Op] = []
        self.new_producers: dict[str, Op] = {}  # new operators, by their outputs
        self._ints: dict[tuple[int, ...], str] = {}

    # Values

    def fresh(self, hint: str) -> str:
        """Return a new name: the hint, or a name that begins with it."""
        return fresh_name(hint, self.names)

    def constant(self, hint: str, array: Array) -> str:
        """Add a constant and return its name."""
        name = self.fresh(hint)
        self.constants[name] = array
        self.flow.add_constant(name, array)
        return name

    def ints(self, *values: int) -> str:
        """Add a constant list of integers and return its name."""
        if values not in self._ints:
            words = "_".join("end" if value == END else str(value) for value in values)
            self._ints[values] = self.constant(f"onegru/{words}", np.array(values, np.int64))
        return self._ints[values]

    # Operators

    def add(
        self,
        kind: str,
        inputs: Sequence[str],
        hint: str,
        *,
        output: str = "",
        before: Op | None = None,
        **attributes: Any,
    ) -> str:
        """Add an operator before another one or at the end; return its only output."""
        output = output or self.fresh(hint)
        op = Op(kind, tuple(inputs), (output,), attributes, name=self.fresh(f"{hint}/{kind}"))
        (self._last if before is None else self._before.setdefault(id(before), [])).append(op)
        self.new_producers[output] = op
        return output

    def slice(
        self,
        value: str,
        axis: int,
        start: int,
        end: int,
        hint: str,
        *,
        output: str = "",
        before: Op | None = None,
    ) -> str:
        """Add a Slice of one axis."""
        bounds = map(self.ints, (start, end, axis))
        return self.add("Slice", [value, *bounds], hint, output=output, before=before)

    def staged(self, op: Op) -> Staged:
        """Return an operator's staged changes, which the caller may modify."""
        if id(op) not in self._staged:
            self._staged[id(op)] = Staged(op, op.kind, list(op.inputs), list(op.outputs))
        return self._staged[id(op)]

    def input_of(self, op: Op, index: int) -> str:
        """Return an operator's input after the changes so far; "" for none."""
        inputs = self._staged[id(op)].inputs if id(op) in self._staged else op.inputs
        return inputs[index] if index < len(inputs) else ""

    def output_of(self, op: Op, index: int) -> str:
        """Return an operator's output after the changes so far; "" for none."""
        outputs = self._staged[id(op)].outputs if id(op) in self._staged else op.outputs
        return outputs[index] if index < len(outputs) else ""

    def set_input(self, op: Op, index: int, value: str) -> None:
        """Replace an input of an operator; "" for none."""
        if self.input_of(op, index) != value:
            _put(self.staged(op).inputs, index, value)

    def ensure_output(self, op: Op, index: int, name: str) -> str:
        """Return the name of an operator's output; add the output under `name` if it does not exist."""
        if not self.output_of(op, index):
            _put(self.staged(op).outputs, index, name)
        return self.output_of(op, index)

    def set(self, op: Op, **attributes: Any) -> None:
        """Change attributes; None removes one."""
        self.staged(op).attributes.update(attributes)

    def set_ints(self, op: Op, name: str, numbers: Sequence[int]) -> None:
        """Change a list of integers of an operator, if this operator has such a list."""
        parameters = operator_of(op.kind).parameters
        if any(item in op.attributes for item in parameters):
            self.set(op, **{name: list(numbers)})
        else:
            self.set_input(op, parameters[name].input, self.ints(*numbers))

    def replace_operator(self, op: Op, kind: str, inputs: Sequence[str]) -> None:
        """Replace an operator by another one with the same outputs."""
        staged = self.staged(op)
        staged.kind, staged.inputs, staged.is_replaced = kind, list(inputs), True

    def rename(self, names: Mapping[str, str]) -> None:
        """Rename values everywhere."""
        for op in [*self.flow.ops, *self.added()]:
            if names.keys() & (set(op.reads()) - {*op.inputs}):
                raise LookupError(op.name)
            now = self._staged.get(id(op), op)
            if names.keys() & {*now.inputs, *now.outputs}:
                staged = self.staged(op)
                staged.inputs = [names.get(name, name) for name in staged.inputs]
                staged.outputs = [names.get(name, name) for name in staged.outputs]

    # The model

    def add_input(self, name: str, dtype: str, shape: Sequence[Size]) -> str:
        """Add an input to the model."""
        self.inputs[name] = Declared(dtype, tuple(shape))
        return name

    def add_output(self, name: str, dtype: str, shape: Sequence[Size]) -> None:
        """Add an output to the model: the value of this name."""
        self.outputs[name] = Declared(dtype, tuple(shape))

    # Methods for writers

    def is_empty(self) -> bool:
        """Whether only metadata change."""
        return not (self._staged or self.added() or self.inputs or self.outputs or self.sizes)

    def changes(self) -> Iterator[Staged]:
        """Return the changed operators of the file."""
        new = {id(op) for op in self.added()}
        return (staged for key, staged in self._staged.items() if key not in new)

    def added(self) -> list[Op]:
        """Return the new operators."""
        return [*(op for ops in self._before.values() for op in ops), *self._last]

    def in_order(self, items: Collection[tuple[Op | None, Any]]) -> Iterator[Any]:
        """Yield the operators of the file or their replacements, in order, and the new operators."""
        for op, item in items:
            yield from self._new_before(op)
            yield item
        for op in self._last:
            yield from self._new_before(op)
            yield self._final(op)

    def _new_before(self, op: Op | None) -> Iterator[Op]:
        for new in self._before.get(id(op), ()) if op is not None else ():
            yield from self._new_before(new)
            yield self._final(new)

    def _final(self, op: Op) -> Op:
        now = self._staged.get(id(op), op)
        op.inputs, op.outputs = tuple(now.inputs), tuple(now.outputs)
        return op


def _put(values: list[str], index: int, value: str) -> None:
    values.extend([""] * (index + 1 - len(values)))
    values[index] = value
