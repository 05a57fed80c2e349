"""ONNX's GRU in all versions, and `AUGRU`, the same operator with attention.

Source: the published specifications of GRU-1, 3, 7 and 14; version 22 only adds bfloat16. onegru defines
`AUGRU`, because ONNX has no such operator. Its scores are those of OpenVINO's AUGRUSequence, or of DIEN.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onegru.core.activations import DEFAULT_ACTIVATIONS, Activation
from onegru.core.errors import SpecError
from onegru.core.spec import ATTENTIONS, DIRECTIONS
from onegru.operators.schema import Attribute, OpSchema, Port, by_name


@dataclass(frozen=True, slots=True)
class _Delta:
    """The changes of a version of the operator."""

    version: int
    add: tuple[Attribute, ...] = ()
    remove: tuple[str, ...] = ()
    change: tuple[Attribute, ...] = ()
    optional_outputs: tuple[str, ...] = ()
    add_types: tuple[str, ...] = ()


#: The oldest opset that ONNX Runtime promises to run, so older models are converted to it. From it on,
#: operators broadcast as in NumPy, so that decomposed GRUs are found.
OLDEST_OPSET = 7
#: The oldest opset for the function of an AUGRU node, because CastLike adapts its constants to the type of X.
AUGRU_OPSET = 15
#: The oldest opset that has all operators of a decomposed GRU.
DECOMPOSED_OPSET = 11

_GRU_1 = OpSchema(
    name="GRU",
    version=1,
    attributes=by_name(
        Attribute("activation_alpha", "floats"),
        Attribute("activation_beta", "floats"),
        Attribute("activations", "strings"),
        Attribute("clip", "float"),
        # The published schema misspells its default in this version, and so do files.
        Attribute("direction", "string", "forward", (*DIRECTIONS, "foward")),
        Attribute("hidden_size", "int"),
        Attribute("output_sequence", "int", 0, (0, 1)),
    ),
    inputs=(
        Port("X", "X", "TBI", "BTI"),
        Port("W", "W", "DGI"),
        Port("R", "R", "DGH"),
        Port("B", "B", "DN", required=False),
        Port("sequence_lens", "sequence_lens", "B", required=False, types=("int32",)),
        Port("initial_h", "initial_h", "DBH", "BDH", required=False),
    ),
    outputs=(Port("Y", "Y", "TDBH", "BTDH", required=False), Port("Y_h", "Y_h", "DBH", "BDH")),
    element_types=("float16", "float32", "float64"),
    biases="separate",
    activation_count="per direction",
    clip_zero_is_none=False,
)

_DELTAS = (
    _Delta(
        3,
        add=(Attribute("linear_before_reset", "flag", False),),
        change=(Attribute("direction", "string", "forward", DIRECTIONS),),
        optional_outputs=("Y_h",),
    ),
    _Delta(7, remove=("output_sequence",)),
    _Delta(14, add=(Attribute("layout", "int", 0, (0, 1)),)),
    _Delta(22, add_types=("bfloat16",)),
)


def _apply(operator: OpSchema, delta: _Delta) -> OpSchema:
    attributes = {name: item for name, item in operator.attributes.items() if name not in delta.remove}
    return replace(
        operator,
        version=delta.version,
        attributes=attributes | by_name(*delta.add, *delta.change),
        outputs=tuple(
            replace(port, required=port.required and port.name not in delta.optional_outputs)
            for port in operator.outputs
        ),
        element_types=operator.element_types + delta.add_types,
    )


def _all_versions() -> Mapping[int, OpSchema]:
    versions = [_GRU_1]
    for delta in _DELTAS:
        versions.append(_apply(versions[-1], delta))
    later = {item.name: delta.version for delta in _DELTAS for item in delta.add}
    removed = {name: delta.version for delta in _DELTAS for name in delta.remove}
    types = {name: delta.version for delta in _DELTAS for name in delta.add_types}
    return {
        operator.version: replace(
            operator,
            later={name: since for name, since in later.items() if since > operator.version},
            earlier={name: until for name, until in removed.items() if until <= operator.version},
            type_needs={name: since for name, since in types.items() if since > operator.version},
        )
        for operator in versions
    }


#: Every version of the operator, by the opset that introduced it.
GRU_VERSIONS: Mapping[int, OpSchema] = _all_versions()

#: The newest opset that was checked: it has no later version of the operator.
NEWEST_CHECKED_OPSET = 28

#: The newest version, which defines the layer.
NEWEST: OpSchema = GRU_VERSIONS[max(GRU_VERSIONS)]


#: The domains of AUGRU nodes in ONNX files. A model has one function for each.
AUGRU_DOMAINS = ("onegru", *(f"onegru.{number}" for number in range(2, 9)))

#: GRU-22 with attention scores as its last input, with a score for each step of each row.
_AUGRU_BASE = GRU_VERSIONS[22]  # AUGRU is based on this version of GRU
AUGRU: OpSchema = replace(
    _AUGRU_BASE,
    name="AUGRU",
    version=1,
    attributes={
        **_AUGRU_BASE.attributes,
        "attention": Attribute("attention", "string", ATTENTIONS[0], ATTENTIONS),
    },
    inputs=(*_AUGRU_BASE.inputs, Port("A", "A", "TB1", "BT1")),
    attention=True,
    earlier={},
)

#: Operators whose results differ between runs, so they are never constants. The same can apply to Dropout.
RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike"}
RANDOM |= {"Multinomial", "Bernoulli"}

#: Every operator of ONNX files, by its name and version.
OPERATORS: Mapping[tuple[str, int], OpSchema] = {
    (operator.name, operator.version): operator for operator in (*GRU_VERSIONS.values(), AUGRU)
}


def gru_version(opset: int) -> OpSchema | None:
    """Return the version of GRU at `opset`: the newest at or below it; None below 1."""
    return GRU_VERSIONS.get(max((version for version in GRU_VERSIONS if version <= opset), default=0))


def activation_attributes(activations: Iterable[tuple[Activation, Activation]]) -> dict[str, list[Any]]:
    """Return the attributes of a GRU node with these activations: names and parameters."""
    functions = [function for pair in activations for function in pair]
    attributes: dict[str, list[Any]] = {"activations": [function.name for function in functions]}
    for parameter in ("alpha", "beta"):
        values = [getattr(function, parameter) for function in functions]
        if given := [value for value in values if value is not None]:
            attributes[f"activation_{parameter}"] = given
    return attributes


def gru_attributes(
    layer: Any,  # a Spec, or an object with its hidden_size, linear_before_reset and clip
    direction: str,
    activations: Sequence[tuple[Activation, Activation]],
    layout: int = 0,
    explicit: Collection[str] = (),
) -> dict[str, Any]:
    """Return the attributes of a GRU node that are explicit or differ from their defaults."""
    attributes: dict[str, Any] = {} if layer.hidden_size is None else {"hidden_size": layer.hidden_size}
    if direction != "forward" or "direction" in explicit:
        attributes["direction"] = direction
    if layer.linear_before_reset or "linear_before_reset" in explicit:
        attributes["linear_before_reset"] = int(layer.linear_before_reset)
    if layer.clip is not None:
        attributes["clip"] = float(layer.clip)
    if "activations" in explicit or any(pair != DEFAULT_ACTIVATIONS for pair in activations):
        attributes |= activation_attributes(activations)
    if layout or "layout" in explicit:
        attributes["layout"] = layout
    return attributes


def check_node_opset(opset: int, attributes: Iterable[str], dtype: str | None, label: str) -> None:
    """Raise SpecError if a node with these attributes and element type needs a later opset."""
    operator = gru_version(opset) or NEWEST
    later = {name: operator.later.get(name) for name in attributes}
    later[f"type {dtype}"] = operator.type_needs.get(dtype or "")
    for what, needed in later.items():
        if needed is not None:
            raise SpecError.of("opset", f"{opset}; must be at least {needed}, because {label} has {what}")
