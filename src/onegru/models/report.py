"""Describe the GRU nodes of a model."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from onegru.core.errors import SpecWarning
from onegru.core.spec import Attention, attention_of, reversed_directions
from onegru.core.wording import count
from onegru.engines.storage import lossless_storage
from onegru.formats.graph import TensorInfo
from onegru.models.gru_node import GruNode
from onegru.models.inputs.check import words_of
from onegru.operators.attributes import read_attributes
from onegru.operators.lowering import read_activations, read_clip
from onegru.runtimes.known_issues import NodeFacts, Verdict, verdicts


@dataclass(frozen=True, slots=True)
class GruReport:
    """Description of a GRU: a node of a model, or a layer of a checkpoint.

    Sizes, parameters, bytes and FLOPs are None if the weights are computed in each run, or by a runtime that
    is not installed.

    Attributes:
        name: the node's or the layer's name.
        operator: the operator and its version, such as "GRU-14"; empty for a layer.
        dtype: the element type.
        input_size: the input size, I.
        hidden_size: the hidden size, H.
        direction: "forward", "reverse" or "bidirectional".
        reset: whether the reset gate is applied "before" or "after" the recurrent matmul.
        activations: (f, g) of each direction, with their parameters.
        clip: the clip value of the activations' inputs. Default: None (no clipping).
        attention: the attention variant, "openvino" or "dien" (see `Spec`); None without attention.
        lengths: whether the GRU has sequence lengths.
        parameters: the number of values in W, R and B; for a node, in the file.
        bytes: their size in bytes, in the node's type.
        lossless_storage: the smallest `weight_storage` that stores W and R without loss, such as the type in
            the file; None if there is none.
        flops_per_step: the FLOPs of the matmuls, for one row and one step, in all directions.
        others: known issues of other runtimes with this node.
        bodies: the subgraphs that contain the node, as text, the outermost first.
    """

    name: str
    operator: str
    dtype: str | None
    input_size: int | None
    hidden_size: int | None
    direction: str
    reset: str
    activations: tuple[tuple[str, str], ...]
    clip: float | None
    attention: Attention | None
    lengths: bool
    parameters: int | None
    bytes: int | None
    flops_per_step: int | None
    others: tuple[Verdict, ...]
    bodies: tuple[str, ...] = ()
    lossless_storage: str | None = None


GruReport.__module__ = "onegru.reports"


def report_nodes(inputs: Sequence[TensorInfo], nodes: Iterable[GruNode]) -> tuple[GruReport, ...]:
    """Return a report on each GRU node of a model with these inputs."""
    infos = {info.value: info for info in inputs}
    return tuple(_report(node, infos.get(node.step.inputs["X"])) for node in nodes)


def _report(gru: GruNode, source: TensorInfo | None) -> GruReport:
    node, layer = gru.step, gru.layer
    spec = layer.spec if layer is not None else None
    dtype = spec.dtype if spec is not None else (source.dtype if source is not None else None)
    values = read_attributes(node.operator, node.attributes)
    direction = str(values.get("direction", "forward"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpecWarning)  # given when the model was loaded
        activations = read_activations(node.operator, values, len(reversed_directions(direction)))
    facts = NodeFacts(
        operator=node.operator.name,
        version=node.operator.version,
        attributes=node.attributes,
        dtype=dtype,
        present=frozenset((*node.inputs, *node.outputs)),
        fixed_shape=None if node.x_shape is None else None not in node.x_shape,
        constant_weights=layer is not None,
        full_length=node.full_length,
        has_function=node.has_function,
    )
    lengths = node.operator.input("sequence_lens")
    return GruReport(
        name=node.name,
        operator=str(node.operator),
        dtype=dtype,
        input_size=spec.input_size if spec is not None else None,
        hidden_size=spec.hidden_size if spec is not None else values["hidden_size"],
        direction=direction,
        reset="after" if values.get("linear_before_reset") else "before",
        activations=tuple((str(f), str(g)) for f, g in activations),
        clip=read_clip(node.operator, values["clip"]),
        attention=attention_of(node.operator.attention and values.get("attention", True)),
        lengths=lengths is not None and lengths.name in node.inputs,
        parameters=None if layer is None else sum(array.size for array in gru.weights),
        bytes=None if layer is None else sum(array.nbytes for array in gru.weights),
        flops_per_step=None if spec is None else spec.flops_per_step,
        others=tuple(verdicts(facts)),
        bodies=node.bodies,
        lossless_storage=None if layer is None else lossless_storage(layer.weights),
    )


def model_card(
    path: str,
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo],
    nodes: Sequence[GruNode],
    other_nodes: int,
) -> str:
    """Return a model's HTML card for notebooks."""
    from onegru.drawing.card import card

    facts = [
        ("inputs", "; ".join(f"{info.name} {words_of(info)}" for info in inputs)),
        ("outputs", "; ".join(f"{info.name} {words_of(info)}" for info in outputs)),
        ("nodes", f"{count(len(nodes), 'GRU node')} and {count(other_nodes, 'other node')}"),
    ]
    headings = ("GRU node", "operator", "input → hidden", "direction", "reset gate", "activations", "clip")
    return card(
        f"Model {Path(path).name}",
        facts,
        (*headings, "parameters", "failures in other runtimes"),
        [_cells(item) for item in report_nodes(inputs, nodes)],
    )


def _cells(item: GruReport) -> tuple[str, ...]:
    """Return a row of the card's table."""
    sizes = ["?" if size is None else str(size) for size in (item.input_size, item.hidden_size)]
    verdicts = [f"{other.runtime} {other.version} {other.effect} it: {other.reason}" for other in item.others]
    return (
        ", in ".join((item.name, *reversed(item.bodies))),
        item.operator,
        f"{sizes[0]} → {sizes[1]}, {item.dtype or 'any type'}",
        item.direction,
        item.reset,
        " | ".join(f"{f}, {g}" for f, g in item.activations),
        "none" if item.clip is None else f"{item.clip:g}",
        "?" if item.parameters is None else f"{item.parameters:,} ({item.bytes:,} bytes)",
        "; ".join(verdicts) or "none known",
    )
