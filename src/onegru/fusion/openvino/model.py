"""Replace the decomposed GRUs of an OpenVINO IR."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from onegru.core.dtypes import Array
from onegru.core.errors import BROKEN, FormatError, SpecError
from onegru.core.spec import Spec
from onegru.formats.openvino.constants import BinContent
from onegru.formats.openvino.fields import AttributeParser
from onegru.formats.openvino.flow import IrGraph
from onegru.formats.openvino.gru_layers import operator_of
from onegru.formats.openvino.kinds import WRITTEN
from onegru.formats.openvino.writing.edit import Ir
from onegru.fusion.cells.cell import Cell
from onegru.fusion.fuse import fuse_flow
from onegru.fusion.search import Progress, Search

_LONGEST = 200


def fuse_ir(
    path: Path,
    root: ET.Element,
    weights: BinContent,
    progress: Progress | None = None,
    *,
    only_layers: bool = False,
) -> tuple[Array, Search]:
    """Replace the decomposed GRUs of an IR, and loops of cells, by GRUSequence and GRUCell layers."""
    try:
        ir = Ir(path, root, weights)
        # OpenVINO ignores lengths where sizes are dynamic: see runtimes/known_issues.py.
        search = Search(
            ir.reader.names,
            str(path),
            progress=progress,
            why_not=_why_not,
            allows_lengths=False,
            writes=WRITTEN,
            only_layers=only_layers,
        )
        if not only_layers or _has_current_sizes(ir.graph, ir.parser):
            fuse_flow(ir.graph.flow, search)
        if not search.fused:
            return ir.constants.weights, search
        return ir.write()(), search
    except (FormatError, SpecError):
        raise
    except BROKEN as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise FormatError(f"{path}: cannot be searched for decomposed GRUs ({said[:_LONGEST]})") from error


def _why_not(cell: Cell) -> str:
    """Why OpenVINO's operators cannot express a cell; "" if they can."""
    try:
        spec = Spec(
            cell.W.shape[1],
            cell.hidden_size,
            "float32",
            linear_before_reset=cell.linear_before_reset,
            clip=cell.clip,
            activations=(cell.activations,),
            attention=cell.spec_attention,
        )
        operator_of(spec, cell=False)
    except SpecError as error:
        return str(error)
    return ""


def _has_current_sizes(graph: IrGraph, parser: AttributeParser) -> bool:
    """Whether the sizes in ports are current. OpenVINO infers them again."""
    # They are outdated if someone has changed the shape of a Parameter in the file.
    net = graph.net
    ports = {
        (layer.id, port.id): port.dims
        for layer in net.layers.values()
        for port in (*layer.inputs, *layer.outputs)
    }
    if any(ports.get(end) != ports.get(source) for end, source in net.edges.items()):
        return False
    for layer in net.layers.values() if graph.flow.outer is None else ():
        if layer.type == "Parameter":
            dims = tuple(parser.dimension(layer, "dim", dim) for dim in layer.outputs[0].dims)
            if dims != (parser.shape(layer, "shape") or ()):
                return False
    return all(_has_current_sizes(body, parser) for body in graph.bodies.values())
