"""Follow rows of values through operators that only move elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from onegru.core.dtypes import Array
from onegru.dataflow.flow import Flow
from onegru.dataflow.loops.loop import SlicedInput
from onegru.dataflow.operator import LoopIndex, Op, Shape
from onegru.dataflow.table import Call, UnknownOpError, operator_of
from onegru.dataflow.table.making import broadcast_view
from onegru.dataflow.view import COLUMNS, ROWS, View
from onegru.fusion.cells.algebra import Algebra

_MOST_COLUMNS = 2**18


@dataclass(eq=False)
class Views:
    """The views of the values of a flow."""

    flow: Flow
    algebra: Algebra  # the atoms of the analysis
    indices: Mapping[str, LoopIndex] = field(default_factory=dict)  # the iteration indices of a loop's body
    sliced: Mapping[str, SlicedInput] = field(default_factory=dict)  # the sliced values, by the body's input

    def whole(self, name: str) -> View | None:
        """Return a view of the whole last axis of a value, in all rows; None if its size is unknown."""
        shape = self.flow.shape(name)
        if not shape or not isinstance(shape[-1], int) or shape[-1] > _MOST_COLUMNS:
            return None
        return View(name, (ROWS,) * (len(shape) - 1) + (COLUMNS,), np.arange(shape[-1])[None])

    def slice_of(self, view: View) -> View:
        """Return the view of the value outside the loop that an iteration reads a slice of."""
        source = self.sliced[view.name]
        index = LoopIndex(1, 0) if source.step > 0 else LoopIndex(-1, -1, -1)  # from the end of the axis
        after = view.roles[source.axis + source.keeps_axis :]
        return View(source.name, (*view.roles[: source.axis], index, *after), view.coordinates)

    def sources(self, op: Op, view: View) -> list[tuple[Array, View]] | None:
        """Return the sources of columns as (columns, view) pairs; None if the operator does not only move."""
        if not operator_of(op.kind).has_source:
            return None
        call = Call(op, self.flow)
        return call.operator.source(call, view)

    def source(self, op: Op, view: View) -> View:
        """Return the only source of an operator's output; raise UnknownOpError if there is none."""
        found = self.sources(op, view)
        if found is None or len(found) != 1:
            raise UnknownOpError
        return found[0][1]

    def shape(self, name: str) -> Shape:
        """Return a value's shape."""
        shape = self.flow.shape(name)
        if shape is None:
            raise UnknownOpError
        return shape

    def input_view(self, view: View, name: str, output_shape: Shape) -> View:
        """Return the view of an input of an element-wise operator with broadcasting."""
        shape = self.shape(name)
        for size, whole in zip(reversed(shape), reversed(output_shape), strict=False):
            if isinstance(size, int) and isinstance(whole, int) and size not in (1, whole):
                raise UnknownOpError  # a broken model
        return broadcast_view(view, name, shape, output_shape)
