"""Run nodes that only move axes in NumPy, without another runtime.

Exported models often have only a Squeeze or a Transpose between two GRUs. NumPy computes it in less time than
a call of another runtime takes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import AttributeProto, NodeProto

from onegru.core.dtypes import Array
from onegru.dataflow.table import operator_of
from onegru.formats.graph import OwnStep
from onegru.formats.onnx.validate import Source, describe, is_onnx

#: Returns the integers of a one-dimensional constant by its name; None for other values.
Integers = Callable[[str], tuple[int, ...] | None]


def view_of(node: NodeProto, opset: int, integers: Integers) -> Callable[[Any], Any] | None:
    """Return the function that a node applies to its first input; None unless it only moves axes."""
    if not is_onnx(node) or len(node.output) != 1 or not all(node.input[:1]):
        return None
    inputs = [name for name in node.input if name]
    given = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type == "Identity":
        return (lambda x: x) if len(inputs) == 1 and not given else None  # x need not be an array
    if node.op_type == "Transpose":
        if len(inputs) != 1 or given.keys() - {"perm"}:
            return None
        order = _list(given["perm"]) if given else None
        if given and (not order or sorted(order) != list(range(len(order)))):
            return None
        return lambda x: np.asarray(x).transpose(order)
    if node.op_type not in ("Squeeze", "Unsqueeze", "Reshape"):
        return None
    ((name, parameter),) = operator_of(node.op_type).parameters.items()
    by_input = opset >= parameter.since
    allowzero = given.pop("allowzero", None) if node.op_type == "Reshape" and opset >= 14 else None
    if len(inputs) != 1 + by_input or given.keys() != (set() if by_input else {name}):
        return None
    numbers = integers(inputs[1]) if by_input else _list(given[name])
    if not numbers:
        return None
    legal = (
        min(numbers) >= -1 and numbers.count(-1) <= 1 if name == "shape" else len({*numbers}) == len(numbers)
    )
    if not legal:
        return None
    match node.op_type:
        case "Squeeze":
            return lambda x: np.asarray(x).squeeze(numbers)
        case "Unsqueeze":
            return lambda x: np.expand_dims(x, numbers)
    keeps_zero = allowzero is not None and allowzero.i != 0
    return lambda x: _reshaped(np.asarray(x), numbers, keeps_zero)


def _list(attribute: AttributeProto) -> tuple[int, ...] | None:
    return tuple(attribute.ints) if attribute.type == AttributeProto.INTS else None


def _reshaped(x: Array, sizes: tuple[int, ...], keeps_zero: bool) -> Array:
    """Reshape; unless `keeps_zero`, a size of 0 means the size of the input's axis."""
    if not keeps_zero and 0 in sizes:
        if any(size == 0 and index >= x.ndim for index, size in enumerate(sizes)):
            raise ValueError(f"shape {list(sizes)} for an array of rank {x.ndim}")
        sizes = tuple(size or x.shape[index] for index, size in enumerate(sizes))
    return x.reshape(sizes)


class ViewStep(OwnStep):
    """A node that only moves axes; see `onegru.formats.graph.OwnStep`."""

    node_count = 1
    writes_views = True

    def __init__(self, source: Source, node: NodeProto, opset: int, integers: Integers) -> None:
        super().__init__((node.input[0],), (node.output[0],))
        self._source = source
        self._node = node
        self._opset = opset
        self._constants = {name: found for name in node.input[1:] if (found := integers(name)) is not None}

    @functools.cached_property
    def _view(self) -> Callable[[Any], Any]:
        view = view_of(self._node, self._opset, self._constants.get)
        assert view is not None, "the reader creates steps only from such nodes"
        return view

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_view"}

    def run(self, values: dict[str, Any]) -> None:
        """Add its output to the values; it shares the input's memory."""
        (source,), (target,) = self.reads, self.writes
        try:
            values[target] = self._view(values[source])
        except ValueError as error:  # including NumPy's AxisError
            raise self._source.error(f"{describe(self._node)}: {error}") from error
