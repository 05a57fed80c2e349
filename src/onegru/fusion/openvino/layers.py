"""Convert new operators to OpenVINO layers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import SpecError
from onegru.core.spec import Spec
from onegru.dataflow import table
from onegru.dataflow.build import Builder
from onegru.dataflow.flow import Flow
from onegru.dataflow.names import fresh_name
from onegru.dataflow.operator import Op, Shape, Size
from onegru.formats.openvino.writer import arranged_weights, attributes_of, operator_of, version_of
from onegru.fusion.cells.cell import Cell
from onegru.operators.lowering import lower
from onegru.operators.onnx import AUGRU, NEWEST

#: The new operators that become layers of OpenVINO's GRU family.
GRUS = ("GRU", "onegru::AUGRU")
_BATCH_FIRST = (1, 0, 2)


def why_not(cell: Cell) -> str:
    """Return why OpenVINO's operators cannot express a cell; "" if they can."""
    try:
        spec = Spec(
            cell.W.shape[1],
            cell.hidden_size,
            "float32",
            linear_before_reset=cell.linear_before_reset,
            clip=cell.clip,
            activations=(cell.activations,),
            attention=cell.spec_attention,
        )
        operator_of(spec, cell=False)
    except SpecError as error:
        return str(error)
    return ""


def typed(flow: Flow, name: str) -> Array | None:
    """Return a constant in its declared element type."""
    array = flow.constant(name)
    if array is None or array.dtype != np.float64:
        return array
    with np.errstate(over="ignore"):
        return np.asarray(array, numpy_dtype(flow.dtype(name) or "float32"))


class GruLayers(Builder):
    """Converts an ONNX GRU to OpenVINO's operators, with Transposes around them."""

    def __init__(self, flow: Flow, names: set[str]) -> None:
        super().__init__(flow, "onegru", names)
        self._sizes: dict[tuple[str, int], str] = {}

    def add(self, op: Op) -> None:
        """Add the operators for a GRU; a GRU with a single step becomes a cell."""
        X, w, r, b, lengths, initial_h, A = (*op.inputs, *[""] * (7 - len(op.inputs)))
        lowered = lower(AUGRU if A else NEWEST, op.attributes, *map(self._taken, (w, r, b)))
        spec, weights = lowered.spec, lowered.weights
        if len(set(spec.activations)) > 1:  # GRUSequence has only one pair
            self._split_directions(op)
            return
        T, B, _ = self.shape(X)
        H, D = spec.hidden_size, spec.num_directions
        is_cell = T == 1 and D == 1 and not lengths
        is_backwards = spec.direction == "reverse" and bool(A) and not is_cell
        if is_backwards:  # AUGRUSequence has no reverse direction
            X, A = (self.reverse(value, 0, "Slice") for value in (X, A))
        if is_cell or is_backwards:
            spec = Spec(
                spec.input_size, H, spec.dtype, "forward", spec.linear_before_reset, spec.clip,
                spec.activations, spec.attention,
            )  # fmt: skip
        operator = operator_of(spec, is_cell)
        constants = [
            self._weight(f"{op.name}/{name}", array)
            for name, array in arranged_weights(spec, weights, operator).items()
        ]
        X = self._moved(X, is_cell)
        state = initial_h
        if not state:
            state = self._zeros(X, B, (D, H), spec.dtype, op.name)
        else:
            state = self.transpose(state, _BATCH_FIRST, "Transpose")
        state = self.squeeze(state, [1], "Squeeze") if is_cell else state
        inputs = [X, state]
        if not is_cell:
            inputs.append(lengths or self._lengths(X, T, B, op.name))
        inputs += constants
        if A:
            inputs.append(self._moved(A, is_cell))
        attributes = attributes_of(spec, operator)
        more = {"data": attributes, "version": version_of(operator), "dtype": spec.dtype}
        outputs = (*op.outputs, *[""] * (2 - len(op.outputs)))
        kind = f"openvino::{operator.name}"
        if is_cell:
            Ho = self._new("Ho", (B, H))
            self.ops.append(Op(kind, tuple(inputs), (Ho,), more, name=op.name))
            for name, axes in zip(outputs, ((0, 1), (0,)), strict=True):
                if name:
                    self.unsqueeze(Ho, axes, "Unsqueeze", name)
            return
        Y, Ho = self._new("Y", (B, D, T, H)), self._new("Ho", (B, D, H))
        self.ops.append(Op(kind, tuple(inputs), (Y, Ho), more, name=op.name))
        if is_backwards and outputs[0]:
            Y = self.reverse(Y, 2, "Slice")
        for value, name, perm in ((Y, outputs[0], (2, 1, 0, 3)), (Ho, outputs[1], _BATCH_FIRST)):
            if name:
                self.transpose(value, perm, "Transpose", name)

    def _split_directions(self, op: Op) -> None:
        """Add a bidirectional GRU as two GRUs, one for each direction."""
        axes = NEWEST.direction_axes()
        weights = [self._taken(name) for name in (*op.inputs, "", "")[1:4]]
        kinds = lower(NEWEST, op.attributes, *weights).spec.activations
        parts: dict[str, list[str]] = {name: [] for name in op.outputs if name}
        for number, direction in enumerate(("forward", "reverse")):
            inputs = [
                self._half(name, number, axes.get(port.name))
                for port, name in zip(NEWEST.inputs, op.inputs, strict=False)
            ]
            given = [name and self._new(f"{op.name}/{direction}") for name in op.outputs]
            for port, name, part in zip(NEWEST.outputs, op.outputs, given, strict=False):
                if name:
                    axis, shape = axes[port.name], self.shape(name)
                    self.flow.set_shape(part, (*shape[:axis], 1, *shape[axis + 1 :]))
                    parts[name].append(part)
            functions = [function.name for function in kinds[number]]
            attributes = {**op.attributes, "activations": functions, "direction": direction}
            self.add(Op("GRU", tuple(inputs), tuple(given), attributes, name=self._new(op.name)))
        for port, name in zip(NEWEST.outputs, op.outputs, strict=False):
            if name:
                self.ops.append(
                    Op("Concat", tuple(parts[name]), (name,), {"axis": axes[port.name]}, name=name)
                )

    def _half(self, name: str, number: int, axis: int | None) -> str:
        """Return one direction's part of an input, along this axis."""
        if not name or axis is None:
            return name
        array = self._taken(name)
        if array is None:
            return self.cut(name, axis, number, 1, "Slice")
        return self._weight(name, np.take(array, [number], axis))

    def _taken(self, name: str) -> Array | None:
        return typed(self.flow, name) if name else None

    def _new(self, what: str, shape: Shape | None = None) -> str:
        name = self.fresh(what)
        if shape is not None:
            self.flow.set_shape(name, shape)
        return name

    def _moved(self, value: str, is_cell: bool) -> str:
        """Return a sequence with the batch axis first, or its only step."""
        if is_cell:
            return self.squeeze(value, [0], "Squeeze")
        return self.transpose(value, _BATCH_FIRST, "Transpose")

    def _weight(self, name: str, array: Array) -> str:
        name = fresh_name(name, self.names)
        self.flow.add_constant(name, array)
        return name

    def _size(self, value: str, axis: int) -> str:
        """Return a size of a value, [1]."""
        if (value, axis) not in self._sizes:
            shape = self.op("Shape", [value], "Shape", (len(self.shape(value)),))
            index = self.constant("index", np.array([axis], np.int64))
            self._sizes[value, axis] = self.op("Gather", [shape, index], "Gather", (1,), axis=0)
        return self._sizes[value, axis]

    def _lengths(self, X: str, T: Size, B: Size, name: str) -> str:
        """Return lengths of T for all rows; X is [B, T, I]."""
        if isinstance(T, int) and isinstance(B, int):
            return self._weight(f"{name}/sequence_lengths", np.full(B, T, np.int64))
        steps = self._size(X, 1)
        return self.op("Expand", [steps, self._size(X, 0)], "Expand", (B,))

    def _zeros(self, X: str, B: Size, rest: tuple[int, int], dtype: str, name: str) -> str:
        """Return an initial state of zeros, [B, D, H]; X is [B, ...]."""
        if isinstance(B, int):
            return self._weight(f"{name}/initial_h", np.zeros((B, *rest), numpy_dtype(dtype)))
        others = self.constant("sizes", np.array(rest, np.int64))
        sizes = self.op("Concat", [self._size(X, 0), others], "Concat", (3,), axis=0)
        zero = self.constant("zero", np.zeros(1, numpy_dtype(dtype)))
        return self.op("Expand", [zero, sizes], "Expand", (B, *rest))


def output_dtype(op: Op, dtype: Callable[[str], str]) -> str:
    """Return the element type of an operator's output; `dtype` returns the type of an input."""
    found = op.attributes.get("dtype") or table.operator_of(op.kind).dtype_of(op)
    return found if isinstance(found, str) else dtype(op.inputs[found or 0])
