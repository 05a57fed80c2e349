"""OpenVINO's IRs with their decomposed GRUs replaced."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from onegru.core.errors import FormatError, SpecError
from onegru.formats.openvino.constants import Constants
from onegru.formats.openvino.fields import Words
from onegru.formats.openvino.reader import load_ir
from onegru.formats.openvino.xml import parse_net, read_xml
from onegru.fusion.fuse import fuse_flow
from onegru.fusion.openvino.flow import IrReader
from onegru.fusion.openvino.layers import WRITTEN, why_not
from onegru.fusion.openvino.writer import GraphWriter, IrBin
from onegru.fusion.search import Progress, Search
from onegru.system.bounded import file_version

_TRIES = 10

# What the search may stumble over where layers contradict each other, and how much it tells of that.
_BROKEN = (ArithmeticError, AssertionError, LookupError, MemoryError, TypeError, ValueError)
_LONGEST = 200


def fuse_ir(path: Path, progress: Progress | None = None) -> tuple[bytes, bytes, Search]:
    """An IR with its decomposed GRUs replaced by GRUSequence and GRUCell layers.

    Args:
        path: the .xml, with its .bin beside it.
        progress: called now and then.

    Returns:
        what the .xml and the .bin are to hold, and what was found.

    Raises:
        FormatError: a file is broken, hostile, or holds what onegru does not run.
        SpecError: the specification forbids an attribute of a layer.
    """
    for _ in range(_TRIES):
        before = file_version(path)
        load_ir(path)  # which refuses what is not to be touched
        root = read_xml(path)
        words = Words(path)
        constants = Constants(words)
        reader = IrReader(words, constants)
        graph = reader.read(parse_net(path, root), root)
        if file_version(path) == before:
            break
    else:
        raise FormatError(f"{path}: is replaced again and again while it is read")
    # OpenVINO ignores lengths where sizes are open: see runtimes/known_issues.py.
    search = Search(reader.names, progress=progress, allows=why_not, has_lengths=False, writes=WRITTEN)
    try:
        fuse_flow(graph.flow, search)
        weights = constants.weights.tobytes()
        if search.fused:
            container = IrBin(constants)
            GraphWriter(graph, reader, container).write()
            weights = container.collect(root)
    except (FormatError, SpecError):
        raise
    except _BROKEN as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise words.error(f"cannot be searched for decomposed GRUs ({said[:_LONGEST]})") from error
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True)), weights, search
