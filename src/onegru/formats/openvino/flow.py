"""Convert OpenVINO IRs to flows."""

from __future__ import annotations

import functools
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass, field

from onegru.dataflow.flow import Flow
from onegru.dataflow.loops.port_loops import LOOP, LoopPorts, SliceSpec
from onegru.dataflow.names import fresh_name
from onegru.dataflow.operator import Op, Shape, Size
from onegru.formats.graph import Dimension
from onegru.formats.openvino.constants import Constants
from onegru.formats.openvino.fields import ELEMENT_TYPES, AttributeParser
from onegru.formats.openvino.kinds import translate
from onegru.formats.openvino.translation import LayerTranslation
from onegru.formats.openvino.xml import PORTS, IrPort, Layer, Net, inner_layers, parse_layers

_LOOPS = ("TensorIterator", "Loop")
#: The layers that are inputs, constants and outputs of a flow, not operators.
NO_OPERATORS = ("Parameter", "Const", "Result")


@dataclass(eq=False, slots=True)
class IrGraph:
    """IR, or a body in it, with its flow."""

    element: ET.Element  # its XML element
    net: Net  # its layers and edges
    flow: Flow  # its flow
    # the ids of the layer and port that each value of the file comes from
    ports: dict[str, tuple[str, str]] = field(default_factory=dict)
    # the input values of each layer, in the order of its ports
    inputs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # the input values of its Result layers, by their ids
    results: dict[str, str] = field(default_factory=dict)
    # the file's names of its values
    tensor_names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # the operator with a layer's outputs, by the layer's id
    operators: dict[str, Op] = field(default_factory=dict)
    intermediate: set[Op] = field(default_factory=set)  # the other operators of layers
    bodies: dict[str, IrGraph] = field(default_factory=dict)  # the graphs of its bodies, by the layer's id


class IrGraphReader:
    """Reader of a file as an `IrGraph`."""

    def __init__(self, parser: AttributeParser, constants: Constants) -> None:
        self.parser = parser
        self.constants = constants
        self.names: set[str] = set()  # all used names
        self._owners: dict[Size, list[tuple[Flow, str]]] = {}  # the values that have each named size
        self._stated: dict[str, Shape] = {}

    def fresh(self, wanted: str) -> str:
        """Return a new name."""
        return fresh_name(wanted, self.names)

    def read(
        self,
        net: Net,
        element: ET.Element,
        prefix: str = "",
        outer: Flow | None = None,
        aliases: Mapping[int, str] | None = None,
    ) -> IrGraph:
        """Convert a graph to a flow."""
        graph = IrGraph(element, net, Flow([], [], [], {}, outer=outer))
        order = net.ordered(self.parser.path)
        for layer in net.layers.values():
            self._name(graph, layer, prefix)
        values = {ends: name for name, ends in graph.ports.items()}
        constants, inputs = {}, []
        for layer in net.layers.values():
            if layer.type in PORTS:
                net.check_ports(layer, self.parser.path)
            graph.inputs[layer.id] = tuple(values[net.edges[layer.id, port.id]] for port in layer.inputs)
            if layer.type == "Const":
                self.constants.check(layer)
                if layer.data["element_type"] in ELEMENT_TYPES:
                    name = values[layer.id, layer.outputs[0].id]
                    constants[name] = functools.partial(self.constants.array, layer)
            elif layer.type == "Parameter":
                inputs.append(values[layer.id, layer.outputs[0].id])
            elif layer.type == "Result":
                graph.results[layer.id] = graph.inputs[layer.id][0]
        bound = {inputs[index]: name for index, name in (aliases or {}).items()}
        graph.flow = Flow([], inputs, list(graph.results.values()), constants, None, None, outer, bound)
        self._set_stated(graph, values)
        for layer in order:
            if layer.type not in NO_OPERATORS:
                self._add(graph, layer, values)
        graph.flow.reconnect()
        return graph

    def _name(self, graph: IrGraph, layer: Layer, prefix: str) -> None:
        """Name the outputs of a layer after the layer."""
        base = f"{prefix}{layer.name or layer.id}"
        for index, port in enumerate(layer.outputs):
            wanted = base if len(layer.outputs) == 1 else f"{base}.{index}"
            name = self.fresh(wanted)
            graph.ports[name] = (layer.id, port.id)
            if port.names:
                graph.tensor_names[name] = port.names

    def _set_stated(self, graph: IrGraph, values: Mapping[tuple[str, str], str]) -> None:
        """Record the types and shapes that the ports state."""
        for layer in graph.net.layers.values():
            for port in layer.outputs:
                name = values[layer.id, port.id]
                dtype = self.parser.precision(port)
                if dtype != "unknown":
                    graph.flow.set_dtype(name, dtype)
                shape = self._shape(graph.flow, name, layer, port)
                if shape is not None:
                    self._stated[name] = shape
                    graph.flow.set_shape(name, shape)

    def _shape(self, flow: Flow, name: str, layer: Layer, port: IrPort) -> Shape | None:
        dims = stated_dims(self.parser, layer, port)
        if dims is None:
            return None
        sizes: list[Size] = []
        for dim in dims:
            if isinstance(dim, int):
                sizes.append(dim)
            else:
                sizes.append(f"size {len(self._owners)}")
                self._owners[sizes[-1]] = [(flow, name)]
        return tuple(sizes)

    def _add(self, graph: IrGraph, layer: Layer, values: Mapping[tuple[str, str], str]) -> None:
        """Add the operators of a layer."""
        inputs, flow = graph.inputs[layer.id], graph.flow
        outputs = tuple(values[layer.id, port.id] for port in layer.outputs)
        ops: list[Op] = []
        if layer.type in _LOOPS and layer.element.find("body") is not None:
            ops = self._loop(graph, layer, outputs)
        main = 0 if ops else -1  # its place among `ops`: a loop is the first, otherwise it is the last
        if not ops:
            for inner in inner_layers(self.parser.path, layer):
                if inner.type == "Const":
                    self.constants.check(inner)
            ops = translate(LayerTranslation(self.parser, layer, inputs, outputs, flow, self.fresh))
        ops[main].origin = layer
        graph.operators[layer.id] = ops[main]
        graph.intermediate.update(op for op in ops if op.origin is None)
        flow.ops += ops
        for op in ops:
            for name in op.outputs:
                if name:
                    flow.producers[name] = op

    # Loops

    def _loop(self, graph: IrGraph, layer: Layer, outputs: tuple[str, ...]) -> list[Op]:
        """Return a loop with its body, then operators that repeat its outputs; empty for unknown loops."""
        inputs, element = graph.inputs[layer.id], layer.element.find("body")
        assert element is not None
        net = parse_layers(self.parser.path, element)
        ports = _loop_ports(self.parser, layer, net)
        if ports is None:
            return []
        aliases = {inner: inputs[outer] for outer, inner in ports.invariant}
        body = self.read(net, element, f"{layer.name or layer.id}/", graph.flow, aliases)
        graph.bodies[layer.id] = body
        kept = list(outputs)
        ops: list[Op] = []
        finals: dict[str, str] = {}
        for outer, inner in ports.last:  # two outputs can have the same final value
            value, name = body.flow.resolve(body.flow.outputs[inner]), outputs[outer]
            if value in finals:
                ops.append(Op("Identity", (finals[value],), (name,), name=self.fresh(name)))
                kept[outer] = ""
            finals.setdefault(value, name)
        ports.last = [item for item in ports.last if kept[item[0]]]
        kind = f"openvino::{layer.type}"
        loop = Op(kind, inputs, tuple(kept), {"ports": ports}, {"body": body.flow}, name=layer.name)
        self._unify(graph.flow, loop, ports)
        return [loop, *ops]

    def _unify(self, flow: Flow, op: Op, ports: LoopPorts) -> None:
        """Give the sizes of sliced axes one name, because a loop takes the same number of slices of each."""
        shapes = [(flow.shape(op.inputs[outer]), spec.axis) for outer, _, spec in ports.sliced]
        sizes = [shape[axis] for shape, axis in shapes if shape and -len(shape) <= axis < len(shape)]
        if not ports.sliced and op.kind == LOOP:
            sizes = list(flow.as_sizes(op.inputs[0]) or ())[:1]
        fixed: list[Size] = [size for size in sizes if isinstance(size, int)]
        named = [size for size in sizes if isinstance(size, str)]
        known: list[Size] = fixed or [size for size in named if size.startswith("T")]
        chosen: Size = known[0] if known else f"T{len(self._owners)}"  # the prefix marks time axes
        if named and chosen not in self._owners:
            self._owners[chosen] = self._owners.get(named[0], [])
        for size in dict.fromkeys(named):
            if size == chosen or size not in self._owners:
                continue
            for owner, name in self._owners[size]:
                shape = tuple(chosen if item == size else item for item in self._stated[name])
                self._stated[name] = shape
                owner.set_shape(name, shape)
            if self._owners[chosen] is not self._owners[size]:
                self._owners[chosen] += self._owners[size]


def stated_dims(parser: AttributeParser, layer: Layer, port: IrPort) -> tuple[Dimension, ...] | None:
    """Return the sizes that the file states for an output; None if even the rank is unknown."""
    if layer.type in ("Parameter", "Const"):
        return parser.shape(layer, "shape")
    # Ports of unknown rank and of scalars have no sizes.
    return tuple(int(dim) if re.fullmatch("[0-9]{1,12}", dim) else None for dim in port.dims) or None


def _loop_ports(parser: AttributeParser, layer: Layer, net: Net) -> LoopPorts | None:
    """Parse the port map of a loop with the body `net`; None if a part of it is not supported."""
    inner_indices: dict[str, dict[str, int]] = {"Parameter": {}, "Result": {}}
    for item in net.layers.values():
        if (indices := inner_indices.get(item.type)) is not None:
            indices[item.id] = len(indices)
    parameters, results = inner_indices.values()
    back = {
        edge.get("to-layer", ""): edge.get("from-layer", "")
        for edge in layer.element.iterfind("back_edges/edge")
    }
    if any(a not in parameters or b not in results for a, b in back.items()):
        raise parser.error(f"{layer}: a back edge must connect a Result of its body to a Parameter")
    ports, is_supported = LoopPorts(), True
    for entry in layer.element.iterfind("port_map/*"):
        kind, outer_ports = ("Parameter", layer.inputs) if entry.tag == "input" else ("Result", layer.outputs)
        port_id, name = entry.get("external_port_id", ""), entry.get("internal_layer_id", "")
        if name not in inner_indices[kind]:
            raise parser.error(
                f"{layer}: its port_map names {name!r}, which is not a {kind} layer of its body"
            )
        inner, purpose, is_input = inner_indices[kind][name], entry.get("purpose", ""), kind == "Parameter"
        if purpose == "current_iteration" and is_input:
            ports.iterations.append(inner)
        elif purpose == "execution_condition" and not is_input:
            ports.condition = inner
        elif purpose:
            is_supported = False
        if port_id in ("", "-1") and purpose:
            continue
        outer = next((outer for outer, port in enumerate(outer_ports) if port.id == port_id), None)
        if outer is None:
            raise parser.error(f"{layer}: its port_map names port {port_id!r}, which does not exist")
        if entry.get("axis", ""):
            found = ports.sliced if is_input else ports.collected
            found.append((outer, inner, SliceSpec(*parser.cut(layer, entry))))
        elif is_input and name in back:
            ports.merged.append((outer, inner, results[back[name]]))
        else:
            (ports.invariant if is_input else ports.last).append((outer, inner))
    fed = [inner for _, inner, *_ in (*ports.sliced, *ports.merged, *ports.invariant)] + ports.iterations
    if len(set(fed)) != len(fed) or len(ports.iterations) > 1:
        raise parser.error(f"{layer}: its port_map names an input of its body twice")
    return ports if is_supported and len(fed) == len(parameters) else None
