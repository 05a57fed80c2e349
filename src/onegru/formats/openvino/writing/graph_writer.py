"""Write changed flows into their IR."""

from __future__ import annotations

import hashlib
import itertools
import xml.etree.ElementTree as ET
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from onegru.core.dtypes import Array, numpy_dtype
from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import Op
from onegru.dataflow.table.moving import AxisOrder, axis_order_of
from onegru.formats.openvino.constants import ALIGNED, Constants
from onegru.formats.openvino.fields import ELEMENT_WORDS, PRECISIONS
from onegru.formats.openvino.flow import NO_OPERATORS, IrGraph, IrGraphReader
from onegru.formats.openvino.gru_layers import GRUS, GruLayers, output_dtype, typed_constant
from onegru.formats.openvino.kinds import layer_of
from onegru.formats.openvino.translation import NewLayer
from onegru.formats.openvino.writing.moves import compose, ignoring_ones, is_still, ops_of_move, sliced_before
from onegru.formats.openvino.xml import EDGE_ENDS, Layer

_Port = tuple[str, str]  # the ids of a layer and of one of its outputs


class IrBin:
    """Contents of a changed file's Const layers, without duplicates, for its .bin."""

    def __init__(self, constants: Constants) -> None:
        self._old = constants.weights
        self._new: dict[int, Array] = {}
        self._parts: list[bytes | memoryview] = []
        self._offsets: dict[bytes, int] = {}
        self._length = 0

    def hold(self, data: ET.Element, array: Array) -> None:
        """Record the content of a new Const layer by its <data> element."""
        dtype = numpy_dtype(array.dtype.name).newbyteorder("<")
        self._new[id(data)] = np.asarray(array, dtype).reshape(-1).view(np.uint8)

    def collect(self, root: ET.Element) -> Array:
        """Place the content of all Const layers, write their offsets, and return the .bin."""
        for data in root.iter("data"):
            if id(data) in self._new:
                raw = self._new[id(data)]
            elif "offset" in data.attrib and "size" in data.attrib:
                start, size = int(data.attrib["offset"]), int(data.attrib["size"])
                raw = self._old[start : start + size]
            else:
                continue
            data.set("offset", str(self._offset_of(raw)))
            data.set("size", str(len(raw)))
        return np.frombuffer(bytearray().join(self._parts), np.uint8)

    def _offset_of(self, raw: Array) -> int:
        key = hashlib.blake2b(raw.data, digest_size=20).digest()
        if len(raw) and key not in self._offsets:
            gap = -self._length % ALIGNED
            self._parts += [bytes(gap), raw.data]
            self._offsets[key] = self._length + gap
            self._length += gap + len(raw)
        return self._offsets.get(key, 0)


class GraphWriter:
    """Writer of a graph's flow into its layers and edges."""

    def __init__(
        self,
        graph: IrGraph,
        reader: IrGraphReader,
        bin: IrBin,
        outer: GraphWriter | None = None,
        owner: Layer | None = None,
        rewritten: Collection[int] = (),
        not_folded: Collection[str] = (),
    ) -> None:
        self.graph = graph
        self.flow: Flow = graph.flow
        self.reader = reader
        self.bin = bin
        self.outer = outer
        self.owner = owner
        layers, edges = graph.element.find("layers"), graph.element.find("edges")
        assert layers is not None
        self._layers = layers
        self._edges = ET.SubElement(graph.element, "edges") if edges is None else edges
        ids = (int(key) for key in graph.net.layers if key.isdecimal() and key.isascii())
        self._ids = itertools.count(max(ids, default=-1) + 1)
        self._ports: dict[str, _Port] = {}  # the ports of new values
        self._moved_ports: dict[tuple[str, AxisOrder], _Port] = {}
        self._elements: dict[_Port, ET.Element] = {}  # the ports of new layers
        self._dtypes: dict[str, str] = {}  # the types of new values
        self._loop_inputs: dict[str, list[str]] = {}  # the values of new inputs of loops
        self._ops: list[Op] = []  # those of the flow, with the GRUs as OpenVINO's operators
        self._moves: dict[str, tuple[str, AxisOrder]] = {}  # values that are other values with moved axes
        self._not_folded = not_folded  # values that stay computed, even if they are known
        self._rewritten = set(rewritten)  # operators of the file that are rewritten

    def write(self) -> None:
        """Write the bodies, and the graph itself if it has changed."""
        for layer_id, body in self.graph.bodies.items():
            if any(op is self.graph.operators[layer_id] for op in self.flow.ops):
                layer = self.graph.net.layers[layer_id]
                GraphWriter(body, self.reader, self.bin, self, layer).write()
                if layer_id in self._loop_inputs:
                    _renumber(self.graph, layer)
        if self._loop_inputs or self._rewritten or any(self._is_new(op) for op in self.flow.ops):
            self._convert_grus()
            self._find_moves()
            self._write()

    def _is_new(self, op: Op) -> bool:
        return op.origin is None and op not in self.graph.intermediate

    def _convert_grus(self) -> None:
        """Replace new GRUs by OpenVINO's operators."""
        for op in self.flow.ops:
            if self._is_new(op) and op.kind in GRUS:
                layers = GruLayers(self.flow, self.reader.names)
                layers.add(op)
                self._ops += layers.ops
            else:
                self._ops.append(op)

    def _find_moves(self) -> None:
        """Find axis moves; moves after new operators are written again."""
        rewritten: set[str] = set()
        for index, op in enumerate(self._ops):
            is_new = self._is_new(op)
            follows_rewritten = bool(op.inputs) and op.inputs[0] in rewritten
            axes = axis_order_of(self.flow, op)
            if axes is not None:
                source, before = self._moves.get(op.inputs[0], (op.inputs[0], None))
                self._moves[op.outputs[0]] = (source, axes if before is None else compose(before, axes))
                if follows_rewritten:
                    self._rewritten.add(id(op))
            elif op.kind == "Slice" and (is_new or follows_rewritten) and op.inputs[0] in self._moves:
                source, before = self._moves[op.inputs[0]]
                name = self.reader.fresh(op.outputs[0])
                cut = sliced_before(self.flow, op, source, before, name)
                if cut is not None:
                    self._ops[index], is_new = cut, True
                    self._moves[op.outputs[0]] = (name, before)
                    rewritten.add(name)
            if is_new or (axes is not None and follows_rewritten):
                rewritten.update(op.outputs)

    # What is needed

    def _source(self, value: str) -> tuple[str, AxisOrder | None]:
        """Return the source of a value and the move of its axes; without a move, the value itself."""
        if value not in self._moves:
            return value, None
        source, axes = self._moves[value]
        shape = self.flow.shape(source)
        if shape is None:
            return value, None
        if is_still(axes, shape):
            return source, None
        if value in self._kept_ports:
            return value, None
        return source, ignoring_ones(axes, shape)

    def _write(self) -> None:
        """Drop layers that no result needs, add the new ones, and connect all."""
        graph, net = self.graph, self.graph.net
        present = {id(op) for op in self._ops} - self._rewritten
        terminals = {key for key, layer in net.layers.items() if layer.type in NO_OPERATORS}
        alive = terminals | {key for key, op in graph.operators.items() if id(op) in present}
        alive |= {key for key, layer in net.layers.items() if key not in graph.operators}
        new = [op for op in self._ops if self._is_new(op) or id(op) in self._rewritten]
        replaced = {value for op in new for value in op.outputs}
        producers = {value: op for op in self._ops for value in op.outputs if value}
        alive |= _removed_but_needed(graph, alive, producers)
        self._kept_ports = {
            value: port for value, port in graph.ports.items() if port[0] in alive and value not in replaced
        }
        reached: dict[str, None] = {key: None for key in terminals if net.layers[key].type != "Const"}
        needed: set[int] = set()
        waiting = [value for key in reached for value in graph.inputs[key]]
        waiting = [value if value in self._kept_ports else self._source(value)[0] for value in waiting]
        seen: set[str] = set()
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in self._kept_ports:
                key = self._kept_ports[value][0]
                if key not in reached:
                    reached[key] = None
                    sources = (*graph.inputs[key], *self._loop_inputs.get(key, ()))
                    waiting += [self._source(name)[0] for name in sources]
            elif (op := producers.get(value)) is not None and self._folded(value) is None:
                needed.add(id(op))
                waiting += [self._source(name)[0] for name in op.inputs if name]
        self._layers[:] = [item for item in self._layers if item.tag != "layer" or item.get("id") in reached]
        del self._edges[:]
        for op in self._ops:
            if id(op) in needed:
                self._add(op)
        for key in [key for key in net.layers if key in reached]:
            is_result = key in graph.results
            more = self._loop_inputs.get(key, ())
            ids = [port.id for port in net.layers[key].inputs]
            ids = list(map(str, range(len(ids) + len(more)))) if more else ids
            for port_id, value in zip(ids, (*graph.inputs[key], *more), strict=True):
                self._edge(self._result(value) if is_result else self._port(value), key, port_id)

    def _edge(self, source: _Port, layer: str, port: str) -> None:
        ends = (*source, layer, port)
        ET.SubElement(self._edges, "edge", dict(zip(EDGE_ENDS, ends, strict=True)))

    # Values

    def _port(self, value: str) -> _Port:
        """Return the port of a value, and add required layers."""
        source, axes = self._source(value)
        if axes is None:
            return self._unmoved_port(source)
        if (source, axes) not in self._moved_ports:
            shape = self.flow.shape(source)
            assert shape is not None
            current, name = source, value
            moves = ops_of_move(axes, shape)
            for index, move in enumerate(moves):
                is_last = index == len(moves) - 1
                is_free = is_last and value not in self._ports
                name = value if is_free else self.reader.fresh(f"{value}/{move.kind}")
                op = replace(move, inputs=(current,), outputs=(name,), name=name)
                order = axis_order_of(self.flow, op)
                assert order is not None
                before = self.flow.shape(current)
                assert before is not None
                if name != value:
                    self.flow.set_shape(name, tuple(1 if axis is None else before[axis] for axis in order))
                self._dtypes.setdefault(name, self._dtype(current))
                port = self._layer(op, layer_of(self.flow, op), self._unmoved_port(current))
                self._ports[name] = port
                current = name
            self._moved_ports[source, axes] = self._ports[current]
        return self._moved_ports[source, axes]

    def _unmoved_port(self, value: str) -> _Port:
        if value in self._kept_ports:
            return self._kept_ports[value]
        if value not in self._ports:
            array = self._folded(value)
            self._ports[value] = self._from_outside(value) if array is None else self._constant(value, array)
        return self._ports[value]

    def _folded(self, value: str) -> Array | None:
        """Return the constant for a value; None if it is computed."""
        return None if value in self._not_folded else typed_constant(self.flow, value)

    def _dtype(self, value: str) -> str:
        source = self._source(value)[0]
        if source in self._dtypes:
            return self._dtypes[source]
        return self._dtypes.get(value) or self.flow.dtype(value) or "float32"

    def _from_outside(self, value: str) -> _Port:
        """Add a Parameter layer for a value of the enclosing graph."""
        assert self.outer is not None and self.owner is not None, value
        for name, source in self.flow.aliases.items():
            if source == value and name in self._kept_ports:
                return self._kept_ports[name]
        key = str(next(self._ids))
        layer = self.owner.element
        side, ports = layer.find("input"), layer.find("port_map")
        assert ports is not None
        if side is None:
            side = ET.Element("input")
            layer.insert(list(layer).index(ports), side)
        more = self.outer._loop_inputs.setdefault(self.owner.id, [])
        port_id = f"new {len(more)}"
        dtype = self.outer._dtype(value)
        _fill(ET.SubElement(side, "port", {"id": port_id, "precision": PRECISIONS[dtype]}), self.flow, value)
        ET.SubElement(ports, "input", {"external_port_id": port_id, "internal_layer_id": key})
        more.append(value)
        shape = self.flow.shape(value)
        words = "..." if shape is None else ",".join(str(s) if isinstance(s, int) else "?" for s in shape)
        data = {"shape": words, "element_type": ELEMENT_WORDS[dtype]}
        self._dtypes[value] = dtype
        return self._element("Parameter", "opset1", data, key, self.reader.fresh(value), [], [value])[0]

    def _constant(self, value: str, array: Array) -> _Port:
        words = ELEMENT_WORDS[array.dtype.name]
        data = {"element_type": words, "shape": ", ".join(map(str, array.shape)), "offset": "0", "size": "0"}
        self._dtypes[value] = array.dtype.name
        key = str(next(self._ids))
        port = self._element("Const", "opset1", data, key, value, [], [value])[0]
        element = self._layers[-1].find("data")
        assert element is not None
        self.bin.hold(element, array)
        return port

    # Layers

    def _add(self, op: Op) -> None:
        """Add the layer of a new operator."""
        if all(name in self._moves and self._source(name)[0] != name for name in op.outputs if name):
            return  # added at its use
        for name in op.outputs:
            if name:
                self._dtypes[name] = output_dtype(op, self._dtype)
        self._layer(op, layer_of(self.flow, op))

    def _layer(self, op: Op, new: NewLayer, first: _Port | None = None) -> _Port:
        sources: list[tuple[_Port, str]] = []
        for index, item in enumerate(new.inputs):
            name = item if isinstance(item, str) else f"{op.name}/{index}"
            if not isinstance(item, str):
                name = self.reader.fresh(name)
                self.flow.add_constant(name, item)
            sources.append((first if first is not None and index == 0 else self._port(name), name))
        key = str(next(self._ids))
        name = op.name or op.outputs[0]
        ports = self._element(new.type, new.version, new.data, key, name, sources, op.outputs)
        self._ports.update((name, port) for name, port in zip(op.outputs, ports, strict=True) if name)
        return ports[0]

    def _element(
        self,
        kind: str,
        version: str,
        data: Mapping[str, str],
        key: str,
        name: str,
        sources: Sequence[tuple[_Port, str]],
        outputs: Sequence[str],
    ) -> list[_Port]:
        """Add a layer, and return its output ports."""
        element = ET.SubElement(self._layers, "layer", id=key, name=name, type=kind, version=version)
        if data:
            ET.SubElement(element, "data", dict(data))
        side = ET.SubElement(element, "input") if sources else element
        for index, (source, value) in enumerate(sources):
            _fill(
                ET.SubElement(side, "port", {"id": str(index), "precision": PRECISIONS[self._dtype(value)]}),
                self.flow,
                value,
            )
            self._edge(source, key, str(index))
        side = ET.SubElement(element, "output")
        found: list[_Port] = []
        for index, value in enumerate(outputs, len(sources)):
            precision = PRECISIONS[self._dtype(value)]
            port = ET.SubElement(side, "port", {"id": str(index), "precision": precision})
            _fill(port, self.flow, value)
            found.append((key, str(index)))
            self._elements[found[-1]] = port
        return found

    def _result(self, value: str) -> _Port:
        """Return the port for an output of the graph, with the names of the value."""
        names = self.graph.tensor_names.get(value, ())
        words = ",".join(name.replace(",", "\\,") for name in names)
        if value in self._kept_ports:
            if words:
                _port_of(self._layers, self._kept_ports[value]).set("names", words)
            return self._kept_ports[value]
        found = self._port(value)
        if not names:
            return found
        port = self._elements[found] if found in self._elements else _port_of(self._layers, found)
        if port.get("names", words) != words:  # OpenVINO confuses outputs of the same port
            same = NewLayer("Convert", "opset1", {"destination_type": ELEMENT_WORDS[self._dtype(value)]}, ())
            key, name = str(next(self._ids)), self.reader.fresh(value)
            found = self._element(same.type, same.version, same.data, key, name, [(found, value)], [value])[0]
            port = self._elements[found]
        port.set("names", words)
        return found


def _removed_but_needed(graph: IrGraph, alive: Collection[str], produced: Collection[str]) -> set[str]:
    """Return layers of removed operators that remaining layers need."""
    # Rules read axes and part sizes as constants, so no operator uses the values that they come from.
    waiting = [value for key in alive if key in graph.operators for value in graph.inputs[key]]
    found: set[str] = set()
    while waiting:
        value = waiting.pop()
        key = graph.ports[value][0] if value in graph.ports and value not in produced else ""
        if key in graph.operators and key not in alive and key not in found:
            found.add(key)
            waiting += graph.inputs[key]
    return found


def _port_of(layers: ET.Element, port_key: _Port) -> ET.Element:
    """Return the port of a layer in the file."""
    for element in layers:
        if element.get("id") == port_key[0]:
            return next(port for port in element.iterfind("output/port") if port.get("id") == port_key[1])
    raise AssertionError(port_key)


def _renumber(graph: IrGraph, layer: Layer) -> None:
    """Renumber the ports of a loop with new inputs, like OpenVINO: inputs first, then outputs."""
    ports = [*layer.element.iterfind("input/port"), *layer.element.iterfind("output/port")]
    ids = {port.get("id", ""): str(index) for index, port in enumerate(ports)}
    for port in ports:
        port.set("id", ids[port.get("id", "")])
    for entry in layer.element.iterfind("port_map/*"):
        known = entry.get("external_port_id", "")
        entry.set("external_port_id", ids.get(known, known))
    for value, (key, port_id) in graph.ports.items():
        if key == layer.id:
            graph.ports[value] = key, ids[port_id]


def _fill(port: ET.Element, flow: Flow, value: str) -> None:
    """Write a value's sizes into a port."""
    for size in flow.shape(value) or ():
        ET.SubElement(port, "dim").text = str(size) if isinstance(size, int) else "-1"
