"""Upgrade models from opsets that ONNX Runtime no longer supports."""

from __future__ import annotations

import contextlib
import math
from copy import deepcopy

import onnx
from onnx import ModelProto, NodeProto, version_converter

from onegru.formats.onnx.functions.inline import all_nodes
from onegru.formats.onnx.validate import Source, describe, drop_named, is_gru, is_onnx
from onegru.operators.onnx import OLDEST_OPSET


def infer_shapes(model: ModelProto) -> ModelProto:
    """Return the model with inferred shapes, or unchanged if inference fails."""
    with contextlib.suppress(Exception):  # inference is optional
        return onnx.shape_inference.infer_shapes(model)
    return model


def upgrade(source: Source, model: ModelProto, opset: int) -> ModelProto:
    """Convert a model from an older opset to `OLDEST_OPSET`."""
    copy = deepcopy(model)
    single = {item.name for item in copy.graph.initializer if math.prod(item.dims) == 1}
    for node in all_nodes(copy.graph.node):
        if is_onnx(node) and node.op_type in _BROADCASTING:
            if node.op_type != "PRelu" or node.input[1] not in single:
                _check_broadcast(source, node)
            drop_named(node.attribute, ("axis", "broadcast", "consumed_inputs"))
        elif is_gru(node):  # the attributes that version 7 removed have no effect
            drop_named(node.attribute, ("output_sequence",))
            for item in node.attribute:
                if item.name == "direction" and item.s == b"foward":  # a typo in version 1's specification
                    item.s = b"forward"
        else:
            if is_onnx(node) and node.op_type in _OTHER_DEFAULTS:
                _state_defaults(node, opset)
            continue
        node.domain = _UPGRADED
    copy.opset_import.append(onnx.helper.make_opsetid(_UPGRADED, 1))
    try:
        copy = version_converter.convert_version(copy, OLDEST_OPSET)
    except Exception as error:  # a C++ exception without a specific class
        raise source.error(
            f"cannot be upgraded to opset {OLDEST_OPSET} ({converter_reason(error)}); must have opset "
            f"{OLDEST_OPSET} or later"
        ) from error
    for node in all_nodes(copy.graph.node):
        if node.domain == _UPGRADED:
            node.domain = ""
    copy.opset_import.remove(next(entry for entry in copy.opset_import if entry.domain == _UPGRADED))
    return copy


def converter_reason(error: Exception) -> str:
    """Return the reason in an error of onnx's converter, without its source lines."""
    text = str(error).strip()
    return text.splitlines()[-1].rpartition("failed: ")[2] if text else type(error).__name__


# Broadcasting used the attributes `broadcast` and `axis` up to opset 6, and NumPy's rule from 7 on. The
# converter supports only some of these operators, and misplaces a middle axis. Without an axis both rules
# agree, so these nodes stay as they are, hidden from the converter in an unknown domain.
_BROADCASTING = frozenset(
    ("Add", "And", "Div", "Equal", "Gemm", "Greater", "Less", "Mul", "Or", "Pow", "PRelu", "Sub", "Xor")
)
_UPGRADED = "onegru.upgraded"
# The converter ignores that the defaults of their attributes changed.
_OTHER_DEFAULTS = frozenset(("BatchNormalization", "Dropout", "Selu"))


def _check_broadcast(source: Source, node: NodeProto) -> None:
    """Raise FormatError unless a node broadcasts by NumPy's rule."""
    values = {attribute.name: attribute.i for attribute in node.attribute}
    axis = 1 if node.op_type == "PRelu" else values.get("axis", -1) if values.get("broadcast") else -1
    if axis != -1:
        raise source.error(
            f"{describe(node)}: broadcasts along axis {axis}, as opsets below {OLDEST_OPSET} do; the model "
            f"must have opset {OLDEST_OPSET} or later"
        )


def _state_defaults(node: NodeProto, opset: int) -> None:
    """Add the default of each missing attribute, as defined in the node's opset."""
    present = {item.name for item in node.attribute}
    for name, attribute in onnx.defs.get_schema(node.op_type, opset, "").attributes.items():
        if name not in present and attribute.default_value.name:
            node.attribute.append(attribute.default_value)
