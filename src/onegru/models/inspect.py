"""Describe the GRUs in a file without running the model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onegru.core.errors import FormatError
from onegru.core.spec import attention_of
from onegru.core.wording import count
from onegru.drawing.card import Card, CardReport
from onegru.engines.storage import lossless_storage
from onegru.formats.format import format_of
from onegru.formats.graph import TensorInfo, nested_words
from onegru.formats.opened import Kind, Opened, open_layers
from onegru.layers.gru import GRU
from onegru.models.fusing import find_in_file, tflite_graph
from onegru.models.layer_files.load import gru_nodes, left_out, load_layers, named_layers
from onegru.models.model import Model
from onegru.models.report import GruReport, report_nodes
from onegru.models.streaming import streaming_words
from onegru.timeline.unread import find_unread

if TYPE_CHECKING:
    from onegru.fusion.search import Fused, NearMiss


@dataclass(frozen=True, slots=True)
class Inspection(CardReport):
    """Description of the GRUs in a file.

    Attributes:
        path: the file.
        kind: the kind of file, as text.
        inputs: the inputs of a model.
        outputs: the outputs of a model.
        other_nodes: how many nodes of a model another runtime runs. Default: None (layers without a model).
        nested_grus: the GRU nodes of a model in subgraphs of other nodes, as text.
        grus: the GRUs of the file, those of a model in execution order.
        decomposed: the GRUs that consist of other operators in an ONNX model; `onegru.fuse` turns them into
            GRU nodes.
        near_misses: recurrences that are almost GRUs, and the part that does not fit.
        fused_nodes: how many nodes the model has, including subgraphs, and how many it would have with
            GRU nodes for `decomposed`; None if it has no decomposed GRU.
        left_out: the tensors of a checkpoint, or layers of a Keras model, that do not belong to its GRUs; the
            operators of a TensorFlow Lite model that onegru does not read.
        streaming: whether an ONNX model runs in chunks of time, unchanged or rewritten, or why it cannot;
            empty without a GRU, and for other files.
        unread: a sentence for each dynamic input axis along which the model reads only fixed positions.
    """

    path: str
    kind: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    other_nodes: int | None
    nested_grus: tuple[str, ...]
    grus: tuple[GruReport, ...]
    decomposed: tuple[Fused, ...] = ()
    near_misses: tuple[NearMiss, ...] = ()
    fused_nodes: tuple[int, int] | None = None
    left_out: tuple[str, ...] = ()
    streaming: str = ""
    unread: tuple[str, ...] = ()

    def __repr__(self) -> str:
        parts = [self.kind, count(len(self.grus), "GRU")]
        if self.decomposed:
            parts.append(f"{len(self.decomposed)} decomposed into other operators")
        return f"Inspection({self.path!r}, {', '.join(parts)})"

    def _card(self) -> Card:
        rows = [
            (
                gru.name,
                gru.operator or "layer",
                f"{gru.input_size} → {gru.hidden_size}",
                gru.direction,
                gru.reset,
                "; ".join(", ".join(pair) for pair in gru.activations),
            )
            for gru in self.grus
        ]
        rows += [
            (
                gru.place,
                f"{gru.operator}, decomposed",
                f"{gru.input_size} → {gru.hidden_size}",
                gru.direction,
                "after" if gru.linear_before_reset else "before",
                ", ".join(gru.activations),
            )
            for gru in self.decomposed
        ]
        facts = [("file", self.kind), ("GRUs", str(len(self.grus)))]
        if self.other_nodes is not None:
            facts.append(("other nodes", f"{self.other_nodes:,}"))
        if self.decomposed:
            facts.append(("decomposed into other operators", str(len(self.decomposed))))
            facts.append(("to replace them with GRU nodes", f"onegru fuse {self.path} TARGET"))
        headings = ("GRU", "operator", "input → hidden", "direction", "reset gate", "activations")
        if self.streaming:
            facts.append(("streaming", self.streaming))
        facts += [("ignored", words) for words in self.unread]
        return f"Inspection · {self.path}", facts, headings, rows


Inspection.__module__ = "onegru.reports"


def inspect(path: str | os.PathLike[str]) -> Inspection:
    """Describe the GRUs of a file, and known problems in other runtimes.

    The description includes sizes, direction, reset gate, activations, and other runtimes that fail on the
    GRUs. An ONNX model needs only the package onnx. If nodes compute weights from constants, their sizes
    need the model's runtime as well.

    Args:
        path: any file that `onegru.load` or `onegru.load_layers` reads.

    Returns:
        the description, which prints as a table in notebooks.

    Raises:
        FormatError: the file is broken, or of a kind without GRUs.
        SpecError: path is not the name of a file, or a GRU is invalid.
        MissingExtraError: the file needs a package that is not installed.
        OSError: the file cannot be opened.
    """
    file = open_layers("path", path)
    kind = file.kind
    if kind.holds == "layers":
        layers = load_layers(file)
        grus = tuple(_report_of_layer(name, layer) for name, layer in named_layers(layers))
        missed = file.once(tflite_graph)[1].near_misses if kind is Kind.TFLITE else ()
        rest = left_out(file, layers)
        return Inspection(str(file), kind.words, (), (), None, (), grus, near_misses=missed, left_out=rest)
    graph = format_of(file).read_graph(file, keep_parsed=True)
    found = _described(file)
    others = sum(step.node_count for step in graph.steps)
    if graph.whole is not None:
        others = graph.whole.node_count
    grus, nested = report_nodes(graph.inputs, gru_nodes(graph)), nested_words(graph.grus)
    words = streaming_words(graph) if grus else ""
    return Inspection(
        *(str(file), kind.words, graph.inputs, graph.outputs, others, nested, grus),
        **found,
        streaming=words,
        unread=tuple(find_unread(graph)),
    )


def _described(file: Opened) -> dict[str, Any]:
    """Return the fields of an inspection about decomposed GRUs."""
    from onegru.fusion.search import NearMiss

    try:
        found = find_in_file(file)
    except FormatError as error:  # the rest of the inspection is still valid
        return {"near_misses": (NearMiss(str(file), str(error).removeprefix(f"{file}: ")),)}
    return {
        "decomposed": found.fused,
        "near_misses": found.near_misses,
        "fused_nodes": found.nodes if found.fused else None,
    }


def report(model: Model) -> tuple[GruReport, ...]:
    """Return a report on each GRU node of a model, in execution order."""
    return report_nodes(model.inputs, model.gru_nodes)


def _report_of_layer(name: str, layer: GRU) -> GruReport:
    spec, weights = layer.spec, (layer.weights.W, layer.weights.R, layer.weights.B)
    return GruReport(
        name=name,
        operator="",
        dtype=spec.dtype,
        input_size=spec.input_size,
        hidden_size=spec.hidden_size,
        direction=spec.direction,
        reset="after" if spec.linear_before_reset else "before",
        activations=tuple((str(f), str(g)) for f, g in spec.activations),
        clip=spec.clip,
        attention=attention_of(spec.attention),
        lengths=False,
        parameters=sum(array.size for array in weights),
        bytes=sum(array.nbytes for array in weights),
        flops_per_step=spec.flops_per_step,
        others=(),
        lossless_storage=lossless_storage(layer.weights),
    )
