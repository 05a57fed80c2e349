"""Replace the decomposed GRUs of an OpenVINO IR."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from onegru.core.dtypes import Array
from onegru.core.errors import BROKEN, FormatError, SpecError
from onegru.formats.openvino.constants import Constants, Weights
from onegru.formats.openvino.fields import AttributeParser
from onegru.formats.openvino.flow import IrGraph, IrReader
from onegru.formats.openvino.kinds import WRITTEN
from onegru.formats.openvino.xml import parse_net
from onegru.fusion.fuse import fuse_flow
from onegru.fusion.openvino.layers import why_not
from onegru.fusion.openvino.writer import GraphWriter, IrBin
from onegru.fusion.search import Progress, Search

_LONGEST = 200


def fuse_ir(
    path: Path,
    root: ET.Element,
    weights: Weights,
    progress: Progress | None = None,
    *,
    only_layers: bool = False,
) -> tuple[Array, Search]:
    """Replace the decomposed GRUs of an IR, and loops of cells, by GRUSequence and GRUCell layers."""
    parser = AttributeParser(path)
    constants = Constants(parser, weights)
    reader = IrReader(parser, constants)
    # OpenVINO ignores lengths if shapes are dynamic: see runtimes/known_issues.py.
    search = Search(
        reader.names,
        str(path),
        progress=progress,
        allows=why_not,
        has_lengths=False,
        writes=WRITTEN,
        only_layers=only_layers,
    )
    try:
        graph = reader.read(parse_net(path, root), root)
        if only_layers and not _has_own_sizes(graph, parser):
            return constants.weights, search
        fuse_flow(graph.flow, search)
        if not search.fused:
            return constants.weights, search
        container = IrBin(constants)
        GraphWriter(graph, reader, container).write()
        return container.collect(root), search
    except (FormatError, SpecError):
        raise
    except BROKEN as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise parser.error(f"cannot be searched for decomposed GRUs ({said[:_LONGEST]})") from error


def _has_own_sizes(graph: IrGraph, parser: AttributeParser) -> bool:
    """Whether the sizes in ports are current. OpenVINO infers them again.

    They are outdated if someone has changed the shape of a Parameter in the file.
    """
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
    return all(_has_own_sizes(body, parser) for body in graph.bodies.values())
