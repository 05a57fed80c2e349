"""Convert GRUs to layers of OpenVINO.

The layers are GRUSequence-5 or GRUCell-3; with attention, AUGRUSequence or AUGRUCell (version "extension").
OpenVINO has one bias for each gate, and the canonical form has two: they are added in the weights' type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import SpecError
from onegru.core.shapes import arrange
from onegru.core.spec import Spec, Weights
from onegru.dataflow import table
from onegru.dataflow.build import Builder
from onegru.dataflow.edit import Edit
from onegru.dataflow.flow import Flow
from onegru.dataflow.names import fresh_name
from onegru.dataflow.operator import Op, Shape, Size
from onegru.engines.storage import quantize_channels
from onegru.operators.lowering import lower
from onegru.operators.onnx import AUGRU, NEWEST
from onegru.operators.openvino import AUGRU_CELL, AUGRU_SEQUENCE, GRU_CELL, GRU_SEQUENCE
from onegru.operators.schema import OpSchema, Role

#: The new operators that become layers of OpenVINO's GRU family.
GRUS = ("GRU", "onegru::AUGRU")
_BATCH_FIRST = (1, 0, 2)


def typed_constant(flow: Flow, name: str) -> Array | None:
    """Return a constant, in the element type recorded for it."""
    array = flow.constant(name)
    if array is None or array.dtype != np.float64:
        return array
    with np.errstate(over="ignore"):
        return np.asarray(array, numpy_dtype(flow.dtype(name) or "float32"))


class GruLayers(Builder):
    """Builder that converts GRUs with ONNX's inputs and outputs to OpenVINO's operators and axis moves."""

    def __init__(self, flow: Flow, names: set[str]) -> None:
        super().__init__(flow, "onegru", names)
        self.not_folded: set[str] = set()  # values that stay computed, although they depend only on constants
        self._sizes: dict[tuple[str, int], str] = {}

    def add(self, op: Op) -> None:
        """Add the operators for a GRU; a GRU whose X has a single step becomes a cell."""
        X, w, r, b, lengths, initial_h, A = (*op.inputs, *[""] * (7 - len(op.inputs)))
        lowered = lower(AUGRU if A else NEWEST, op.attributes, *map(self._typed_constant, (w, r, b)))
        spec, weights = lowered.spec, lowered.weights
        if len(set(spec.activations)) > 1:  # GRUSequence has one pair for both directions
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
        given: dict[Role, str] = {
            role: self.weight(f"{op.name}/{role}", array)
            for role, array in arranged_weights(spec, weights, operator).items()
        }
        given["X"] = X = self._moved(X, is_cell)
        if not initial_h:
            state = self.zeros(X, (B, D, H), spec.dtype, f"{op.name}/initial_h")
        else:
            state = self.transpose(initial_h, _BATCH_FIRST, "Transpose")
        given["initial_h"] = self.squeeze(state, [1], "Squeeze") if is_cell else state
        if not is_cell:
            given["sequence_lens"] = lengths or self.lengths(X, T, B, f"{op.name}/sequence_lengths")
        if A:
            given["A"] = self._moved(A, is_cell)
        outputs = (*op.outputs, *[""] * (2 - len(op.outputs)))
        if is_cell:
            (Ho,) = self.layer(operator, spec, given, {self.fresh("Ho"): (B, H)}, op.name)
            for name, axes in zip(outputs, ((0, 1), (0,)), strict=True):
                if name:
                    self.unsqueeze(Ho, axes, "Unsqueeze", name)
            return
        shapes = {self.fresh("Y"): (B, D, T, H), self.fresh("Ho"): (B, D, H)}
        Y, Ho = self.layer(operator, spec, given, shapes, op.name)
        if is_backwards and outputs[0]:
            Y = self.reverse(Y, 2, "Slice")
        for value, name, perm in ((Y, outputs[0], (2, 1, 0, 3)), (Ho, outputs[1], _BATCH_FIRST)):
            if name:
                self.transpose(value, perm, "Transpose", name)

    def layer(
        self,
        operator: OpSchema,
        spec: Spec,
        given: Mapping[Role, str],
        shapes: Mapping[str, Shape],
        name: str,
    ) -> tuple[str, ...]:
        """Add a layer with outputs of these names and shapes; return their names."""
        inputs = tuple(given[port.role] for port in operator.inputs)
        attributes = {
            "data": attributes_of(spec, operator),
            "version": version_of(operator),
            "dtype": spec.dtype,
        }
        for output, shape in shapes.items():
            self.flow.set_shape(output, shape)
        self.ops.append(Op(f"openvino::{operator.name}", inputs, tuple(shapes), attributes, name=name))
        return tuple(shapes)

    def _split_directions(self, op: Op) -> None:
        """Add a bidirectional GRU as one GRU for each direction."""
        axes = NEWEST.direction_axes()
        weights = [self._typed_constant(name) for name in (*op.inputs, "", "")[1:4]]
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
        """Return a direction's part of an input along this axis."""
        if not name or axis is None:
            return name
        array = self._typed_constant(name)
        if array is None:
            return self.slice(name, axis, number, 1, "Slice")
        return self.weight(name, np.take(array, [number], axis))

    def _typed_constant(self, name: str) -> Array | None:
        return typed_constant(self.flow, name) if name else None

    def _new(self, hint: str, shape: Shape | None = None) -> str:
        name = self.fresh(hint)
        if shape is not None:
            self.flow.set_shape(name, shape)
        return name

    def _moved(self, value: str, is_cell: bool) -> str:
        """Return a sequence with its batch axis first, or its only step."""
        if is_cell:
            return self.squeeze(value, [0], "Squeeze")
        return self.transpose(value, _BATCH_FIRST, "Transpose")

    def weight(self, name: str, array: Array) -> str:
        """Add a constant with this name."""
        name = fresh_name(name, self.names)
        self.flow.add_constant(name, array)
        return name

    def merged_directions(self, Y: str) -> str:
        """Return Y [B, D, T, H] as [B, T, D·H]."""
        B, D, T, H = self.shape(Y)
        if D == 1:
            return self.squeeze(Y, [1], "Squeeze")
        rows, columns = self.transpose(Y, (0, 2, 1, 3), "Transpose"), int(D) * int(H)
        return self.op("Reshape", [rows, self.ints(0, 0, columns)], "Reshape", (B, T, columns))

    def _size(self, value: str, axis: int) -> str:
        """Return a size of a value, [1]."""
        if (value, axis) not in self._sizes:
            shape = self.op("Shape", [value], "Shape", (len(self.shape(value)),))
            index = self.constant("index", np.array([axis], np.int64))
            self._sizes[value, axis] = self.op("Gather", [shape, index], "Gather", (1,), axis=0)
        return self._sizes[value, axis]

    def lengths(self, X: str, T: Size, B: Size, name: str) -> str:
        """Return the number of steps of X [B, T, I] for each row."""
        if isinstance(T, int) and isinstance(B, int):
            return self.weight(name, np.full(B, T, np.int64))
        steps = self._size(X, 1)
        return self.op("Expand", [steps, self._size(X, 0)], "Expand", (B,))

    def zeros(self, X: str, shape: Shape, dtype: str, name: str) -> str:
        """Return an initial state of zeros, [B, ...], with the batch size of X, [B, ...]."""
        B, *rest = shape
        if isinstance(B, int):
            return self.weight(name, np.zeros([int(size) for size in shape], numpy_dtype(dtype)))
        others = self.constant("sizes", np.array(rest, np.int64))
        sizes = self.op("Concat", [self._size(X, 0), others], "Concat", (len(shape),), axis=0)
        zero = self.constant("zero", np.zeros(1, numpy_dtype(dtype)))
        return self.op("Expand", [zero, sizes], "Expand", shape)


def dequantized(to: GruLayers | Edit, add: Callable[..., str], name: str, array: Array, group: int) -> str:
    """Add a weight as int8 integers times their scales, with operators from `add`."""
    q, scale = quantize_channels(array, group)
    parts: Array = q.reshape(*scale.shape, group) if group else q
    value = to.constant(f"{name}/int8", parts)
    factor = to.constant(f"{name}/scale", scale[..., None] if group else scale)
    value = add("Cast", [value], f"{name}/converted", dtype="float32")
    to.not_folded.add(value)
    value = add("Mul", [value, factor], f"{name}/scaled")
    to.not_folded.add(value)
    if group:
        value = add("Reshape", [value, to.ints(*array.shape)], f"{name}/rows")
        to.not_folded.add(value)
    return value


def operator_of(spec: Spec, cell: bool) -> OpSchema:
    """Return the operator of a layer."""
    if spec.attention:
        operator = AUGRU_CELL if cell else AUGRU_SEQUENCE
    else:
        operator = GRU_CELL if cell else GRU_SEQUENCE
    if spec.attention == "dien":
        raise SpecError.of("attention", f"'dien'; {operator} computes (1 - a)·z, \"openvino\"")
    direction = operator.attributes.get("direction")
    directions = ("forward",) if direction is None else direction.choices or ()
    if spec.direction not in directions:
        raise SpecError.of("direction", f"{spec.direction!r}; {operator} runs only forward")
    if len(set(spec.activations)) > 1:
        raise SpecError.of("activations", f"two different pairs; {operator} has one pair for both directions")
    for function in spec.activations[0]:
        if function.name not in operator.activations:
            raise SpecError.of(
                "activations", f"{function}; {operator} has only {', '.join(operator.activations)}"
            )
    given = {"clip": spec.clip or 0.0, "linear_before_reset": spec.linear_before_reset}
    for name, value in given.items():
        choices = operator.attributes[name].choices
        if choices is not None and value not in choices:
            raise SpecError.of(name, f"{value}; {operator} has none")
    return operator


def version_of(operator: OpSchema) -> str:
    """Return the opset of an operator's layers."""
    return f"opset{operator.version}" if operator.version else "extension"


def attributes_of(spec: Spec, operator: OpSchema) -> dict[str, str]:
    """Return the attributes of a layer as text for an IR."""
    attributes = {
        "hidden_size": str(spec.hidden_size),
        "activations": ", ".join(function.name.lower() for function in spec.activations[0]),
        "activations_alpha": "",
        "activations_beta": "",
        "clip": "0" if spec.clip is None else str(np.float32(spec.clip)),
        "linear_before_reset": "true" if spec.linear_before_reset else "false",
    }
    if "direction" in operator.attributes:
        attributes["direction"] = spec.direction
    return attributes


def arranged_weights(spec: Spec, weights: Weights, operator: OpSchema) -> dict[Role, Array]:
    """Return W, R and B with the axes of a layer."""
    arrays = {"W": (weights.W, "DGI"), "R": (weights.R, "DGH"), "B": (_summed_biases(spec, weights.B), "DN")}
    return {
        port.role: arrange(*arrays[port.role], port.axes) for port in operator.inputs if port.role in arrays
    }


def _summed_biases(spec: Spec, B: Array) -> Array:
    """Return the summed biases: [D, 3H], or with linear_before_reset [D, 4H] (z, r, Wbh, Rbh)."""
    H = spec.hidden_size
    Wb, Rb = B[:, : 3 * H], B[:, 3 * H :]
    with np.errstate(over="ignore"):
        sums = Wb + Rb
    if not spec.linear_before_reset:
        return sums
    return np.concatenate([sums[:, : 2 * H], Wb[:, 2 * H :], Rb[:, 2 * H :]], axis=1)


def output_dtype(op: Op, dtype: Callable[[str], str]) -> str:
    """Return the element type of an operator's output; `dtype` returns that of an input."""
    found = op.attributes.get("dtype") or table.operator_of(op.kind).dtype_of(op)
    return found if isinstance(found, str) else dtype(op.inputs[found or 0])
