"""Operators whose meaning changed where neither their schemas nor onnx's converter show it.

`MEANINGS` comes from a comparison of all versions up to opset 28. It has no versions that only clarify the
specification. It has no negative axes and indices: old versions do not allow them, or agree on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import onnx
from onnx import NodeProto, TypeProto

from onegru.rewriting.nodes.scope import Scope


class Meaning(NamedTuple):
    """A change of the meaning of some operators."""

    operators: str
    opset: int  # the first opset with the new meaning
    has_effect: Callable[[Scope, NodeProto, int], object]  # whether a node of this opset may be affected
    reason: str
    is_upgrade: bool | None = None  # whether only upgrades, or only downgrades, are affected; None for both


def changed_meaning(scope: Scope, node: NodeProto, old: int, new: int) -> str:
    """Return why a node has another meaning in the new opset; empty if it has the same."""
    for item in MEANINGS:
        crosses = min(old, new) < item.opset <= max(old, new) and item.is_upgrade in (None, new > old)
        if crosses and node.op_type in item.operators.split() and item.has_effect(scope, node, old):
            return item.reason
    return ""


def _attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    found = (onnx.helper.get_attribute_value(item) for item in node.attribute if item.name == name)
    return next(found, default)


def _has_value(name: str, *values: bytes) -> Callable[[Scope, NodeProto, int], object]:
    return lambda scope, node, old: _attribute(node, name) in values


def _depends_on_slope(scope: Scope, node: NodeProto, _: int) -> bool:
    """Whether a PRelu's slope has several values, and the axis of the channels is not the last axis."""
    x, slope = (scope.shape(name) for name in node.input[:2])
    is_single = slope is not None and None not in slope and math.prod(filter(None, slope)) == 1
    return not is_single and not (x is not None and slope is not None and (len(x), len(slope)) == (2, 1))


def _uses_mask(scope: Scope, node: NodeProto, _: int) -> bool:
    mask = "".join(node.output[1:2])
    return mask != "" and (mask in scope.outputs or mask in scope.consumers)


def _joins_axes(scope: Scope, node: NodeProto, old: int) -> bool:
    """Whether a Softmax's axis may be another than the last one, which is the same in all versions."""
    axis, x = _attribute(node, "axis", 1 if old < 13 else -1), scope.shape(node.input[0])
    return axis != -1 and (x is None or axis != len(x) - 1)


def _interpolates(scope: Scope, node: NodeProto, _: int) -> bool:
    """Whether an old Resize or Upsample does not only repeat elements."""
    scales = _attribute(node, "scales", scope.constant(node.input[1]) if len(node.input) > 1 else None)
    is_nearest = _attribute(node, "mode", b"nearest") == b"nearest"
    return not is_nearest or scales is None or any(scale < 1 or scale % 1 for scale in scales)


def _broadcasts(scope: Scope, node: NodeProto, _: int) -> bool:
    types = [(scope.type_of(name) or TypeProto()).tensor_type for name in node.input]
    sizes = [dim.WhichOneof("value") for item in types for dim in item.shape.dim]
    is_known = None not in sizes and all(item.HasField("shape") for item in types)
    return len(types) > 1 and not (is_known and all(item.shape == types[0].shape for item in types))


def _is_training(scope: Scope, node: NodeProto, _: int) -> bool:
    return not _attribute(node, "is_test", 0)


def _lacks_alpha_or_gamma(scope: Scope, node: NodeProto, _: int) -> bool:
    return None in (_attribute(node, "alpha"), _attribute(node, "gamma"))


def _divides_floats(scope: Scope, node: NodeProto, _: int) -> bool:
    return not _attribute(node, "fmod", 0) and scope.dtype(node.input[0]) is not None


_reduces = _has_value("reduction", b"max", b"min")
_JOINED = "below opset 13 it joins all axes from `axis` on, so `axis` must be the last one"
_TRAINS = "without is_test = 1, it is in training mode there; set is_test"
_SLOPES = "a slope has a value for each channel below opset 7, and broadcasts like in NumPy from 7 on; the "
_SLOPES += "slope must have one value, or x two axes"
_SIZES = "below opset 8, all inputs must have the same known shape; use Expand before it"
_MASK = "its mask has the type of its input below opset 10, and is bool from 10 on; it must not be used"
_SCALES = "coordinates differ below opset 11; it must have mode nearest and constant integer scales"
_GROUPS = "scale and bias have a value for each group below opset 21, and for each channel from 21 on"
_NEW_MODE = "the mode half_pixel_symmetric needs opset 19"
_OLD_MODE = "the mode tf_half_pixel_for_nn only exists below opset 13"
_TRANSFORMS = "coordinate_transformation_mode"
MEANINGS = (
    Meaning("Selu", 6, _lacks_alpha_or_gamma, "the defaults of alpha and gamma differ; it must have both"),
    Meaning("BatchNormalization Dropout", 7, _is_training, _TRAINS, True),
    Meaning("PRelu", 7, _depends_on_slope, _SLOPES),
    Meaning("Max Mean Min Sum", 8, _broadcasts, _SIZES, False),
    Meaning("Dropout", 10, _uses_mask, _MASK),
    Meaning("Resize Upsample", 11, _interpolates, _SCALES, True),
    Meaning("Hardmax", 13, _joins_axes, _JOINED),
    Meaning("LogSoftmax Softmax", 13, _joins_axes, _JOINED, False),
    Meaning("Resize", 13, _has_value(_TRANSFORMS, b"tf_half_pixel_for_nn"), _OLD_MODE, True),
    Meaning("ScatterElements ScatterND", 18, _reduces, "the reductions max and min need opset 18", False),
    Meaning("Pad", 19, _has_value("mode", b"wrap"), "the mode wrap needs opset 19", False),
    Meaning("Resize", 19, _has_value(_TRANSFORMS, b"half_pixel_symmetric"), _NEW_MODE, False),
    Meaning("GroupNormalization", 21, lambda scope, node, old: True, _GROUPS),
    Meaning("Mod", 28, _divides_floats, "floating-point inputs need fmod = 1 below opset 28", False),
)
