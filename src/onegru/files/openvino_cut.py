"""Cutting an OpenVINO graph at its GRU layers.

Every layer gets a stage: the number of GRU layers on the longest way from the model's inputs to it. The
other layers of one stage make one piece; stage after stage, the piece runs first and then its GRU layers.
What is computed from constants alone has no stage: each piece that uses it holds it, for OpenVINO to fold,
and what GRU layers and outputs use of it is computed once, ahead of every run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from onegru.dialects.openvino import OPERATORS
from onegru.dtypes import Array
from onegru.files.graph import Conversion, GruNode, Step
from onegru.files.openvino_constants import Constants
from onegru.files.openvino_piece import OpenvinoPiece, PlacedLayer
from onegru.files.openvino_words import Words

__all__ = ["Cut", "Cutter"]

# What gives other results each time is never taken for a constant.
_RANDOM = ("RandomUniform", "Multinomial", "DropOut")


@dataclass(frozen=True, slots=True)
class Cut:
    """The parts of a `Graph` that come of it, named as there."""

    constants: dict[str, Array]
    steps: tuple[Step, ...]
    prelude: tuple[Step, ...]


class Cutter:
    """One graph being cut.

    Args:
        words: reads the file's words.
        constants: its constants.
        layers: its layers, in an order in which they can be run.
        grus: those that onegru runs, by their ids.
        results: the values that its outputs take.
    """

    def __init__(
        self,
        words: Words,
        constants: Constants,
        layers: Sequence[PlacedLayer],
        grus: Mapping[str, GruNode],
        results: Iterable[str],
    ) -> None:
        self.words = words
        self.constants = constants
        self.layers = layers
        self.grus = grus
        self.wanted = {value for gru in grus.values() for value in gru.inputs.values()} | set(results)
        self.order = {id(item): place for place, item in enumerate(layers)}
        self.givers = {value: item for item in layers for value in item.gives}
        self.fixed: set[str] = set()
        self.plain: set[str] = set()
        self._find_fixed()
        self.arrays: dict[str, Array] = {}

    def cut(self) -> Cut:
        """Cut it.

        Raises:
            FormatError: a GRU layer or an output takes a constant of a type that no array has.
        """
        prelude = self._prelude(self.wanted & self.fixed)
        steps = self._steps()
        return Cut(self.arrays, tuple(steps), tuple(prelude))

    def _find_fixed(self) -> None:
        """Find what is computed from constants alone, and of that what is read and converted alone."""
        for item in self.layers:
            kind = item.layer.type
            computed = item.takes and self.fixed.issuperset(item.takes)
            if kind == "Const" or (computed and kind not in _RANDOM and kind not in OPERATORS):
                self.fixed.update(item.gives)
                if kind == "Const" or (kind == "Convert" and self.plain.issuperset(item.takes)):
                    self.plain.update(item.gives)

    def _behind(self, values: Collection[str]) -> list[PlacedLayer]:
        """The layers that compute these values, all of which are fixed; in order."""
        found: dict[int, PlacedLayer] = {}
        waiting = list(values)
        while waiting:
            item = self.givers[waiting.pop()]
            if id(item) not in found:
                found[id(item)] = item
                waiting += item.takes
        return sorted(found.values(), key=lambda item: self.order[id(item)])

    # What is known before any input is

    def _prelude(self, wanted: set[str]) -> list[Step]:
        """Constants that GRU layers and outputs use: read, converted by onegru, or computed by OpenVINO."""
        steps: list[Step] = []
        lengths: dict[str, int] = {}
        for item in self._behind(wanted & self.plain):
            value = item.gives[0]
            if item.layer.type == "Const":
                self.arrays[value] = self.constants.array(item.layer)
                lengths[value] = self.arrays[value].size
            else:
                conversion = self._conversion(item)
                lengths[value] = lengths[conversion.input]
                self.constants.count_conversion(item.layer, lengths[value], conversion.dtype)
                steps.append(conversion)
        if computed := sorted(wanted - self.plain):
            steps.append(self._piece(self._behind(computed), (), tuple(computed)))
        return steps

    def _conversion(self, item: PlacedLayer) -> Conversion:
        dtype = self.words.element_type(item.layer, "destination_type")
        return Conversion(item.layer.name, item.takes[0], item.gives[0], dtype)

    # The cut

    def _steps(self) -> list[Step]:
        """Stage after stage: the piece of its other layers, then its GRU layers."""
        stages: dict[str, int] = {}
        others: dict[int, list[PlacedLayer]] = {}
        ready: dict[int, list[GruNode]] = {}
        for item in self.layers:
            if item.layer.type in ("Parameter", "Result") or self.fixed.issuperset(item.gives):
                continue
            stage = max((stages.get(value, 0) for value in item.takes), default=0)
            if (gru := self.grus.get(item.layer.id)) is not None:
                ready.setdefault(stage, []).append(gru)
                stage += 1
            else:
                others.setdefault(stage, []).append(item)
            stages.update(dict.fromkeys(item.gives, stage))

        wanted = self.wanted - self.fixed
        steps: list[Step] = []
        for stage in reversed(range(max([*others, *ready], default=-1) + 1)):
            steps += reversed(ready.get(stage, []))
            used = _used(others.get(stage, []), wanted)
            if all(item.layer.type == "Convert" for item in used):
                steps += [self._conversion(item) for item in reversed(used)]
                wanted = wanted.union(*(item.takes for item in used)) - self.fixed
            else:
                piece = self._dynamic_piece(used, wanted)
                steps.append(piece)
                wanted |= set(piece.inputs)
        return steps[::-1]

    def _dynamic_piece(self, used: Sequence[PlacedLayer], wanted: Collection[str]) -> OpenvinoPiece:
        given = {value for item in used for value in item.gives}
        taken = {value for item in used for value in item.takes} - given
        layers = [*self._behind(taken & self.fixed), *used]
        return self._piece(
            layers, tuple(sorted(taken - self.fixed)), tuple(sorted(given.intersection(wanted)))
        )

    def _piece(
        self, layers: Sequence[PlacedLayer], inputs: tuple[str, ...], outputs: tuple[str, ...]
    ) -> OpenvinoPiece:
        return OpenvinoPiece(str(self.words.path), layers, self.constants.weights, inputs, outputs)


def _used(layers: Sequence[PlacedLayer], wanted: Collection[str]) -> list[PlacedLayer]:
    """Those of the layers that the wanted values need; in order."""
    used: list[PlacedLayer] = []
    inside = set(wanted)
    for item in reversed(layers):
        if inside.intersection(item.gives):
            used.append(item)
            inside.update(item.takes)
    return used[::-1]
