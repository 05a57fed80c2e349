"""Represent a changed IR in memory: its .xml and its .bin."""

from __future__ import annotations

import copy
import functools
import os
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

from onegru.core.dtypes import Array
from onegru.core.errors import SpecError
from onegru.formats.graph import Graph
from onegru.formats.openvino.reader import ir_graph
from onegru.formats.openvino.states import hide_states, show_states
from onegru.system.atomic_write import write_files


class IrDocument:
    """Changed IR."""

    def __init__(self, root: ET.Element, collect: Callable[[], Array]) -> None:
        self._root = root
        self._collect = collect

    @functools.cached_property
    def _content(self) -> tuple[ET.Element, Array]:
        """Return the content of the .xml and of the .bin."""
        weights = self._collect()  # sets the positions of the constants
        root = copy.deepcopy(self._root)
        return root, hide_states(root, weights)

    @property
    def weights(self) -> Array:
        """The content of the .bin."""
        return self._content[1]

    def xml(self) -> bytes:
        """Return the content of the .xml."""
        return bytes(ET.tostring(self._content[0], encoding="utf-8", xml_declaration=True))

    def write(self, path: Path) -> None:
        """Write the .bin, then the .xml."""
        weights, _ = ir_files(path)
        first = weights, lambda file: file.write(self.weights.data)
        write_files([first, (path, lambda file: file.write(self.xml()))])

    def graph(self, path: Path) -> Graph:
        """Read the graph from the new content; `path` is the source file."""
        root = copy.deepcopy(self._content[0])
        show_states(path, root, self.weights)
        return ir_graph(path, root, self.weights)


def ir_files(path: Path) -> tuple[Path, Path]:
    """Return the .bin and the .xml to write; raise SpecError for a folder or links to different IRs."""
    weights = path.with_suffix(".bin")
    if weights.is_dir():
        raise SpecError(f"{weights}: is a folder; must be a file, because the IR stores its weights there")
    if _without_links(path).with_suffix(".bin") != _without_links(weights):
        raise SpecError(
            f"{path}: not written: a link to one file of an IR would leave its other file unchanged; "
            "must be a regular .xml and .bin, or links to the .xml and the .bin of one IR"
        )
    return weights, path


def _without_links(path: Path) -> Path:
    """Return the file that a path leads to, which need not exist; raise OSError for a loop of links."""
    try:
        return Path(os.path.realpath(path, strict=True))
    except FileNotFoundError:
        return Path(os.path.realpath(path))
