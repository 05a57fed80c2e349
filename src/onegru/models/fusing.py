"""Find and replace the decomposed GRUs of a model in memory."""

from __future__ import annotations

import copy
import os
import xml.etree.ElementTree as ET
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from onegru.core.errors import BROKEN, FormatError, OneGRUError, needs_extra
from onegru.core.wording import count
from onegru.formats.format import format_of, tflite_model
from onegru.formats.graph import Graph
from onegru.formats.opened import Kind, Opened, open_model
from onegru.operators.onnx import OLDEST_OPSET

if TYPE_CHECKING:
    from onegru.formats.onnx.validate import ModelProto, Source
    from onegru.formats.openvino.document import IrDocument
    from onegru.fusion.search import Fused, NearMiss, Progress

_MOST_NAMED = 5  # near misses that a message names

_LONGEST = 200  # characters of another error's message in onegru's message

# Operators that blend the old and the new state, scale them, and multiply matrices.
_BLENDS = {"Add", "Sub", "Sum", "Where"}
_SCALES = {"Mul", "Div", "Where"}
_PRODUCTS = {"MatMul", "FusedMatMul", "Gemm", "FusedGemm", "Einsum"}
_PRODUCTS |= {"MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QGemm"}
_PRODUCTS |= {"MatMulNBits", "MatMulBnb4"}


ModelT = TypeVar("ModelT")


@dataclass(frozen=True, slots=True)
class Decomposed(Generic[ModelT]):
    """The result of a search through a model."""

    model: ModelT  # an ONNX model or an IR, with a GRU node for each recurrence in `fused`
    fused: tuple[Fused, ...]  # the recurrences that were replaced
    near_misses: tuple[NearMiss, ...]  # GRUs that were not fused
    nodes: tuple[int, int]  # how many nodes the model had, including those in bodies, and how many it has now


def replace_decomposed(
    source: Source, model: ModelProto, progress: Progress | None = None
) -> Decomposed[ModelProto]:
    """Replace the decomposed GRUs of a model. This may change the model."""
    from onegru.formats.onnx.functions.augru import add_augru_functions
    from onegru.formats.onnx.functions.inline import all_nodes, inline_functions
    from onegru.formats.onnx.node import is_plain_constant

    def size(graph_of: ModelProto) -> int:
        return sum(not is_plain_constant(node) for node in all_nodes(graph_of.graph.node))

    add_augru_functions(model, source)  # broken functions crash the process in onnx's shape inference
    model = inline_functions(source, model)
    kinds = {node.op_type.removeprefix("QLinear") for node in all_nodes(model.graph.node)}
    before = size(model)
    if not (kinds & _BLENDS and kinds & _SCALES and kinds & _PRODUCTS):  # no search for most models
        return Decomposed(model, (), (), (before, before))
    from onegru.fusion.onnx.model import fuse_model

    raised: list[Exception] = []

    def watched(done: int, total: int) -> None:
        try:
            if progress is not None:
                progress(done, total)
        except Exception as error:
            raised.append(error)
            raise

    try:
        search = fuse_model(source, model, watched)
    except OneGRUError:
        raise
    except BROKEN as error:
        if error in raised:  # the caller's function raised it
            raise
        words = " ".join(f"{type(error).__name__}: {error}".split())
        raise source.error(f"cannot be searched for decomposed GRUs ({words[:_LONGEST]})") from error
    return Decomposed(model, tuple(search.fused), tuple(search.near_misses), (before, size(model)))


def find_in_ir(
    file: Opened, progress: Progress | None = None, *, only_layers: bool = False
) -> Decomposed[IrDocument]:
    """Return the decomposed GRUs of an IR that has been read, with layers for them."""
    from onegru.formats.openvino.document import IrDocument
    from onegru.formats.openvino.states import ir_of
    from onegru.fusion.openvino.model import fuse_ir

    assert file.weights is not None
    root = copy.deepcopy(file.once(ir_of)[0])
    before = _layer_count(root)
    weights, search = fuse_ir(file.path, root, file.weights, progress, only_layers=only_layers)
    nodes = before, _layer_count(root)
    document = IrDocument(root, lambda: weights)
    return Decomposed(document, tuple(search.fused), tuple(search.near_misses), nodes)


def _layer_count(root: ET.Element) -> int:
    """Count the layers that compute something, including layers in bodies."""
    layers = root.iterfind(".//layer")
    return sum(layer.get("type") not in ("Const", "Parameter", "Result") for layer in layers)


def find_in_file(file: Opened) -> Decomposed[ModelProto] | Decomposed[IrDocument]:
    """Return the decomposed GRUs of a model that has been read."""
    if file.kind is Kind.OPENVINO:
        return find_in_ir(file)
    from onegru.formats.onnx.validate import Source, model_of

    return replace_decomposed(Source.of(file), model_of(file))


def fusing_hint(path: str | os.PathLike[str]) -> str:
    """Return a hint that `onegru fuse` helps; "" if the file has no decomposed GRUs."""
    with suppress(OneGRUError, OSError):
        file = open_model("path", path)
        format_of(file).read_graph(file, keep_parsed=True)  # first, because it rejects malicious files
        if found := find_in_file(file).fused:
            grus = count(len(found), "decomposed GRU")
            them = "it with a GRU node" if len(found) == 1 else "them with GRU nodes"
            return f"{grus}: `onegru fuse` replaces {them}"
    return ""


def tflite_graph(file: Opened) -> tuple[Graph, Decomposed[ModelProto]]:
    """Return the graph of a TensorFlow Lite model, with GRU nodes for decomposed GRUs; for `Opened.once`."""
    model, _ = file.once(tflite_model)
    from onegru.formats.onnx.parse import parse_onnx
    from onegru.formats.onnx.validate import Source, read_model, serialized

    source = Source(str(file))
    found = replace_decomposed(source, read_model(source, serialized(source, model)))
    return parse_onnx(serialized(source, found.model), source), found


def fused_graph(file: Opened) -> Graph:
    """Return the graph of a file with its decomposed GRUs replaced. Raises the errors of `onegru.load`."""
    if file.kind is Kind.OPENVINO:
        from onegru.formats.openvino.reader import read_ir

        graph = read_ir(file)  # first, because it rejects malicious files
        found = find_in_ir(file)
        return replace(found.model.graph(file.path), file=file) if found.fused else graph
    with needs_extra("onnx", "onnx", str(file)):
        from onegru.formats.onnx.parse import read_onnx
        from onegru.formats.onnx.validate import Source, model_of
    graph = read_onnx(file, keep_parsed=True)  # first, because it rejects malicious files
    return replace(_fused_onnx(graph, Source.of(file), model_of(file)), file=replace(file))


def with_sequences(file: Opened, graph: Graph) -> Graph:
    """Return the graph of an IR with a sequence for each loop that only runs a cell."""
    try:
        found = find_in_ir(file, only_layers=True)
        return replace(found.model.graph(file.path), file=file) if found.fused else graph
    except FormatError:  # `read_ir` accepts it, so the graph stays unchanged
        return graph


def fused_onnx(source: Source, data: bytes) -> Graph:
    """Return the graph of a serialized ONNX model with its decomposed GRUs replaced."""
    from onegru.formats.onnx.parse import parse_onnx
    from onegru.formats.onnx.validate import read_model

    graph = parse_onnx(data, source)  # first, because it rejects malicious files
    return _fused_onnx(graph, source, read_model(source, data))


def _fused_onnx(graph: Graph, source: Source, model: ModelProto) -> Graph:
    """Replace the decomposed GRUs of a model in place; return the new graph, or `graph` if unchanged."""
    from onegru.formats.onnx.parse import parse_onnx
    from onegru.formats.onnx.validate import serialized

    found = replace_decomposed(source, model)
    if not found.fused:
        return graph
    # Another runtime gets this data, not the file. The external data stay in the file's folder.
    data = serialized(source, found.model)
    return replace(parse_onnx(data, replace(source, file=None)), data=data)


_QUANTIZED = {"QuantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "QLinearMatMul", "QGemm"}


def nothing_found(
    name: str, missed: tuple[NearMiss, ...], opset: int = OLDEST_OPSET, kinds: Collection[str] = ()
) -> FormatError:
    """Return the error for a model in which nothing can be fused."""
    words = f"{name}: it has no decomposed GRU that could be fused; nothing was written"
    if opset < OLDEST_OPSET:
        return FormatError(f"{words}: it has opset {opset}; must have at least opset {OLDEST_OPSET}")
    if missed:
        named = [f"{miss.place!r}: {miss.reason}" for miss in missed[:_MOST_NAMED]]
        if len(missed) > _MOST_NAMED:
            named.append(f"{len(missed) - _MOST_NAMED} more; list them with `onegru inspect`")
        words += f". {count(len(missed), 'near miss')}: {'; '.join(named)}"
    elif quantized := sorted(_QUANTIZED.intersection(kinds)):
        words += f". Its matmuls are quantized ({quantized[0]}); fuse the model before you quantize it"
    return FormatError(words)
