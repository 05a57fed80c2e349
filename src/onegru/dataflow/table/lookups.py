"""Describe operators that read or write elements at indices, which may be computed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from onegru.dataflow.operator import Facts, Shape, Size
from onegru.dataflow.table.base import (
    Call,
    Elements,
    Move,
    Operator,
    SameShape,
    UnknownOpError,
    operator_of,
    register,
)

BY_INDEX = "selects steps by their index in a run"
_WRITES = "writes steps by their index in a run"


def lookup_moves(call: Call, indexed: int, count: int, rank: int, batch: int = 0) -> Iterator[Move]:
    """Yield the moves of a lookup: its indices have `rank` axes, and replace `count` axes of the data."""
    # The first replaced axis is `indexed`. Data and indices share their first `batch` axes.
    for axis in range(call.rank()):
        if axis < indexed:
            yield Move(0, axis, axis)
        elif axis < indexed + count:
            yield Move(0, axis, None, 0, "remembers", BY_INDEX)
        else:
            yield Move(0, axis, axis - count + rank - batch)
    yield from (Move(1, axis, axis if axis < batch else indexed + axis - batch) for axis in range(rank))


def range_length(facts: Facts, name: str) -> Size | None:
    """Return the length of a value that has the integers 0, 1, 2, … in order; None for others."""
    for _ in range(20):
        op = facts.find_producer(name := facts.resolve(name))
        if op is None or facts.dtype(name) not in ("int32", "int64"):
            return None
        if op.kind == "Range":
            ends, shape = [facts.fill_value(item) for item in op.inputs[::2]], facts.shape(name)
            return shape[0] if ends == [0, 1] and shape else None
        zeros = [index for index, item in enumerate(op.inputs) if op.kind == "Add" and _is_zero(facts, item)]
        if not zeros and operator_of(op.kind).elements is not Elements.KEPT:
            return None
        name = op.inputs[1 - zeros[0] if zeros else 0]
    return None


def _is_zero(facts: Facts, name: str) -> bool:
    """Whether a value is a single zero, of any rank."""
    shape = facts.shape(name)
    return facts.fill_value(name) == 0 and shape is not None and all(size == 1 for size in shape)


class Lookup(Operator):
    """Operator whose output has elements of the data, its first input, at indices."""

    max_inputs: int = 2
    dtype: str | int | None = 0
    resizes: ClassVar[bool] = True


class BatchGather(Lookup):
    """OpenVINO's Gather, whose data and indices may share their first axes."""

    def moves(self, call: Call) -> Iterator[Move]:
        rank = call.rank(1)
        batch = call.get("batch_dims", 0) % max(rank, 1)
        return lookup_moves(call, call.axis(0), 1, rank, batch)


class GatherND(Lookup):
    def _parts(self, call: Call) -> tuple[int, int, int]:
        """Return the numbers of shared leading axes and of indexed axes after them, and the indices' rank."""
        count = call.shape(1)[-1]
        if not isinstance(count, int):
            raise UnknownOpError
        return call.get("batch_dims", 0), count, call.rank(1) - 1

    def shape(self, call: Call, output: int) -> Shape | None:
        batch, count, _ = self._parts(call)
        return (*call.shape(1)[:-1], *call.shape()[batch + count :])

    def moves(self, call: Call) -> Iterator[Move]:
        batch, count, rank = self._parts(call)
        yield from lookup_moves(call, batch, count, rank, batch)
        yield Move(1, rank, None, 0, "mixes", BY_INDEX)


class GatherElements(Lookup):
    """Operator with one index for each output element, along one axis of the data."""

    def shape(self, call: Call, output: int) -> Shape | None:
        return call.shape(1)

    def moves(self, call: Call) -> Iterator[Move]:
        for axis, (size, indices_size) in enumerate(zip(call.shape(), call.shape(1), strict=True)):
            if axis == call.axis(0):
                yield Move(0, axis, None, 0, "remembers", BY_INDEX)
            else:
                yield _unindexed_move(0, axis, size, indices_size, BY_INDEX)
            yield Move(1, axis, axis)


class EmbeddingBag(Lookup):
    """Sums of rows of a table, by indices [batch, indices of one bag]."""

    max_inputs: int = 3

    def moves(self, call: Call) -> Iterator[Move]:
        yield from lookup_moves(call, 0, 1, 1)
        yield Move(1, 1, None, 0, "mixes", BY_INDEX)
        if call.is_given(2):  # a weight for each index
            yield from (Move(2, 0, 0), Move(2, 1, None, 0, "mixes", BY_INDEX))


class OneHot(Operator):
    """Operator with a new axis: one value at the index, another elsewhere. Its size is the depth."""

    max_inputs: int = 3
    size_inputs: tuple[int, ...] = (1,)
    dtype: str | int | None = 2

    def new_axis(self, call: Call) -> int:
        """Return the new axis."""
        axis: int = call.get("axis", -1)
        return axis % (call.rank() + 1)

    def shape(self, call: Call, output: int) -> Shape | None:
        shape, new_axis, depth = call.shape(), self.new_axis(call), call.facts.as_sizes(call.op.inputs[1])
        size: Size = depth[0] if depth is not None else f"{call.op.outputs[0]}#{new_axis}"
        return (*shape[:new_axis], size, *shape[new_axis:])

    def moves(self, call: Call) -> Iterator[Move]:
        new_axis = self.new_axis(call)
        yield from (Move(0, axis, axis + (axis >= new_axis)) for axis in range(call.rank()))
        for index in range(2, len(call.op.inputs)):
            yield from (Move(index, axis, None, 0, "mixes", BY_INDEX) for axis in range(call.rank(index)))


class Bucketize(SameShape):
    """Index of the bucket of each element of the first input; the second input has the boundaries."""

    max_inputs: int = 2

    def moves(self, call: Call) -> Iterator[Move]:
        yield from (Move(0, axis, axis) for axis in range(call.rank()))
        yield Move(1, 0, None, 0, "mixes", BY_INDEX)


class Scatter(SameShape):
    """Operator that writes updates, its third input, into the data at indices, its second input."""

    max_inputs: int = 3
    dtype: str | int | None = 0

    def written_axes(self, call: Call) -> tuple[int, int, int]:
        """Return the first indexed axis of the data, the number of such axes, and of the indices' axes."""
        return call.axis(), 1, call.rank(1)

    def moves(self, call: Call) -> Iterator[Move]:
        first, count, rank = self.written_axes(call)
        for axis in range(call.rank()):
            is_indexed = first <= axis < first + count
            yield Move(0, axis, axis, 0, "mixes", _WRITES) if is_indexed else Move(0, axis, axis)
        yield from (Move(1, axis, None, 0, "mixes", _WRITES) for axis in range(call.rank(1)))
        for axis in range(call.rank(2)):
            if first <= axis < first + rank:
                yield Move(2, axis, None, 0, "mixes", _WRITES)
            else:
                yield Move(2, axis, axis if axis < first else axis - rank + count)


class ScatterND(Scatter):
    def written_axes(self, call: Call) -> tuple[int, int, int]:
        count = call.shape(1)[-1]
        if not isinstance(count, int):
            raise UnknownOpError
        return 0, count, call.rank(1) - 1


class ScatterElements(Scatter):
    """Operator with one index for each update, along one axis of the data."""

    def moves(self, call: Call) -> Iterator[Move]:
        written = call.axis(0)
        for axis, (size, indices_size) in enumerate(zip(call.shape(), call.shape(1), strict=True)):
            if axis == written:
                yield Move(0, axis, axis, 0, "mixes", _WRITES)
                yield from (Move(index, axis, None, 0, "mixes", _WRITES) for index in (1, 2))
            else:
                yield _unindexed_move(0, axis, size, indices_size, _WRITES)
                yield from (Move(index, axis, axis) for index in (1, 2))


def _unindexed_move(index: int, axis: int, size: Size, indices_size: Size, message: str) -> Move:
    """Return the move of an axis of the data; the indices may have fewer elements along it."""
    is_whole = size == indices_size or (isinstance(size, str) and isinstance(indices_size, str))
    return Move(index, axis, axis) if is_whole else Move(index, axis, axis, 0, "remembers", message)


register(
    *(GatherElements("GatherElements", "axis"), GatherND("GatherND", "batch_dims")),
    BatchGather("openvino::Gather", "axis batch_dims"),
    *(EmbeddingBag("openvino::EmbeddingBagPackedSum"), EmbeddingBag("openvino::EmbeddingBagPacked")),
    *(OneHot("OneHot", "axis"), OneHot("openvino::OneHot", "axis", max_inputs=4)),
    Bucketize("openvino::Bucketize"),
    *(ScatterElements("ScatterElements", "axis reduction"), ScatterND("ScatterND", "reduction")),
    Scatter("openvino::ScatterUpdate", "axis"),
)
