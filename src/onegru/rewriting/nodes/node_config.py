"""Read a GRU node of any version as a configuration, and write it back."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace

import onnx
from onnx import NodeProto

from onegru.core.activations import Activation
from onegru.core.dtypes import ELEMENT_TYPES, Array
from onegru.core.errors import FormatError, SpecError, SpecWarning, prefixed_errors
from onegru.core.spec import reversed_directions
from onegru.core.wording import shape_words
from onegru.formats.graph import GruStep
from onegru.formats.onnx.node import node_attributes
from onegru.formats.onnx.validate import describe, is_augru, trimmed
from onegru.formats.sizes import with_sizes
from onegru.operators.attributes import read_attributes
from onegru.operators.lowering import check_attributes, lower, read_activations, read_clip
from onegru.operators.onnx import AUGRU, check_node_opset, gru_attributes, gru_version
from onegru.operators.schema import OpSchema
from onegru.rewriting.nodes.scope import Scope
from onegru.runtimes.known_issues import NodeFacts

#: The attributes that a `GruNodeConfig` stores.
_ATTRIBUTES = {"activations", "activation_alpha", "activation_beta", "attention", "clip", "direction"}
_ATTRIBUTES |= {"hidden_size", "layout", "linear_before_reset", "output_sequence"}


@dataclass(frozen=True)
class GruNodeConfig:
    """Content of a GRU node."""

    origin: NodeProto  # the node in the file
    label: str  # its name in messages
    base: str  # prefix of the names of new nodes and values
    name: str  # the new name of the node
    dtype: str | None  # the element type; None if unknown
    direction: str  # "forward", "reverse" or "bidirectional"
    linear_before_reset: bool  # whether the reset gate is applied after the recurrent matmul
    clip: float | None  # the clip value of the activations' inputs; None for no clipping
    activations: tuple[tuple[Activation, Activation], ...]  # (f, g) for each direction
    layout: int  # 0 or 1
    hidden_size: int | None  # H; None if unknown
    source_attributes: Mapping[str, object]  # the attributes in the file
    inputs: Mapping[str, str]  # names of the present inputs, by the specification's names
    outputs: Mapping[str, str]  # names of the present outputs, by the specification's names
    attention: str | None = None  # the equation of an AUGRU node, "openvino" or "dien"; None for a GRU

    def with_names(
        self, inputs: Mapping[str, str], outputs: Mapping[str, str] | None = None
    ) -> GruNodeConfig:
        """Return a copy that uses these names for these inputs and outputs."""
        return replace(self, inputs={**self.inputs, **inputs}, outputs={**self.outputs, **(outputs or {})})


def operator_at(opset: int) -> OpSchema:
    """Return the GRU operator of an opset."""
    operator = gru_version(opset)
    assert operator is not None, "an opset is at least 1"
    return operator


def read_config(scope: Scope, node: NodeProto, opset: int) -> GruNodeConfig:
    """Read a GRU node of this opset, or an AUGRU node."""
    operator = AUGRU if is_augru(node) else operator_at(opset)
    label = describe(node)
    location = f"{scope.source.name}: {label}: "
    attributes = node_attributes(scope.source, node, operator)
    inputs = {port.name: name for port, name in zip(operator.inputs, node.input, strict=False) if name}
    outputs = {port.name: name for port, name in zip(operator.outputs, node.output, strict=False) if name}
    too_many = len(node.input) > len(operator.inputs) or len(node.output) > 2
    required = {port.name for port in operator.inputs if port.required}
    if too_many or not required <= set(inputs) or not outputs:
        raise SpecError(
            f"{location}inputs or outputs missing, or too many; must match the specification of {operator}"
        )
    weights = [name for name in ("W", "R", "B") if name in inputs]
    constants: dict[str, Array | None] = {name: scope.constant(inputs[name]) for name in weights}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpecWarning)  # given when the model was loaded
        check_attributes(operator, attributes, location)
        if unknown := attributes.keys() - _ATTRIBUTES:  # an attribute that this module would lose
            raise SpecError(f"{location}has attribute {min(unknown)}, which onegru cannot rewrite")
        values = read_attributes(operator, attributes)
        if all(array is not None for array in constants.values()):
            with prefixed_errors(location):
                lower(operator, attributes, constants["W"], constants["R"], constants.get("B"))
        direction = str(values["direction"])
        D = len(reversed_directions(direction))
        activations = read_activations(operator, values, D)
    hidden_size = values["hidden_size"] or (scope.shape(inputs["R"]) or (None,))[-1]
    _check_constants(constants, D, hidden_size, location)
    dtypes = (scope.dtype(inputs[name]) for name in ("W", "R", "X"))
    return GruNodeConfig(
        origin=node,
        label=label,
        base=node.name or next(iter(outputs.values())),
        name=node.name,
        dtype=next((dtype for dtype in dtypes if dtype), None),
        direction=direction,
        linear_before_reset=bool(values.get("linear_before_reset", False)),
        clip=read_clip(operator, values["clip"]),
        activations=activations,
        layout=int(values.get("layout", 0)),
        hidden_size=hidden_size,
        source_attributes=attributes,
        inputs=inputs,
        outputs=outputs,
        attention=str(values["attention"]) if operator is AUGRU else None,
    )


def _check_constants(
    constants: Mapping[str, Array | None], num_directions: int, hidden_size: int | None, location: str
) -> None:
    """Check the constant weights, because `lower` only checks them if all weights are constant."""
    gates = 3 * hidden_size if hidden_size else None
    wanted = {
        "W": (num_directions, gates, None),
        "R": (num_directions, gates, hidden_size),
        "B": (num_directions, 2 * gates if gates else None),
    }
    given = {name: array for name, array in constants.items() if array is not None}
    for name, array in given.items():
        fits = len(array.shape) == len(wanted[name]) and all(
            must is None or size == must for size, must in zip(array.shape, wanted[name], strict=True)
        )
        if not fits:
            must = shape_words(wanted[name])
            raise SpecError(f"{location}{name}: shape {list(array.shape)}; must be {must}")
        if array.dtype.name not in ELEMENT_TYPES:
            raise SpecError(f"{location}{name}: type {array.dtype.name}; must be {', '.join(ELEMENT_TYPES)}")
    if len({array.dtype for array in given.values()}) > 1:
        raise SpecError(f"{location}W, R and B have several types; must have one type")


def attributes_of(config: GruNodeConfig, opset: int) -> dict[str, object]:
    """Return the node's attributes at this opset, with explicit defaults where runtimes differ."""
    operator = operator_at(opset)
    given = config.source_attributes.items()
    explicit = {name for name, value in given if name in operator.attributes and value != []}
    wanted = gru_attributes(config, config.direction, config.activations, config.layout, explicit)
    if "output_sequence" in operator.attributes and "Y" in config.outputs:
        wanted["output_sequence"] = 1
    check_node_opset(opset, wanted, config.dtype, config.label)
    return wanted


def node_of(scope: Scope, config: GruNodeConfig) -> NodeProto:
    """Return the node in its scope's opset. Raises the errors of `attributes_of`."""
    operator = operator_at(scope.opset)
    inputs = [scope.in_graph(config.inputs.get(port.name, "")) for port in operator.inputs]
    outputs = [
        config.outputs.get(port.name)
        or (scope.names.fresh(f"{config.base}/{port.name}") if port.required else "")
        for port in operator.outputs
    ]
    attributes = attributes_of(config, scope.opset)
    node = deepcopy(config.origin)
    for field in ("input", "output", "attribute"):
        node.ClearField(field)
    node.name = config.name
    node.input.extend(trimmed(inputs))
    node.output.extend(trimmed(outputs))
    node.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in attributes.items())
    return node


def facts_of(scope: Scope, config: GruNodeConfig, attributes: Mapping[str, object]) -> NodeFacts:
    """Return the facts for the table of known issues."""
    node = GruStep(config.name, operator_at(scope.opset), attributes, config.inputs, config.outputs)
    node = with_sizes({0: node}, scope.shape, lambda: scope.flow)[0]
    weights = [scope.constant(config.inputs[name]) for name in ("W", "R", "B") if name in config.inputs]
    return NodeFacts(
        operator="GRU" if config.attention is None else AUGRU.name,
        version=operator_at(scope.opset).version,
        attributes=attributes,
        dtype=config.dtype,
        present=frozenset((*config.inputs, *config.outputs)),
        fixed_shape=None if node.x_shape is None else None not in node.x_shape,
        constant_weights=True if all(array is not None for array in weights) else None,
        full_length=node.full_length,
    )


def require_type_and_size(scope: Scope, config: GruNodeConfig, change: str) -> tuple[str, int]:
    """Return the element type and hidden size, for a change that needs them."""
    if config.dtype is None or config.hidden_size is None:
        unknown = "element type" if config.dtype is None else "hidden_size"
        raise FormatError(
            f"{scope.source.name}: {config.label}: {change}: its {unknown} is unknown; must be known"
        )
    return config.dtype, config.hidden_size
