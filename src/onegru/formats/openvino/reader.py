"""Read OpenVINO IRs (.xml with .bin, versions 10 and 11) as `Graph`.

A file with only Parameter, Const, Convert, Result, GRUCell, GRUSequence, AUGRUCell and AUGRUSequence layers
becomes steps that do not need OpenVINO. OpenVINO runs all other models, with onegru for their GRU layers.
"""

from __future__ import annotations

import copy
import functools
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from onegru.core.errors import BROKEN, FormatError, SpecError
from onegru.core.wording import count
from onegru.formats.graph import (
    STATES_KEY,
    STATES_WORD,
    STREAM_KEY,
    Graph,
    GruStep,
    LazyConstants,
    Outline,
    TensorInfo,
    initial_states,
)
from onegru.formats.opened import Opened
from onegru.formats.openvino.constants import BinContent, Constants
from onegru.formats.openvino.fields import ELEMENT_TYPES, AttributeParser
from onegru.formats.openvino.flow import IrGraph, IrGraphReader, stated_dims
from onegru.formats.openvino.states import STATEFUL, ir_of
from onegru.formats.openvino.steps import PlacedLayer, Walker
from onegru.formats.openvino.whole import OpenvinoRuntimeModel, all_constants, marked
from onegru.formats.openvino.xml import PORTS, IrPort, Layer, Net, inner_layers, note_of, parse_net, parse_xml
from onegru.formats.sizes import with_sizes
from onegru.formats.states import find_states
from onegru.formats.stream_note import named_sizes, named_states, read_note
from onegru.operators.lowering import check_attributes
from onegru.operators.openvino import ONLY_IN_MEMORY, OPERATORS


def read_ir(file: Opened, *, keep_parsed: bool = False) -> Graph:
    """Read an IR; arguments as in `read_onnx`."""
    assert file.weights is not None
    root, text = file.once(ir_of)
    graph = ir_graph(file.path, copy.deepcopy(root), file.weights, text)
    return replace(graph, file=file if keep_parsed else replace(file))


def ir_graph(path: Path, root: ET.Element, weights: BinContent, text: bytes | None = None) -> Graph:
    """Return the graph of an IR's .xml."""
    text = text or ET.tostring(root, encoding="utf-8")
    graph = _GraphReader(path, parse_net(path, root), root, weights).read(text)
    if note_of(root, STATES_KEY) == STATES_WORD:
        graph = replace(graph, zero_inputs=initial_states(graph))
    note = note_of(root, STREAM_KEY)
    if note is None:
        return graph
    outputs = named_states(note, "output", graph.outputs)
    inputs = named_sizes(note, named_states(note, "input", graph.inputs))
    fields = None if inputs is None else read_note(note, inputs, outputs)
    if inputs is None or fields is None:
        raise FormatError(f"{path}: its metadata {STREAM_KEY!r} do not fit its inputs and outputs")
    return replace(graph, inputs=inputs, outputs=outputs, **fields)


def root_of(graph: Graph) -> ET.Element:
    """Return the XML of an IR that was read; callers must not change it."""
    outline, file = graph.outline, graph.file
    assert outline is not None
    if file is not None and file.once(ir_of)[1] is outline.content:
        return file.once(ir_of)[0]
    return parse_xml(outline.content, Path(graph.path))


# With fewer inputs, OpenVINO crashes when it reads the file (seen in 2026.4, where all types were tried).
_LEAST_INPUTS = {"Broadcast": 2, "MaxPool": 1, "Slice": 4}


class _GraphReader:
    """Reader of an IR as a `Graph`. A value has the name of its layer and port: "layer:port"."""

    def __init__(self, path: Path, net: Net, root: ET.Element, weights: BinContent) -> None:
        self.path = path
        self.net = net
        self.root = root
        self.nested: list[tuple[Layer, GruStep]] = []
        self.parser = AttributeParser(path)
        self.constants = Constants(self.parser, weights)
        self.types: dict[str, str] = {}  # element types by NumPy's names, or "unknown"
        self.grus: dict[str, GruStep] = {}
        self._same: dict[str, str] = {}  # values that equal another value, and the other value
        self._firsts: dict[tuple[object, ...], str] = {}

    def read(self, text: bytes) -> Graph:
        """Return the model, whose .xml is `text`, as a graph."""
        for layer in self.net.layers.values():
            self._check_layer(layer)
        parameters = [self._parameter(layer) for layer in self._of_type("Parameter")]
        placed = [item for layer in self.net.ordered(self.path) if (item := self._placed(layer)) is not None]
        self.grus = self._with_sizes()
        results = [self._result(layer) for layer in self._of_type("Result")]
        if not results:
            raise self.parser.error("no Result layer; must have at least one")
        parameters, results = self._distinct("inputs", parameters), self._distinct("outputs", results)
        values = [info.value for info in results]
        walker = Walker(self.parser, self.constants, placed, self.grus, values)
        graph = Graph(
            path=str(self.path),
            inputs=tuple(parameters),
            outputs=tuple(results),
            constants={},
            steps=(),
            grus=(*self.grus.values(), *(gru for _, gru in self.nested)),
            states=self._states(parameters, results),
            outline=Outline(text, self.constants.weights),
        )
        bare = {key: _without_lengths(gru) for key, gru in self.grus.items()}
        bare_walker = Walker(self.parser, self.constants, placed, bare, values)
        if not self.nested and (steps := bare_walker.steps()) is not None:
            constants, conversions = bare_walker.plain_constants()
            grus, prelude = tuple(bare.values()), tuple(conversions)
            return replace(graph, grus=grus, constants=constants, steps=steps, prelude=prelude)
        constants, conversions = walker.plain_constants()
        layers = [self.net.layers[key] for key in self.grus] + [layer for layer, _ in self.nested]
        for gru in graph.grus:
            check_attributes(gru.operator, gru.attributes, f"{self.path}: {gru}: ")
        whole = OpenvinoRuntimeModel(
            node_count=len(walker.others),
            shared=frozenset(),
            file=str(self.path),
            text=marked(self.root, (layer.element for layer in layers)),
            weights=self.constants.weights,
            grus=graph.grus,
            inputs=tuple(info.value for info in parameters),
            outputs=tuple(values),
            where=str(walker.others[0].layer) if walker.others else "the model",
        )
        lazy = LazyConstants(functools.partial(all_constants, constants, conversions, whole))
        return replace(graph, constants=lazy, whole=whole)

    def _with_sizes(self) -> dict[str, GruStep]:
        """Return the GRU layers with their sizes; unchanged if other layers cannot be followed."""
        try:
            return with_sizes(self.grus, self._stated, lambda: self._graph.flow, self._name)
        except (FormatError, *BROKEN):
            return self.grus

    def _states(
        self, parameters: Sequence[TensorInfo], results: Sequence[TensorInfo]
    ) -> tuple[tuple[str, str], ...]:
        """Return the states that are inputs and outputs; empty if the layers cannot be followed."""
        if len(parameters) < 2:  # a state and a signal
            return ()
        try:
            return find_states(lambda: self._graph.flow, self.grus.values(), parameters, results, self._name)
        except (FormatError, *BROKEN):
            return ()

    @functools.cached_property
    def _graph(self) -> IrGraph:
        """Return the IR as a flow."""
        return IrGraphReader(self.parser, self.constants).read(self.net, self.root)

    @functools.cached_property
    def _names(self) -> dict[str, str]:
        return {":".join(ends): name for name, ends in self._graph.ports.items()}

    def _name(self, value: str) -> str:
        """Return the name of a value in the flow."""
        return self._names[value]

    def _stated(self, value: str) -> tuple[int | None, ...] | None:
        """Return the shape of a value according to the file."""
        dims = stated_dims(self.parser, *self._origin(value))
        return None if dims is None else tuple(size if isinstance(size, int) else None for size in dims)

    def _origin(self, value: str) -> tuple[Layer, IrPort]:
        """Return the layer and port whose output is a value."""
        layer_id, _, port_id = value.rpartition(":")
        layer = self.net.layers[layer_id]
        return layer, next(port for port in layer.outputs if port.id == port_id)

    def _distinct(self, side: str, infos: list[TensorInfo]) -> list[TensorInfo]:
        """Return inputs or outputs with unique names: for each the first name that is not yet used."""
        used: set[str] = set()
        distinct: list[TensorInfo] = []
        for info in infos:
            names = (info.name, *info.aliases)
            name = next((name for name in names if name not in used), None)
            if name is None:
                raise self.parser.error(f"two {side} have the same name, {info.name!r}")
            used.add(name)
            aliases = tuple(other for other in names if other != name)
            distinct.append(replace(info, name=name, aliases=aliases))
        return distinct

    # Layers

    def _of_type(self, kind: str) -> list[Layer]:
        return [layer for layer in self.net.layers.values() if layer.type == kind]

    def _check_layer(self, layer: Layer) -> None:
        if layer.type in OPERATORS:
            self._check_version(layer)
        elif layer.type in PORTS:
            self.net.check_ports(layer, self.path)
        else:
            self._check_other(layer)
            for inner in inner_layers(self.path, layer):
                if inner.type in OPERATORS:
                    self._check_version(inner)
                    self.nested.append((inner, self._nested_gru(inner, layer)))
                    continue
                self._check_other(inner)
                if inner.type == "Const":
                    self.constants.check(inner)

    def _check_version(self, layer: Layer) -> None:
        least = OPERATORS[layer.type].version
        opset = re.fullmatch(r"opset(\d{1,3})", layer.version)
        if not least or layer.version == "extension" or (opset is not None and int(opset[1]) >= least):
            return
        raise self.parser.error(
            f"{layer}: version {layer.version!r}; must be opset{least} or later, or onegru's own, extension"
        )

    def _check_other(self, layer: Layer) -> None:
        """Reject states in bodies, layers of onegru itself, and layers that crash the process."""
        if layer.type in STATEFUL:  # in a body
            raise self.parser.error(
                f"{layer}: keeps a state between runs in the body of another layer; must be outside of it, "
                "because the state becomes an input and an output"
            )
        least = _LEAST_INPUTS.get(layer.type, 0)
        if len(layer.inputs) < least:
            raise self.parser.error(
                f"{layer}: {count(len(layer.inputs), 'input')}; must have at least {least}"
            )
        for entry in layer.element.iterfind("port_map/*[@axis]"):
            self.parser.cut(layer, entry)
        if layer.type.startswith("OneGRU"):
            raise self.parser.error(f"{layer}: is {ONLY_IN_MEMORY}")

    def _input_value(self, layer: Layer, index: int = 0) -> str:
        """Return the value of an input of a layer."""
        value = ":".join(self.net.source(layer, layer.inputs[index], self.path))
        return self._same.get(value, value)

    def _output_value(self, layer: Layer, index: int = 0) -> str:
        """Return the value of an output of a layer."""
        return f"{layer.id}:{layer.outputs[index].id}"

    def _parameter(self, layer: Layer) -> TensorInfo:
        value = self._output_value(layer)
        dtype = self.parser.element_type(layer, "element_type")
        shape = self.parser.shape(layer, "shape")
        self.types[value] = dtype
        names = layer.outputs[0].names or (layer.name,)
        # The names are sorted and include those of removed operators; the layer's name is the input's own.
        own = layer.name if layer.name in names else names[0]
        others = (*(name for name in names if name != own), *([layer.name] if layer.name != own else []))
        return TensorInfo(own, dtype, shape, aliases=others, value=value)

    def _result(self, layer: Layer) -> TensorInfo:
        value = self._input_value(layer)
        _, port = self._origin(":".join(self.net.source(layer, layer.inputs[0], self.path)))
        names = (*port.names, layer.name)
        shape = tuple(self.parser.dimension(layer, "dim", dim) for dim in port.dims) if port.dims else None
        return TensorInfo(names[0], self.types[value], shape, aliases=names[1:], value=value)

    def _placed(self, layer: Layer) -> PlacedLayer | None:
        """Return the layer with its values; None if an earlier layer computes the same."""
        inputs = tuple(self._input_value(layer, index) for index in range(len(layer.inputs)))
        outputs = tuple(self._output_value(layer, index) for index in range(len(layer.outputs)))
        key: tuple[object, ...] | None = None
        if layer.type == "Const":
            key = self.constants.check(layer)
            self.types[outputs[0]] = ELEMENT_TYPES.get(layer.data["element_type"], "unknown")
        elif layer.type == "Convert":
            words = self.parser.data(layer, "destination_type")
            key = (*inputs, words)
            self.types[outputs[0]] = ELEMENT_TYPES.get(words, "unknown")
        elif layer.type in OPERATORS:
            self.grus[layer.id] = self._gru(layer, inputs, outputs)
        elif layer.type != "Parameter":
            self.types.update(zip(outputs, map(self.parser.precision, layer.outputs), strict=True))
        if key and (first := self._firsts.setdefault((layer.type, *key), outputs[0])) != outputs[0]:
            self._same[outputs[0]] = first
            return None
        return PlacedLayer(layer, inputs, outputs)

    def _nested_gru(self, layer: Layer, owner: Layer) -> GruStep:
        """Return a GRU layer in a body, whose values have their own names."""
        inputs, outputs = (
            [f"{owner.id}/{layer.id}:{port.id}" for port in ports] for ports in (layer.inputs, layer.outputs)
        )
        return self._gru_step(layer, inputs, outputs, (f"a body of {owner}",))

    def _gru(self, layer: Layer, inputs: Sequence[str], outputs: Sequence[str]) -> GruStep:
        step = self._gru_step(layer, inputs, outputs)
        if len(step.operator.outputs) < len(outputs):  # a cell
            self._same[outputs[1]] = outputs[0]  # both are Ho
        self.types.update(dict.fromkeys(outputs, self.types[step.inputs["X"]]))
        return step

    def _gru_step(
        self, layer: Layer, inputs: Sequence[str], outputs: Sequence[str], bodies: tuple[str, ...] = ()
    ) -> GruStep:
        operator = OPERATORS[layer.type]
        location = f"{self.path}: {layer}"
        least = sum(port.required for port in operator.inputs)
        if not least <= len(layer.inputs) <= len(operator.inputs):
            names = ", ".join(port.name for port in operator.inputs)
            raise SpecError(f"{location}: {count(len(layer.inputs), 'input')}; must be {names}")
        if not 1 <= len(layer.outputs) <= 2:
            raise SpecError(f"{location}: {count(len(layer.outputs), 'output')}; must be 1 or 2")
        attributes = {
            name: self.parser.attribute(layer, operator.attributes.get(name), text)
            for name, text in layer.data.items()
        }
        named_inputs = {port.name: value for port, value in zip(operator.inputs, inputs, strict=False)}
        named_outputs = {port.name: value for port, value in zip(operator.outputs, outputs, strict=False)}
        return GruStep(layer.name, operator, attributes, named_inputs, named_outputs, bodies)


def _without_lengths(gru: GruStep) -> GruStep:
    """Return a layer without lengths if they always equal the steps of X; otherwise the layer."""
    lengths = gru.operator.input("sequence_lens")
    if lengths is None or not gru.full_length:
        return gru
    return replace(gru, inputs={name: value for name, value in gru.inputs.items() if name != lengths.name})
