"""OpenVINO's layers as ONNX operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onegru.core.activations import names_in
from onegru.core.dtypes import to_float32
from onegru.core.errors import FormatError
from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import Op
from onegru.dataflow.table import OPERATORS as TABLE
from onegru.formats.openvino.fields import ELEMENT_TYPES, AttributeParser
from onegru.formats.openvino.xml import Layer
from onegru.operators.openvino import OPERATORS

#: OpenVINO's names of operators with one input, by ONNX's names.
UNARY = {
    **{"Not": "LogicalNot", "Neg": "Negative"},
    **{name: name for name in ("Exp", "Log", "Abs", "Sqrt")},
    **{kind: layer for layer, kind in names_in("OpenVINO").items()},
}
#: Further operators with one input, which are read but not written.
MORE_UNARY = {
    **{"Ceil": "Ceiling", "HardSwish": "HSwish"},
    **{name: name for name in ("Erf", "Mish", "Sign", "Floor", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan")},
    **{name: name for name in ("Sinh", "Cosh", "Asinh", "Acosh", "Atanh")},
}
#: OpenVINO's names of elementwise operators with several inputs, by ONNX's names.
BINARY = {
    **{"Add": "Add", "Sub": "Subtract", "Mul": "Multiply", "Equal": "Equal"},
    **{"And": "LogicalAnd", "Or": "LogicalOr", "Where": "Select"},
    **{"Less": "Less", "LessOrEqual": "LessEqual", "Greater": "Greater", "GreaterOrEqual": "GreaterEqual"},
}

#: The prefix of the type of a layer that has a rule, but is not supported by it.
UNTRANSLATED = "untranslated::"
_LAST = 2**63 - 1
_LARGEST = 3.4e38
#: Types of inputs of a Range, each with a possible type of its result; 16-bit types would round step counts.
_COUNTED = {(a, b) for a in ("int32", "int64") for b in ("int32", "int64", "float32", "float64")}
_FLOATS = ("float16", "bfloat16", "float32", "float64")


class UnknownLayerError(Exception):
    """A layer has no equivalent operator."""


@dataclass(eq=False, slots=True)
class LayerTranslation:
    """A layer that becomes operators."""

    parser: AttributeParser  # of the file's attributes
    layer: Layer  # the layer
    inputs: tuple[str, ...]  # its input values
    outputs: tuple[str, ...]  # its output values
    flow: Flow  # the graph, as far as it has been read
    fresh: Callable[[str], str]  # gives a new name
    ops: list[Op] = field(default_factory=list)  # the operators that lead to the last one
    constants: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)  # new constants

    def op(self, kind: str, *inputs: str, **attributes: Any) -> Op:
        """Create the operator with the outputs of the layer."""
        return Op(kind, inputs or self.inputs, self.outputs, attributes, name=self.layer.name)

    def before(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add an intermediate operator and return its output."""
        name = self.fresh(f"{self.layer.name}/{kind}")
        self.ops.append(Op(kind, inputs, (name,), attributes, name=name))
        self.flow.producers[name] = self.ops[-1]
        return name

    def integers(self, place: int) -> list[int]:
        """Read a constant input of integers."""
        array = self.flow.constant(self.inputs[place]) if place < len(self.inputs) else None
        if array is None or array.dtype.kind not in "iu":
            raise UnknownLayerError
        return [int(item) for item in array.ravel()]

    def integer(self, place: int) -> int:
        """Read a constant input of one integer."""
        found = self.integers(place)
        if len(found) != 1:
            raise UnknownLayerError
        return found[0]

    def number(self, place: int) -> float:
        """Read a constant input whose elements are all equal."""
        array = self.flow.constant(self.inputs[place]) if place < len(self.inputs) else None
        if array is None or not array.size or np.any(array != array.flat[0]):
            raise UnknownLayerError
        return float(array.flat[0])

    def word(self, name: str, default: str) -> str:
        """Return an attribute in lower case."""
        return self.layer.data.get(name, default).strip().lower()

    def flag(self, name: str, default: bool) -> bool:
        """Parse a Boolean attribute."""
        word = self.word(name, "true" if default else "false")
        if word not in ("true", "false", "1", "0"):
            raise UnknownLayerError
        return word in ("true", "1")

    def real(self, name: str) -> float:
        """Parse a number attribute, with the precision of the layer's inputs."""
        try:
            number = self.parser.number(self.layer, name, self.layer.data[name])
        except (FormatError, KeyError) as error:
            raise UnknownLayerError from error
        return number if self.flow.dtype(self.inputs[0]) == "float64" else to_float32(number)

    def whole(self, name: str, default: str = "") -> int:
        """Parse an integer attribute, which can be negative."""
        try:
            return int(self.layer.data.get(name, default))
        except ValueError as error:
            raise UnknownLayerError from error

    def numbers(self, name: str) -> list[int]:
        """Parse an attribute with a list of integers; empty if it is missing."""
        try:
            return [int(word) for word in self.layer.data.get(name, "").split(",") if word.strip()]
        except ValueError as error:
            raise UnknownLayerError from error

    def rank(self, place: int) -> int:
        """Return the rank of an input."""
        shape = self.flow.shape(self.inputs[place])
        if shape is None:
            raise UnknownLayerError
        return len(shape)


Rule = Callable[[LayerTranslation], Op]


def translate(place: LayerTranslation) -> list[Op]:
    """Translate a layer to operators; the last one has the outputs of the layer."""
    try:
        rule = _RULES[place.layer.type]
        least, most = _COUNTS.get(place.layer.type, (1, len(place.inputs)))
        if not least <= len(place.inputs) <= most:
            raise UnknownLayerError
        last = rule(place)
    except (KeyError, UnknownLayerError, IndexError):
        place.ops.clear()
        is_ruled = place.layer.type in _RULES
        last = place.op(f"openvino::{UNTRANSLATED if is_ruled else ''}{place.layer.type}")
    return [*place.ops, last]


def _same(kind: str, **attributes: Any) -> Rule:
    return lambda place: place.op(kind, place.inputs[0], **attributes)


def _binary(kind: str) -> Rule:
    def rule(place: LayerTranslation) -> Op:
        if place.word("auto_broadcast", "numpy") not in ("numpy", "none"):
            raise UnknownLayerError
        return place.op(kind)

    return rule


def _bound(kind: str, sign: int) -> Rule:
    """Translate Max or Min; a limit outside float32's range means no limit and is dropped."""

    def rule(place: LayerTranslation) -> Op:
        for bound, value in (place.inputs, place.inputs[::-1]):
            array = place.flow.constant(bound)
            if array is not None and array.ndim == 0 and array.dtype.kind == "f" and sign * array > _LARGEST:
                return place.op("Identity", value)
        return _binary(kind)(place)

    return rule


def _divide(place: LayerTranslation) -> Op:
    if place.flow.dtype(place.inputs[0]) not in _FLOATS and place.flag("m_pythondiv", True):
        return _binary("openvino::Divide")(place)  # integers are rounded down, not towards zero
    return _binary("Div")(place)


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


def _convert(place: LayerTranslation) -> Op:
    dtype = ELEMENT_TYPES.get(place.layer.data.get("destination_type", ""))
    if dtype is None:
        raise UnknownLayerError
    return place.op("Cast", dtype=dtype)


def _matmul(place: LayerTranslation) -> Op:
    names = list(place.inputs)
    for side, name in enumerate(("transpose_a", "transpose_b")):
        rank = place.rank(side) if place.flag(name, False) else 0
        if rank >= 2:
            perm = (*range(rank - 2), rank - 1, rank - 2)
            names[side] = place.before("Transpose", names[side], perm=perm)
    return place.op("MatMul", *names)


def _clamp(place: LayerTranslation) -> Op:
    low, high = place.real("min"), place.real("max")
    if (place.flow.dtype(place.inputs[0]) or "").lstrip("u").startswith("int"):  # integer limits
        low, high = np.ceil(low), np.floor(high)
    return place.op("Clip", place.inputs[0], min=float(low), max=float(high))


def _batch_norm(place: LayerTranslation) -> Op:
    inputs = place.inputs
    if place.layer.version == "opset1" and len(inputs) == 5:  # has gamma and beta before the data
        inputs = (inputs[2], *inputs[:2], *inputs[3:])
    return place.op("openvino::BatchNormInference", *inputs)


def _hard_sigmoid(place: LayerTranslation) -> Op:
    return place.op("HardSigmoid", place.inputs[0], alpha=place.number(1), beta=place.number(2))


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


def _selu(place: LayerTranslation) -> Op:
    return place.op("Selu", place.inputs[0], alpha=place.number(1), gamma=place.number(2))


def _convert_like(place: LayerTranslation) -> Op:
    dtype = place.flow.dtype(place.inputs[1])
    if dtype is None:
        raise UnknownLayerError
    return place.op("Cast", place.inputs[0], dtype=dtype)


def _elu(place: LayerTranslation) -> Op:
    return place.op("Elu", place.inputs[0], alpha=place.real("alpha"))


def _reshape(place: LayerTranslation) -> Op:
    return place.op("Reshape", allowzero=0 if place.flag("special_zero", False) else 1)


def _transpose(place: LayerTranslation) -> Op:
    order = place.integers(1)
    return place.op("Transpose", place.inputs[0], perm=tuple(order or range(place.rank(0))[::-1]))


def _axes(kind: str) -> Rule:
    def rule(place: LayerTranslation) -> Op:
        if len(place.inputs) < 2:
            return place.op(kind, place.inputs[0])
        if place.flag("allow_axis_skip", False):
            raise UnknownLayerError
        if not (axes := place.integers(1)):
            raise UnknownLayerError
        return place.op(kind, place.inputs[0], axes=tuple(axes))

    return rule


def _reduced(kind: str) -> Rule:
    def rule(place: LayerTranslation) -> Op:
        axes, keeps = place.integers(1), place.flag("keep_dims", False)
        return place.op(kind, place.inputs[0], axes=tuple(axes), keepdims=int(keeps), noop_with_empty_axes=1)

    return rule


def _split(place: LayerTranslation) -> Op:
    return place.op("Split", place.inputs[0], axis=place.integer(1))


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


def _concat(place: LayerTranslation) -> Op:
    return place.op("Concat", axis=place.whole("axis"))


def _gather(place: LayerTranslation) -> Op:
    if batch := place.whole("batch_dims", "0"):
        return place.op("openvino::Gather", *place.inputs[:2], axis=place.integer(2), batch_dims=batch)
    indices = place.flow.constant(place.inputs[1])
    if place.layer.version != "opset8" and indices is not None and np.any(indices < 0):
        raise UnknownLayerError  # before version 8, negative indices do not count from the end
    return place.op("Gather", *place.inputs[:2], axis=place.integer(2))


def _gather_nd(place: LayerTranslation) -> Op:
    batch = place.whole("batch_dims", "0")
    if batch > 1 and place.layer.version == "opset5":
        raise UnknownLayerError  # this version merges the batch axes
    return place.op("GatherND", batch_dims=batch)


def _scatter(kind: str) -> Rule:
    return lambda place: place.op(kind, *place.inputs[:3], axis=place.integer(3))


def _top_k(place: LayerTranslation) -> Op:
    return place.op("TopK", axis=place.whole("axis"), largest=int(place.word("mode", "") == "max"))


def _attention(place: LayerTranslation) -> Op:
    return place.op("openvino::ScaledDotProductAttention", causal=int(place.flag("causal", False)))


def _norm_over(place: LayerTranslation) -> Op:
    return place.op(f"openvino::{place.layer.type}", place.inputs[0], axes=tuple(place.integers(1)))


def _roll(place: LayerTranslation) -> Op:
    place.integers(1)  # the shift must be a constant
    return place.op("openvino::Roll", place.inputs[0], axes=tuple(place.integers(2)))


def _shuffle(place: LayerTranslation) -> Op:
    return place.op("openvino::ShuffleChannels", axes=(place.whole("axis", "1"),))


def _mask(place: LayerTranslation, name: str, count: int) -> list[bool]:
    items = [item.strip() for item in place.layer.data.get(name, "").split(",") if item.strip()]
    if any(item not in ("0", "1") for item in items):
        raise UnknownLayerError
    return [*(item == "1" for item in items), *[False] * (count - len(items))]


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


def _slice(place: LayerTranslation) -> Op:
    data, start, stop, step, *axes = place.inputs
    more: dict[str, Any] = {} if axes else {"axes": tuple(range(len(place.integers(1))))}
    names = [start, stop, *axes] if axes else [start, stop, ""]
    return place.op("Slice", data, *names, step, **more)


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


def _broadcast(place: LayerTranslation) -> Op:
    if place.word("mode", "numpy") not in ("numpy", "bidirectional"):
        raise UnknownLayerError
    return place.op("Expand", *place.inputs[:2])


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


def _reverse_sequence(place: LayerTranslation) -> Op:
    return place.op(
        "ReverseSequence", batch_axis=place.whole("batch_axis", "0"), time_axis=place.whole("seq_axis", "1")
    )


def _pad(place: LayerTranslation) -> Op:
    mode = place.word("pad_mode", "")
    pads = (*place.integers(1), *place.integers(2))
    return place.op("Pad", place.inputs[0], "", *place.inputs[3:], pads=pads, mode=mode)


def _einsum(place: LayerTranslation) -> Op:
    return place.op("Einsum", equation=place.layer.data.get("equation", ""))


def _tile(place: LayerTranslation) -> Op:
    if place.flow.shape(place.inputs[1]) != (place.rank(0),):
        raise UnknownLayerError  # the shorter of the two is padded with ones
    return place.op("Tile")


def _gelu(place: LayerTranslation) -> Op:
    return place.op("Gelu", place.inputs[0], approximate=place.word("approximation_mode", "erf"))


def _squared_difference(place: LayerTranslation) -> Op:
    kind = _binary("Sub")(place).kind
    difference = place.before(kind, *place.inputs)
    return place.op("Mul", difference, difference)


def _not_equal(place: LayerTranslation) -> Op:
    kind = _binary("Equal")(place).kind
    return place.op("Not", place.before(kind, *place.inputs))


def _mod(place: LayerTranslation) -> Op:
    return place.op(_binary("Mod")(place).kind, fmod=1)


def _over_axis(kind: str, default: str) -> Rule:
    return lambda place: place.op(kind, axis=place.whole("axis", default))


def _cumsum(place: LayerTranslation) -> Op:
    return place.op("CumSum", **{name: int(place.flag(name, False)) for name in ("exclusive", "reverse")})


def _mvn(place: LayerTranslation) -> Op:
    if len(place.inputs) < 2:  # opset 2, with axes as attributes
        raise UnknownLayerError
    return place.op("openvino::MVN")


def _named(*words: str) -> Rule:
    """Translate a layer that ONNX does not have, with these attributes as text."""

    def rule(place: LayerTranslation) -> Op:
        found = {word: place.layer.data[word] for word in words if word in place.layer.data}
        return place.op(f"openvino::{place.layer.type}", **found)

    return rule


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


_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("GRUCell", "AUGRUCell"), _cell),
    **{layer: _same(kind) for kind, layer in UNARY.items()},
    **{layer: _binary(kind) for kind, layer in BINARY.items()},
    **{"Relu": _same("Relu"), "Identity": _same("Identity"), "ShapeOf": _same("Shape")},
    "Maximum": _bound("Max", -1),
    "Minimum": _bound("Min", 1),
    "HSigmoid": _same("HardSigmoid", alpha=1 / 6, beta=0.5),
    "Divide": _divide,
    "Power": _power,
    "Convert": _convert,
    "MatMul": _matmul,
    "Clamp": _clamp,
    "HardSigmoid": _hard_sigmoid,
    "PReLU": _prelu,
    "PRelu": _prelu,
    **{"Elu": _elu, "Selu": _selu, "ConvertLike": _convert_like},
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Squeeze": _axes("Squeeze"),
    "Unsqueeze": _axes("Unsqueeze"),
    **{kind: _reduced(kind) for kind in TABLE if kind.startswith("Reduce")},
    "Split": _split,
    "VariadicSplit": _variadic_split,
    "Concat": _concat,
    "Gather": _gather,
    **{"GatherElements": _over_axis("GatherElements", ""), "GatherND": _gather_nd, "TopK": _top_k},
    **{
        "OneHot": _over_axis("openvino::OneHot", "-1"),
        "ScatterNDUpdate": lambda place: place.op("ScatterND"),
    },
    "ScatterUpdate": _scatter("openvino::ScatterUpdate"),
    "ScatterElementsUpdate": _scatter("ScatterElements"),
    **dict.fromkeys(("Bucketize", "EmbeddingBagPackedSum", "EmbeddingBagPacked"), _named()),
    **{"FakeQuantize": _binary("openvino::FakeQuantize"), "ScaledDotProductAttention": _attention},
    **{"LRN": _norm_over, "Roll": _roll, "ShuffleChannels": _shuffle},
    "StridedSlice": _strided_slice,
    "Slice": _slice,
    "Reverse": _reverse,
    "Broadcast": _broadcast,
    "Range": _range,
    "ReverseSequence": _reverse_sequence,
    "Einsum": _einsum,
    "Pad": _pad,
    **{layer: _same(kind) for kind, layer in MORE_UNARY.items()},
    **{"Tile": _tile, "Gelu": _gelu, "SquaredDifference": _squared_difference, "CumSum": _cumsum},
    **{"NotEqual": _not_equal, "LogicalXor": _binary("Xor"), "Mod": _mod},
    **{"FloorMod": _binary("openvino::FloorMod"), "Swish": _named()},
    **dict.fromkeys(("SoftMax", "Softmax"), _over_axis("Softmax", "1")),
    **{"LogSoftmax": _over_axis("LogSoftmax", "1"), "Interpolate": _interpolate},
    **{"BatchNormInference": _batch_norm, "NormalizeL2": _named()},
    "MVN": _mvn,
    **dict.fromkeys(("Convolution", "GroupConvolution", "MaxPool", "AvgPool"), _window),
    **dict.fromkeys(("ConvolutionBackpropData", "GroupConvolutionBackpropData"), _window),
    **dict.fromkeys(("GRUSequence", "AUGRUSequence", "LSTMSequence", "RNNSequence"), _named("direction")),
    **dict.fromkeys(("LSTMCell", "RNNCell"), _named()),
}

# The minimum and maximum numbers of inputs of layers that do not accept any number.
_COUNTS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(
        ("Add", "Subtract", "Multiply", "Maximum", "Minimum", "Divide", "Power", "MatMul", "Reshape"), (2, 2)
    ),
    **dict.fromkeys(("Less", "LessEqual", "Greater", "GreaterEqual", "Equal", "Transpose", "Split"), (2, 2)),
    **dict.fromkeys(("LogicalAnd", "LogicalOr", "ReverseSequence", "Reverse", "Unsqueeze"), (2, 2)),
    **dict.fromkeys(("GatherElements", "GatherND", "TopK", "Bucketize", "ConvertLike", "LRN"), (2, 2)),
    **dict.fromkeys(("Select", "HardSigmoid", "VariadicSplit", "Gather", "Range"), (3, 3)),
    **dict.fromkeys(("Selu", "Roll", "ScatterNDUpdate"), (3, 3)),
    **dict.fromkeys(("OneHot", "ScatterUpdate", "ScatterElementsUpdate"), (4, 4)),
    **{"FakeQuantize": (5, 5), "ScaledDotProductAttention": (3, 5)},
    **{"PReLU": (2, 2), "PRelu": (2, 2)},
    **{"Pad": (3, 4), "Slice": (4, 5), "StridedSlice": (3, 4), "Broadcast": (2, 3), "Squeeze": (1, 2)},
}
