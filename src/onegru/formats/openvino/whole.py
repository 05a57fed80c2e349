"""Run IRs in OpenVINO, with onegru for their GRU layers."""

from __future__ import annotations

import contextlib
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onegru.core.dtypes import Array
from onegru.core.errors import MissingExtraError
from onegru.engines.interface import EngineOptions
from onegru.formats.graph import Conversion, GruStep, Observer, QuickRun, Run, RuntimeModel, TensorInfo

if TYPE_CHECKING:
    from onegru.formats.openvino.network import Network


@dataclass(frozen=True, eq=False)
class OpenvinoRuntimeModel(RuntimeModel):
    """Model for OpenVINO; see `onegru.formats.graph.RuntimeModel`."""

    file: str  # the file, for messages
    text: str  # its .xml, from `marked`
    weights: Array  # its .bin
    grus: tuple[GruStep, ...]  # its GRU layers
    inputs: tuple[str, ...]  # the values of its Parameter layers, in the file's order
    outputs: tuple[str, ...]  # the values of its Result layers, in the file's order
    where: str  # a description of the first of its other layers

    def open(self, options: EngineOptions, observer: Observer | None = None) -> Run:
        """See `RuntimeModel`."""
        from onegru.formats.openvino.network import Network  # an IR of only GRU layers needs no OpenVINO

        network = Network(self.text, self.weights, self.file, self.where, self.grus, options, observer)
        return _NetworkRun(network, self.inputs, self.outputs)

    def quick_run(
        self, run: Run, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]
    ) -> QuickRun | None:
        """See `RuntimeModel`."""
        assert isinstance(run, _NetworkRun)
        return run.network.quick_run(
            [(info.name, self.inputs.index(info.value)) for info in inputs],
            [(info.name, self.outputs.index(info.value)) for info in outputs],
        )

    def constant_weights(self) -> dict[str, Array]:
        """Return the weights that are constants, or computed from constants, by value name."""
        from onegru.formats.openvino.network import weights_of

        found = weights_of(self.text, self.weights, self.file, self.where, self.grus)
        return {
            gru.inputs[name]: array
            for gru, arrays in zip(self.grus, found, strict=True)
            for name, array in arrays.items()
        }


@dataclass(frozen=True)
class _NetworkRun:
    """Run of a network, by value names."""

    network: Network
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        results = self.network.run([feeds[name] for name in self.inputs])
        return dict(zip(self.outputs, results, strict=True))


def all_constants(
    plain: Mapping[str, Array], conversions: Sequence[Conversion], whole: OpenvinoRuntimeModel
) -> dict[str, Array]:
    """Return the constants of GRU layers, including those that OpenVINO computes if it is installed."""
    arrays = dict(plain)
    for step in conversions:
        step.run(arrays)
    with contextlib.suppress(MissingExtraError):
        return whole.constant_weights() | arrays
    return arrays


def marked(root: ET.Element, grus: Iterable[ET.Element]) -> str:
    """Change GRU layers to onegru's operators with their numbers as names; return the .xml."""
    for number, element in enumerate(grus):
        element.attrib |= {"version": "extension", "name": str(number)}
    return ET.tostring(root, encoding="unicode")
