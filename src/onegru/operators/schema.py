"""The description of an operator as plain data.

Axes are letters: T seq_length, B batch_size, I input_size, D num_directions, H hidden_size, G three gates
of hidden_size, N the length of the biases, and 1 for an axis of size one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from onegru.core.activations import ACTIVATIONS

Kind = Literal["int", "flag", "float", "floats", "string", "strings"]
Role = Literal["X", "initial_h", "sequence_lens", "W", "R", "B", "A", "Y", "Y_h"]

#: The roles of the weights.
WEIGHTS = ("W", "R", "B")

#: The axes of a call's inputs and outputs in the canonical form.
CANONICAL_AXES: Mapping[Role, str] = {
    "X": "TBI",
    "initial_h": "DBH",
    "sequence_lens": "B",
    "A": "TB",
    "Y": "TDBH",
    "Y_h": "DBH",
}


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of an operator."""

    name: str  # as the specification spells it
    kind: Kind  # its type; a flag is a boolean (an integer in ONNX, where every non-zero value is true)
    default: object = None  # its value if it is absent
    choices: tuple[object, ...] | None = None  # the valid values, if the specification lists them
    required: bool = False  # whether it must be present


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of an operator."""

    name: str  # as the specification spells it
    role: Role  # its role in the canonical form
    axes: str  # its axes, by letter
    batch_first: str | None = None  # its axes under layout = 1, if they differ
    required: bool = True  # whether it must be present
    types: tuple[str, ...] | None = None  # the valid types, if they are not the operator's element types


@dataclass(frozen=True, slots=True)
class OpSchema:
    """One version of one operator."""

    name: str  # its type in a file
    version: int  # the opset that introduced this version; 0 if the dialect has no versions
    attributes: Mapping[str, Attribute]  # its attributes
    inputs: tuple[Port, ...]  # its inputs, in order
    outputs: tuple[Port, ...]  # its outputs, in order
    element_types: tuple[str, ...]  # the types of its floating-point tensors
    # "separate": `[6H]`, Wb then Rb; "summed": `[3H]` sums, or `[4H]` with linear_before_reset
    biases: Literal["separate", "summed"]
    # "per direction" (2·D names) or "shared" (2 names, for both directions)
    activation_count: Literal["per direction", "shared"]
    clip_zero_is_none: bool  # whether clip = 0 means no clip
    activations: tuple[str, ...] = tuple(ACTIVATIONS)  # the allowed functions
    attention: bool = False  # whether it has an attention score
    # attributes that only later versions have, and the opset that introduced them
    later: Mapping[str, int] = field(default_factory=dict)
    # attributes that only earlier versions had, and the opset that removed them
    earlier: Mapping[str, int] = field(default_factory=dict)
    # element types that only later versions have, and the opset that introduced them
    type_needs: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}-{self.version}" if self.version else self.name

    def input(self, role: Role) -> Port | None:
        """Return the input with this role; None without one."""
        return next((port for port in self.inputs if port.role == role), None)

    def ports(self, layout: int = 0) -> tuple[Port, ...]:
        """Return inputs, then outputs, with their axes in this layout."""
        both = self.inputs + self.outputs
        if layout == 0:
            return both
        return tuple(replace(port, axes=port.batch_first or port.axes) for port in both)

    def direction_axes(self, layout: int = 0) -> dict[str, int]:
        """Return the direction axis of each input and output that has one, by name."""
        return {port.name: port.axes.index("D") for port in self.ports(layout) if "D" in port.axes}


def by_name(*attributes: Attribute) -> dict[str, Attribute]:
    """Return attributes by their names."""
    return {attribute.name: attribute for attribute in attributes}
