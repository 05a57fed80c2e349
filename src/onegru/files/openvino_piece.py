"""A part of an OpenVINO graph without GRU layers, as an IR of its own that OpenVINO runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from onegru.dtypes import Array
from onegru.errors import FormatError
from onegru.files._openvino import Network
from onegru.files.graph import Piece, ValueType
from onegru.files.openvino_words import ELEMENT_TYPES, PRECISIONS
from onegru.files.openvino_xml import Element, Layer

__all__ = ["OpenvinoPiece", "PlacedLayer"]

_WORDS = {dtype: words for words, dtype in ELEMENT_TYPES.items()}


@dataclass(frozen=True, slots=True)
class PlacedLayer:
    """A layer and the values that go through it: what each input takes and what each output gives."""

    layer: Layer
    takes: tuple[str, ...]
    gives: tuple[str, ...]


class OpenvinoPiece(Piece):
    """Some layers of an IR; see `onegru.files.graph.Piece`.

    Args:
        place: the file, for messages.
        layers: the layers, in an order in which they can be run, constants included.
        weights: the file's .bin, which the constants lie in.
        inputs: the values that it takes.
        outputs: the values that it gives.
    """

    def __init__(
        self,
        place: str,
        layers: Sequence[PlacedLayer],
        weights: Array,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
    ) -> None:
        self._place = place
        self._layers = tuple(layers)
        self._weights = weights
        super().__init__(inputs, outputs)
        self._network: Network | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_network": None}  # a network lives in this process alone: prepare it again

    @property
    def node_count(self) -> int:
        """How many layers it has, constants left out."""
        return sum(item.layer.type != "Const" for item in self._layers)

    def prepare(self, types: dict[str, ValueType]) -> None:
        """Hand it to OpenVINO.

        Raises:
            MissingExtraError: OpenVINO is not installed.
            FormatError: OpenVINO refuses it.
        """
        text = self._build(types)
        self._network = Network(
            text, self._weights, self._names("out", self.outputs), self._place, self._where()
        )
        for value, known in zip(self.outputs, self._network.output_types.values(), strict=True):
            types[value] = known

    def run(self, values: dict[str, Any]) -> None:
        """Add its outputs to the values."""
        assert self._network is not None, "prepare comes before run"
        feeds = {
            name: np.asarray(values[value])
            for name, value in zip(self._names("in", self.inputs), self.inputs, strict=True)
        }
        results = self._network.run(feeds)
        values.update(zip(self.outputs, results.values(), strict=True))

    @staticmethod
    def _names(side: str, values: Iterable[str]) -> list[str]:
        """What the tensors of this side are called within the piece."""
        return [f"{side}{index}" for index, _ in enumerate(values)]

    def _where(self) -> str:
        layers = [item.layer for item in self._layers]
        return str(next((layer for layer in layers if layer.type not in ("Const", "Convert")), layers[0]))

    def _build(self, types: Mapping[str, ValueType]) -> str:
        """The XML: layers numbered anew, with a Parameter for each input and a Result for each output."""
        givers: dict[str, tuple[int, str]] = {}
        lines: list[str] = []
        edges: list[str] = []
        for name, value in zip(self._names("in", self.inputs), self.inputs, strict=True):
            givers[value] = (len(lines), "0")
            lines.append(self._parameter(len(lines), name, value, types.get(value, ValueType())))
        tensor_names = dict(zip(self.outputs, self._names("out", self.outputs), strict=True))
        for item in self._layers:
            index, layer = len(lines), item.layer
            for value, port in zip(item.takes, layer.inputs, strict=True):
                edges.append(_edge(givers[value], index, port.id))
            named = {
                port.id: tensor_names[value]
                for value, port in zip(item.gives, layer.outputs, strict=True)
                if value in tensor_names
            }
            givers.update(
                (value, (index, port.id)) for value, port in zip(item.gives, layer.outputs, strict=True)
            )
            lines.append(_spell(_renamed(layer.element, index, named)))
        for value in self.outputs:
            index = len(lines)
            edges.append(_edge(givers[value], index, "0"))
            lines.append(
                f'<layer id="{index}" name="onegru/result{index}" type="Result" version="opset1">'
                '<input><port id="0"/></input></layer>'
            )
        return (
            f'<?xml version="1.0"?><net name="piece" version="11"><layers>{"".join(lines)}</layers>'
            f"<edges>{''.join(edges)}</edges><rt_info/></net>"
        )

    def _parameter(self, index: int, name: str, value: str, known: ValueType) -> str:
        if known.words not in _WORDS:
            raise FormatError(
                f"{self._place}: the part around {self._where()}: takes the output {value!r} (layer:port), "
                f"whose type is {known.words or 'unknown'}; must be one that can be handed to OpenVINO"
            )
        sizes = [-1 if size is None else size for size in known.shape or ()]
        shape = "..." if known.shape is None else ",".join("?" if size < 0 else str(size) for size in sizes)
        dims = "".join(f"<dim>{size}</dim>" for size in sizes)
        precision = PRECISIONS[known.words]
        return (
            f'<layer id="{index}" name="onegru/{name}" type="Parameter" version="opset1">'
            f'<data shape="{shape}" element_type="{_WORDS[known.words]}"/>'
            f'<output><port id="0" precision="{precision}" names="{name}">{dims}</port></output>'
            "</layer>"
        )


def _edge(giver: tuple[int, str], taker: int, port: str) -> str:
    return (
        f'<edge from-layer="{giver[0]}" from-port={quoteattr(giver[1])} '
        f'to-layer="{taker}" to-port={quoteattr(port)}/>'
    )


def _renamed(element: Element, index: int, named: Mapping[str, str]) -> Element:
    """A layer's element with another id, and with these names alone for the tensors of its outputs."""

    def rename(port: Element) -> Element:
        attributes = {name: value for name, value in port.attributes.items() if name != "names"}
        if attributes.get("id") in named:
            attributes["names"] = named[attributes["id"]]
        return Element(port.tag, attributes, port.children, port.text)

    children = [
        Element(child.tag, child.attributes, [rename(port) for port in child.children], child.text)
        if child.tag == "output"
        else child
        for child in element.children
    ]
    return Element(element.tag, {**element.attributes, "id": str(index)}, children)


def _spell(element: Element) -> str:
    """An element as XML."""
    attributes = "".join(f" {name}={quoteattr(value)}" for name, value in element.attributes.items())
    inside = escape(element.text) + "".join(map(_spell, element.children))
    return f"<{element.tag}{attributes}>{inside}</{element.tag}>"
