"""Parse untrusted .xml files of IRs into layers, ports and edges."""

from __future__ import annotations

import xml.etree.ElementTree as ET
import xml.parsers.expat
from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from onegru.core.errors import FormatError
from onegru.core.wording import count

_MAX_DEPTH = 200

# Attributes that name an axis or count axes, and a limit that no tensor reaches. OpenVINO allocates as many.
_AXES, _MAX_AXES = ("axis", "batch_dims"), 64

#: The attributes of an <edge>.
EDGE_ENDS = ("from-layer", "from-port", "to-layer", "to-port")


@dataclass(frozen=True, slots=True)
class IrPort:
    """Port of a layer: its id, its tensor's names, and its dimensions and precision as text."""

    id: str
    names: tuple[str, ...]
    dims: tuple[str, ...]
    precision: str = ""


@dataclass(frozen=True, slots=True)
class Layer:
    """Layer of an IR, with ports in the order of the file; `element` is its XML."""

    id: str
    name: str
    type: str
    version: str
    data: Mapping[str, str]
    inputs: tuple[IrPort, ...]
    outputs: tuple[IrPort, ...]
    element: ET.Element

    def __str__(self) -> str:
        return f"{self.type} layer {self.name!r}"


#: The numbers of inputs and outputs of basic layers.
PORTS: Mapping[str, tuple[int, int]] = {
    "Parameter": (0, 1),
    "Const": (0, 1),
    "Convert": (1, 1),
    "Result": (1, 0),
}


@dataclass(frozen=True, slots=True)
class Net:
    """Layers by id in the order of the file; and for each input (layer, port) the connected output."""

    layers: Mapping[str, Layer]
    edges: Mapping[tuple[str, str], tuple[str, str]]

    def check_ports(self, layer: Layer, path: Path) -> None:
        """Raise FormatError if a layer does not have the numbers of ports in `PORTS`."""
        inputs, outputs = PORTS[layer.type]
        if len(layer.inputs) != inputs or len(layer.outputs) != outputs:
            words = f"{count(inputs, 'input')} and {count(outputs, 'output')}"
            raise FormatError(f"{path}: {layer}: must have {words}")

    def source(self, layer: Layer, port: IrPort, path: Path) -> tuple[str, str]:
        """Return the layer and port connected to an input port; raises FormatError if there is none."""
        found = self.edges.get((layer.id, port.id))
        if found is None:
            raise FormatError(f"{path}: {layer}: no edge to its input port {port.id!r}; must have one")
        return found

    def ordered(self, path: Path) -> list[Layer]:
        """Return the layers in topological order; raises FormatError if there is a cycle."""
        waits = {
            layer.id: [self.source(layer, port, path)[0] for port in layer.inputs]
            for layer in self.layers.values()
        }
        try:
            return [self.layers[key] for key in TopologicalSorter(waits).static_order()]
        except CycleError as error:
            raise FormatError(f"{path}: {self.layers[error.args[1][0]]}: is part of a cycle") from error


def parse_xml(text: bytes, path: Path) -> ET.Element:
    """Return the root element of a file's content."""
    builder = ET.TreeBuilder()
    depth = 0
    parser = xml.parsers.expat.ParserCreate()  # ET's own parser rejects names with a colon
    parser.buffer_text = True

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > _MAX_DEPTH:
            raise FormatError(f"{path}: elements are nested more than {_MAX_DEPTH} deep")
        builder.start(tag, attributes)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(tag)

    def doctype(*declaration: object) -> None:
        raise FormatError(
            f"{path}: has a document type declaration; an IR must not have one, because of entities"
        )

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(text, True)
    except FormatError:
        raise
    # ValueError and LookupError: the encoding is unknown, or the file violates it.
    except (xml.parsers.expat.ExpatError, ValueError, LookupError) as error:
        raise FormatError(f"{path}: not well-formed XML ({error})") from error
    return builder.close()


def set_notes(root: ET.Element, notes: Mapping[str, str]) -> None:
    """Set metadata of an IR."""
    for key, text in notes.items():
        element = root
        for part in ("rt_info", *key.split(".")):  # an element inside another for each part
            found = element.find(part)
            element = ET.SubElement(element, part) if found is None else found
        element.set("value", text)


def note_of(root: ET.Element, key: str) -> str | None:
    """Return an entry of an IR's metadata."""
    element = root.find("/".join(("rt_info", *key.split("."))))
    return None if element is None else element.get("value")


def remove_note(root: ET.Element, key: str) -> None:
    """Remove an entry of an IR's metadata, and elements that become empty."""
    path = ["rt_info", *key.split(".")]
    for depth in range(len(path), 0, -1):
        parent, found = root.find("/".join(path[: depth - 1]) or "."), root.find("/".join(path[:depth]))
        if parent is None or found is None or (depth < len(path) and len(found)):
            return
        parent.remove(found)


def inner_layers(path: Path, layer: Layer) -> list[Layer]:
    """Return the layers in the bodies of a layer (If, Loop or TensorIterator), and in nested bodies."""
    found: list[Layer] = []
    waiting = list(layer.element)
    while waiting:
        element = waiting.pop()
        if element.tag == "layer":
            found.append(_layer(path, element))
        waiting += element
    return found


def parse_net(path: Path, net: ET.Element) -> Net:
    """Return the layers and edges of an IR."""
    if net.tag != "net":
        raise FormatError(f"{path}: no <net> at its root; not an OpenVINO IR")
    version = net.get("version", "none")
    if version not in ("10", "11"):
        raise FormatError(f"{path}: IR version {version}; must be 10 or 11")
    return parse_layers(path, net)


def parse_layers(path: Path, net: ET.Element) -> Net:
    """Return the layers and edges of an IR or of a body."""
    layers: dict[str, Layer] = {}
    for element in net.iterfind("layers/layer"):
        layer = _layer(path, element)
        if layer.id in layers:
            raise FormatError(f"{path}: two layers have the id {layer.id!r}")
        layers[layer.id] = layer
    ports = {
        (layer.id, side): {port.id for port in found}
        for layer in layers.values()
        for side, found in (("inputs", layer.inputs), ("outputs", layer.outputs))
    }
    edges: dict[tuple[str, str], tuple[str, str]] = {}
    for element in net.iterfind("edges/edge"):
        from_layer, from_port, to_layer, to_port = (_required(path, element, name) for name in EDGE_ENDS)
        for layer_id, port_id, side in ((from_layer, from_port, "outputs"), (to_layer, to_port, "inputs")):
            if layer_id not in layers:
                raise FormatError(f"{path}: an edge names layer {layer_id!r}, which does not exist")
            if port_id not in ports[layer_id, side]:
                raise FormatError(
                    f"{path}: an edge names port {port_id!r} of {layers[layer_id]}, not one of its {side}"
                )
        if (to_layer, to_port) in edges:
            raise FormatError(f"{path}: two edges to port {to_port!r} of {layers[to_layer]}; must be one")
        edges[to_layer, to_port] = (from_layer, from_port)
    return Net(layers, edges)


def _layer(path: Path, element: ET.Element) -> Layer:
    layer_id = _required(path, element, "id")
    data = {name: value for part in element.iterfind("data") for name, value in part.items()}
    inputs, outputs = (_ports(path, element, side) for side in ("input", "output"))
    ids = [port.id for port in (*inputs, *outputs)]
    if len(set(ids)) < len(ids):
        raise FormatError(f"{path}: two ports of layer {layer_id!r} have the same id")
    for name in _AXES:
        digits = data.get(name, "").strip().lstrip("+-")
        if digits.isdecimal() and (len(digits) > 9 or int(digits) > _MAX_AXES):
            must = f"must be within ±{_MAX_AXES}"
            raise FormatError(f"{path}: {name} of layer {layer_id!r}: {data[name][:20]!r}; {must}")
    return Layer(
        id=layer_id,
        name=element.get("name", layer_id),
        type=_required(path, element, "type"),
        version=element.get("version", ""),
        data=data,
        inputs=inputs,
        outputs=outputs,
        element=element,
    )


def _ports(path: Path, element: ET.Element, side: str) -> tuple[IrPort, ...]:
    return tuple(
        IrPort(
            _required(path, port, "id"),
            _split_names(port.get("names", "")),
            tuple((dim.text or "").strip() for dim in port.iterfind("dim")),
            port.get("precision", ""),
        )
        for port in element.iterfind(f"{side}/port")
    )


def _split_names(text: str) -> tuple[str, ...]:
    """Split comma-separated names, in which a backslash escapes a comma."""
    marked = text.replace("\\,", "\0")
    return tuple(name.replace("\0", ",").strip() for name in marked.split(",") if name.strip())


def _required(path: Path, element: ET.Element, name: str) -> str:
    if name not in element.attrib:
        raise FormatError(f"{path}: a <{element.tag}> has no {name!r}")
    return element.attrib[name]
