"""Hoist computations that need no state out of a loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from onegru.dataflow.loops.loop import Loop
from onegru.dataflow.operator import LoopIndex, Op, Shape
from onegru.dataflow.table import Call, UnknownOpError, operator_of
from onegru.dataflow.table.cutting import Slice
from onegru.dataflow.view import View
from onegru.fusion.cells.cell import MissError
from onegru.fusion.nodes.emit import Emitter
from onegru.fusion.nodes.sources import SlicedSource, slice_step


class _Value(NamedTuple):
    """A value outside a loop."""

    name: str
    varies: bool  # whether it has a leading axis of iterations


def computed_ahead(loop: Loop) -> set[str]:
    """Return the body's values that depend on no state, and are used by operators that do."""
    body = loop.body
    states = {item.before for item in loop.carried if item.before not in loop.indices}
    found: set[str] = set()
    for op in body.ops:
        if states.intersection(map(body.resolve, op.reads())):
            states.update(filter(None, op.outputs))
            found |= {body.resolve(name) for name in op.inputs if name}
    return {name for name in found - states if name in body.producers and body.constant(name) is None}


class Hoist:
    """Computes values of a loop's body for all iterations, with new operators outside the loop."""

    def __init__(self, loop: Loop, emitter: Emitter, writes: Collection[str] | None) -> None:
        self.loop = loop
        self.body = loop.body
        self.emitter = emitter
        self.writes = writes  # the kinds of operators that the file supports; None for all
        self.step = 0  # 1 if the iterations are in order, -1 if they are reversed; 0 if unknown
        self._known: dict[str, _Value] = {}

    def source(self, view: View) -> SlicedSource:
        """Return the source of a value that iterations compute."""
        axes = [axis for axis, role in enumerate(view.roles) if isinstance(role, LoopIndex)]
        if axes and self.emitter.shape(view.name)[axes[0]] != self.loop.count:
            raise MissError("the number of slices may differ from the number of iterations")
        if axes:
            raise MissError("the slices are in another order")
        value = self.repeated(self.outside(view.name))
        return SlicedSource(View(value, (0, *view.roles), view.coordinates), axis=0, step=self.step)

    def outside(self, name: str) -> _Value:
        """Return a value of the body, computed outside the loop."""
        name = self.body.resolve(name)
        waiting, asked = [name], {name}
        while waiting:  # inputs first; `memoized` would add some operators twice
            last = waiting[-1]
            before = self._before(last)
            if before in asked:
                raise MissError(f"{before!r} depends on itself")
            if before:
                waiting.append(before)
                asked.add(before)
                continue
            if last not in self._known:
                self._known[last] = self._compute(last)
            asked.discard(waiting.pop())
        return self._known[name]

    def _before(self, name: str) -> str:
        """Return a value that must be computed before `name`; empty if there is none."""
        op = self.body.producers.get(name)
        if op is None or op.bodies or not (operator_of(op.kind).computes or op.kind == "Shape"):
            return ""
        if name in self._known or name in self.loop.sliced:
            return ""
        if self.body.constant(name) is not None or self._slice_index(op) is not None:
            return ""
        names = (self.body.resolve(item) for item in op.inputs if item)
        return next((item for item in names if item not in self._known), "")

    def rank(self, name: str) -> int:
        """Return the rank of a value of the body."""
        return len(self.shape(name))

    def shape(self, name: str) -> Shape:
        """Return the shape of a value of the body."""
        shape = self.body.shape(name)
        if shape is None:
            raise MissError(f"the shape of {name!r} is unknown")
        return shape

    def repeated(self, value: _Value) -> str:
        """Return a value with an axis of iterations."""
        name, varies = value
        if varies:
            return name
        shape, count = self.emitter.shape(name), self.loop.count
        ones = [1] * len(shape)
        base = self._base()
        if isinstance(count, int):
            target = self.emitter.ints(count, *ones)
        else:
            sizes = self.emitter.op("Shape", [base], "shape", (len(self.emitter.shape(base)),))
            bounds = [self.emitter.ints(index) for index in (0, 1, 0)]
            target = self.emitter.op("Slice", [sizes, *bounds], "steps", (1,))
            if ones:
                both = [target, self.emitter.ints(*ones)]
                target = self.emitter.op("Concat", both, "shape", (len(ones) + 1,), axis=0)
        one = self.emitter.unsqueeze(name, [0], "repeated")
        return self.emitter.op("Expand", [one, target], "repeated", (self.emitter.shape(base)[0], *shape))

    def _base(self) -> str:
        """Return the first value that iterations read in slices."""
        for name in (*self.loop.sliced, *(name for op in self.body.ops for name in op.outputs)):
            op = self.body.producers.get(name)
            if name in self.loop.sliced or (op is not None and self._slice_index(op) is not None):
                return self.outside(name).name
        raise MissError("it reads no slices")

    def _compute(self, name: str) -> _Value:
        if self.body.owner(name) is not self.body:
            return _Value(name, False)
        array = self.body.constant(name)
        if array is not None:
            if array.dtype == np.float64 and self.emitter.dtype != "float64":
                raise MissError("its body computes in float64")  # float64 marks new constants of other types
            fixed = self.emitter.constant("constant", array)
            self.emitter.flow.set_shape(fixed, array.shape)
            return _Value(fixed, False)
        if name in self.loop.sliced:
            source = self.loop.sliced[name]
            return _Value(self._all_slices(source.name, source.axis, source.step, source.keeps_axis), True)
        op = self.body.find_producer(name)
        if op is None and name in self.loop.indices:
            return _Value(self._loop_indices(name), True)
        if op is None or op.bodies or not (operator_of(op.kind).computes or op.kind == "Shape"):
            raise MissError(f"{name!r} cannot be computed before the loop")
        if (found := self._slice_index(op)) is not None:
            axis, index, keeps_axis = found
            outer = self.body.resolve(op.inputs[0])
            step = slice_step(index, self.emitter.shape(outer)[axis], self.loop.count)
            if step is None:
                raise MissError(f"{name!r} is read in another order")
            return _Value(self._all_slices(outer, axis, step, keeps_axis), True)
        given = [self.outside(item) if item else _Value("", False) for item in op.inputs]
        if not any(item.varies for item in given):
            return self.copy_op(op, [item.name for item in given], (), name)
        return _RULES.get(op.kind, _ahead)(self, op, given, name)

    def _slice_index(self, op: Op) -> tuple[int, LoopIndex, bool] | None:
        """Return the axis that an operator slices by the iteration, the index, and whether the axis stays."""
        if op.kind not in ("Gather", "Slice"):
            return None
        name = self.body.resolve(op.inputs[0])
        if self.body.owner(name) is self.body:
            return None
        shape = self.emitter.shape(name)
        if op.kind == "Slice":
            call = Call(op, self.body)
            single = call.operator.iteration_slice(call) if isinstance(call.operator, Slice) else None
            return None if single is None else (*single, True)
        index, rank = self.loop.indices.get(self.body.resolve(op.inputs[1])), self.rank(op.inputs[1])
        if index is None or rank > 1:
            return None
        return op.attributes.get("axis", 0) % len(shape), index, rank == 1

    def _all_slices(self, name: str, axis: int, step: int, keeps_axis: bool) -> str:
        """Return a value with the axis of its slices first."""
        self.step = self.step or step
        rest = [index for index in range(len(self.emitter.shape(name))) if index != axis]
        value = self.emitter.transpose(name, (axis, *rest), "slices")
        value = self.emitter.unsqueeze(value, [axis + 1], "slices") if keeps_axis else value
        return value if step == self.step else self.emitter.reverse(value, 0, "slices")

    def _loop_indices(self, name: str) -> str:
        """Return the indices of all iterations."""
        index, count = self.loop.indices[name], self.loop.count
        if index.size != 0 or not isinstance(count, int):
            raise MissError(f"{name!r} counts iterations, and their number is not fixed")
        self.step = self.step or 1
        numbers = index.base + index.sign * np.arange(count)[:: self.step]
        array = numbers.reshape(count, *[1] * self.rank(name)).astype(self.body.dtype(name) or "int64")
        counted = self.emitter.constant("counts", array)
        self.emitter.flow.set_shape(counted, array.shape)
        return counted

    # New operators

    def copy_op(self, op: Op, inputs: Sequence[str], lead: Shape, name: str, **changed: Any) -> _Value:
        """Add a copy of a body's operator, and return its value `name`."""
        self.check_writable(op.kind)
        given = []
        for output in op.outputs:
            new = self.emitter.fresh("ahead") if output else ""
            given.append(new)
            if output:
                self.emitter.flow.set_shape(new, (*lead, *self.shape(output)))
                self._known[output] = _Value(new, bool(lead))
                if (dtype := self.body.dtype(output)) is not None:
                    self.emitter.flow.set_dtype(new, dtype)
        named = self.emitter.fresh(f"ahead/{op.kind}")
        parameters = operator_of(op.kind).parameters
        replaced = {key for key, item in parameters.items() if any(inputs[item.input : item.input + 1])}
        kept = {key: value for key, value in op.attributes.items() if key not in replaced}
        self.emitter.ops.append(Op(op.kind, tuple(inputs), tuple(given), {**kept, **changed}, name=named))
        return self._known[name]

    def check_writable(self, kind: str) -> None:
        """Raise MissError for an operator that the file does not support."""
        if self.writes is not None and kind not in self.writes:
            raise MissError(f"onegru does not write {kind} in this format")

    def iterations(self, given: Sequence[_Value]) -> Shape:
        """Return the number of iterations."""
        return self.emitter.shape(next(item.name for item in given if item.varies))[:1]


# Rules that compute all iterations; at least one of the inputs has a leading axis of iterations.


def _ahead(hoist: Hoist, op: Op, given: list[_Value], name: str) -> _Value:
    call = Call(op, hoist.body)
    try:
        change = call.operator.vectorization(call, [item.varies for item in given])
    except UnknownOpError as error:
        words = str(error) or f"{op.kind} cannot be computed for all iterations at once"
        raise MissError(words) from error.__cause__
    inputs = [hoist.repeated(item) if change.repeat else item.name for item in given]
    if change.widen:
        rank = hoist.rank(name)
        inputs = [_widened(hoist, *item, rank) for item in zip(given, op.inputs, strict=True)]
    if op.kind == "Reshape":
        return _reshape(hoist, inputs[0], change.changed["shape"], hoist.iterations(given), hoist.shape(name))
    attributes: dict[str, Any] = {}
    for key, numbers in change.changed.items():
        parameter = call.operator.parameters.get(key)
        if parameter is None:
            attributes[key] = numbers
            continue
        inputs += [""] * (parameter.input + 1 - len(inputs))
        inputs[parameter.input] = hoist.emitter.ints(*numbers)
    return hoist.copy_op(op, inputs, hoist.iterations(given), name, **attributes)


def _reshape(hoist: Hoist, value: str, sizes: Sequence[int], lead: Shape, shape: Shape) -> _Value:
    """Add a Reshape. One size may be dynamic if the number of iterations is fixed."""
    (steps,) = lead
    if list(sizes).count(-1) > isinstance(steps, int):
        raise MissError("its sizes are dynamic")
    target = hoist.emitter.ints(steps if isinstance(steps, int) else 0, *sizes)
    return _Value(hoist.emitter.op("Reshape", [value, target], "ahead", (steps, *shape)), True)


def _widened(hoist: Hoist, value: _Value, name: str, rank: int) -> str:
    """Return a value that broadcasts with others of this rank like the body's value."""
    missing = rank - hoist.rank(name)
    if not value.varies or not missing:
        return value.name
    return hoist.emitter.unsqueeze(value.name, range(1, missing + 1), "ahead")


def _gemm(hoist: Hoist, op: Op, given: list[_Value], name: str) -> _Value:
    """Replace a matmul by a batched matmul."""
    (a, _), (b, changes), *bias = given
    if changes or not given[0].varies or op.attributes.get("transA"):
        raise MissError("its matmul cannot be computed for all iterations at once")
    emitter, shape = hoist.emitter, (*hoist.iterations(given), *hoist.shape(name))
    if op.attributes.get("transB"):
        b = emitter.transpose(b, (1, 0), "ahead")
    value = emitter.op("MatMul", [a, b], "ahead", shape)
    if (alpha := op.attributes.get("alpha", 1.0)) != 1:
        value = emitter.op("Mul", [value, emitter.number(alpha)], "ahead", shape)
    if bias and bias[0].name:
        added = _widened(hoist, bias[0], op.inputs[2], 2)
        if (beta := op.attributes.get("beta", 1.0)) != 1:
            added = emitter.op("Mul", [added, emitter.number(beta)], "ahead", emitter.shape(added))
        value = emitter.op("Add", [value, added], "ahead", shape)
    return _Value(value, True)


def _shape(hoist: Hoist, op: Op, given: list[_Value], name: str) -> _Value:
    """Add the operators for a shape, which is equal in all iterations."""
    hoist.check_writable("Shape")
    rank = hoist.rank(op.inputs[0])
    first, last, _ = slice(op.attributes.get("start", 0), op.attributes.get("end")).indices(rank)
    whole = hoist.emitter.op("Shape", [given[0].name], "shape", (rank + 1,))
    bounds = [hoist.emitter.ints(index) for index in (first + 1, last + 1, 0)]
    return _Value(hoist.emitter.op("Slice", [whole, *bounds], "shape", (last - first,)), False)


_RULES: dict[str, Callable[[Hoist, Op, list[_Value], str], _Value]] = {"Gemm": _gemm, "Shape": _shape}
