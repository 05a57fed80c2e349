"""A changed IR in memory: what its .xml and its .bin are to hold."""

from __future__ import annotations

import copy
import functools
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

from onegru.core.dtypes import Array
from onegru.formats.graph import Graph
from onegru.formats.openvino.reader import ir_graph


class IrDocument:
    """A changed IR.

    Args:
        root: what its .xml is to hold, but for the places of constants.
        collect: gives what its .bin is to hold, and writes these places; called where either is needed.
    """

    def __init__(self, root: ET.Element, collect: Callable[[], Array]) -> None:
        self._root = root
        self._collect = collect

    @functools.cached_property
    def weights(self) -> Array:
        """What its .bin is to hold."""
        return self._collect()

    @property
    def root(self) -> ET.Element:
        """What its .xml is to hold."""
        _ = self.weights  # which places the constants
        return self._root

    def shifted(self, shift: int) -> bytes:
        """The .xml for weights that begin at this place of the .bin."""
        root = copy.deepcopy(self.root)
        for data in root.iterfind(".//layer[@type='Const']/data"):
            data.set("offset", str(int(data.get("offset", "0")) + shift))
        return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True))

    def graph(self, path: Path) -> Graph:
        """Its graph; `path` is the file that it comes from."""
        return ir_graph(path, copy.deepcopy(self.root), self.weights)
