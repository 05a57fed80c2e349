"""The dictionary between OpenVINO's layers and ONNX operators: both directions of an operator together."""

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
#: Further operators with one input, which are read but not written.
MORE_UNARY = {
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

_LAST = 2**63 - 1
_LARGEST = 3.4e38
# Types of inputs of a Range, each with a possible type of its result; 16-bit types would round step counts.
_COUNTED = {(a, b) for a in ("int32", "int64") for b in ("int32", "int64", "float32", "float64")}
_FLOATS = ("float16", "bfloat16", "float32", "float64")


def translate(place: LayerTranslation) -> list[Op]:
    """Translate a layer to operators; the last one has the outputs of the layer."""
    kind = place.layer.type
    try:
        rule, least, most = READING[kind]
        if len(place.inputs) < least or (most is not None and len(place.inputs) > most):
            raise UnknownLayerError
        last = rule(place)
    except (KeyError, UnknownLayerError, IndexError):
        place.ops.clear()
        # The prefix marks a layer that has a rule, but is not supported by it.
        last = place.op(f"openvino::{'untranslated::' if kind in READING else ''}{kind}")
    return [*place.ops, last]


def layer_of(flow: Flow, op: Op) -> NewLayer:
    """Return the layer of an operator."""
    if "data" in op.attributes:  # OpenVINO's own operator
        kind = op.kind.rpartition("::")[2]
        return NewLayer(kind, op.attributes["version"], op.attributes["data"], op.inputs)
    return WRITING[op.kind](flow, op)


def _list(*values: int) -> Array:
    return np.array(values, np.int64)


def _same(kind: str, **attributes: Any) -> ReadingRule:
    return lambda place: place.op(kind, place.inputs[0], **attributes)


def _plain(layer: str, version: str = "opset1", **data: str) -> WritingRule:
    return lambda flow, op: NewLayer(layer, version, data, op.inputs)


def _binary(kind: str) -> ReadingRule:
    def rule(place: LayerTranslation) -> Op:
        if place.word("auto_broadcast", "numpy") not in ("numpy", "none"):
            raise UnknownLayerError
        return place.op(kind)

    return rule


for _kind, _layer in UNARY.items():
    reads(_layer)(_same(_kind))
    writes(_kind)(_plain(_layer, "opset4" if _kind == "Softplus" else "opset1"))
for _kind, _layer in MORE_UNARY.items():
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
def _bound(place: LayerTranslation) -> Op:
    """Translate Max or Min; a limit outside float32's range means no limit and is dropped."""
    kind, sign = ("Max", -1) if place.layer.type == "Maximum" else ("Min", 1)
    for bound, value in (place.inputs, place.inputs[::-1]):
        array = place.flow.constant(bound)
        if array is not None and array.ndim == 0 and array.dtype.kind == "f" and sign * array > _LARGEST:
            return place.op("Identity", value)
    return _binary(kind)(place)


reads("HardSigmoid", inputs=3)(
    lambda place: place.op("HardSigmoid", place.inputs[0], alpha=place.number(1), beta=place.number(2))
)
reads("Selu", inputs=3)(
    lambda place: place.op("Selu", place.inputs[0], alpha=place.number(1), gamma=place.number(2))
)
reads("Elu")(lambda place: place.op("Elu", place.inputs[0], alpha=place.real("alpha")))
reads("Reshape", inputs=2)(
    lambda place: place.op("Reshape", allowzero=0 if place.flag("special_zero", False) else 1)
)
reads("Split", inputs=2)(lambda place: place.op("Split", place.inputs[0], axis=place.integer(1)))
reads("Concat")(lambda place: place.op("Concat", axis=place.whole("axis")))
writes("Concat")(
    lambda flow, op: NewLayer("Concat", "opset1", {"axis": str(op.attributes["axis"])}, op.inputs)
)
reads("TopK", inputs=2)(
    lambda place: place.op("TopK", axis=place.whole("axis"), largest=int(place.word("mode", "") == "max"))
)
reads("ScaledDotProductAttention", inputs=(3, 5))(
    lambda place: place.op("openvino::ScaledDotProductAttention", causal=int(place.flag("causal", False)))
)
reads("LRN", inputs=2)(
    lambda place: place.op("openvino::LRN", place.inputs[0], axes=tuple(place.integers(1)))
)
reads("ShuffleChannels")(
    lambda place: place.op("openvino::ShuffleChannels", axes=(place.whole("axis", "1"),))
)
reads("ReverseSequence", inputs=2)(
    lambda place: place.op(
        "ReverseSequence", batch_axis=place.whole("batch_axis", "0"), time_axis=place.whole("seq_axis", "1")
    )
)
reads("Einsum")(lambda place: place.op("Einsum", equation=place.layer.data.get("equation", "")))
reads("Gelu")(
    lambda place: place.op("Gelu", place.inputs[0], approximate=place.word("approximation_mode", "erf"))
)
reads("Mod")(lambda place: place.op(_binary("Mod")(place).kind, fmod=1))
reads("CumSum")(
    lambda place: place.op(
        "CumSum", **{name: int(place.flag(name, False)) for name in ("exclusive", "reverse")}
    )
)
reads("ScatterNDUpdate", inputs=3)(lambda place: place.op("ScatterND"))


@reads("Divide", inputs=2)
def _divide(place: LayerTranslation) -> Op:
    if place.flow.dtype(place.inputs[0]) not in _FLOATS and place.flag("m_pythondiv", True):
        return _binary("openvino::Divide")(place)  # integers are rounded down, not towards zero
    return _binary("Div")(place)


@reads("Power", inputs=2)
def _power(place: LayerTranslation) -> Op:
    x = place.inputs[0]
    array, shape = place.flow.constant(place.inputs[1]), place.flow.shape(x)
    is_one = array is not None and array.size == 1
    if is_one and array is not None and (not array.ndim or (shape is not None and array.ndim <= len(shape))):
        exponent = place.number(1)
        if exponent == -1:
            return place.op("Reciprocal", x)
        if exponent == 1:
            return place.op("Identity", x)
        if exponent == 2:
            return place.op("Mul", x, x)
        if exponent == 0.5:
            return place.op("Sqrt", x)
    return _binary("Pow")(place)


@reads("Convert")
def _convert(place: LayerTranslation) -> Op:
    dtype = ELEMENT_TYPES.get(place.layer.data.get("destination_type", ""))
    if dtype is None:
        raise UnknownLayerError
    return place.op("Cast", dtype=dtype)


@writes("Cast")
def _write_cast(flow: Flow, op: Op) -> NewLayer:
    data = {"destination_type": ELEMENT_WORDS[op.attributes["dtype"]]}
    return NewLayer("Convert", "opset1", data, op.inputs)


@reads("MatMul", inputs=2)
def _matmul(place: LayerTranslation) -> Op:
    names = list(place.inputs)
    for side, name in enumerate(("transpose_a", "transpose_b")):
        rank = place.rank(side) if place.flag(name, False) else 0
        if rank >= 2:
            perm = (*range(rank - 2), rank - 1, rank - 2)
            names[side] = place.before("Transpose", names[side], perm=perm)
    return place.op("MatMul", *names)


@reads("Clamp")
def _clamp(place: LayerTranslation) -> Op:
    low, high = place.real("min"), place.real("max")
    if (place.flow.dtype(place.inputs[0]) or "").lstrip("u").startswith("int"):  # integer limits
        low, high = np.ceil(low), np.floor(high)
    return place.op("Clip", place.inputs[0], min=float(low), max=float(high))


@reads("BatchNormInference")
def _batch_norm(place: LayerTranslation) -> Op:
    inputs = place.inputs
    if place.layer.version == "opset1" and len(inputs) == 5:  # has gamma and beta before the data
        inputs = (inputs[2], *inputs[:2], *inputs[3:])
    return place.op("openvino::BatchNormInference", *inputs)


@reads("PReLU", "PRelu", inputs=2)
def _prelu(place: LayerTranslation) -> Op:
    x, slope = place.inputs
    array, shape, slopes = place.flow.constant(slope), place.flow.shape(x), place.flow.shape(slope)
    if array is not None and array.size and np.all(array == array.flat[0]):
        return place.op("LeakyRelu", x, alpha=place.number(1))
    if shape is None or slopes is None or len(shape) < 2:
        raise UnknownLayerError
    if len(slopes) == 1 and slopes != (1,):  # one slope for each channel, along axis 1
        if slopes[0] != shape[1] or not isinstance(shape[1], int):
            raise UnknownLayerError  # the axis would depend on the number of channels
        axes = tuple(range(1, len(shape) - 1))
        slope = place.before("Unsqueeze", slope, axes=axes) if axes else slope
    return place.op("PRelu", x, slope)


@reads("ConvertLike", inputs=2)
def _convert_like(place: LayerTranslation) -> Op:
    dtype = place.flow.dtype(place.inputs[1])
    if dtype is None:
        raise UnknownLayerError
    return place.op("Cast", place.inputs[0], dtype=dtype)


@writes("Reshape")
def _write_reshape(flow: Flow, op: Op) -> NewLayer:
    word = "false" if op.attributes.get("allowzero") else "true"
    return NewLayer("Reshape", "opset1", {"special_zero": word}, op.inputs)


@reads("Transpose", inputs=2)
def _transpose(place: LayerTranslation) -> Op:
    order = place.integers(1)
    return place.op("Transpose", place.inputs[0], perm=tuple(order or range(place.rank(0))[::-1]))


@writes("Transpose", "Squeeze", "Unsqueeze")
def _with_axes(flow: Flow, op: Op) -> NewLayer:
    axes = flow.ints(op, "perm" if op.kind == "Transpose" else "axes", 1)
    return NewLayer(op.kind, "opset1", {}, (op.inputs[0], *([] if axes is None else [_list(*axes)])))


@reads("Squeeze", "Unsqueeze", inputs=(1, 2))
def _axes(place: LayerTranslation) -> Op:
    kind = place.layer.type
    if len(place.inputs) < 2 and kind == "Squeeze":
        return place.op(kind, place.inputs[0])
    if place.flag("allow_axis_skip", False) or not (axes := place.integers(1)):
        raise UnknownLayerError
    return place.op(kind, place.inputs[0], axes=tuple(axes))


@reads(*(kind for kind in TABLE if kind.startswith("Reduce")))
def _reduced(place: LayerTranslation) -> Op:
    axes, keeps = tuple(place.integers(1)), int(place.flag("keep_dims", False))
    return place.op(place.layer.type, place.inputs[0], axes=axes, keepdims=keeps, noop_with_empty_axes=1)


@reads("VariadicSplit", inputs=3)
def _variadic_split(place: LayerTranslation) -> Op:
    axis, sizes = place.integer(1), place.integers(2)
    if -1 in sizes:
        shape = place.flow.shape(place.inputs[0])
        whole = None if shape is None else shape[axis]
        if not isinstance(whole, int) or sizes.count(-1) > 1:
            raise UnknownLayerError
        sizes[sizes.index(-1)] = whole - sum(sizes) - 1
    if len(sizes) != len(place.outputs) or min(sizes) < 0:
        raise UnknownLayerError
    return place.op("Split", place.inputs[0], axis=axis, split=tuple(sizes))


@reads("Gather", inputs=3)
def _gather(place: LayerTranslation) -> Op:
    if batch := place.whole("batch_dims", "0"):
        return place.op("openvino::Gather", *place.inputs[:2], axis=place.integer(2), batch_dims=batch)
    indices = place.flow.constant(place.inputs[1])
    if place.layer.version != "opset8" and indices is not None and np.any(indices < 0):
        raise UnknownLayerError  # before version 8, negative indices do not count from the end
    return place.op("Gather", *place.inputs[:2], axis=place.integer(2))


@writes("Gather")
def _write_gather(flow: Flow, op: Op) -> NewLayer:
    axis = np.array(op.attributes.get("axis", 0), np.int64)
    return NewLayer("Gather", "opset8", {"batch_dims": "0"}, (*op.inputs, axis))


@reads("GatherND", inputs=2)
def _gather_nd(place: LayerTranslation) -> Op:
    batch = place.whole("batch_dims", "0")
    if batch > 1 and place.layer.version == "opset5":
        raise UnknownLayerError  # this version merges the batch axes
    return place.op("GatherND", batch_dims=batch)


@reads("ScatterUpdate", "ScatterElementsUpdate", inputs=4)
def _scatter(place: LayerTranslation) -> Op:
    kind = "openvino::ScatterUpdate" if place.layer.type == "ScatterUpdate" else "ScatterElements"
    return place.op(kind, *place.inputs[:3], axis=place.integer(3))


@reads("Roll", inputs=3)
def _roll(place: LayerTranslation) -> Op:
    place.integers(1)  # the shift must be a constant
    return place.op("openvino::Roll", place.inputs[0], axes=tuple(place.integers(2)))


def _mask(place: LayerTranslation, name: str, count: int) -> list[bool]:
    items = [item.strip() for item in place.layer.data.get(name, "").split(",") if item.strip()]
    if any(item not in ("0", "1") for item in items):
        raise UnknownLayerError
    return [*(item == "1" for item in items), *[False] * (count - len(items))]


@reads("StridedSlice", inputs=(3, 4))
def _strided_slice(place: LayerTranslation) -> Op:
    """Translate NumPy's x[begin:end:stride, ...], with masks for omitted values."""
    begins, ends = place.integers(1), place.integers(2)
    strides = place.integers(3) if len(place.inputs) > 3 else [1] * len(begins)
    count = len(begins)
    masks = [_mask(place, f"{name}_mask", count) for name in ("begin", "end", "new_axis", "shrink_axis")]
    if any(_mask(place, "ellipsis_mask", count)) or not len(ends) == len(strides) == count or 0 in strides:
        raise UnknownLayerError
    cut: list[tuple[int, int, int, int]] = []  # start, end, axis, step
    gone: list[int] = []
    inserted: list[int] = []
    axis = place_behind = 0
    for begin, end, stride, no_begin, no_end, is_new, is_single in zip(
        begins, ends, strides, *(mask[:count] for mask in masks), strict=True
    ):
        if is_new:
            inserted.append(place_behind)
            place_behind += 1
            continue
        if is_single:
            start = 0 if no_begin else begin
            cut.append((start, start + 1 if start != -1 else _LAST, axis, 1))
            gone.append(axis)
        else:
            start = (0 if stride > 0 else -1) if no_begin else begin
            stop = (_LAST if stride > 0 else 1 - 2**63) if no_end else end
            if (start, stop, stride) != (0, _LAST, 1):
                cut.append((start, stop, axis, stride))
            place_behind += 1
        axis += 1
    if axis > place.rank(0):
        raise UnknownLayerError
    steps: list[tuple[str, dict[str, Any]]] = []
    if cut:
        names = ("starts", "ends", "axes", "steps")
        steps.append(("Slice", dict(zip(names, zip(*cut, strict=True), strict=True))))
    if gone:
        steps.append(("Squeeze", {"axes": tuple(gone)}))
    if inserted:
        steps.append(("Unsqueeze", {"axes": tuple(inserted)}))
    value = place.inputs[0]
    for kind, attributes in steps[:-1]:
        value = place.before(kind, value, **attributes)
    kind, attributes = steps[-1] if steps else ("Identity", {})
    return place.op(kind, value, **attributes)


@reads("Slice", inputs=(4, 5))
def _slice(place: LayerTranslation) -> Op:
    data, start, stop, step, *axes = place.inputs
    more: dict[str, Any] = {} if axes else {"axes": tuple(range(len(place.integers(1))))}
    names = [start, stop, *axes] if axes else [start, stop, ""]
    return place.op("Slice", data, *names, step, **more)


@writes("Slice")
def _write_slice(flow: Flow, op: Op) -> NewLayer:
    names = ("starts", "ends", "axes", "steps")
    known = {name: flow.ints(op, name, place) for place, name in enumerate(names, 1)}
    count = next(len(found) for found in known.values() if found is not None)
    default = {"axes": list(range(count)), "steps": [1] * count}
    starts, ends, axes, strides = (
        op.inputs[place] if found is None and name not in default else _list(*(found or default[name]))
        for place, (name, found) in enumerate(known.items(), 1)
    )
    return NewLayer("Slice", "opset8", {}, (op.inputs[0], starts, ends, strides, axes))


@reads("Reverse", inputs=2)
def _reverse(place: LayerTranslation) -> Op:
    if place.word("mode", "") != "index":
        raise UnknownLayerError
    axes = place.integers(1)
    return place.op(
        "Slice",
        place.inputs[0],
        starts=(-1,) * len(axes),
        ends=(1 - 2**63,) * len(axes),
        axes=tuple(axes),
        steps=(-1,) * len(axes),
    )


@reads("Broadcast", inputs=(2, 3))
def _broadcast(place: LayerTranslation) -> Op:
    if place.word("mode", "numpy") not in ("numpy", "bidirectional"):
        raise UnknownLayerError
    return place.op("Expand", *place.inputs[:2])


@reads("Range", inputs=3)
def _range(place: LayerTranslation) -> Op:
    dtypes = [place.flow.dtype(name) for name in place.inputs]
    is_said = place.layer.version != "opset1"  # opset1 uses the type of the inputs
    dtype = ELEMENT_TYPES.get(place.word("output_type", "")) if is_said else dtypes[0]
    others = {(item, dtype) for item in dtypes if item != dtype}
    if dtype is None or not others.issubset(_COUNTED if is_said else ()):
        raise UnknownLayerError
    names = zip(place.inputs, dtypes, strict=True)
    return place.op(
        "Range", *(name if item == dtype else place.before("Cast", name, dtype=dtype) for name, item in names)
    )


@writes("Range")
def _write_range(flow: Flow, op: Op) -> NewLayer:
    dtype = flow.dtype(op.inputs[0])
    return NewLayer("Range", "opset4", {"output_type": ELEMENT_WORDS[dtype or "int64"]}, op.inputs)


@reads("Pad", inputs=(3, 4))
def _pad(place: LayerTranslation) -> Op:
    mode = place.word("pad_mode", "")
    pads = (*place.integers(1), *place.integers(2))
    return place.op("Pad", place.inputs[0], "", *place.inputs[3:], pads=pads, mode=mode)


@writes("Pad")
def _write_pad(flow: Flow, op: Op) -> NewLayer:
    pads = flow.ints(op, "pads", 1) or []
    half = len(pads) // 2
    data = {"pad_mode": str(op.attributes.get("mode", "constant"))}
    parts = (_list(*pads[:half]), _list(*pads[half:]))
    return NewLayer("Pad", "opset1", data, (op.inputs[0], *parts, *op.inputs[2:]))


@reads("Tile")
def _tile(place: LayerTranslation) -> Op:
    if place.flow.shape(place.inputs[1]) != (place.rank(0),):
        raise UnknownLayerError  # the shorter of the two is padded with ones
    return place.op("Tile")


@reads("SquaredDifference")
def _squared_difference(place: LayerTranslation) -> Op:
    kind = _binary("Sub")(place).kind
    difference = place.before(kind, *place.inputs)
    return place.op("Mul", difference, difference)


@reads("NotEqual")
def _not_equal(place: LayerTranslation) -> Op:
    kind = _binary("Equal")(place).kind
    return place.op("Not", place.before(kind, *place.inputs))


def _over_axis(kind: str, default: str) -> ReadingRule:
    return lambda place: place.op(kind, axis=place.whole("axis", default))


reads("GatherElements", inputs=2)(_over_axis("GatherElements", ""))
reads("OneHot", inputs=4)(_over_axis("openvino::OneHot", "-1"))
reads("SoftMax", "Softmax")(_over_axis("Softmax", "1"))
reads("LogSoftmax")(_over_axis("LogSoftmax", "1"))


@reads("MVN")
def _mvn(place: LayerTranslation) -> Op:
    if len(place.inputs) < 2:  # opset 2, with axes as attributes
        raise UnknownLayerError
    return place.op("openvino::MVN")


@reads("EmbeddingBagPackedSum", "EmbeddingBagPacked", "Swish", "NormalizeL2", "LSTMCell", "RNNCell")
@reads("GRUSequence", "AUGRUSequence", "LSTMSequence", "RNNSequence")
@reads("Bucketize", inputs=2)
def _own(place: LayerTranslation) -> Op:
    """Translate a layer that ONNX does not have."""
    data = place.layer.data
    found = {"direction": data["direction"]} if "direction" in data else {}
    return place.op(f"openvino::{place.layer.type}", **found)


@reads("Interpolate")
def _interpolate(place: LayerTranslation) -> Op:
    behind = {"opset4": 3, "opset11": 2}.get(place.layer.version)  # the input with the axes
    if behind is None:
        raise UnknownLayerError
    axes = place.integers(behind) if len(place.inputs) > behind else range(place.rank(0))
    is_scaled = place.word("shape_calculation_mode", "") == "scales"
    scales = place.flow.constant(place.inputs[behind - 1]) if is_scaled else None
    pads = {name: place.numbers(name) for name in ("pads_begin", "pads_end")}
    known = {} if scales is None else {"scales": tuple(map(float, scales.ravel()))}
    return place.op("openvino::Interpolate", axes=tuple(axes), **known, **pads)


@reads(
    "Convolution",
    "GroupConvolution",
    "MaxPool",
    "AvgPool",
    "ConvolutionBackpropData",
    "GroupConvolutionBackpropData",
)
def _window(place: LayerTranslation) -> Op:
    """Translate a convolution or a pooling, with ONNX's attributes."""
    auto = place.word("auto_pad", "explicit")
    attributes: dict[str, Any] = {
        **{name: place.numbers(name) for name in ("strides", "dilations", "output_padding")},
        "pads": place.numbers("pads_begin") + place.numbers("pads_end"),
        "kernel_shape": place.numbers("kernel"),
        "auto_pad": "" if auto == "explicit" else auto.upper(),
        "ceil_mode": int(place.word("rounding_type", "floor") != "floor"),
        "count_include_pad": int(place.layer.type == "AvgPool" and not place.flag("exclude-pad", True)),
    }
    given = {name: value for name, value in attributes.items() if value}
    return place.op(f"openvino::{place.layer.type}", **given)


@reads("GRUCell", "AUGRUCell")
def _cell(place: LayerTranslation) -> Op:
    operator, layer = OPERATORS[place.layer.type], place.layer
    try:
        attributes = {
            name: place.parser.attribute(layer, operator.attributes.get(name), text)
            for name, text in layer.data.items()
        }
    except FormatError as error:
        raise UnknownLayerError from error.__cause__
    return place.op(f"openvino::{layer.type}", **attributes)


#: The ONNX operators that have a layer.
WRITTEN = frozenset(WRITING)
