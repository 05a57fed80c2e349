"""Convert OpenVINO's layers to ONNX operators and back: the rules for each kind of layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from onegru.core.activations import onnx_names_in
from onegru.core.dtypes import Array
from onegru.core.errors import FormatError
from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import Op
from onegru.dataflow.table import OPERATORS as TABLE
from onegru.formats.openvino.fields import ELEMENT_TYPES, ELEMENT_WORDS
from onegru.formats.openvino.translation import (
    READING,
    WRITING,
    LayerTranslation,
    NewLayer,
    ReadingRule,
    UnknownLayerError,
    WritingRule,
    reads,
    writes,
)
from onegru.operators.openvino import OPERATORS

#: OpenVINO's names of operators with one input, by ONNX's names.
UNARY = {
    **{"Not": "LogicalNot", "Neg": "Negative"},
    **{name: name for name in ("Exp", "Log", "Abs", "Sqrt")},
    **{kind: layer for layer, kind in onnx_names_in("OpenVINO").items()},
}
# The opsets that introduced layers of UNARY, where it is not opset1.
_FIRST_OPSETS = {"SoftPlus": "opset4", "SoftSign": "opset9"}
#: Further operators with one input. onegru reads their layers, but never writes new ones.
READ_ONLY_UNARY = {
    **{"Ceil": "Ceiling", "HardSwish": "HSwish"},
    **{name: name for name in ("Erf", "Mish", "Sign", "Floor", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan")},
    **{name: name for name in ("Sinh", "Cosh", "Asinh", "Acosh", "Atanh")},
}
# OpenVINO's names of elementwise operators with several inputs, by ONNX's names.
_BINARY = {
    **{"Add": "Add", "Sub": "Subtract", "Mul": "Multiply", "Div": "Divide", "Pow": "Power"},
    **{"Max": "Maximum", "Min": "Minimum", "And": "LogicalAnd", "Or": "LogicalOr", "Where": "Select"},
    **{"Equal": "Equal", "Less": "Less", "LessOrEqual": "LessEqual"},
    **{"Greater": "Greater", "GreaterOrEqual": "GreaterEqual"},
}

_TO_END, _TO_START = 2**63 - 1, 1 - 2**63  # bounds of a slice
_NO_LIMIT = 3.4e38  # float32's largest value, rounded down
# Types of inputs of a Range, each with a possible type of its result; 16-bit types would round step counts.
_COUNTED = {(a, b) for a in ("int32", "int64") for b in ("int32", "int64", "float32", "float64")}
_FLOATS = ("float16", "bfloat16", "float32", "float64")


def translate(layer: LayerTranslation) -> list[Op]:
    """Translate a layer to operators; the last one has the outputs of the layer."""
    kind = layer.original.type
    try:
        rule, least, most = READING[kind]
        if len(layer.inputs) < least or (most is not None and len(layer.inputs) > most):
            raise UnknownLayerError
        last = rule(layer)
    except (KeyError, UnknownLayerError, IndexError):
        layer.ops.clear()
        # The prefix marks a layer that has a rule, but is not supported by it.
        last = layer.op(f"openvino::{'untranslated::' if kind in READING else ''}{kind}")
    return [*layer.ops, last]


def layer_of(flow: Flow, op: Op) -> NewLayer:
    """Return the layer of an operator."""
    if "data" in op.attributes:  # OpenVINO's own operator
        kind = op.kind.rpartition("::")[2]
        return NewLayer(kind, op.attributes["version"], op.attributes["data"], op.inputs)
    return WRITING[op.kind](flow, op)


def _list(*values: int) -> Array:
    return np.array(values, np.int64)


def _same(kind: str, **attributes: Any) -> ReadingRule:
    return lambda layer: layer.op(kind, layer.inputs[0], **attributes)


def _plain(layer: str, version: str = "opset1", **data: str) -> WritingRule:
    return lambda flow, op: NewLayer(layer, version, data, op.inputs)


def _binary(kind: str) -> ReadingRule:
    def rule(layer: LayerTranslation) -> Op:
        if layer.word("auto_broadcast", "numpy") not in ("numpy", "none"):
            raise UnknownLayerError
        return layer.op(kind)

    return rule


for _kind, _layer in UNARY.items():
    reads(_layer)(_same(_kind))
    writes(_kind)(_plain(_layer, _FIRST_OPSETS.get(_layer, "opset1")))
for _kind, _layer in READ_ONLY_UNARY.items():
    reads(_layer)(_same(_kind))
for _kind, _layer in _BINARY.items():  # Divide, Power, Maximum and Minimum have their own rules for reading
    reads(_layer, inputs=3 if _layer == "Select" else 2)(_binary(_kind))
    writes(_kind)(_plain(_layer, "opset3" if _kind == "Where" else "opset1", auto_broadcast="numpy"))
reads("Relu")(_same("Relu"))
reads("Identity")(_same("Identity"))
reads("ShapeOf")(_same("Shape"))
writes("Shape")(_plain("ShapeOf", "opset3", output_type="i64"))
writes("MatMul")(_plain("MatMul", transpose_a="false", transpose_b="false"))
writes("Expand")(_plain("Broadcast", "opset3", mode="bidirectional"))
writes("CumSum")(_plain("CumSum", "opset3", exclusive="false", reverse="false"))
reads("HSigmoid")(_same("HardSigmoid", alpha=1 / 6, beta=0.5))
reads("LogicalXor")(_binary("Xor"))
reads("FloorMod")(_binary("openvino::FloorMod"))
reads("FakeQuantize", inputs=5)(_binary("openvino::FakeQuantize"))


@reads("Maximum", "Minimum", inputs=2)
def _bound(layer: LayerTranslation) -> Op:
    """Translate Max or Min; a limit outside float32's range means no limit and is dropped."""
    kind, sign = ("Max", -1) if layer.original.type == "Maximum" else ("Min", 1)
    for bound, value in (layer.inputs, layer.inputs[::-1]):
        array = layer.flow.constant(bound)
        if array is not None and array.ndim == 0 and array.dtype.kind == "f" and sign * array > _NO_LIMIT:
            return layer.op("Identity", value)
    return _binary(kind)(layer)


reads("HardSigmoid", inputs=3)(
    lambda layer: layer.op("HardSigmoid", layer.inputs[0], alpha=layer.number(1), beta=layer.number(2))
)
reads("Selu", inputs=3)(
    lambda layer: layer.op("Selu", layer.inputs[0], alpha=layer.number(1), gamma=layer.number(2))
)
reads("Elu")(lambda layer: layer.op("Elu", layer.inputs[0], alpha=layer.attribute_number("alpha")))
reads("Reshape", inputs=2)(
    lambda layer: layer.op("Reshape", allowzero=0 if layer.flag("special_zero", False) else 1)
)
reads("Split", inputs=2)(lambda layer: layer.op("Split", layer.inputs[0], axis=layer.integer(1)))
reads("Concat")(lambda layer: layer.op("Concat", axis=layer.attribute_integer("axis")))
writes("Concat")(
    lambda flow, op: NewLayer("Concat", "opset1", {"axis": str(op.attributes["axis"])}, op.inputs)
)
reads("TopK", inputs=2)(
    lambda layer: layer.op(
        "TopK", axis=layer.attribute_integer("axis"), largest=int(layer.word("mode", "") == "max")
    )
)
reads("ScaledDotProductAttention", inputs=(3, 5))(
    lambda layer: layer.op("openvino::ScaledDotProductAttention", causal=int(layer.flag("causal", False)))
)
reads("LRN", inputs=2)(
    lambda layer: layer.op("openvino::LRN", layer.inputs[0], axes=tuple(layer.integers(1)))
)
reads("ShuffleChannels")(
    lambda layer: layer.op("openvino::ShuffleChannels", axes=(layer.attribute_integer("axis", "1"),))
)
reads("ReverseSequence", inputs=2)(
    lambda layer: layer.op(
        "ReverseSequence",
        batch_axis=layer.attribute_integer("batch_axis", "0"),
        time_axis=layer.attribute_integer("seq_axis", "1"),
    )
)
reads("Einsum")(lambda layer: layer.op("Einsum", equation=layer.original.data.get("equation", "")))
reads("Gelu")(
    lambda layer: layer.op("Gelu", layer.inputs[0], approximate=layer.word("approximation_mode", "erf"))
)
reads("Mod")(lambda layer: layer.op(_binary("Mod")(layer).kind, fmod=1))
reads("CumSum")(
    lambda layer: layer.op(
        "CumSum", **{name: int(layer.flag(name, False)) for name in ("exclusive", "reverse")}
    )
)
reads("ScatterNDUpdate", inputs=3)(lambda layer: layer.op("ScatterND"))


@reads("Divide", inputs=2)
def _divide(layer: LayerTranslation) -> Op:
    if layer.flow.dtype(layer.inputs[0]) not in _FLOATS and layer.flag("m_pythondiv", True):
        return _binary("openvino::Divide")(layer)  # integers are rounded down, not towards zero
    return _binary("Div")(layer)


@reads("Power", inputs=2)
def _power(layer: LayerTranslation) -> Op:
    x = layer.inputs[0]
    array, shape = layer.flow.constant(layer.inputs[1]), layer.flow.shape(x)
    is_one = array is not None and array.size == 1
    if is_one and array is not None and (not array.ndim or (shape is not None and array.ndim <= len(shape))):
        exponent = layer.number(1)
        if exponent == -1:
            return layer.op("Reciprocal", x)
        if exponent == 1:
            return layer.op("Identity", x)
        if exponent == 2:
            return layer.op("Mul", x, x)
        if exponent == 0.5:
            return layer.op("Sqrt", x)
    return _binary("Pow")(layer)


@reads("Convert")
def _convert(layer: LayerTranslation) -> Op:
    dtype = ELEMENT_TYPES.get(layer.original.data.get("destination_type", ""))
    if dtype is None:
        raise UnknownLayerError
    return layer.op("Cast", dtype=dtype)


@writes("Cast")
def _write_cast(flow: Flow, op: Op) -> NewLayer:
    data = {"destination_type": ELEMENT_WORDS[op.attributes["dtype"]]}
    return NewLayer("Convert", "opset1", data, op.inputs)


@reads("MatMul", inputs=2)
def _matmul(layer: LayerTranslation) -> Op:
    names = list(layer.inputs)
    for side, name in enumerate(("transpose_a", "transpose_b")):
        rank = layer.rank(side) if layer.flag(name, False) else 0
        if rank >= 2:
            perm = (*range(rank - 2), rank - 1, rank - 2)
            names[side] = layer.before("Transpose", names[side], perm=perm)
    return layer.op("MatMul", *names)


@reads("Clamp")
def _clamp(layer: LayerTranslation) -> Op:
    low, high = layer.attribute_number("min"), layer.attribute_number("max")
    if (layer.flow.dtype(layer.inputs[0]) or "").lstrip("u").startswith("int"):  # integer limits
        low, high = np.ceil(low), np.floor(high)
    return layer.op("Clip", layer.inputs[0], min=float(low), max=float(high))


@reads("BatchNormInference")
def _batch_norm(layer: LayerTranslation) -> Op:
    inputs = layer.inputs
    if layer.original.version == "opset1" and len(inputs) == 5:  # has gamma and beta before the data
        inputs = (inputs[2], *inputs[:2], *inputs[3:])
    return layer.op("openvino::BatchNormInference", *inputs)


@reads("PReLU", "PRelu", inputs=2)
def _prelu(layer: LayerTranslation) -> Op:
    x, slope = layer.inputs
    array, shape, slopes = layer.flow.constant(slope), layer.flow.shape(x), layer.flow.shape(slope)
    if array is not None and array.size and np.all(array == array.flat[0]):
        return layer.op("LeakyRelu", x, alpha=layer.number(1))
    if shape is None or slopes is None or len(shape) < 2:
        raise UnknownLayerError
    if len(slopes) == 1 and slopes != (1,):  # one slope for each channel, along axis 1
        if slopes[0] != shape[1] or not isinstance(shape[1], int):
            raise UnknownLayerError  # the axis would depend on the number of channels
        axes = tuple(range(1, len(shape) - 1))
        slope = layer.before("Unsqueeze", slope, axes=axes) if axes else slope
    return layer.op("PRelu", x, slope)


@reads("ConvertLike", inputs=2)
def _convert_like(layer: LayerTranslation) -> Op:
    dtype = layer.flow.dtype(layer.inputs[1])
    if dtype is None:
        raise UnknownLayerError
    return layer.op("Cast", layer.inputs[0], dtype=dtype)


@writes("Reshape")
def _write_reshape(flow: Flow, op: Op) -> NewLayer:
    word = "false" if op.attributes.get("allowzero") else "true"
    return NewLayer("Reshape", "opset1", {"special_zero": word}, op.inputs)


@reads("Transpose", inputs=2)
def _transpose(layer: LayerTranslation) -> Op:
    order = layer.integers(1)
    return layer.op("Transpose", layer.inputs[0], perm=tuple(order or range(layer.rank(0))[::-1]))


@writes("Transpose", "Squeeze", "Unsqueeze")
def _with_axes(flow: Flow, op: Op) -> NewLayer:
    axes = flow.ints(op, "perm" if op.kind == "Transpose" else "axes", 1)
    return NewLayer(op.kind, "opset1", {}, (op.inputs[0], *([] if axes is None else [_list(*axes)])))


@reads("Squeeze", "Unsqueeze", inputs=(1, 2))
def _axes(layer: LayerTranslation) -> Op:
    kind = layer.original.type
    if len(layer.inputs) < 2 and kind == "Squeeze":
        return layer.op(kind, layer.inputs[0])
    if layer.flag("allow_axis_skip", False) or not (axes := layer.integers(1)):
        raise UnknownLayerError
    return layer.op(kind, layer.inputs[0], axes=tuple(axes))


@reads(*(kind for kind in TABLE if kind.startswith("Reduce")))
def _reduced(layer: LayerTranslation) -> Op:
    axes, keeps = tuple(layer.integers(1)), int(layer.flag("keep_dims", False))
    return layer.op(layer.original.type, layer.inputs[0], axes=axes, keepdims=keeps, noop_with_empty_axes=1)


@reads("VariadicSplit", inputs=3)
def _variadic_split(layer: LayerTranslation) -> Op:
    axis, sizes = layer.integer(1), layer.integers(2)
    if -1 in sizes:
        shape = layer.flow.shape(layer.inputs[0])
        whole = None if shape is None else shape[axis]
        if not isinstance(whole, int) or sizes.count(-1) > 1:
            raise UnknownLayerError
        sizes[sizes.index(-1)] = whole - sum(sizes) - 1
    if len(sizes) != len(layer.outputs) or min(sizes) < 0:
        raise UnknownLayerError
    return layer.op("Split", layer.inputs[0], axis=axis, split=tuple(sizes))


@reads("Gather", inputs=3)
def _gather(layer: LayerTranslation) -> Op:
    if batch := layer.attribute_integer("batch_dims", "0"):
        return layer.op("openvino::Gather", *layer.inputs[:2], axis=layer.integer(2), batch_dims=batch)
    indices = layer.flow.constant(layer.inputs[1])
    if layer.original.version != "opset8" and indices is not None and np.any(indices < 0):
        raise UnknownLayerError  # before version 8, negative indices do not count from the end
    return layer.op("Gather", *layer.inputs[:2], axis=layer.integer(2))


@writes("Gather")
def _write_gather(flow: Flow, op: Op) -> NewLayer:
    axis = np.array(op.attributes.get("axis", 0), np.int64)
    return NewLayer("Gather", "opset8", {"batch_dims": "0"}, (*op.inputs, axis))


@reads("GatherND", inputs=2)
def _gather_nd(layer: LayerTranslation) -> Op:
    batch = layer.attribute_integer("batch_dims", "0")
    if batch > 1 and layer.original.version == "opset5":
        raise UnknownLayerError  # this version merges the batch axes
    return layer.op("GatherND", batch_dims=batch)


@reads("ScatterUpdate", "ScatterElementsUpdate", inputs=4)
def _scatter(layer: LayerTranslation) -> Op:
    kind = "openvino::ScatterUpdate" if layer.original.type == "ScatterUpdate" else "ScatterElements"
    return layer.op(kind, *layer.inputs[:3], axis=layer.integer(3))


@reads("Roll", inputs=3)
def _roll(layer: LayerTranslation) -> Op:
    layer.integers(1)  # the shift must be a constant
    return layer.op("openvino::Roll", layer.inputs[0], axes=tuple(layer.integers(2)))


def _mask(layer: LayerTranslation, name: str, count: int) -> list[bool]:
    items = [item.strip() for item in layer.original.data.get(name, "").split(",") if item.strip()]
    if any(item not in ("0", "1") for item in items):
        raise UnknownLayerError
    return [*(item == "1" for item in items), *[False] * (count - len(items))]


@reads("StridedSlice", inputs=(3, 4))
def _strided_slice(layer: LayerTranslation) -> Op:
    """Translate NumPy's x[begin:end:stride, ...], with masks for omitted values."""
    begins, ends = layer.integers(1), layer.integers(2)
    strides = layer.integers(3) if len(layer.inputs) > 3 else [1] * len(begins)
    count = len(begins)
    masks = [_mask(layer, f"{name}_mask", count) for name in ("begin", "end", "new_axis", "shrink_axis")]
    if any(_mask(layer, "ellipsis_mask", count)) or not len(ends) == len(strides) == count or 0 in strides:
        raise UnknownLayerError
    cut: list[tuple[int, int, int, int]] = []  # start, end, axis, step
    gone: list[int] = []
    inserted: list[int] = []
    axis = new_axis = 0
    for begin, end, stride, no_begin, no_end, is_new, is_single in zip(
        begins, ends, strides, *(mask[:count] for mask in masks), strict=True
    ):
        if is_new:
            inserted.append(new_axis)
            new_axis += 1
            continue
        if is_single:
            start = 0 if no_begin else begin
            cut.append((start, start + 1 if start != -1 else _TO_END, axis, 1))
            gone.append(axis)
        else:
            start = (0 if stride > 0 else -1) if no_begin else begin
            stop = (_TO_END if stride > 0 else _TO_START) if no_end else end
            if (start, stop, stride) != (0, _TO_END, 1):
                cut.append((start, stop, axis, stride))
            new_axis += 1
        axis += 1
    if axis > layer.rank(0):
        raise UnknownLayerError
    steps: list[tuple[str, dict[str, Any]]] = []
    if cut:
        names = ("starts", "ends", "axes", "steps")
        steps.append(("Slice", dict(zip(names, zip(*cut, strict=True), strict=True))))
    if gone:
        steps.append(("Squeeze", {"axes": tuple(gone)}))
    if inserted:
        steps.append(("Unsqueeze", {"axes": tuple(inserted)}))
    value = layer.inputs[0]
    for kind, attributes in steps[:-1]:
        value = layer.before(kind, value, **attributes)
    kind, attributes = steps[-1] if steps else ("Identity", {})
    return layer.op(kind, value, **attributes)


@reads("Slice", inputs=(4, 5))
def _slice(layer: LayerTranslation) -> Op:
    data, start, stop, step, *axes = layer.inputs
    more: dict[str, Any] = {} if axes else {"axes": tuple(range(len(layer.integers(1))))}
    names = [start, stop, *axes] if axes else [start, stop, ""]
    return layer.op("Slice", data, *names, step, **more)


@writes("Slice")
def _write_slice(flow: Flow, op: Op) -> NewLayer:
    names = ("starts", "ends", "axes", "steps")
    known = {name: flow.ints(op, name, index) for index, name in enumerate(names, 1)}
    count = next(len(found) for found in known.values() if found is not None)
    default = {"axes": list(range(count)), "steps": [1] * count}
    starts, ends, axes, strides = (
        op.inputs[index] if found is None and name not in default else _list(*(found or default[name]))
        for index, (name, found) in enumerate(known.items(), 1)
    )
    return NewLayer("Slice", "opset8", {}, (op.inputs[0], starts, ends, strides, axes))


@reads("Reverse", inputs=2)
def _reverse(layer: LayerTranslation) -> Op:
    if layer.word("mode", "") != "index":
        raise UnknownLayerError
    axes = tuple(layer.integers(1))
    last, end = (-1,) * len(axes), (_TO_START,) * len(axes)
    return layer.op("Slice", layer.inputs[0], starts=last, ends=end, axes=axes, steps=last)


@reads("Broadcast", inputs=(2, 3))
def _broadcast(layer: LayerTranslation) -> Op:
    if layer.word("mode", "numpy") not in ("numpy", "bidirectional"):
        raise UnknownLayerError
    return layer.op("Expand", *layer.inputs[:2])


@reads("Range", inputs=3)
def _range(layer: LayerTranslation) -> Op:
    dtypes = [layer.flow.dtype(name) for name in layer.inputs]
    is_said = layer.original.version != "opset1"  # opset1 uses the type of the inputs
    dtype = ELEMENT_TYPES.get(layer.word("output_type", "")) if is_said else dtypes[0]
    others = {(item, dtype) for item in dtypes if item != dtype}
    if dtype is None or not others.issubset(_COUNTED if is_said else ()):
        raise UnknownLayerError
    names = zip(layer.inputs, dtypes, strict=True)
    return layer.op(
        "Range", *(name if item == dtype else layer.before("Cast", name, dtype=dtype) for name, item in names)
    )


@writes("Range")
def _write_range(flow: Flow, op: Op) -> NewLayer:
    dtype = flow.dtype(op.inputs[0])
    return NewLayer("Range", "opset4", {"output_type": ELEMENT_WORDS[dtype or "int64"]}, op.inputs)


@reads("Pad", inputs=(3, 4))
def _pad(layer: LayerTranslation) -> Op:
    mode = layer.word("pad_mode", "")
    pads = (*layer.integers(1), *layer.integers(2))
    return layer.op("Pad", layer.inputs[0], "", *layer.inputs[3:], pads=pads, mode=mode)


@writes("Pad")
def _write_pad(flow: Flow, op: Op) -> NewLayer:
    pads = flow.ints(op, "pads", 1) or []
    half = len(pads) // 2
    data = {"pad_mode": str(op.attributes.get("mode", "constant"))}
    parts = (_list(*pads[:half]), _list(*pads[half:]))
    return NewLayer("Pad", "opset1", data, (op.inputs[0], *parts, *op.inputs[2:]))


@reads("Tile")
def _tile(layer: LayerTranslation) -> Op:
    if layer.flow.shape(layer.inputs[1]) != (layer.rank(0),):
        raise UnknownLayerError  # the shorter of the two is padded with ones
    return layer.op("Tile")


@reads("SquaredDifference")
def _squared_difference(layer: LayerTranslation) -> Op:
    kind = _binary("Sub")(layer).kind
    difference = layer.before(kind, *layer.inputs)
    return layer.op("Mul", difference, difference)


@reads("NotEqual")
def _not_equal(layer: LayerTranslation) -> Op:
    kind = _binary("Equal")(layer).kind
    return layer.op("Not", layer.before(kind, *layer.inputs))


def _over_axis(kind: str, default: str) -> ReadingRule:
    return lambda layer: layer.op(kind, axis=layer.attribute_integer("axis", default))


reads("GatherElements", inputs=2)(_over_axis("GatherElements", ""))
reads("OneHot", inputs=4)(_over_axis("openvino::OneHot", "-1"))
reads("SoftMax", "Softmax")(_over_axis("Softmax", "1"))
reads("LogSoftmax")(_over_axis("LogSoftmax", "1"))


@reads("MVN")
def _mvn(layer: LayerTranslation) -> Op:
    if len(layer.inputs) < 2:  # opset 2, with axes as attributes
        raise UnknownLayerError
    return layer.op("openvino::MVN")


@reads("EmbeddingBagPackedSum", "EmbeddingBagPacked", "Swish", "NormalizeL2", "LSTMCell", "RNNCell")
@reads("GRUSequence", "AUGRUSequence", "LSTMSequence", "RNNSequence")
@reads("Bucketize", inputs=2)
def _own(layer: LayerTranslation) -> Op:
    """Translate a layer that ONNX does not have."""
    data = layer.original.data
    found = {"direction": data["direction"]} if "direction" in data else {}
    return layer.op(f"openvino::{layer.original.type}", **found)


@reads("Interpolate")
def _interpolate(layer: LayerTranslation) -> Op:
    axes_input = {"opset4": 3, "opset11": 2}.get(layer.original.version)  # the input with the axes
    if axes_input is None:
        raise UnknownLayerError
    axes = layer.integers(axes_input) if len(layer.inputs) > axes_input else range(layer.rank(0))
    is_scaled = layer.word("shape_calculation_mode", "") == "scales"
    scales = layer.flow.constant(layer.inputs[axes_input - 1]) if is_scaled else None
    pads = {name: layer.attribute_integers(name) for name in ("pads_begin", "pads_end")}
    known = {} if scales is None else {"scales": tuple(map(float, scales.ravel()))}
    return layer.op("openvino::Interpolate", axes=tuple(axes), **known, **pads)


@reads("Convolution", "GroupConvolution", "MaxPool", "AvgPool")
@reads("ConvolutionBackpropData", "GroupConvolutionBackpropData")
def _window(layer: LayerTranslation) -> Op:
    """Translate a convolution or a pooling, with ONNX's attributes."""
    auto = layer.word("auto_pad", "explicit")
    attributes: dict[str, Any] = {
        **{name: layer.attribute_integers(name) for name in ("strides", "dilations", "output_padding")},
        "pads": layer.attribute_integers("pads_begin") + layer.attribute_integers("pads_end"),
        "kernel_shape": layer.attribute_integers("kernel"),
        "auto_pad": "" if auto == "explicit" else auto.upper(),
        "ceil_mode": int(layer.word("rounding_type", "floor") != "floor"),
        "count_include_pad": int(layer.original.type == "AvgPool" and not layer.flag("exclude-pad", True)),
    }
    given = {name: value for name, value in attributes.items() if value}
    return layer.op(f"openvino::{layer.original.type}", **given)


@reads("GRUCell", "AUGRUCell")
def _cell(layer: LayerTranslation) -> Op:
    operator, original = OPERATORS[layer.original.type], layer.original
    try:
        attributes = {
            name: layer.parser.attribute(original, operator.attributes.get(name), text)
            for name, text in original.data.items()
        }
    except FormatError as error:
        raise UnknownLayerError from error.__cause__
    return layer.op(f"openvino::{original.type}", **attributes)


#: The ONNX operators that have a layer.
WRITTEN = frozenset(WRITING)
