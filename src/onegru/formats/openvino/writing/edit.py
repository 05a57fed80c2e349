"""Apply changes of a graph to its IR."""

from __future__ import annotations

import copy
import functools
import xml.etree.ElementTree as ET
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import numpy as np

from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import SpecError
from onegru.dataflow.edit import Edit, Staged
from onegru.dataflow.operator import Shape
from onegru.formats.graph import Graph
from onegru.formats.openvino.constants import BinContent, Constants
from onegru.formats.openvino.document import IrDocument
from onegru.formats.openvino.fields import ELEMENT_WORDS, PRECISIONS, AttributeParser
from onegru.formats.openvino.flow import IrGraph, IrGraphReader
from onegru.formats.openvino.kinds import WRITTEN
from onegru.formats.openvino.reader import root_of
from onegru.formats.openvino.writing.graph_writer import GraphWriter, IrBin
from onegru.formats.openvino.xml import Layer, parse_layers, parse_net, set_notes

#: Layer attributes for ONNX attributes: the names in <data> for the parts of a list.
_HALVES = {"pads": ("pads_begin", "pads_end")}
_LENGTHS = {"openvino::LSTMSequence": 3}
_WINDOWS = (
    *("Convolution", "GroupConvolution", "MaxPool", "AvgPool"),
    *("ConvolutionBackpropData", "GroupConvolutionBackpropData"),
)
#: The attributes that can be changed in a layer.
_ATTRIBUTES: Mapping[str, set[str]] = {
    **{kind: {"pads", "auto_pad"} for kind in _WINDOWS},
    "Reshape": {"allowzero"},
}


class Ir:
    """IR in memory, with its flow."""

    def __init__(self, path: Path, root: ET.Element, weights: BinContent) -> None:
        self.root = root
        self.parser = AttributeParser(path)
        self.constants = Constants(self.parser, weights)
        self.reader = IrGraphReader(self.parser, self.constants)
        self.graph: IrGraph = self.reader.read(parse_net(path, root), root)

    def add_input(self, name: str, dtype: str, shape: Shape) -> str:
        """Add an input: the value of this name."""
        self.graph.flow.set_dtype(name, dtype)
        self.graph.flow.set_shape(name, shape)
        self.graph.flow.inputs.append(name)
        self._add_port_layer(name, "Parameter", dtype, shape)
        return name

    def add_output(self, name: str, dtype: str, shape: Shape) -> None:
        """Add an output: the value of this name."""
        self.graph.flow.outputs.append(name)
        self._add_port_layer(name, "Result", dtype, shape)

    def write(self, rewritten: Collection[int] = (), not_folded: Collection[str] = ()) -> Callable[[], Array]:
        """Write the changed flow into the XML; returns the function that places the constants in the .bin."""
        container = IrBin(self.constants)
        GraphWriter(self.graph, self.reader, container, rewritten=rewritten, not_folded=not_folded).write()
        return functools.partial(container.collect, self.root)

    def _add_port_layer(self, name: str, kind: str, dtype: str, shape: Shape) -> None:
        """Add a Parameter or a Result."""
        graph = self.graph
        ids = [int(key) for key in graph.net.layers if key.isdecimal()]
        key = str(max(ids, default=-1) + 1)
        layers = graph.element.find("layers")
        assert layers is not None
        label = name if kind == "Parameter" else f"{name}/result"
        element = ET.SubElement(layers, "layer", id=key, name=label, type=kind, version="opset1")
        dims = [str(size) if isinstance(size, int) else "-1" for size in shape]
        if kind == "Parameter":
            words = ",".join("?" if size == "-1" else size for size in dims)
            ET.SubElement(element, "data", {"shape": words, "element_type": ELEMENT_WORDS[dtype]})
        side = ET.SubElement(element, "output" if kind == "Parameter" else "input")
        port = ET.SubElement(side, "port", {"id": "0", "precision": PRECISIONS[dtype]})
        for size in dims:
            ET.SubElement(port, "dim").text = size
        whole = ET.Element("net")
        ET.SubElement(whole, "layers").append(element)
        graph.net.layers[key] = parse_layers(self.parser.path, whole).layers[key]  # type: ignore[index]
        if kind == "Parameter":
            port.set("names", name)
            graph.ports[name], graph.inputs[key] = (key, "0"), ()
        else:
            element.set("output_names", name)
            graph.inputs[key], graph.results[key] = (name,), name
            graph.tensor_names[name] = (*graph.tensor_names.get(name, ()), name)


class EditedIr(Ir):
    """IR with its changes. Inputs and outputs are values of the flow, by name."""

    def __init__(self, graph: Graph) -> None:
        outline = graph.outline
        assert outline is not None and outline.weights is not None
        super().__init__(Path(graph.path), copy.deepcopy(root_of(graph)), outline.weights)
        values = {f"{layer}:{port}": name for name, (layer, port) in self.graph.ports.items()}
        self.inputs = {info.name: values[info.value] for info in graph.inputs}
        self.outputs = {info.name: values[info.value] for info in graph.outputs}
        self.edit = Edit(self.graph.flow, self.reader.names)

    def document(self) -> IrDocument:
        """Return the IR with its changes."""
        document = IrDocument(self.root, lambda: self.constants.weights)
        if not self.edit.is_empty():
            document = _apply_edit(self, self.edit)
        set_notes(self.root, self.edit.metadata)
        return document


def new_ir(path: Path) -> Ir:
    """Return an IR without layers."""
    root = ET.Element("net", name="onegru", version="11")
    root.extend(map(ET.Element, ("layers", "edges")))
    return Ir(path, root, np.zeros(0, np.uint8))


def _apply_edit(ir: Ir, edit: Edit) -> IrDocument:
    """Apply the changes to an IR."""
    graph, flow = ir.graph, ir.graph.flow
    for staged in edit.changes():
        _fill_in(staged, edit)
    rewritten = {id(staged.op) for staged in edit.changes() if not _change_in_place(graph, staged)}
    for staged in edit.changes():
        op = staged.op
        if id(op) in rewritten and staged.kind not in ("Identity", *WRITTEN):
            raise SpecError(f"{op.kind} layer {op.name!r}: this change is not supported")
        op.kind, op.inputs, op.outputs = staged.kind, tuple(staged.inputs), tuple(staged.outputs)
        if staged.is_replaced:
            op.attributes = {}
        elif id(op) in rewritten:
            changed = {**op.attributes, **staged.attributes}
            op.attributes = {name: value for name, value in changed.items() if value is not None}
    flow.ops = list(edit.in_order([(op, op) for op in flow.ops]))
    for name, value in edit.inputs.items():
        ir.add_input(
            name, value.dtype, tuple(f"dim:{size}" if isinstance(size, str) else size for size in value.shape)
        )
    flow.reconnect()
    for name, value in edit.outputs.items():
        ir.add_output(name, value.dtype, value.shape)
    for (name, axis), size in edit.sizes.items():
        _resize(graph, name, axis, size)
    return IrDocument(ir.root, ir.write(rewritten, edit.not_folded))


def _change_in_place(graph: IrGraph, staged: Staged) -> bool:
    """Change an operator's layer in place; return False if another layer is needed."""
    op, layer = staged.op, staged.op.origin
    if staged.is_replaced or not isinstance(layer, Layer) or len(op.inputs) > len(layer.inputs):
        return False
    layer_inputs = list(graph.inputs[layer.id])
    if list(op.inputs) != layer_inputs[: len(op.inputs)]:
        return False
    if not staged.attributes.keys() <= _ATTRIBUTES.get(layer.type, set()) or "" in staged.inputs:
        return False
    graph.inputs[layer.id] = (*staged.inputs, *layer_inputs[len(op.inputs) :])
    for old, new in zip(op.outputs, staged.outputs, strict=True):
        if old != new:
            graph.ports[new] = graph.ports.pop(old)
    data = layer.element.find("data")
    if data is None:
        data = ET.Element("data")
        layer.element.insert(0, data)
    for name, value in staged.attributes.items():
        if name in _HALVES:
            for index, half in enumerate(_HALVES[name]):
                numbers = value[index * len(value) // 2 : (index + 1) * len(value) // 2]
                data.set(half, ",".join(map(str, numbers)))
        elif name == "auto_pad":
            data.set("auto_pad", "explicit")
        else:
            data.set("special_zero", "true")
    return True


def _fill_in(staged: Staged, edit: Edit) -> None:
    """Add lengths and initial states, which are optional in ONNX."""
    op, inputs = staged.op, staged.inputs
    if not op.kind.endswith("Sequence") or all(inputs):
        return
    index = _LENGTHS.get(op.kind, 2)
    shape = edit.add("Shape", [inputs[0]], f"{op.name}/shape", before=op)
    edit.flow.set_dtype(shape, "int64")
    steps, rows = (
        edit.add("Gather", [shape, edit.ints(axis)], f"{op.name}/{what}", before=op, axis=0)
        for axis, what in ((1, "steps"), (0, "rows"))
    )
    if not inputs[index]:
        inputs[index] = edit.add("Expand", [steps, rows], f"{op.name}/lengths", before=op)
        edit.not_folded |= {shape, steps, inputs[index]}  # the number of steps is now dynamic
    for state in range(1, index):
        if not inputs[state]:
            known, dtype = edit.flow.shape(op.inputs[index + 2]), edit.flow.dtype(op.inputs[index + 2])
            assert known is not None
            rest = edit.ints(int(known[0]), int(known[-1]))
            sizes = edit.add("Concat", [rows, rest], f"{op.name}/sizes", before=op, axis=0)
            zero = edit.constant("onegru/zero", np.zeros(1, numpy_dtype(dtype or "float32")))
            inputs[state] = edit.add("Expand", [zero, sizes], f"{op.name}/zeros", before=op)


def _resize(graph: IrGraph, name: str, axis: int, size: object) -> None:
    """Make a size of a Parameter dynamic; OpenVINO infers the others."""
    layer = graph.net.layers.get(graph.ports.get(name, ("", ""))[0])
    if layer is None or layer.type != "Parameter" or isinstance(size, int):
        return
    data = layer.element.find("data")
    assert data is not None
    sizes = data.attrib["shape"].split(",")
    sizes[axis] = "?"
    data.set("shape", ",".join(sizes))
    for index, dim in enumerate(layer.element.iterfind("output/port/dim")):
        dim.text = "-1" if index == axis else dim.text
