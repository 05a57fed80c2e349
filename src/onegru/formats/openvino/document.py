"""A changed IR in memory: what its .xml and its .bin are to hold."""

from __future__ import annotations

import copy
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from onegru.core.dtypes import Array
from onegru.formats.graph import Graph
from onegru.formats.openvino.reader import ir_graph


@dataclass(frozen=True, slots=True)
class IrDocument:
    """A changed IR.

    Attributes:
        root: what its .xml is to hold.
        weights: what its .bin is to hold.
    """

    root: ET.Element
    weights: Array

    def shifted(self, shift: int) -> bytes:
        """The .xml for weights that begin at this place of the .bin."""
        root = copy.deepcopy(self.root)
        for data in root.iterfind(".//layer[@type='Const']/data"):
            data.set("offset", str(int(data.get("offset", "0")) + shift))
        return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True))

    def graph(self, path: Path) -> Graph:
        """Its graph; `path` is the file that it comes from."""
        return ir_graph(path, copy.deepcopy(self.root), self.weights)
