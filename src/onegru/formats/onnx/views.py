"""A part of an ONNX graph that only moves axes, which needs no other runtime.

Between the GRUs of exported models lie a Squeeze or a Transpose and nothing else: NumPy does them in less
time than another runtime takes to be called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import AttributeProto, NodeProto

from onegru.core.dtypes import Array
from onegru.formats.graph import OwnStep
from onegru.formats.onnx.read import Source, describe, is_onnx

#: The constant of a name as integers, if it is one axis of them; else None.
Integers = Callable[[str], tuple[int, ...] | None]


@dataclass(frozen=True, slots=True)
class View:
    """What a node does to an array.

    Attributes:
        apply: it.
        is_identity: whether it gives what it gets, be it an array or not.
    """

    apply: Callable[[Array], Array]
    is_identity: bool = False


def view_of(node: NodeProto, opset: int, integers: Integers) -> View | None:
    """What a node does to its first input; None if it is not a move of axes that constants alone tell.

    A node whose attributes or inputs are not exactly those of its opset is left to ONNX Runtime to judge.

    Args:
        node: the node.
        opset: the version of its operator set.
        integers: the values of a constant.
    """
    if not is_onnx(node) or len(node.output) != 1 or not all(node.input[:1]):
        return None
    inputs = [name for name in node.input if name]
    given = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type == "Identity":
        return View(lambda x: x, is_identity=True) if len(inputs) == 1 and not given else None
    if node.op_type == "Transpose":
        if len(inputs) != 1 or given.keys() - {"perm"}:
            return None
        order = _list(given["perm"]) if given else None
        if given and (not order or sorted(order) != list(range(len(order)))):
            return None
        return View(lambda x: x.transpose(order))
    if node.op_type not in _INPUT_FROM:
        return None
    by_input = opset >= _INPUT_FROM[node.op_type]
    name = "shape" if node.op_type == "Reshape" else "axes"
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
            return View(lambda x: x.squeeze(numbers))
        case "Unsqueeze":
            return View(lambda x: np.expand_dims(x, numbers))
    keeps_zero = allowzero is not None and allowzero.i != 0
    return View(lambda x: x.reshape(_sizes(x, numbers, keeps_zero)))


#: From which opset on the axes, or the shape, are an input.
_INPUT_FROM = {"Squeeze": 13, "Unsqueeze": 13, "Reshape": 5}


def _list(attribute: AttributeProto) -> tuple[int, ...] | None:
    return tuple(attribute.ints) if attribute.type == AttributeProto.INTS else None


def _sizes(x: Array, sizes: tuple[int, ...], keeps_zero: bool) -> tuple[int, ...]:
    """Reshape's sizes: 0 stands for the size that the input has there, unless told otherwise."""
    if keeps_zero or 0 not in sizes:
        return sizes
    if any(size == 0 and index >= x.ndim for index, size in enumerate(sizes)):
        raise ValueError(f"shape {list(sizes)} for an array of rank {x.ndim}")
    return tuple(size or x.shape[index] for index, size in enumerate(sizes))


class ViewStep(OwnStep):
    """Nodes that only move axes; see `onegru.formats.graph.OwnStep`."""

    gives_views = True

    def __init__(
        self,
        source: Source,
        nodes: Sequence[NodeProto],
        reads: tuple[str, ...],
        gives: tuple[str, ...],
        opset: int,
        integers: Integers,
    ) -> None:
        self._opset = opset
        self._source = source
        super().__init__(reads, gives)
        self._nodes = tuple(nodes)
        self.node_count = len(self._nodes)
        second = {name for node in nodes for name in node.input[1:]}
        self._constants = {name: values for name in second if (values := integers(name)) is not None}
        self._views = self._make_views()

    def _make_views(self) -> list[tuple[str, str, View]]:
        views = ((node, view_of(node, self._opset, self._constants.get)) for node in self._nodes)
        return [(node.input[0], node.output[0], view) for node, view in views if view is not None]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_views": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._views = self._make_views()

    def run(self, values: dict[str, Any]) -> None:
        """Add its outputs to the values; they share their inputs' memory.

        Raises:
            FormatError: a node does not fit the array that it gets.
        """
        if len(self._views) == 1:  # as between two GRUs
            taken, given, view = self._views[0]
            try:
                values[given] = view.apply(values[taken])
                return
            except (ValueError, AttributeError):
                pass  # what is wrong, or no array yet, is seen below
        found = {name: values[name] for name in self._reads}
        for index, (taken, given, view) in enumerate(self._views):
            try:
                value = found[taken]
                found[given] = value if view.is_identity else view.apply(np.asarray(value))
            except ValueError as error:  # NumPy's AxisError, too
                raise self._source.error(f"{describe(self._nodes[index])}: {error}") from None
        values.update((name, found[name]) for name in self._gives)
