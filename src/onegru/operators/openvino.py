"""OpenVINO's four operators: GRUCell-3, GRUSequence-5, and the internal AUGRUCell and AUGRUSequence.

Sources: the published specifications of GRUCell-3 and AUGRUCell. GRUSequence-5 is GRUCell-3 over time, and
AUGRUSequence is AUGRUCell over time.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from onegru.core.dtypes import ELEMENT_TYPES
from onegru.core.spec import DIRECTIONS
from onegru.operators.schema import Attribute, Operator, Port, by_name

#: Types of layers whose results differ from run to run, which are never taken for constants.
RANDOM = ("RandomUniform", "Multinomial", "DropOut")

_LENGTH_TYPES = ("int32", "int64")


_operator = partial(
    Operator,
    element_types=ELEMENT_TYPES,
    biases="summed",
    activation_count="shared",
    clip_zero_is_none=True,
)

_GRU = by_name(
    Attribute("hidden_size", "int", required=True),
    Attribute("activations", "strings", ("sigmoid", "tanh")),
    Attribute("activations_alpha", "floats", ()),
    Attribute("activations_beta", "floats", ()),
    Attribute("clip", "float"),
    Attribute("linear_before_reset", "flag", False),
)

_AUGRU = _GRU | by_name(
    Attribute("activations_alpha", "floats", (), choices=((),)),
    Attribute("activations_beta", "floats", (), choices=((),)),
    Attribute("clip", "float", 0.0, choices=(0.0,)),
    Attribute("linear_before_reset", "flag", False, choices=(False,)),
)

GRU_CELL = _operator(
    name="GRUCell",
    version=3,
    attributes=_GRU,
    inputs=(
        Port("X", "X", "BI"),
        Port("initial_hidden_state", "initial_h", "BH"),
        Port("W", "W", "GI"),
        Port("R", "R", "GH"),
        Port("B", "B", "N", required=False),
    ),
    outputs=(Port("Ho", "Y_h", "BH"),),
    activations=("Relu", "Sigmoid", "Tanh"),
)

GRU_SEQUENCE = _operator(
    name="GRUSequence",
    version=5,
    attributes=_GRU | by_name(Attribute("direction", "string", "forward", DIRECTIONS)),
    inputs=(
        Port("X", "X", "BTI"),
        Port("initial_hidden_state", "initial_h", "BDH"),
        Port("sequence_lengths", "sequence_lens", "B", types=_LENGTH_TYPES),
        Port("W", "W", "DGI"),
        Port("R", "R", "DGH"),
        Port("B", "B", "DN"),
    ),
    outputs=(Port("Y", "Y", "BDTH"), Port("Ho", "Y_h", "BDH")),
    activations=("Relu", "Sigmoid", "Tanh"),
)

AUGRU_CELL = _operator(
    name="AUGRUCell",
    version=0,
    attributes=_AUGRU,
    inputs=(
        Port("X", "X", "BI"),
        Port("H_t", "initial_h", "BH"),
        Port("W", "W", "GI"),
        Port("R", "R", "GH"),
        Port("B", "B", "N"),
        Port("A", "A", "B1"),
    ),
    outputs=(Port("Ho", "Y_h", "BH"),),
    activations=("Sigmoid", "Tanh"),
    attention=True,
)

AUGRU_SEQUENCE = _operator(
    name="AUGRUSequence",
    version=0,
    attributes=_AUGRU | by_name(Attribute("direction", "string", "forward", ("forward",))),
    inputs=(
        Port("X", "X", "BTI"),
        Port("H_t", "initial_h", "BDH"),
        Port("sequence_lengths", "sequence_lens", "B", types=_LENGTH_TYPES),
        Port("W", "W", "DGI"),
        Port("R", "R", "DGH"),
        Port("B", "B", "DN"),
        Port("A", "A", "BT1"),
    ),
    outputs=(Port("Y", "Y", "BDTH"), Port("Ho", "Y_h", "BDH")),
    activations=("Sigmoid", "Tanh"),
    attention=True,
)

#: The operators, by their layer type in an IR file.
OPERATORS: Mapping[str, Operator] = {
    operator.name: operator for operator in (GRU_CELL, GRU_SEQUENCE, AUGRU_CELL, AUGRU_SEQUENCE)
}
