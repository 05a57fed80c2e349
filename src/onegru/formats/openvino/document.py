"""A changed IR in memory: its .xml and its .bin."""

from __future__ import annotations

import copy
import functools
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from onegru.core.dtypes import Array
from onegru.formats.graph import Graph
from onegru.formats.openvino.reader import ir_graph
from onegru.formats.openvino.states import hide_states, show_states
from onegru.system.atomic_write import write_files


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
        write_pair(path, self.shifted, [self.weights.data])

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


def write_pair(path: Path, text: Callable[[int], bytes], data: Sequence[memoryview]) -> None:
    """Write an .xml and its .bin so that the two belong together at each moment."""
    bin_path = path.with_suffix(".bin")

    def xml(shift: int = 0) -> tuple[Path, Callable[[IO[bytes]], object]]:
        return path, lambda file: file.write(text(shift))

    def weights(shift: int = 0, is_first: bool = False) -> tuple[Path, Callable[[IO[bytes]], object]]:
        return bin_path, lambda file: write_weights(file, shift, is_first)

    def write_weights(file: IO[bytes], shift: int, is_first: bool) -> None:
        """Write the new weights; with a shift at that position, after the old or the new weights."""
        if is_first:
            with bin_path.open("rb") as old:
                shutil.copyfileobj(old, file)
        elif shift:
            file.writelines(data)
        file.seek(shift)
        file.writelines(data)

    # OpenVINO reads the weights only from the .bin with the .xml's name, and two files cannot be replaced at
    # once. To keep the pair consistent, the new weights are first appended to the .bin. Then the .xml refers
    # to them. Finally both move to the front in the same way.
    if not path.exists():
        write_files([weights(), xml()])
    elif not bin_path.exists():  # the old .xml must not refer to the new weights
        write_files([xml(), weights()])
    else:
        shift = -(-max(bin_path.stat().st_size, sum(map(len, data))) // 64) * 64
        write_files([weights(shift, is_first=True), xml(shift), weights(shift), xml(), weights()])
