"""Convert OpenVINO IRs to flows."""

from __future__ import annotations

import functools
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onegru.dataflow.flow import Flow
from onegru.dataflow.names import fresh_name
from onegru.dataflow.operator import Op, Shape, Size
from onegru.dataflow.port_loops import LOOP, LoopPorts, SliceSpec
from onegru.formats.openvino.constants import Constants
from onegru.formats.openvino.fields import ELEMENT_TYPES, AttributeParser
from onegru.formats.openvino.kinds import LayerTranslation, translate
from onegru.formats.openvino.xml import PORTS, IrPort, Layer, Net, inner_layers, parse_layers

_LOOPS = ("TensorIterator", "Loop")
_NO_OPERATORS = ("Parameter", "Const", "Result")


@dataclass(eq=False, slots=True)
class IrGraph:
    """An IR, or a body in it, and its flow."""

    element: ET.Element  # what the file has of it
    net: Net  # its layers and edges
    flow: Flow  # its flow
    # the layer and port that give each value of the file
    native: dict[str, tuple[str, str]] = field(default_factory=dict)
    # the input values of each layer, in the order of its ports
    inputs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # the values that its Result layers take, by their ids
    results: dict[str, str] = field(default_factory=dict)
    # the names that the file has for values
    tensors: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # the operator that gives what a layer gives, by the layer's id
    operators: dict[str, Op] = field(default_factory=dict)
    inner: set[Op] = field(default_factory=set)  # the operators on the way to those
    bodies: dict[str, IrGraph] = field(default_factory=dict)  # the graphs within it, by the layer's id


class IrReader:
    """Reads the graphs of one file.

    Args:
        parser: the parser of the file's attributes.
        constants: the constants of the file.

    Attributes:
        names: all used names.
    """

    def __init__(self, parser: AttributeParser, constants: Constants) -> None:
        self.parser = parser
        self.constants = constants
        self.names: set[str] = set()
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
        aliases: Mapping[str, str] | None = None,
    ) -> IrGraph:
        """A graph as a flow."""
        graph = IrGraph(element, net, Flow([], [], [], {}, outer=outer))
        order = net.ordered(self.parser.path)
        for layer in net.layers.values():
            self._name(graph, layer, prefix)
        given = {ends: name for name, ends in graph.native.items()}
        constants, inputs = {}, []
        for layer in net.layers.values():
            if layer.type in PORTS:
                net.check_ports(layer, self.parser.path)
            graph.inputs[layer.id] = tuple(given[net.edges[layer.id, port.id]] for port in layer.inputs)
            if layer.type == "Const":
                self.constants.check(layer)
                if layer.data["element_type"] in ELEMENT_TYPES:
                    name = given[layer.id, layer.outputs[0].id]
                    constants[name] = functools.partial(self.constants.array, layer)
            elif layer.type == "Parameter":
                inputs.append(given[layer.id, layer.outputs[0].id])
            elif layer.type == "Result":
                graph.results[layer.id] = graph.inputs[layer.id][0]
        bound = {
            given[layer_id, net.layers[layer_id].outputs[0].id]: name
            for layer_id, name in (aliases or {}).items()
        }
        graph.flow = Flow([], inputs, list(graph.results.values()), constants, None, None, outer, bound)
        self._learn(graph, given)
        for layer in order:
            if layer.type not in _NO_OPERATORS:
                self._add(graph, layer, given)
        graph.flow.index()
        return graph

    def _name(self, graph: IrGraph, layer: Layer, prefix: str) -> None:
        """Name the outputs of a layer after the layer."""
        base = f"{prefix}{layer.name or layer.id}"
        for place, port in enumerate(layer.outputs):
            wanted = base if len(layer.outputs) == 1 else f"{base}.{place}"
            name = self.fresh(wanted)
            graph.native[name] = (layer.id, port.id)
            if port.names:
                graph.tensors[name] = port.names

    def _learn(self, graph: IrGraph, given: Mapping[tuple[str, str], str]) -> None:
        """Record the types and shapes that the ports state."""
        for layer in graph.net.layers.values():
            for port in layer.outputs:
                name = given[layer.id, port.id]
                dtype = self.parser.precision(port)
                if dtype != "unknown":
                    graph.flow.set_dtype(name, dtype)
                shape = self._shape(graph.flow, name, layer, port)
                if shape is not None:
                    self._stated[name] = shape
                    graph.flow.set_shape(name, shape)

    def _shape(self, flow: Flow, name: str, layer: Layer, port: IrPort) -> Shape | None:
        if layer.type == "Const":
            return self.parser.items(layer, "shape", self.parser.integer)
        dims: Sequence[int | str | None] | None
        if layer.type == "Parameter":
            dims = self.parser.shape(layer, "shape")
        else:  # ports of unknown rank and of scalars have no sizes
            dims = [int(dim) if re.fullmatch("[0-9]{1,12}", dim) else None for dim in port.dims] or None
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

    def _add(self, graph: IrGraph, layer: Layer, given: Mapping[tuple[str, str], str]) -> None:
        """Add the operators of a layer."""
        takes, flow = graph.inputs[layer.id], graph.flow
        gives = tuple(given[layer.id, port.id] for port in layer.outputs)
        ops: list[Op] = []
        if layer.type in _LOOPS and layer.element.find("body") is not None:
            ops = self._loop(graph, layer, takes, gives)
        own = 0 if ops else -1
        if not ops:
            for inner in inner_layers(self.parser.path, layer):
                if inner.type == "Const":
                    self.constants.check(inner)
            ops = translate(LayerTranslation(self.parser, layer, takes, gives, flow, self.fresh))
        ops[own].origin = layer
        graph.operators[layer.id] = ops[own]
        graph.inner.update(op for op in ops if op.origin is None)
        flow.ops += ops
        for op in ops:
            for name in op.outputs:
                if name:
                    flow.producers[name] = op

    # Loops

    def _loop(self, graph: IrGraph, layer: Layer, takes: tuple[str, ...], gives: tuple[str, ...]) -> list[Op]:
        """Return a loop with its body, then operators that repeat its outputs; empty for unknown loops."""
        element = layer.element.find("body")
        assert element is not None
        net = parse_layers(self.parser.path, element)
        ports = _Ports(self.parser, layer, net)
        if not ports.is_known:
            return []
        aliases = {inner: takes[place] for place, inner in ports.invariant}
        body = self.read(net, element, f"{layer.name or layer.id}/", graph.flow, aliases)
        graph.bodies[layer.id] = body
        parameters = [item.id for item in net.layers.values() if item.type == "Parameter"]
        results = list(body.results)
        attributes = ports.described(parameters, results)
        outputs = list(gives)
        ops: list[Op] = []
        finals: dict[str, str] = {}
        for place, inner in attributes.last:  # two outputs can have the same final value
            value = body.flow.resolve(body.flow.outputs[inner])
            if value in finals:
                ops.append(Op("Identity", (finals[value],), (gives[place],), name=self.fresh(gives[place])))
                outputs[place] = ""
            finals.setdefault(value, gives[place])
        attributes = LoopPorts(
            attributes.slices,
            attributes.merged,
            attributes.collected,
            tuple(item for item in attributes.last if outputs[item[0]]),
            attributes.iterations,
            attributes.condition,
        )
        kind = f"openvino::{layer.type}"
        loop = Op(kind, takes, tuple(outputs), {"ports": attributes}, {"body": body.flow}, name=layer.name)
        self._unify(graph.flow, loop, attributes)
        return [loop, *ops]

    def _unify(self, flow: Flow, op: Op, ports: LoopPorts) -> None:
        """Give the sizes of sliced axes one name, because a loop takes the same number of slices of each."""
        shapes = [(flow.shape(op.inputs[place]), cut.axis) for place, _, cut in ports.slices]
        sizes = [shape[axis] for shape, axis in shapes if shape and -len(shape) <= axis < len(shape)]
        if not ports.slices and op.kind == LOOP:
            sizes = list(flow.sizes(op.inputs[0]) or ())[:1]
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


class _Ports:
    """The port map of a loop."""

    def __init__(self, parser: AttributeParser, layer: Layer, net: Net) -> None:
        self.parser = parser
        self.layer = layer
        self.is_known = True
        self.invariant: list[tuple[int, str]] = []
        self.merged: list[tuple[int, str, str]] = []
        self.slices: list[tuple[int, str, SliceSpec]] = []
        self.collected: list[tuple[int, str, SliceSpec]] = []
        self.last: list[tuple[int, str]] = []
        self.iterations: list[str] = []
        self.condition: str | None = None
        inputs, outputs = ([port.id for port in ports] for ports in (layer.inputs, layer.outputs))
        back = {
            edge.get("to-layer", ""): edge.get("from-layer", "")
            for edge in layer.element.iterfind("back_edges/edge")
        }
        kinds = {item.id: item.type for item in net.layers.values()}
        if any(kinds.get(a) != "Parameter" or kinds.get(b) != "Result" for a, b in back.items()):
            raise parser.error(f"{layer}: a back edge must connect a Result of its body to a Parameter")
        for entry in layer.element.iterfind("port_map/*"):
            outer, inner = entry.get("external_port_id", ""), entry.get("internal_layer_id", "")
            wanted = "Parameter" if entry.tag == "input" else "Result"
            if kinds.get(inner) != wanted:
                raise parser.error(
                    f"{layer}: its port_map names {inner!r}, which is not a {wanted} layer of its body"
                )
            purpose = entry.get("purpose", "")
            if purpose == "current_iteration" and wanted == "Parameter":
                self.iterations.append(inner)
            elif purpose == "execution_condition" and wanted == "Result":
                self.condition = inner
            elif purpose:
                self.is_known = False
            if outer in ("", "-1") and purpose:
                continue
            known = inputs if wanted == "Parameter" else outputs
            if outer not in known:
                raise parser.error(f"{layer}: its port_map names port {outer!r}, which does not exist")
            place, axis = known.index(outer), entry.get("axis", "")
            if wanted == "Parameter" and axis:
                self.slices.append((place, inner, SliceSpec(*parser.cut(layer, entry))))
            elif wanted == "Parameter" and inner in back:
                self.merged.append((place, inner, back[inner]))
            elif wanted == "Parameter":
                self.invariant.append((place, inner))
            elif axis:
                self.collected.append((place, inner, SliceSpec(*parser.cut(layer, entry))))
            else:
                self.last.append((place, inner))
        fed = [inner for _, inner, *_ in (*self.slices, *self.merged, *self.invariant)] + self.iterations
        if len(set(fed)) != len(fed) or len(self.iterations) > 1:
            raise parser.error(f"{layer}: its port_map names an input of its body twice")
        if set(fed) != {name for name, kind in kinds.items() if kind == "Parameter"}:
            self.is_known = False

    def described(self, parameters: list[str], results: list[str]) -> LoopPorts:
        """Return the map, with the body's inputs and outputs by index."""
        return LoopPorts(
            tuple((place, parameters.index(inner), cut) for place, inner, cut in self.slices),
            tuple((place, parameters.index(a), results.index(b)) for place, a, b in self.merged),
            tuple((place, results.index(inner), cut) for place, inner, cut in self.collected),
            tuple((place, results.index(inner)) for place, inner in self.last),
            tuple(parameters.index(inner) for inner in self.iterations),
            None if self.condition is None else results.index(self.condition),
        )
