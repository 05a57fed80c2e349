"""OpenVINO's four operators: GRUCell-3, GRUSequence-5, and the internal AUGRUCell and AUGRUSequence.

Sources: the published specifications of GRUCell-3 and AUGRUCell. GRUSequence-5 is GRUCell-3 over time, and
AUGRUSequence is AUGRUCell over time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onegru.core.dtypes import ELEMENT_TYPES
from onegru.core.spec import DIRECTIONS
from onegru.operators.schema import Attribute, OpSchema, Port, by_name

#: Types of layers whose results differ between runs, so they are never constants.
RANDOM = ("RandomUniform", "Multinomial", "DropOut")

#: The message for a file with a layer that only `onegru.openvino.replace_grus` makes.
ONLY_IN_MEMORY = (
    "valid only in the process that created it; save the model before onegru.openvino.replace_grus"
)

GRU_CELL = OpSchema(
    name="GRUCell",
    version=3,
    attributes=by_name(
        Attribute("hidden_size", "int", required=True),
        Attribute("activations", "strings", ("sigmoid", "tanh")),
        Attribute("activations_alpha", "floats", ()),
        Attribute("activations_beta", "floats", ()),
        Attribute("clip", "float"),
        Attribute("linear_before_reset", "flag", False),
    ),
    inputs=(
        Port("X", "X", "BI"),
        Port("initial_hidden_state", "initial_h", "BH"),
        Port("W", "W", "GI"),
        Port("R", "R", "GH"),
        Port("B", "B", "N", required=False),
    ),
    outputs=(Port("Ho", "Y_h", "BH"),),
    element_types=ELEMENT_TYPES,
    biases="summed",
    activation_count="shared",
    clip_zero_is_none=True,
    activations=("Relu", "Sigmoid", "Tanh"),
)

GRU_SEQUENCE = replace(
    GRU_CELL,
    name="GRUSequence",
    version=5,
    attributes={**GRU_CELL.attributes, **by_name(Attribute("direction", "string", "forward", DIRECTIONS))},
    inputs=(
        Port("X", "X", "BTI"),
        Port("initial_hidden_state", "initial_h", "BDH"),
        Port("sequence_lengths", "sequence_lens", "B", types=("int32", "int64")),
        Port("W", "W", "DGI"),
        Port("R", "R", "DGH"),
        Port("B", "B", "DN"),
    ),
    outputs=(Port("Y", "Y", "BDTH"), Port("Ho", "Y_h", "BDH")),
)

# Attributes of the AUGRU operators with only one valid value.
_FIXED = by_name(
    Attribute("activations_alpha", "floats", (), choices=((),)),
    Attribute("activations_beta", "floats", (), choices=((),)),
    Attribute("clip", "float", 0.0, choices=(0.0,)),
    Attribute("linear_before_reset", "flag", False, choices=(False,)),
    Attribute("direction", "string", "forward", choices=("forward",)),
)


def _with_attention(operator: OpSchema, axes: str) -> OpSchema:
    """Return the AUGRU operator: `operator` with attention scores of these axes, and fewer choices."""
    ports = (
        replace(port, name="H_t" if port.role == "initial_h" else port.name, required=True)
        for port in operator.inputs
    )
    return replace(
        operator,
        name=f"AU{operator.name}",
        version=0,
        attributes={name: _FIXED.get(name, attribute) for name, attribute in operator.attributes.items()},
        inputs=(*ports, Port("A", "A", axes)),
        activations=("Sigmoid", "Tanh"),
        attention=True,
    )


AUGRU_CELL = _with_attention(GRU_CELL, "B1")
AUGRU_SEQUENCE = _with_attention(GRU_SEQUENCE, "BT1")

#: The operators, by their layer type in an IR file.
OPERATORS: Mapping[str, OpSchema] = {
    operator.name: operator for operator in (GRU_CELL, GRU_SEQUENCE, AUGRU_CELL, AUGRU_SEQUENCE)
}

#: The operators of one step, by their names in a flow.
CELLS: Mapping[str, OpSchema] = {
    f"openvino::{operator.name}": operator for operator in (GRU_CELL, AUGRU_CELL)
}
