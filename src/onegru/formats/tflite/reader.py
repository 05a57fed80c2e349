"""Read .tflite files as plain data.

The accessors of the `tflite` package follow any offsets in a file, and raise errors outside of it. The reader
counts what it reads, so that a small file with overlapping parts cannot be read as a large one.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tflite

from onegru.core.dtypes import Array
from onegru.core.errors import FormatError

# Element types by their codes; no rule supports values of other types.
_DTYPES = {0: "float32", 1: "float16", 2: "int32", 3: "uint8", 4: "int64", 6: "bool", 7: "int16", 9: "int8"}
_MOST_AXES = 8
_TYPES = {number: name.lower() for name, number in vars(tflite.TensorType).items() if isinstance(number, int)}
_KINDS = {number: name for name, number in vars(tflite.BuiltinOperator).items() if isinstance(number, int)}
_OPTIONS = {number: name for name, number in vars(tflite.BuiltinOptions).items() if isinstance(number, int)}


@dataclass(frozen=True, eq=False, slots=True)
class TfliteTensor:
    """Value of a subgraph; its name is not always unique."""

    name: str
    dtype: str  # NumPy's name, or ""
    shape: tuple[int | None, ...]  # None for dynamic sizes
    value: Array | None  # the dequantized value of a constant
    is_quantized: bool  # whether it is computed as quantized integers
    type: str = "unknown"  # TensorFlow Lite's name of the element type


@dataclass(frozen=True, eq=False, slots=True)
class TfliteOp:
    """Operator of a subgraph; an omitted input is -1."""

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Any = None

    def option(self, name: str, default: Any = 0) -> Any:
        """Return an option by the name of its accessor."""
        found = getattr(self.options, name, None)
        return default if found is None else found()


@dataclass(frozen=True, eq=False, slots=True)
class Subgraph:
    """Graph of a file: the main graph, or the body of an operator."""

    tensors: tuple[TfliteTensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[TfliteOp, ...]


def read_subgraphs(data: bytes) -> tuple[Subgraph, ...]:
    """Return the graphs of a file, the model's first."""
    reader = _FlatbufferReader(data)
    if not (count := reader.counted(reader.model.SubgraphsLength())):
        raise FormatError("contains no graph; not a TensorFlow Lite model, or truncated")
    first, *bodies = (reader.subgraph(reader.model.Subgraphs(index)) for index in range(count))
    # The outputs of the model keep their names.
    return _without_copies(first, first.outputs), *(_without_copies(body) for body in bodies)


class _OperatorCode(tflite.OperatorCode):  # type: ignore[misc]
    """An operator's code, which has two fields; some writers set only the newer one."""

    # The package's `BuiltinCode` returns the older field for all codes below 127.

    def newer(self) -> int:
        """Return the newer field; 0 if it is missing."""
        offset = self._tab.Offset(10)
        return int(struct.unpack_from("<i", self._tab.Bytes, self._tab.Pos + offset)[0]) if offset else 0


def _without_copies(graph: Subgraph, keep: tuple[int, ...] = ()) -> Subgraph:
    """Remove casts and reshapes that change nothing, unless their output is in `keep`."""
    producer_counts = Counter((*graph.inputs, *(output for op in graph.operators for output in op.outputs)))
    same: dict[int, int] = {}

    def source(index: int) -> int:
        while index in same:
            index = same[index]
        return index

    kept: list[TfliteOp] = []
    for op in graph.operators:
        if op.kind in ("CAST", "RESHAPE") and len(op.outputs) == 1 and op.inputs[:1] > (-1,):
            (output,), first = op.outputs, source(op.inputs[0])
            before, after = graph.tensors[first], graph.tensors[output]
            is_same = before.dtype == after.dtype != "" and before.shape == after.shape
            is_fixed = op.kind == "CAST" or None not in after.shape
            is_plain = not before.is_quantized and not after.is_quantized
            is_removable = producer_counts[output] == 1 and first != output and output not in keep
            if is_same and is_fixed and is_plain and is_removable:
                same[output] = first
                continue
        kept.append(op)
    operators = tuple(replace(op, inputs=tuple(map(source, op.inputs))) for op in kept)
    return replace(graph, operators=operators, outputs=tuple(map(source, graph.outputs)))


class _FlatbufferReader:
    def __init__(self, data: bytes) -> None:
        self.items_left = len(data)  # each needs at least one byte
        self.model = tflite.Model.GetRootAs(data, 0)
        codes = range(self.counted(self.model.OperatorCodesLength()))
        self.kinds = [self._kind(self.model.OperatorCodes(index)) for index in codes]

    def counted(self, length: int) -> int:
        """Return a length, and check that the file can contain that number of items."""
        self.items_left -= length
        if self.items_left < 0:
            raise FormatError(
                "its sections overlap or extend beyond the end of the file; broken or truncated"
            )
        return length

    def _numbers(self, owner: Any, name: str) -> tuple[int, ...]:
        count = self.counted(getattr(owner, f"{name}Length")())
        return tuple(int(item) for item in getattr(owner, f"{name}AsNumpy")()) if count else ()

    def _tensors(self, owner: Any, name: str, count: int, least: int) -> tuple[int, ...]:
        found = self._numbers(owner, name)
        if found and not least <= min(found) <= max(found) < count:
            raise FormatError(f"refers to tensors {min(found)} to {max(found)}, but the model has {count}")
        return found

    def _text(self, text: Any) -> str:
        return "" if text is None else bytes(text)[: self.counted(len(text))].decode(errors="replace")

    def _kind(self, code: Any) -> str:
        number = max(_OperatorCode.newer(code), code.DeprecatedBuiltinCode())
        return self._text(code.CustomCode()) or _KINDS.get(number, f"operator {number}")

    def subgraph(self, graph: Any) -> Subgraph:
        """Read a graph."""
        number = self.counted(graph.TensorsLength())
        tensors = [self._tensor(graph.Tensors(index)) for index in range(number)]
        operators = []
        for index in range(self.counted(graph.OperatorsLength())):
            op = self._operator(graph.Operators(index), number)
            # Half-precision weights, and quantized weights, which are already dequantized.
            value = tensors[op.inputs[0]].value if op.kind == "DEQUANTIZE" and op.inputs[:1] > (-1,) else None
            if value is None or value.dtype.kind != "f" or len(op.outputs) != 1:
                operators.append(op)
                continue
            value = value.astype(np.float32)
            self.counted(value.nbytes // 16)
            tensors[op.outputs[0]] = replace(tensors[op.inputs[0]], dtype="float32", value=value)
        inputs, outputs = (self._tensors(graph, name, number, 0) for name in ("Inputs", "Outputs"))
        return Subgraph(tuple(tensors), inputs, outputs, tuple(operators))

    def _operator(self, op: Any, tensors: int) -> TfliteOp:
        options, table = getattr(tflite, _OPTIONS.get(op.BuiltinOptionsType(), ""), None), op.BuiltinOptions()
        if options is not None and table is not None:
            options = options()
            options.Init(table.Bytes, table.Pos)
        inputs, outputs = self._tensors(op, "Inputs", tensors, -1), self._tensors(op, "Outputs", tensors, 0)
        return TfliteOp(self.kinds[op.OpcodeIndex()], inputs, outputs, None if table is None else options)

    def _tensor(self, tensor: Any) -> TfliteTensor:
        name, dtype, model = self._text(tensor.Name()), _DTYPES.get(tensor.Type(), ""), self.model
        shape, signature = self._numbers(tensor, "Shape"), self._numbers(tensor, "ShapeSignature")
        if (
            len(shape) > _MOST_AXES
            or min(shape, default=0) < 0
            or not tensor.Buffer() < model.BuffersLength()
        ):
            raise FormatError(f"tensor {name!r}: its shape or buffer is invalid")
        buffer, scales = model.Buffers(tensor.Buffer()), tensor.Quantization()
        is_quantized = scales is not None and scales.ScaleLength() > 0
        if not buffer.DataLength() or not dtype or tensor.Sparsity() is not None:
            sizes = signature if len(signature) == len(shape) else shape
            kind = _TYPES.get(tensor.Type(), "unknown")
            return TfliteTensor(
                name, dtype, tuple(s if s >= 0 else None for s in sizes), None, is_quantized, kind
            )
        wanted = math.prod(shape) * np.dtype(dtype).itemsize
        if buffer.DataLength() != wanted:
            have = buffer.DataLength()
            raise FormatError(f"tensor {name!r}: {have} bytes; must be {wanted} for shape {list(shape)}")
        raw = np.frombuffer(buffer.DataAsNumpy().tobytes(), np.uint8)  # a copy, which is aligned
        value = (raw != 0 if dtype == "bool" else raw.view(dtype)).reshape(shape)
        if is_quantized and value.dtype.kind in "iu":
            value, dtype = self._dequantized(name, value, scales), "float32"
        self.counted(value.nbytes // 16)  # values can be four times as large as their data, and shared
        return TfliteTensor(name, dtype, shape, value, False)

    def _dequantized(self, name: str, value: Array, quantization: Any) -> Array:
        """Dequantize integers with one scale, or with one for each index of an axis."""
        count, axis = self.counted(quantization.ScaleLength()), quantization.QuantizedDimension()
        scales = np.asarray(quantization.ScaleAsNumpy(), np.float64)
        has_zeros = self.counted(quantization.ZeroPointLength()) > 0
        zeros = np.asarray(quantization.ZeroPointAsNumpy() if has_zeros else [0] * count, np.int64)
        is_each = 0 <= axis < value.ndim and count == value.shape[axis]
        if len(zeros) != count or not (count == 1 or is_each) or not np.isfinite(scales).all():
            raise FormatError(f"tensor {name!r}: {count} scales do not fit shape {list(value.shape)}")
        shape = [-1 if is_each and index == axis else 1 for index in range(value.ndim)]
        return ((value - zeros.reshape(shape)) * scales.reshape(shape)).astype(np.float32)
