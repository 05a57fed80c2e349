"""Reading .xml files of IRs that nobody vouches for.

What comes out is layers with numbered ports and edges between them, nothing more.
"""

from __future__ import annotations

import xml.parsers.expat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from onegru.core.errors import FormatError

_MAX_DEPTH = 200

#: The attributes of an <edge>.
EDGE_ENDS = ("from-layer", "from-port", "to-layer", "to-port")


@dataclass(slots=True)
class Element:
    """An XML element."""

    tag: str
    attributes: Mapping[str, str]
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def all(self, *path: str) -> list[Element]:
        """The elements that this path of tags leads to."""
        found = [self]
        for tag in path:
            found = [child for element in found for child in element.children if child.tag == tag]
        return found


@dataclass(frozen=True, slots=True)
class IrPort:
    """A port of a layer: its id, its tensor's names, its dimensions and precision as the file has them."""

    id: str
    names: tuple[str, ...]
    dims: tuple[str, ...]
    precision: str = ""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of an IR; ports in the order of the file. `element` is all that the file says of it."""

    id: str
    name: str
    type: str
    version: str
    data: Mapping[str, str]
    inputs: tuple[IrPort, ...]
    outputs: tuple[IrPort, ...]
    element: Element

    def __str__(self) -> str:
        return f"{self.type} layer {self.name!r}"


@dataclass(frozen=True, slots=True)
class Net:
    """Layers by id, in the order of the file; for each input (layer, port), the output that it takes."""

    layers: Mapping[str, Layer]
    edges: Mapping[tuple[str, str], tuple[str, str]]


def read_xml(path: Path) -> Element:
    """The root element of a file.

    Raises:
        FormatError: it is not well-formed, or has a document type, where entities are declared.
    """
    root = Element("", {})
    stack = [root]
    texts: list[list[str]] = [[]]
    parser = xml.parsers.expat.ParserCreate()
    parser.buffer_text = True

    def start(tag: str, attributes: dict[str, str]) -> None:
        if len(stack) > _MAX_DEPTH:
            raise FormatError(f"{path}: elements lie more than {_MAX_DEPTH} deep")
        element = Element(tag, attributes)
        stack[-1].children.append(element)
        stack.append(element)
        texts.append([])

    def end(tag: str) -> None:
        stack.pop().text = "".join(texts.pop())

    def doctype(*declaration: object) -> None:
        raise FormatError(
            f"{path}: has a document type declaration; an IR has none, and entities are refused"
        )

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = lambda data: texts[-1].append(data)
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(path.read_bytes(), True)
    except FormatError:
        raise
    # The latter two: an encoding that is unknown, or that the file violates.
    except (xml.parsers.expat.ExpatError, ValueError, LookupError) as error:
        raise FormatError(f"{path}: not well-formed XML ({error})") from None
    return root


def inner_layers(path: Path, layer: Layer) -> list[Layer]:
    """The layers in the bodies of a layer (of If, Loop and TensorIterator), in their bodies, and so on.

    Raises:
        FormatError: one of them is not whole.
    """
    found: list[Layer] = []
    waiting = list(layer.element.children)
    while waiting:
        element = waiting.pop()
        if element.tag == "layer":
            found.append(_layer(path, element))
        waiting += element.children
    return found


def parse_net(path: Path, root: Element) -> Net:
    """The layers and edges of an IR.

    Raises:
        FormatError: it is not an IR of version 10 or 11, or its parts do not fit together.
    """
    nets = root.all("net")
    if len(nets) != 1:
        raise FormatError(f"{path}: no <net> at its root; not an OpenVINO IR")
    net = nets[0]
    version = net.attributes.get("version", "none")
    if version not in ("10", "11"):
        raise FormatError(f"{path}: IR version {version}; must be 10 or 11")
    layers: dict[str, Layer] = {}
    for element in net.all("layers", "layer"):
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
    for element in net.all("edges", "edge"):
        from_layer, from_port, to_layer, to_port = (_required(path, element, name) for name in EDGE_ENDS)
        for layer_id, port_id, side in ((from_layer, from_port, "outputs"), (to_layer, to_port, "inputs")):
            if layer_id not in layers:
                raise FormatError(f"{path}: an edge names layer {layer_id!r}, which there is not")
            if port_id not in ports[layer_id, side]:
                raise FormatError(
                    f"{path}: an edge names port {port_id!r} of {layers[layer_id]}, not one of its {side}"
                )
        if (to_layer, to_port) in edges:
            raise FormatError(f"{path}: two edges lead to port {to_port!r} of {layers[to_layer]}")
        edges[to_layer, to_port] = (from_layer, from_port)
    return Net(layers, edges)


def _layer(path: Path, element: Element) -> Layer:
    layer_id = _required(path, element, "id")
    data = {name: value for part in element.all("data") for name, value in part.attributes.items()}
    inputs, outputs = (_ports(path, element, side) for side in ("input", "output"))
    ids = [port.id for port in (*inputs, *outputs)]
    if len(set(ids)) < len(ids):
        raise FormatError(f"{path}: two ports of layer {layer_id!r} have the same id")
    return Layer(
        id=layer_id,
        name=element.attributes.get("name", layer_id),
        type=_required(path, element, "type"),
        version=element.attributes.get("version", ""),
        data=data,
        inputs=inputs,
        outputs=outputs,
        element=element,
    )


def _ports(path: Path, element: Element, side: str) -> tuple[IrPort, ...]:
    return tuple(
        IrPort(
            _required(path, port, "id"),
            _split_names(port.attributes.get("names", "")),
            tuple(dim.text.strip() for dim in port.all("dim")),
            port.attributes.get("precision", ""),
        )
        for port in element.all(side, "port")
    )


def _split_names(text: str) -> tuple[str, ...]:
    """Comma-separated names, in which a backslash keeps a comma from separating."""
    marked = text.replace("\\,", "\0")
    return tuple(name.replace("\0", ",").strip() for name in marked.split(",") if name.strip())


def _required(path: Path, element: Element, name: str) -> str:
    if name not in element.attributes:
        raise FormatError(f"{path}: a <{element.tag}> has no {name!r}")
    return element.attributes[name]
