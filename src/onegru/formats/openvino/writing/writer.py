"""Write layers as an OpenVINO IR (version 11)."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from onegru.dataflow.operator import Shape, Size
from onegru.formats.graph import STATES_KEY, STATES_WORD
from onegru.formats.openvino.document import IrDocument
from onegru.formats.openvino.gru_layers import GruLayers, arranged_weights, dequantized, operator_of
from onegru.formats.openvino.writing.edit import new_ir
from onegru.formats.openvino.xml import set_notes
from onegru.formats.writing import Interface, Layers, suffixes
from onegru.operators.schema import Port, Role


def write_ir(path: Path, layers: Layers, cell: bool, interface: Interface) -> None:
    """Write an .xml file and its .bin."""
    operators = [operator_of(spec, cell) for spec, *_ in layers]
    ir = new_ir(path)
    builder = GruLayers(ir.graph.flow, ir.reader.names)
    sizes: dict[str, Size] = {
        "T": interface.seq_length or "dim:T",
        "B": interface.batch_size or "dim:B",
        "1": 1,
    }
    X, lengths = "", ""
    results: list[str] = []

    def shape_of(port: Port) -> Shape:
        return tuple(sizes[axis] for axis in port.axes)

    for operator, (spec, weights, group), suffix in zip(operators, layers, suffixes(layers), strict=True):
        is_last = len(results) == len(layers) - 1
        sizes |= {"I": spec.input_size, "D": spec.num_directions, "H": spec.hidden_size}
        arrays = arranged_weights(spec, weights, operator)
        given: dict[Role, str] = {}
        for port in operator.inputs:
            name = port.name + suffix
            if port.role == "X":
                X = X or ir.add_input("X", spec.dtype, shape_of(port))
                value = X
            elif port.role == "sequence_lens":
                if not lengths and interface.sequence_lens:
                    lengths = ir.add_input(port.name, "int32", shape_of(port))
                value = lengths = lengths or builder.lengths("X", sizes["T"], sizes["B"], port.name)
            elif port.role == "initial_h" and not interface.initial_h:
                value = builder.zeros("X", shape_of(port), spec.dtype, name)
            elif port.role not in arrays:
                value = ir.add_input(name, spec.dtype, shape_of(port))
            elif group is None or port.role == "B" or (group and arrays[port.role].shape[2] % group):
                # An incomplete group cannot be an axis.
                value = builder.weight(name, arrays[port.role])
            else:
                value = dequantized(builder, builder.op, name, arrays[port.role], group)
            given[port.role] = value
        shapes = {
            "Y" if port.name == "Y" and is_last else port.name + suffix: shape_of(port)
            for port in operator.outputs
        }
        *Y, Y_h = builder.layer(operator, spec, given, shapes, operator.name + suffix)
        results.append(Y_h)
        X = builder.merged_directions(Y[0]) if Y and not is_last else Y_h
    ir.graph.flow.ops = builder.ops
    ir.graph.flow.reconnect()
    for name in results if cell else ("Y", *results):
        ir.add_output(name, layers[0][0].dtype, builder.shape(name))
    content = ir.write(not_folded=builder.not_folded)
    if interface.initial_h:  # onegru can run it without its initial states
        set_notes(ir.root, {STATES_KEY: STATES_WORD})
    ET.indent(ir.root, "\t")
    IrDocument(ir.root, content).write(path)
