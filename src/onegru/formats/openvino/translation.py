"""Translate layers to or from ONNX operators, with a registry of rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onegru.core.dtypes import Array, to_float32
from onegru.core.errors import FormatError
from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import Op
from onegru.formats.openvino.fields import AttributeParser
from onegru.formats.openvino.xml import Layer


class UnknownLayerError(Exception):
    """Raised for a layer without an equivalent operator."""


@dataclass(eq=False, slots=True)
class LayerTranslation:
    """Layer that is translated to operators."""

    parser: AttributeParser  # of the file's attributes
    original: Layer  # the layer
    inputs: tuple[str, ...]  # its input values
    outputs: tuple[str, ...]  # its output values
    flow: Flow  # the part of the graph that has been read
    fresh: Callable[[str], str]  # returns a new name
    ops: list[Op] = field(default_factory=list)  # the intermediate operators before the last one

    def op(self, kind: str, *inputs: str, **attributes: Any) -> Op:
        """Create the operator with the outputs of the layer."""
        return Op(kind, inputs or self.inputs, self.outputs, attributes, name=self.original.name)

    def before(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add an intermediate operator and return its output."""
        name = self.fresh(f"{self.original.name}/{kind}")
        self.ops.append(Op(kind, inputs, (name,), attributes, name=name))
        self.flow.producers[name] = self.ops[-1]
        return name

    def integers(self, index: int) -> list[int]:
        """Read a constant input of integers."""
        array = self.flow.constant(self.inputs[index]) if index < len(self.inputs) else None
        if array is None or array.dtype.kind not in "iu":
            raise UnknownLayerError
        return [int(item) for item in array.ravel()]

    def integer(self, index: int) -> int:
        """Read a constant input of one integer."""
        found = self.integers(index)
        if len(found) != 1:
            raise UnknownLayerError
        return found[0]

    def number(self, index: int) -> float:
        """Read a constant input whose elements are all equal."""
        array = self.flow.constant(self.inputs[index]) if index < len(self.inputs) else None
        if array is None or not array.size or np.any(array != array.flat[0]):
            raise UnknownLayerError
        return float(array.flat[0])

    def word(self, name: str, default: str) -> str:
        """Return an attribute in lower case."""
        return self.original.data.get(name, default).strip().lower()

    def flag(self, name: str, default: bool) -> bool:
        """Parse a Boolean attribute."""
        word = self.word(name, "true" if default else "false")
        if word not in ("true", "false", "1", "0"):
            raise UnknownLayerError
        return word in ("true", "1")

    def attribute_number(self, name: str) -> float:
        """Parse a number attribute, with the precision of the layer's inputs."""
        try:
            number = self.parser.number(self.original, name, self.original.data[name])
        except (FormatError, KeyError) as error:
            raise UnknownLayerError from error
        return number if self.flow.dtype(self.inputs[0]) == "float64" else to_float32(number)

    def attribute_integer(self, name: str, default: str = "") -> int:
        """Parse an integer attribute, which can be negative."""
        try:
            return int(self.original.data.get(name, default))
        except ValueError as error:
            raise UnknownLayerError from error

    def attribute_integers(self, name: str) -> list[int]:
        """Parse an attribute with a list of integers; empty if it is missing."""
        try:
            return [int(word) for word in self.original.data.get(name, "").split(",") if word.strip()]
        except ValueError as error:
            raise UnknownLayerError from error

    def rank(self, index: int) -> int:
        """Return the rank of an input."""
        shape = self.flow.shape(self.inputs[index])
        if shape is None:
            raise UnknownLayerError
        return len(shape)


@dataclass(frozen=True, slots=True)
class NewLayer:
    """Layer to be written."""

    type: str  # its type
    version: str  # the opset of its type
    data: Mapping[str, str]  # its attributes
    inputs: tuple[str | Array, ...]  # its input values, and constants


ReadingRule = Callable[[LayerTranslation], Op]
WritingRule = Callable[[Flow, Op], NewLayer]

#: The rule of each type of layer, and the least and the largest number of inputs (None: any number).
READING: dict[str, tuple[ReadingRule, int, int | None]] = {}
#: The rule of each ONNX operator that has a layer.
WRITING: dict[str, WritingRule] = {}


def reads(*layers: str, inputs: int | tuple[int, int] | None = None) -> Callable[[ReadingRule], ReadingRule]:
    """Register a rule for types of layers with these numbers of inputs."""
    least, most = inputs if isinstance(inputs, tuple) else (inputs or 1, inputs)

    def register(rule: ReadingRule) -> ReadingRule:
        READING.update(dict.fromkeys(layers, (rule, least, most)))
        return rule

    return register


def writes(*kinds: str) -> Callable[[WritingRule], WritingRule]:
    """Register a rule for ONNX operators."""

    def register(rule: WritingRule) -> WritingRule:
        WRITING.update(dict.fromkeys(kinds, rule))
        return rule

    return register
