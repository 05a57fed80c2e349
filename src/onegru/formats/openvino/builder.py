"""Build the .xml and .bin of an OpenVINO IR layer by layer."""

from __future__ import annotations

import copy
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onegru.core.dtypes import Array, numpy_dtype
from onegru.formats.graph import STATES_KEY, STATES_WORD
from onegru.formats.openvino.fields import ELEMENT_WORDS, PRECISIONS
from onegru.formats.openvino.xml import EDGE_ENDS

#: A shape, with None for open sizes.
Shape = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """An output of a layer: the ids of its layer and port, its type and its shape."""

    layer: int
    port: int
    dtype: str
    shape: Shape


class Net:
    """An IR to which layers can be added."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.states_are_optional = False  # whether onegru can run it without its initial states
        self._offset = 0
        self._root = ET.Element("net", name="onegru", version="11")
        self._layers = ET.SubElement(self._root, "layers")
        self._edges = ET.SubElement(self._root, "edges")

    def layer(
        self,
        kind: str,
        name: str,
        version: str,
        data: Mapping[str, str],
        inputs: Sequence[Value] = (),
        outputs: Sequence[tuple[str, Shape, str]] = (),
    ) -> list[Value]:
        """Add a layer."""
        index = len(self._layers)
        element = ET.SubElement(self._layers, "layer", id=str(index), name=name, type=kind, version=version)
        if data:
            ET.SubElement(element, "data", dict(data))
        if inputs:
            side = ET.SubElement(element, "input")
            for port, value in enumerate(inputs):
                _add_port(side, port, value.dtype, value.shape, "")
                ends = map(str, (value.layer, value.port, index, port))
                ET.SubElement(self._edges, "edge", dict(zip(EDGE_ENDS, ends, strict=True)))
        values: list[Value] = []
        if outputs:
            side = ET.SubElement(element, "output")
            for port, (dtype, shape, tensor) in enumerate(outputs, start=len(inputs)):
                _add_port(side, port, dtype, shape, tensor)
                values.append(Value(index, port, dtype, shape))
        return values

    def constant(self, name: str, array: Array) -> Value:
        """Add a constant."""
        dtype = array.dtype.name
        raw = array.astype(numpy_dtype(dtype).newbyteorder("<")).tobytes()
        data = {
            "element_type": ELEMENT_WORDS[dtype],
            "shape": ", ".join(map(str, array.shape)),
            "offset": str(self._offset),
            "size": str(len(raw)),
        }
        self.data.append(raw)
        self._offset += len(raw)
        return self.layer("Const", name, "opset1", data, outputs=[(dtype, array.shape, name)])[0]

    def xml(self, shift: int = 0) -> bytes:
        """Return the content of the .xml, for a .bin in which the data begin at byte `shift`."""
        root = copy.deepcopy(self._root)
        for data in root.iterfind("layers/layer[@type='Const']/data"):
            data.set("offset", str(int(data.attrib["offset"]) + shift))
        info = ET.SubElement(root, "rt_info")
        if self.states_are_optional:
            for part in STATES_KEY.split("."):
                info = ET.SubElement(info, part)
            info.set("value", STATES_WORD)
        ET.indent(root, "\t")
        return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True))


def _add_port(side: ET.Element, port: int, dtype: str, shape: Shape, name: str) -> None:
    names = {"names": name} if name else {}
    element = ET.SubElement(side, "port", {"id": str(port), "precision": PRECISIONS[dtype], **names})
    for size in shape:
        ET.SubElement(element, "dim").text = "-1" if size is None else str(size)
