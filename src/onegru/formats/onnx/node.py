"""Read attributes, constants and types of single ONNX nodes and values."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import AttributeProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from onegru.core.dtypes import Array
from onegru.formats.graph import TensorInfo
from onegru.formats.onnx.validate import PLAIN_TYPES, Source, describe, element_type, is_onnx, to_array
from onegru.operators.schema import Kind, OpSchema

_ATTRIBUTE_TYPES: Mapping[Kind, AttributeProto.AttributeType] = {
    "int": AttributeProto.INT,
    "flag": AttributeProto.INT,
    "float": AttributeProto.FLOAT,
    "floats": AttributeProto.FLOATS,
    "string": AttributeProto.STRING,
    "strings": AttributeProto.STRINGS,
}


def node_attributes(source: Source, node: NodeProto, operator: OpSchema) -> dict[str, object]:
    """Read the attributes of a node of this operator."""
    values: dict[str, object] = {}
    for attribute in node.attribute:
        location = f"{describe(node)}: attribute {attribute.name!r}"
        if attribute.name in values:
            raise source.error(f"{location} appears twice")
        if attribute.type not in PLAIN_TYPES or attribute.ref_attr_name:
            raise source.error(f"{location} must have a plain value: a number, text or a list")
        if (known := operator.attributes.get(attribute.name)) is not None:
            wanted = _ATTRIBUTE_TYPES[known.kind]
            if attribute.type != wanted:
                have, must = map(AttributeProto.AttributeType.Name, (attribute.type, wanted))
                raise source.error(f"{location} has type {have}; must be {must}")
        value = onnx.helper.get_attribute_value(attribute)
        try:
            if attribute.type == AttributeProto.STRING:
                value = value.decode()
            elif attribute.type == AttributeProto.STRINGS:
                value = [item.decode() for item in value]
        except UnicodeDecodeError as error:
            raise source.error(f"{location} is not UTF-8") from error
        values[attribute.name] = value
    return values


def is_plain_constant(node: NodeProto) -> bool:
    """Whether a node is a Constant with a dense value."""
    return (
        node.op_type == "Constant"
        and is_onnx(node)
        and len(node.attribute) == 1
        and node.attribute[0].name != "sparse_value"
        and not node.attribute[0].ref_attr_name
    )


# Attributes of Constant, each with the types of the attribute and of the tensor.
_CONSTANT_TYPES = {
    "value_float": (AttributeProto.FLOAT, TensorProto.FLOAT),
    "value_floats": (AttributeProto.FLOATS, TensorProto.FLOAT),
    "value_int": (AttributeProto.INT, TensorProto.INT64),
    "value_ints": (AttributeProto.INTS, TensorProto.INT64),
    "value_string": (AttributeProto.STRING, TensorProto.STRING),
    "value_strings": (AttributeProto.STRINGS, TensorProto.STRING),
    "value": (AttributeProto.TENSOR, TensorProto.UNDEFINED),
}


def constant_value(source: Source, node: NodeProto) -> Array:
    """Return the value of a plain Constant."""
    attribute = node.attribute[0]
    kind, code = _CONSTANT_TYPES.get(attribute.name, (AttributeProto.UNDEFINED, TensorProto.UNDEFINED))
    if attribute.type != kind or kind == AttributeProto.UNDEFINED:
        raise source.error(f"{describe(node)}: {attribute.name!r} is not an attribute of Constant")
    if attribute.name == "value":
        return to_array(source, attribute.t)
    value = onnx.helper.get_attribute_value(attribute)
    scalar = not attribute.name.endswith("s")
    items = [value] if scalar else list(value)
    return to_array(source, onnx.helper.make_tensor("", code, [] if scalar else [len(items)], items))


def tensor_info(value: ValueInfoProto, *, optional: bool = False) -> TensorInfo:
    """Describe a model's input or output."""
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return TensorInfo(value.name, type_words(value.type) or "unknown", None, optional, is_tensor=False)
    tensor = value.type.tensor_type
    known = element_type(tensor.elem_type)
    dtype = "unknown" if known is None else "str" if tensor.elem_type == TensorProto.STRING else known.name
    sizes, shape = fixed_sizes(value.type), None
    if sizes is not None:
        names = (dim.dim_param or None for dim in tensor.shape.dim)
        shape = tuple(name if size is None else size for size, name in zip(sizes, names, strict=True))
    return TensorInfo(value.name, dtype, shape, optional)


def type_words(kind: TypeProto) -> str:
    """Return a type in ONNX Runtime's notation, such as "seq(tensor(float))"; empty if unknown."""
    match kind.WhichOneof("value"):
        case "tensor_type":
            known = kind.tensor_type.elem_type in set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}
            return f"tensor({TensorProto.DataType.Name(kind.tensor_type.elem_type).lower()})" if known else ""
        case "sequence_type":
            return f"seq({type_words(kind.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({type_words(kind.optional_type.elem_type)})"
    return ""


def fixed_sizes(kind: TypeProto) -> tuple[int | None, ...] | None:
    """Return the sizes of a tensor's type, with None for dynamic sizes; None if even the rank is unknown."""
    if not kind.tensor_type.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None
        for dim in kind.tensor_type.shape.dim
    )
