"""Describe operators that create or repeat elements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from onegru.core.dtypes import Array
from onegru.dataflow.operator import MOST_SIZES, Shape
from onegru.dataflow.table.base import (
    ArrayCall,
    Call,
    Elements,
    Move,
    Operator,
    Sizes,
    UnknownOpError,
    check_size,
    input_moves,
    operator_of,
    register,
)
from onegru.dataflow.table.moving import Moving
from onegru.dataflow.table.pointwise import broadcast
from onegru.dataflow.view import COLUMNS, Role, View


class Repeating(Moving):
    """Operator that repeats elements; its second input is the number of repetitions."""

    elements: ClassVar[Elements] = Elements.REPEATED
    size_inputs: tuple[int, ...] = (1,)
    max_inputs: int = 2


class Expand(Repeating):
    shape_input: int | None = 1

    def shape(self, call: Call, output: int) -> Shape | None:
        sizes = call.facts.as_sizes(call.op.inputs[1])
        return None if sizes is None else broadcast([call.shape(), sizes])

    def value(self, call: ArrayCall) -> Sequence[Array]:
        shape = np.broadcast_shapes(call.array().shape, tuple(int(size) for size in call.array(1)))
        check_size(shape)
        return [np.broadcast_to(call.array(), shape)]

    def moves(self, call: Call) -> Iterator[Move]:
        shape, target = call.shape(), call.facts.shape(call.op.outputs[0])
        sizes = call.facts.as_sizes(call.op.inputs[1]) if target is None else target
        if sizes is None:
            raise UnknownOpError
        rank = len(sizes) if target is not None else max(len(sizes), len(shape))
        for axis, size in enumerate(shape):
            to = rank - len(shape) + axis
            if size != 1 or target is None or target[to] == 1:
                yield Move(0, axis, to)

    def source(self, call: Call, view: View) -> list[tuple[Array, View]]:
        shape = call.facts.shape(call.op.outputs[0])
        if shape is None:
            raise UnknownOpError
        return [(view.columns, broadcast_view(view, call.op.inputs[0], call.shape(), shape))]


def broadcast_view(view: View, name: str, shape: Shape, output_shape: Shape) -> View:
    """Return the view of an input of an elementwise operator with broadcasting."""
    missing = len(output_shape) - len(shape)
    roles: list[Role] = []
    kept: list[int] = []
    for axis, role in list(enumerate(view.roles))[missing:]:
        if shape[axis - missing] == 1 and output_shape[axis] != 1:
            roles.append(0)
            continue
        kept += [view.coordinate_row(axis)] if role == COLUMNS else []
        roles.append(role)
    return View(name, tuple(roles), view.coordinates[kept])


class Tile(Repeating):
    resizes: ClassVar[bool] = True

    def shape(self, call: Call, output: int) -> Shape | None:
        repeats, shape = call.facts.as_sizes(call.op.inputs[1]), call.shape()
        if repeats is None or len(repeats) != len(shape):
            return None
        return operator_of("Mul").as_sizes(call, [shape, repeats]) if shape else ()

    def value(self, call: ArrayCall) -> Sequence[Array]:
        x, repeats = call.array(), call.array(1)
        check_size([size * int(number) for size, number in zip(x.shape, repeats, strict=True)])
        return [np.tile(x, repeats)]

    def moves(self, call: Call) -> Iterator[Move]:
        repeats = call.constant(1)
        if repeats is None or repeats.size != call.rank():
            raise UnknownOpError
        repeated = [axis for axis, count in enumerate(repeats.ravel()) if count != 1]
        yield from input_moves(call, repeated, message="repeats steps of a run")

    def source(self, call: Call, view: View) -> list[tuple[Array, View]]:
        repeats, shape, whole = call.constant(1), call.shape(), call.facts.shape(call.op.outputs[0])
        if repeats is None or whole is None or repeats.size != len(shape):
            raise UnknownOpError
        roles, coordinates = list(view.roles), view.coordinates.copy()
        for axis, (count, size) in enumerate(zip(repeats.ravel(), shape, strict=True)):
            role = roles[axis]
            if 1 in (count, size):
                continue
            if not isinstance(size, int) or not (isinstance(role, int) or role == COLUMNS):
                raise UnknownOpError
            if isinstance(role, int):
                roles[axis] = role % size
            else:
                coordinates[view.coordinate_row(axis)] %= size
        repeated = View(call.op.inputs[0], tuple(roles), coordinates)
        return [(view.columns, broadcast_view(repeated, repeated.name, shape, whole))]


class Making(Operator):
    """Operator that creates values from sizes, without a time axis."""

    def moves(self, call: Call) -> Iterator[Move]:
        return iter(())


class ShapeOf(Making):
    computes: bool = True
    dtype: str | int | None = "int64"

    def shape(self, call: Call, output: int) -> Shape | None:
        return (len(call.shape()[call.get("start", 0) : call.get("end")]),)

    def value(self, call: ArrayCall) -> Sequence[Array]:
        return [np.array(call.array().shape[call.get("start", 0) : call.get("end")], np.int64)]


class ConstantOfShape(Making):
    computes: bool = True
    size_inputs: tuple[int, ...] = (0,)
    shape_input: int | None = 0

    def shape(self, call: Call, output: int) -> Shape | None:
        return call.facts.as_sizes(call.op.inputs[0])

    def as_sizes(self, call: Call, parts: list[Sizes]) -> Sizes | None:
        value = np.asarray(call.get("value", 0.0))
        (count,) = parts[0] if len(parts[0]) == 1 else ("",)
        is_whole = value.dtype.kind in "iu" and isinstance(count, int) and count <= MOST_SIZES
        return (int(value.ravel()[0]),) * int(count) if is_whole else None

    def value(self, call: ArrayCall) -> Sequence[Array]:
        shape = tuple(int(size) for size in call.array())
        check_size(shape)
        value = np.asarray(call.get("value", np.zeros(1, np.float32)))
        return [np.full(shape, value.ravel()[0], value.dtype)]


class Range(Making):
    computes: bool = True
    dtype: str | int | None = 0

    def shape(self, call: Call, output: int) -> Shape | None:
        first, last, step = (call.facts.as_sizes(name) for name in call.op.inputs)
        if first != (0,) or step != (1,) or last is None or len(last) != 1:
            return None
        return tuple(max(size, 0) if isinstance(size, int) else size for size in last)

    def value(self, call: ArrayCall) -> Sequence[Array]:
        start, limit, delta = (array.ravel()[0].item() for array in call.arrays)
        if all(isinstance(number, int) for number in (start, limit, delta)):
            count = max(0, -((start - limit) // delta))
            check_size([count])
            return [np.asarray(start + delta * np.arange(count), call.array().dtype)]
        check_size([max(0, math.ceil((limit - start) / delta))])
        return [np.arange(start, limit, delta).astype(call.array().dtype)]


class Broadcast(Operator):
    """OpenVINO's Broadcast of a mode that differs from ONNX's Expand."""

    elements: ClassVar[Elements] = Elements.REPEATED


register(
    *(Expand("Expand"), Tile("Tile"), Broadcast("openvino::untranslated::Broadcast")),
    *(ShapeOf("Shape", "start end"), Making("Size", dtype="int64")),
    *(ConstantOfShape("ConstantOfShape", "value"), Range("Range")),
)
