"""Translate WHILE loops with counted iterations to ONNX's Loop.

Iterations collect rows in an array or in a TensorFlow list. The loop carries the array, and iteration i
copies it: the rows before i, the new row, the rows after it. If each row is written once, ONNX's Loop
collects the rows. If only the last row is stored, it is the state.
"""

from __future__ import annotations

from onnx import TensorProto, helper

from onegru.formats.tflite.reader import TfliteOp
from onegru.formats.tflite.translate import OnnxWriter, UnknownError

_AXES = "RESHAPE", "EXPAND_DIMS"  # operators that add an axis of size 1


def stacked(graph: OnnxWriter, op: TfliteOp) -> list[str]:
    """Return the list of a loop as an array, which ONNX's Loop returns."""
    graph.producer(op.inputs[0], "WHILE")
    return [graph.emit("Identity", graph.value(op.inputs[0]))]


class WhileLoop:
    """WHILE loop. Raises `UnknownError` if its iterations are not counted."""

    def __init__(self, graph: OnnxWriter, op: TfliteOp) -> None:
        indices = [op.option(f"{name}SubgraphIndex") for name in ("Cond", "Body")]
        if min(indices) < 1:
            raise UnknownError
        self.graph, self.op = graph, op
        self.cond, self.body = (
            OnnxWriter(graph.translation, graph.translation.subgraphs[i], graph.depth + 1) for i in indices
        )
        self.before, self.after = self.body.subgraph.inputs, self.body.subgraph.outputs
        self.tested = self.cond.subgraph.inputs
        if not len(op.inputs) == len(op.outputs) == len(self.before) == len(self.after) == len(self.tested):
            raise UnknownError
        self.number, self.bound = self._count()
        # The collected rows by index of the array; and the states that are the last row, with their shapes.
        self.rows: dict[int, int] = {}
        self.last: dict[int, tuple[int, tuple[int, ...]]] = {}
        for position in range(len(self.before)):
            try:
                self._find_unneeded(position)
            except (UnknownError, ValueError, LookupError):
                continue

    def _is_next(self, after: int, before: int) -> bool:
        """Whether a value equals another value plus 1."""
        op = self.body.producer(after, "ADD")
        others = [index for index in op.inputs if index != before]
        return len(others) == 1 == len(op.inputs) - 1 and self.body.integers(others[0]) == [1]

    def _is_counter(self, index: int) -> bool:
        """Whether a value of the body counts iterations from 0."""
        position = self.before.index(index)
        is_zero = self.graph.integers(self.op.inputs[position]) == [0]
        return is_zero and self._is_next(self.after[position], index)

    def _count(self) -> tuple[int | None, int]:
        """Return the upper limit of the counter in all conditions: a number, or a value outside the loop."""
        waiting, found = [*self.cond.subgraph.outputs], set[tuple[int | None, int]]()
        for _ in range(len(self.cond.subgraph.operators)):
            op = self.cond.producer(waiting.pop(), "LESS", "LOGICAL_AND")
            if op.kind == "LOGICAL_AND":
                waiting += op.inputs
            else:
                found.add(self._bound(*op.inputs))
            if not waiting:
                break
        if waiting or len(found) != 1:
            raise UnknownError
        return found.pop()

    def _bound(self, low: int, high: int) -> tuple[int | None, int]:
        if not self._is_counter(self.before[self.tested.index(low)]):
            raise UnknownError
        if high not in self.tested:
            (number,) = self.cond.integers(high)
            return number, -1
        position = self.tested.index(high)
        if self.after[position] != self.before[position]:
            raise UnknownError
        index = self.op.inputs[position]
        is_open = self.graph.tensor(index).value is None
        return (None, index) if is_open else (self.graph.integers(index)[0], -1)

    def _is_count(self, index: int) -> bool:
        """Whether a value outside the loop is the number of iterations."""
        return index == self.bound if self.number is None else self.graph.integers(index) == [self.number]

    def _find_unneeded(self, position: int) -> None:
        """Record how to compute a value that ONNX's Loop does not need to carry."""
        body, inner, start = self.body, self.before[position], self.op.inputs[position]
        if self.cond.use_counts[self.tested[position]] or self.after.count(self.after[position]) > 1:
            return
        made = body.producer(self.after[position], "CONCATENATION", "FlexTensorListSetItem", *_AXES)
        if made.kind == "FlexTensorListSetItem":
            items, index, row = made.inputs
            has = self.graph.producer(start, "FlexTensorListReserve").inputs[1]
            if items != inner or body.use_counts[inner] != 1:
                raise UnknownError
            if index not in self.before:
                if body.integers(index) == [0] and self.graph.integers(has) == [1]:
                    self._record_last(position, row, ())
            elif self._is_counter(index) and self._is_count(has):
                self.rows[position] = row
        elif made.kind == "CONCATENATION":
            self._record_copy(position, made)
        elif not body.use_counts[inner]:
            shape, source = body.tensor(self.after[position]).shape, made.inputs[0]
            is_first = shape == (1, *body.tensor(source).shape)
            self._record_last(position, source, () if is_first else tuple(size or 0 for size in shape))

    def _record_last(self, position: int, source: int, shape: tuple[int, ...]) -> None:
        """Record a value that is a state in another shape, unless there may be no iteration."""
        state = self.after.index(source)
        starts = [self.graph.tensor(self.op.inputs[item]).value for item in (position, state)]
        is_zero = all(start is not None and not start.any() for start in starts)
        if state != position and 0 not in shape and (is_zero or (self.number or 0) > 0):
            self.last[position] = state, shape

    def _record_copy(self, position: int, made: TfliteOp) -> None:
        """Record an array with one row for each iteration, which writes only that row."""
        body, inner = self.body, self.before[position]
        front, row, back = made.inputs
        cut, kept = body.producer(front, "SLICE").inputs, body.producer(back, "SLICE").inputs
        index, after = self._first_of(cut[2], -1), self._first_of(kept[1], 0)
        source = body.producer(row, *_AXES).inputs[0]
        is_whole = cut[0] == kept[0] == inner and body.use_counts[inner] == 2
        is_whole = is_whole and {*body.integers(cut[1])} == {0} and {*body.integers(kept[2])} == {-1}
        is_row = body.tensor(row).shape == (1, *body.tensor(source).shape)
        is_row = is_row and not made.option("Axis") and not made.option("FusedActivationFunction")
        if is_whole and is_row and self._is_counter(index) and self._is_next(after, index):
            start = self.op.inputs[position]
            value = self.graph.tensor(start).value
            if value is not None and value.shape[0] == self.number:
                self.rows[position] = source
            elif value is None:
                shape = self.graph.producer(start, "FILL").inputs[0]
                first = self.graph.producer(shape, "CONCATENATION").inputs[0]
                if self._is_count(self.graph.producer(first, *_AXES).inputs[0]):
                    self.rows[position] = source

    def _first_of(self, index: int, rest: int) -> int:
        """Return the first element of a value whose other elements are all `rest`."""
        first, others = self.body.producer(index, "CONCATENATION").inputs
        if {*self.body.integers(others)} != {rest}:
            raise UnknownError
        return self.body.producer(first, *_AXES).inputs[0]

    def write(self) -> list[str]:
        """Write the loop and return its outputs."""
        graph, body = self.graph, self.body
        base, graph.base = graph.base, ""
        if self.number is None:
            steps = graph.emit("Cast", graph.value(self.bound), to=TensorProto.INT64)
        else:
            steps = graph.constant([max(self.number, 0)])
        graph.base = base
        carried = [item for item in range(len(self.before)) if item not in {**self.rows, **self.last}]
        initial = [graph.value(self.op.inputs[position]) for position in carried]
        iteration, goes_on = body.fresh("iteration"), body.fresh("goes_on")
        inputs = [
            helper.make_tensor_value_info(iteration, TensorProto.INT64, ()),
            helper.make_tensor_value_info(goes_on, TensorProto.BOOL, ()),
            *(body.add_input(self.before[position]) for position in carried),
        ]
        body.write([*(self.after[position] for position in carried), *self.rows.values()])
        outputs = [helper.make_tensor_value_info(body.emit("Identity", goes_on), TensorProto.BOOL, ())]
        outputs += [body.add_output(self.after[position]) for position in carried]
        outputs += [body.add_output(row) for row in self.rows.values()]
        whole = body.graph("body", inputs, outputs)
        given = graph.emit_all("Loop", [steps, "", *initial], len(outputs) - 1, body=whole)
        values = dict(zip([*carried, *self.rows], given, strict=True))
        for position, (state, shape) in self.last.items():
            kind, numbers = ("Reshape", shape) if shape else ("Unsqueeze", (0,))
            values[position] = graph.emit(kind, values[state], graph.constant(numbers))
        return [values[position] for position in range(len(self.before))]
