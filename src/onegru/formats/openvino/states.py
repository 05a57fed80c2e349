"""Convert the variables of an IR to inputs and outputs, and back.

When a file is read, each ReadValue layer becomes a Parameter, and the Assign layer of the same variable
becomes a Result. Both get the variable's name. Metadata specify which output feeds which input, as in files
of `onegru stream`. When a changed model is written, they become ReadValue and Assign layers again.
"""

from __future__ import annotations

import copy
import json
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import BROKEN, FormatError
from onegru.core.shapes import fits
from onegru.core.wording import shape_words
from onegru.formats.graph import STREAM_KEY, Dimension
from onegru.formats.opened import Opened
from onegru.formats.openvino.constants import ALIGNED, BinContent, Constants
from onegru.formats.openvino.fields import ELEMENT_TYPES, ELEMENT_WORDS, AttributeParser
from onegru.formats.openvino.flow import IrGraphReader
from onegru.formats.openvino.xml import (
    EDGE_ENDS,
    Layer,
    Net,
    note_of,
    parse_net,
    parse_xml,
    remove_note,
    set_notes,
)
from onegru.formats.stream_note import State, kept_states_of, write_note

#: The layers of a state: its value before and after a run.
STATEFUL = ("ReadValue", "Assign")


def ir_of(file: Opened) -> tuple[ET.Element, bytes]:
    """Return the root element and text of an IR whose states are inputs and outputs, for `Opened.once`."""
    root = parse_xml(file.data, file.path)
    assert file.weights is not None
    if not show_states(file.path, root, file.weights):
        return root, file.data
    return root, ET.tostring(root, encoding="utf-8")


def show_states(path: Path, root: ET.Element, weights: BinContent) -> bool:
    """Turn the states of an IR into inputs and outputs."""
    if not any(layer.get("type") in STATEFUL for layer in root.iterfind("layers/layer")):
        note = note_of(root, STREAM_KEY) or ""
        if not kept_states_of(note):
            return False
        # Without variables, the model stores no states.
        set_notes(root, {STREAM_KEY: json.dumps(json.loads(note) | {"keeps": False})})
        return True
    net, parser = parse_net(path, root), AttributeParser(path)
    reads, writes = (_by_variable(parser, net, kind) for kind in STATEFUL)
    _check_names(parser, net, reads, writes)
    starts = _starts(parser, net, root, weights, reads)
    states: list[State] = []
    initial: dict[str, Array] = {}
    for variable, read in reads.items():
        dtype, shape = _variable(parser, read)
        start = starts.get(variable)
        if start is not None and np.any(start):
            initial[variable] = start
        first = shape if start is None else start.shape
        if start is not None and (start.dtype.name != dtype or not fits(first, shape)):
            raise parser.error(
                f"{read}: starts from {start.dtype.name} {list(first)}; must be {dtype} {shape_words(shape)}"
            )
        sizes = [size for size in first if isinstance(size, int)]
        if len(sizes) < len(first):  # OpenVINO would start with an empty tensor
            raise parser.error(
                f"{read}: its variable_shape, {shape_words(shape)}, is dynamic, and it has no initial "
                "value; must have fixed sizes, or start from a constant"
            )
        states.append(State(variable, variable, read.name, tuple(sizes)))
        data = {
            "shape": ",".join("?" if size is None else str(size) for size in shape),
            "element_type": ELEMENT_WORDS[dtype],
        }
        _turn_layer(root, read, "Parameter", variable, data)
        _turn_layer(root, writes[variable], "Result", variable, None)
    set_notes(root, {STREAM_KEY: write_note(states, initial, {}, {}, keeps=True)})
    return True


def hide_states(root: ET.Element, weights: Array) -> Array:
    """Undo `show_states` in an IR before it is written."""
    states = kept_states_of(note_of(root, STREAM_KEY) or "")
    layers, edges = root.find("layers"), root.find("edges")
    if not states or layers is None or edges is None:
        return weights
    ends = {(item.get("type"), item.get("name")): item for item in layers}
    parts = [weights]
    for state in states:
        read, write = ends["Parameter", state.input], ends["Result", state.output]
        data, port, result = read.find("data"), read.find("output/port"), write.find("input/port")
        assert data is not None and port is not None and result is not None
        words, shape = data.attrib["element_type"], data.attrib["shape"]
        data.attrib = {"variable_id": state.input, "variable_type": words, "variable_shape": shape}
        read.attrib |= {"type": "ReadValue", "version": "opset6"}
        if state.start is not None or "?" in shape:  # without an initial value, a variable starts from zeros
            start = np.zeros(list(map(int, state.first_shape))) if state.start is None else state.start
            raw = start.astype(numpy_dtype(ELEMENT_TYPES[words]).newbyteorder("<")).tobytes()
            parts += [np.zeros(-sum(map(len, parts)) % ALIGNED, np.uint8), np.frombuffer(raw, np.uint8)]
            offset = sum(map(len, parts)) - len(raw)
            edge = _add_start(
                layers, read, port, f"{state.input}/first", start.shape, (words, offset, len(raw))
            )
            ET.SubElement(edges, "edge", dict(zip(EDGE_ENDS, edge, strict=True)))
        write.attrib |= {"name": f"{state.output}/next", "type": "Assign", "version": "opset6"}
        write.insert(0, ET.Element("data", dict(data.attrib)))
        output = copy.deepcopy(result)
        output.set("id", str(1 + int(result.attrib["id"])))
        ET.SubElement(write, "output").append(output)
    remove_note(root, STREAM_KEY)
    return np.concatenate(parts)


def _add_start(
    layers: ET.Element,
    read: ET.Element,
    port: ET.Element,
    name: str,
    shape: tuple[int, ...],
    stored: tuple[str, int, int],
) -> tuple[str, str, str, str]:
    """Add the Const layer of an initial value, `stored` with this type, offset and size in the .bin."""
    key = str(1 + max(int(item.attrib["id"]) for item in layers))
    const = ET.SubElement(layers, "layer", id=key, name=name, type="Const", version="opset1")
    words, offset, size = stored
    data = {
        "element_type": words,
        "shape": ", ".join(map(str, shape)),
        "offset": str(offset),
        "size": str(size),
    }
    ET.SubElement(const, "data", data)
    port_id, side = str(1 + int(port.attrib["id"])), ET.Element("input")
    read.insert(1, side)
    for owner, number in ((ET.SubElement(const, "output"), "0"), (side, port_id)):
        added = ET.SubElement(owner, "port", {"id": number, "precision": port.attrib["precision"]})
        for length in shape:
            ET.SubElement(added, "dim").text = str(length)
    return key, "0", read.attrib["id"], port_id


def _by_variable(parser: AttributeParser, net: Net, kind: str) -> dict[str, Layer]:
    """Return the layers of a kind by variable; raises FormatError if a variable has two."""
    found: dict[str, Layer] = {}
    for layer in net.layers.values():
        if layer.type != kind:
            continue
        if layer.version not in ("opset3", "opset6"):
            raise parser.error(f"{layer}: version {layer.version!r}; must be opset3 or opset6")
        variable = parser.data(layer, "variable_id").strip()
        if variable in found:
            raise parser.error(f"{layer}: second layer of variable {variable!r}; must be the only one")
        if len(layer.inputs) > 1 or len(layer.outputs) > 1 or not (layer.outputs or kind == "Assign"):
            raise parser.error(f"{layer}: must have one input and one output")
        if kind == "Assign" and any(source == layer.id for source, _ in net.edges.values()):
            raise parser.error(f"{layer}: other layers use its output; must use its input instead")
        found[variable] = layer
    return found


def _check_names(
    parser: AttributeParser, net: Net, reads: Mapping[str, Layer], writes: Mapping[str, Layer]
) -> None:
    """Reject variables without both layers, or with the name of another input or output."""
    for these, others, kind in ((reads, writes, "Assign"), (writes, reads, "ReadValue")):
        for variable in these.keys() - others.keys():
            raise parser.error(f"{these[variable]}: no {kind} layer of its variable; must have one")
    names = Counter[str]()
    for layer in net.layers.values():
        if layer.type in ("Parameter", "ReadValue"):
            own = layer.data.get("variable_id", layer.name).strip()
            names.update({own, *(name for port in layer.outputs for name in port.names)})
    ends = Counter[str]()
    for layer in net.layers.values():
        if layer.type in ("Result", "Assign") and layer.inputs:
            source, port_id = net.source(layer, layer.inputs[0], parser.path)
            ports = (port for port in net.layers[source].outputs if port.id == port_id)
            own = layer.data.get("variable_id", layer.name).strip()
            ends.update({own, *(name for port in ports for name in port.names)})
    for variable, layer in reads.items():
        if names[variable] > 1 or ends[variable] > 1:
            raise parser.error(
                f"{layer}: variable_id {variable!r} is also the name of another input or output"
            )


def _variable(parser: AttributeParser, read: Layer) -> tuple[str, tuple[Dimension, ...]]:
    """Return the type of a variable, by NumPy's name, and its shape."""
    port = read.outputs[0]
    if read.version == "opset3":
        dtype = parser.precision(port)
        shape: tuple[Dimension, ...] | None = tuple(parser.dimension(read, "dim", dim) for dim in port.dims)
    else:
        dtype = parser.element_type(read, "variable_type")
        shape = parser.shape(read, "variable_shape")
    if dtype not in ELEMENT_WORDS or shape is None:
        raise parser.error(f"{read}: the type or rank of its variable is dynamic; must be fixed")
    return dtype, shape


def _starts(
    parser: AttributeParser, net: Net, root: ET.Element, weights: BinContent, reads: Mapping[str, Layer]
) -> dict[str, Array]:
    """Return the constant initial values of variables; other variables start from zeros."""
    with_start = {variable: read for variable, read in reads.items() if read.inputs}
    if not with_start:
        return {}
    starts: dict[str, Array | None] = dict.fromkeys(with_start)
    try:
        graph = IrGraphReader(parser, Constants(parser, weights)).read(net, root)
        starts |= {name: graph.flow.constant(graph.inputs[read.id][0]) for name, read in with_start.items()}
    except FormatError:  # reports the error with a better message
        raise
    except BROKEN:
        pass
    found: dict[str, Array] = {}
    for variable, read in with_start.items():
        start = starts[variable]
        if start is None:
            raise parser.error(
                f"{read}: its initial value is computed in each run; must be a constant. Remove it for zeros"
            )
        with np.errstate(all="ignore"):
            numbers = start.astype(np.float64)
            is_finite = np.isfinite(numbers).all() and np.array_equal(numbers.astype(start.dtype), start)
        if not is_finite:
            raise parser.error(f"{read}: its initial value is not finite in float64; must be finite")
        found[variable] = start
    return found


def _turn_layer(root: ET.Element, layer: Layer, kind: str, name: str, data: dict[str, str] | None) -> None:
    """Turn a layer into a Parameter without inputs, or into a Result without outputs."""
    element = layer.element
    element.attrib |= {"type": kind, "name": name, "version": "opset1"}
    for tag in ("data", "input" if kind == "Parameter" else "output"):
        for part in element.findall(tag):
            element.remove(part)
    if data is not None:
        element.insert(0, ET.Element("data", data))
        for edges in root.iterfind("edges"):
            for edge in [edge for edge in edges if edge.get("to-layer") == layer.id]:
                edges.remove(edge)
    else:  # after the model's own outputs, which keep their names
        for layers in root.iterfind("layers"):
            if element in layers:
                layers.remove(element)
                layers.append(element)
