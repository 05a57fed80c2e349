"""Translation rules for the TensorFlow Lite operators that GRUs can consist of."""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, TensorProto, helper

from onegru.core.errors import BROKEN, FormatError
from onegru.formats.opened import Opened
from onegru.formats.tflite.loops import WhileLoop, stacked
from onegru.formats.tflite.reader import TfliteOp, read_subgraphs
from onegru.formats.tflite.translate import OnnxWriter, Rule, Translation, UnknownError

_FUSED = {0: "Identity", 1: "Relu", 3: "Clip", 4: "Tanh"}  # fused activations of operators
_FAR = 2**62  # beyond any size


def _same(kind: str, count: int, graph: OnnxWriter, op: TfliteOp) -> list[str]:
    """Translate an operator that ONNX has with the same inputs."""
    return _activated(graph, op, graph.emit(kind, *graph.all(op, count)))


def _activated(graph: OnnxWriter, op: TfliteOp, value: str) -> list[str]:
    number = 3 if op.kind == "RELU6" else op.option("FusedActivationFunction")
    if number not in _FUSED:
        raise UnknownError
    bounds = [graph.constant(np.array(bound, np.float32)) for bound in (0, 6)] if number == 3 else []
    return [graph.emit(_FUSED[number], value, *bounds)] if number else [value]


def _leaky_relu(graph: OnnxWriter, op: TfliteOp) -> list[str]:
    return [graph.emit("LeakyRelu", *graph.all(op, 1), alpha=op.option("Alpha"))]


def _fully_connected(graph: OnnxWriter, op: TfliteOp) -> list[str]:
    x, weights, *bias = op.inputs
    matrix, is_flat = graph.tensor(weights).value, len(graph.tensor(x).shape) == 2
    if matrix is None or matrix.ndim != 2 or op.option("WeightsFormat"):
        raise UnknownError
    if not is_flat and op.option("KeepNumDims"):
        raise UnknownError
    value = graph.value(x)
    rows = value if is_flat else graph.emit("Reshape", value, graph.constant([-1, matrix.shape[1]]))
    added = [graph.value(index) for index in bias if index >= 0]
    return _activated(graph, op, graph.emit("Gemm", rows, graph.value(weights), *added, transB=1))


def _split(graph: OnnxWriter, op: TfliteOp) -> list[str]:
    (axis,), x = graph.integers(op.inputs[0]), op.inputs[1]
    return graph.emit_all("Split", [graph.value(x)], len(op.outputs), axis=graph.axis(axis, x))


def _strided_slice(graph: OnnxWriter, op: TfliteOp) -> list[str]:
    x, *others = op.inputs
    begin, end, strides = map(graph.integers, others)
    sizes, masks = (
        graph.tensor(x).shape,
        [op.option(f"{name}Mask") for name in ("Begin", "End", "ShrinkAxis")],
    )
    is_odd = op.option("EllipsisMask") or op.option("NewAxisMask") or op.option("Offset")
    if is_odd or not len(begin) == len(end) == len(strides) <= len(sizes) or min(strides, default=1) < 1:
        raise UnknownError
    shrunk, cut = [axis for axis in range(len(begin)) if masks[2] >> axis & 1], []
    for axis in range(len(begin)):
        begin[axis] = 0 if masks[0] >> axis & 1 else begin[axis]
        if axis in shrunk:  # one index, regardless of the end
            end[axis], strides[axis] = begin[axis] + 1 or _FAR, 1
            is_all = sizes[axis] == 1 and begin[axis] in (0, -1)
        else:
            end[axis] = _FAR if masks[1] >> axis & 1 else end[axis]
            is_all = (begin[axis], end[axis], strides[axis]) == (0, _FAR, 1)
        cut += [] if is_all else [axis]
    value = graph.value(x)
    if cut:
        parts = [[part[axis] for axis in cut] for part in (begin, end, [*range(len(begin))], strides)]
        value = graph.emit("Slice", value, *map(graph.constant, parts))
    return [graph.emit("Squeeze", value, graph.constant(shrunk))] if shrunk else [value]


def _reverse(graph: OnnxWriter, op: TfliteOp) -> list[str]:
    x, (axis,) = op.inputs[0], graph.integers(op.inputs[1])
    parts = [-1], [-_FAR], [graph.axis(axis, x)], [-1]
    return [graph.emit("Slice", graph.value(x), *map(graph.constant, parts))]


def _transpose(graph: OnnxWriter, op: TfliteOp) -> list[str]:
    return [graph.emit("Transpose", graph.value(op.inputs[0]), perm=graph.integers(op.inputs[1]))]


def _reshape(graph: OnnxWriter, op: TfliteOp) -> list[str]:
    x, shape = op.inputs
    if graph.tensor(shape).value is None:
        sizes = graph.emit("Cast", graph.value(shape), to=TensorProto.INT64)
        return [graph.emit("Reshape", graph.value(x), sizes)]
    before, after = graph.tensor(x).shape, graph.integers(shape)
    long, single = (
        [axis for axis, size in enumerate(before) if (size == 1) == is_one] for is_one in (False, True)
    )
    kept = [size for size in after if size != 1]
    if len(before) == len(after) and [before[axis] for axis in long] == kept:
        # Converters write a Transpose for batch size 1 in this way.
        order = [single.pop(0) if size == 1 else long.pop(0) for size in after]
        return [graph.emit("Transpose", graph.value(x), perm=order)]
    return [graph.emit("Reshape", graph.value(x), graph.constant(after), allowzero=1)]


def _gather(graph: OnnxWriter, op: TfliteOp) -> list[str]:
    if op.option("BatchDims"):
        raise UnknownError
    return [graph.emit("Gather", *graph.all(op, 2), axis=graph.axis(op.option("Axis"), op.inputs[0]))]


def _concatenated(graph: OnnxWriter, op: TfliteOp) -> list[str]:
    axis, values = graph.axis(op.option("Axis"), op.outputs[0]), graph.all(op)
    if op.kind == "PACK":
        values = [graph.emit("Unsqueeze", value, graph.constant([axis])) for value in values]
    return _activated(graph, op, graph.emit("Concat", *values, axis=axis))


def _unpack(graph: OnnxWriter, op: TfliteOp) -> list[str]:
    (x,), axis = graph.all(op, 1), graph.axis(op.option("Axis"), op.inputs[0])
    if graph.tensor(op.inputs[0]).shape[axis] != len(op.outputs):
        raise UnknownError
    indices = [graph.constant(np.array(index)) for index in range(len(op.outputs))]
    return [graph.emit("Gather", x, index, axis=axis) for index in indices]


def _cast(graph: OnnxWriter, op: TfliteOp) -> list[str]:
    (value,), dtype = graph.all(op, 1), graph.tensor(op.outputs[0]).dtype
    if not dtype:
        raise UnknownError
    value = graph.emit("Shape", value) if op.kind == "SHAPE" else value
    return [graph.emit("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))]


def _fill(graph: OnnxWriter, op: TfliteOp) -> list[str]:
    shape, value = graph.all(op, 2)
    return [graph.emit("Expand", value, graph.emit("Cast", shape, to=TensorProto.INT64))]


def _zeros_like(graph: OnnxWriter, op: TfliteOp) -> list[str]:
    (x,) = op.inputs
    if graph.tensor(x).dtype != "float32":
        raise UnknownError
    return [graph.emit("ConstantOfShape", graph.emit("Shape", graph.value(x)))]


def _expand_dims(graph: OnnxWriter, op: TfliteOp) -> list[str]:
    x, axis = op.inputs
    (number,) = graph.integers(axis)
    axes = graph.constant([graph.axis(number, op.outputs[0])])
    return [graph.emit("Unsqueeze", graph.value(x), axes)]


_ALIKE = {
    **{"LOGISTIC": ("Sigmoid", 1), "TANH": ("Tanh", 1), "RELU": ("Relu", 1), "NEG": ("Neg", 1)},
    **{"ADD": ("Add", 2), "SUB": ("Sub", 2), "MUL": ("Mul", 2), "SELECT_V2": ("Where", 3)},
    **{"ELU": ("Elu", 1), "ABS": ("Abs", 1), "DIV": ("Div", 2)},
    **{"MINIMUM": ("Min", 2), "MAXIMUM": ("Max", 2), "RELU6": ("Identity", 1), "LOGICAL_AND": ("And", 2)},
}

#: The translation rule of each operator.
RULES: Mapping[str, Rule] = {
    **{kind: functools.partial(_same, *alike) for kind, alike in _ALIKE.items()},
    **dict.fromkeys(("CONCATENATION", "PACK"), _concatenated),
    **dict.fromkeys(("CAST", "SHAPE"), _cast),
    "LEAKY_RELU": _leaky_relu,
    "FULLY_CONNECTED": _fully_connected,
    "SPLIT": _split,
    "STRIDED_SLICE": _strided_slice,
    "REVERSE_V2": _reverse,
    "TRANSPOSE": _transpose,
    "RESHAPE": _reshape,
    "GATHER": _gather,
    "UNPACK": _unpack,
    "FILL": _fill,
    "ZEROS_LIKE": _zeros_like,
    "EXPAND_DIMS": _expand_dims,
    "WHILE": lambda graph, op: WhileLoop(graph, op).write(),
    "FlexTensorListStack": stacked,
}


def onnx_model(file: Opened) -> tuple[ModelProto, tuple[str, ...]]:
    """Return the model of a file, and the kinds of operators without a translation."""
    with file.stream() as stream:
        data = stream.read()
    try:
        whole = Translation(read_subgraphs(data), RULES)
        model, kinds = whole.model(), whole.unknown.items()
        return model, tuple(f"{kind} ({number} times)" if number > 1 else kind for kind, number in kinds)
    except FormatError as error:
        raise FormatError(f"{file}: {error}") from error.__cause__
    except (*BROKEN, struct.error) as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise FormatError(f"{file}: inconsistent content; broken or truncated ({words})") from error
