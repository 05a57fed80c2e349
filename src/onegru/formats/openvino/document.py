"""A changed IR in memory: its .xml and its .bin."""

from __future__ import annotations

import copy
import functools
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

from onegru.core.dtypes import Array
from onegru.formats.graph import Graph
from onegru.formats.openvino.reader import ir_graph
from onegru.formats.openvino.states import hide_states, show_states
from onegru.formats.openvino.writer import write_pair


class IrDocument:
    """A changed IR."""

    def __init__(self, root: ET.Element, collect: Callable[[], Array]) -> None:
        self._root = root
        self._collect = collect

    @functools.cached_property
    def _content(self) -> tuple[ET.Element, Array]:
        """The content of the .xml and of the .bin."""
        weights = self._collect()  # sets the positions of the constants
        root = copy.deepcopy(self._root)
        return root, hide_states(root, weights)

    @property
    def weights(self) -> Array:
        """The content of the .bin."""
        return self._content[1]

    def write(self, path: Path) -> None:
        """Write the .xml and the .bin; raises OSError as `write_pair`."""
        write_pair(path, self.shifted, [self.weights.tobytes()])

    def shifted(self, shift: int) -> bytes:
        """Return the .xml for weights that begin at byte `shift` of the .bin."""
        root = copy.deepcopy(self._content[0])
        for data in root.iterfind(".//layer[@type='Const']/data"):
            data.set("offset", str(int(data.get("offset", "0")) + shift))
        return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True))

    def graph(self, path: Path) -> Graph:
        """Read the graph from the new content; `path` is the source file."""
        root = copy.deepcopy(self._content[0])
        show_states(path, root, self.weights)
        return ir_graph(path, root, self.weights)
