"""Convert an IR of only GRU layers and conversions to steps that need only NumPy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from onegru.core.dtypes import Array
from onegru.formats.graph import Conversion, GruStep, Step
from onegru.formats.openvino.constants import Constants
from onegru.formats.openvino.fields import AttributeParser
from onegru.formats.openvino.xml import Layer
from onegru.operators.openvino import OPERATORS, RANDOM


@dataclass(frozen=True, slots=True)
class PlacedLayer:
    """Layer with the values of its inputs and outputs."""

    layer: Layer
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Walker:
    """Analysis of one graph, whose layers are in topological order."""

    def __init__(
        self,
        parser: AttributeParser,
        constants: Constants,
        layers: Sequence[PlacedLayer],
        grus: Mapping[str, GruStep],
        results: Iterable[str],
    ) -> None:
        self.parser = parser
        self.constants = constants
        self.layers = layers
        self.grus = grus
        self.wanted = {value for gru in grus.values() for value in gru.inputs.values()} | set(results)
        self.fixed: set[str] = set()
        self.plain: set[str] = set()
        self._find_fixed()
        self.others = [
            item
            for item in layers
            if item.layer.type not in ("Parameter", "Result", "Const")
            and item.layer.id not in grus
            and not self.fixed.issuperset(item.outputs)
        ]

    def steps(self) -> tuple[Step, ...] | None:
        """Return the graph as steps; None if OpenVINO is needed to run it."""
        if not self.wanted & self.fixed <= self.plain:
            return None
        wanted = set(self.wanted)
        steps: list[Step] = []
        for item in reversed(self.layers):
            if (gru := self.grus.get(item.layer.id)) is not None:
                steps.append(gru)
                wanted.update(gru.reads)
                continue
            if not wanted.intersection(item.outputs) or self.fixed.issuperset(item.outputs):
                continue
            elif item.layer.type == "Convert":
                steps.append(self._conversion(item))
            elif item.layer.type != "Parameter":
                return None
            wanted.update(item.inputs)
        return tuple(steps[::-1])

    def plain_constants(self) -> tuple[dict[str, Array], list[Conversion]]:
        """Return the constants that GRU layers and outputs use, and the conversions that these need."""
        prelude: list[Conversion] = []
        lengths: dict[str, int] = {}
        arrays: dict[str, Array] = {}
        for item in self._leading_to(self.wanted & self.plain):
            value = item.outputs[0]
            if item.layer.type == "Const":
                arrays[value] = self.constants.array(item.layer)
                lengths[value] = arrays[value].size
            else:
                prelude.append(self._conversion(item))
                lengths[value] = lengths[item.inputs[0]]
                self.constants.count_conversion(item.layer, lengths[value], prelude[-1].dtype)
        return arrays, prelude

    def _find_fixed(self) -> None:
        """Find the values computed only from constants, and those that only conversions compute."""
        for item in self.layers:
            kind = item.layer.type
            computed = item.inputs and self.fixed.issuperset(item.inputs)
            if kind == "Const" or (computed and kind not in RANDOM and kind not in OPERATORS):
                self.fixed.update(item.outputs)
                if kind == "Const" or (kind == "Convert" and self.plain.issuperset(item.inputs)):
                    self.plain.update(item.outputs)

    def _leading_to(self, values: Collection[str]) -> list[PlacedLayer]:
        """Return the layers that compute these fixed values, in order."""
        wanted = set(values)
        found: list[PlacedLayer] = []
        for item in reversed(self.layers):
            if wanted.intersection(item.outputs):
                found.append(item)
                wanted.update(item.inputs)
        return found[::-1]

    def _conversion(self, item: PlacedLayer) -> Conversion:
        dtype = self.parser.element_type(item.layer, "destination_type")
        location = f"{self.parser.path}: Convert layer {item.layer.name!r}: "
        return Conversion(location, item.inputs[0], item.outputs[0], dtype)
