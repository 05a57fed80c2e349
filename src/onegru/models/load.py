"""Load a model from a file or from memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from onegru.core.arguments import flag, shown
from onegru.core.errors import SpecError, needs_extra
from onegru.engines.select import model_options
from onegru.formats.format import format_of
from onegru.formats.graph import Graph
from onegru.formats.opened import Kind, kind_of_start, open_model
from onegru.models.model import Model

if TYPE_CHECKING:
    from onegru.formats.onnx.validate import ModelProto


def load(
    path: str | os.PathLike[str] | bytes | bytearray | memoryview | ModelProto,
    *,
    engine: str = "auto",
    weight_storage: str | Mapping[str, str] | None = None,
    activation_storage: str | Mapping[str, str] | None = None,
    flush_subnormals: bool = False,
    fuse: bool = False,
) -> Model:
    """Load a model with GRUs.

    In an IR, a loop over one axis that only runs a GRUCell or AUGRUCell is loaded as a sequence layer. The
    results are bitwise identical.

    Args:
        path: an ONNX model, or an OpenVINO IR (with its `.bin` in the same folder). The kind is detected from
            the content. Or an ONNX model in memory without external data: its bytes or an `onnx.ModelProto`.
        engine: the engine of the GRU nodes, as in `onegru.GRU`.
        weight_storage: storage type of the weights of float32 GRU nodes, as in `onegru.GRU`: one type
            for all, or a mapping from node names to types. Default: None (float32), also for missing names.
        activation_storage: type to which activations are rounded, as in `onegru.GRU`.
        flush_subnormals: whether states that are almost 0 count as 0, as in `onegru.GRU`.
        fuse: whether decomposed GRUs become GRU nodes in memory, as with `onegru.fuse`, but without a check
            on inputs. A model without decomposed GRUs does not change.

    Returns:
        the model, ready to run.

    Raises:
        FormatError: the file is broken, or contains something that onegru does not run.
        SpecError: a GRU node is invalid; the message names the node and the argument.
        MissingExtraError: the model needs a package that is not installed.
        OSError: the file cannot be opened.

    Warns:
        SpecWarning: a node has an attribute or input without effect.
    """
    options = model_options(engine, weight_storage, activation_storage, flush_subnormals)
    return Model(graph_of(path, fuse=flag("fuse", fuse)), options)


def graph_of(path: object, *, fuse: bool = False, folder: Path | None = None) -> Graph:
    """Return the graph of a model; argument and errors as in `load`. This needs no other runtime."""
    if not isinstance(path, str | os.PathLike):
        return _in_memory(path, fuse, folder)
    file = open_model("path", path)
    if fuse:
        from onegru.models.fusing import fused_graph  # slow import

        return fused_graph(file)
    # A caller who opened the file may read it again.
    graph = format_of(file).read_graph(file, keep_parsed=file is path)
    if file.kind is Kind.OPENVINO and any(gru.bodies for gru in graph.grus):
        from onegru.models.fusing import with_sequences  # as above

        return with_sequences(file, graph)
    return graph


def _in_memory(model: object, fuse: bool, folder: Path | None) -> Graph:
    """Return the graph of an ONNX model in memory."""
    if not isinstance(model, bytes | bytearray | memoryview) and not hasattr(model, "SerializeToString"):
        raise SpecError.of(
            "path", f"{shown(model)}; must be a path, the bytes of an ONNX model, or a ModelProto"
        )
    with needs_extra("onnx", "onnx", "an ONNX model"):
        from onegru.formats.onnx.parse import parse_onnx
        from onegru.formats.onnx.validate import Source, serialized
    source = Source("model in memory", folder)
    data = bytes(model) if isinstance(model, bytes | bytearray | memoryview) else serialized(source, model)
    kind = kind_of_start(data[:1024], len(data))
    if kind is Kind.OPENVINO:
        raise source.error(f"{kind.words}; must be loaded by its path, because it needs its .bin file")
    if kind not in (Kind.ONNX, Kind.UNKNOWN):
        raise source.error(f"{kind.words}; must be an ONNX model")
    if fuse:
        from onegru.models.fusing import fused_onnx  # slow import

        graph = fused_onnx(source, data)
        return graph if graph.data else replace(graph, data=data)
    return replace(parse_onnx(data, source), data=data)
