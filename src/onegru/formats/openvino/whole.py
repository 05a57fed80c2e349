"""A whole IR as OpenVINO runs it, with onegru for its GRU layers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from xml.sax.saxutils import escape, quoteattr

from onegru.core.dtypes import Array
from onegru.core.errors import MissingExtraError
from onegru.formats.graph import Conversion, GruStep, Observer, Run, Whole
from onegru.formats.openvino.xml import Element


class OpenvinoWhole(Whole):
    """See `onegru.formats.graph.Whole`.

    Args:
        place: the file, for messages.
        text: its .xml, as `marked` gives it.
        weights: its .bin.
        grus: its GRU layers.
        inputs: the values that its Parameter layers give, in the file's order.
        outputs: the values that its Result layers take, likewise.
        node_count: as in `Whole`.
        where: a description of the first of its other layers.
    """

    def __init__(
        self,
        place: str,
        text: str,
        weights: Array,
        grus: Sequence[GruStep],
        inputs: Sequence[str],
        outputs: Sequence[str],
        node_count: int,
        where: str,
    ) -> None:
        super().__init__(node_count, frozenset())
        self._place = place
        self._text = text
        self._weights = weights
        self._grus = tuple(grus)
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)
        self._where = where

    def open(self, engine: str, observer: Observer | None = None) -> Run:
        """See `Whole`."""
        from onegru.formats.openvino.network import Network  # an IR of GRU layers alone needs no OpenVINO

        network = Network(self._text, self._weights, self._place, self._where, self._grus, engine, observer)
        inputs, outputs = self._inputs, self._outputs
        return lambda feeds: dict(zip(outputs, network.run([feeds[name] for name in inputs]), strict=True))

    def constant_weights(self) -> dict[str, Array]:
        """The weights that are constants, or computed from some, by the values that the GRU layers take."""
        from onegru.formats.openvino.network import weights_of

        found = weights_of(self._text, self._weights, self._place, self._where, self._grus)
        return {
            gru.inputs[name]: array
            for gru, arrays in zip(self._grus, found, strict=True)
            for name, array in arrays.items()
        }


def all_constants(
    plain: Mapping[str, Array], conversions: Sequence[Conversion], whole: OpenvinoWhole
) -> dict[str, Array]:
    """The constants that GRU layers take, including those that OpenVINO computes if it is installed.

    Args:
        plain: those that the file holds.
        conversions: the type conversions of some of them.
        whole: the model.
    """
    arrays = dict(plain)
    for step in conversions:
        step.run(arrays)
    with contextlib.suppress(MissingExtraError):
        return whole.constant_weights() | arrays
    return arrays


def marked(root: Element, grus: Sequence[Element]) -> str:
    """The .xml with its GRU layers under the version of onegru's operators, named by their numbers."""
    numbers = {id(element): number for number, element in enumerate(grus)}

    def written(element: Element) -> Iterator[str]:
        attributes = dict(element.attributes)
        if (number := numbers.get(id(element))) is not None:
            attributes |= {"version": "extension", "name": str(number)}
        words = "".join(f" {name}={quoteattr(value)}" for name, value in attributes.items())
        yield f"<{element.tag}{words}>{escape(element.text)}"
        for child in element.children:
            yield from written(child)
        yield f"</{element.tag}>"

    return "".join(part for child in root.children for part in written(child))
