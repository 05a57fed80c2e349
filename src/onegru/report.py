"""What can be said of a model's GRU nodes without running it, as plain data."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from onegru.attributes import read_attributes
from onegru.dialect import read_activations, read_clip
from onegru.errors import SpecWarning
from onegru.files.graph import TensorInfo
from onegru.known import Facts, Verdict, verdicts
from onegru.session import GruLayer, Model

__all__ = ["GruReport", "report"]


@dataclass(frozen=True, slots=True)
class GruReport:
    """One GRU node.

    What depends on the weights is None where they are computed anew in each run: sizes, parameters, bytes
    and FLOPs.

    Attributes:
        name: the node's name.
        operator: the operator and its version, such as "GRU-14".
        dtype: the element type.
        input_size: I.
        hidden_size: H.
        direction: forward, reverse or bidirectional.
        reset: "before" or "after": where the reset gate acts, seen from the recurrent product.
        activations: (f, g) of each direction, with their parameters.
        clip: the bound on the inputs of the activations; None for none.
        attention: whether it takes attention scores.
        lengths: whether it takes sequence lengths.
        parameters: how many numbers W, R and B hold in the file.
        bytes: what they take there, as the node gets them.
        flops_per_step: of the products, for one row and one step, over all directions.
        others: what is known of other runtimes on this node.
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
    attention: bool
    lengths: bool
    parameters: int | None
    bytes: int | None
    flops_per_step: int | None
    others: tuple[Verdict, ...]


def report(model: Model) -> tuple[GruReport, ...]:
    """A report on each GRU node of a model, in the order in which they run."""
    shapes = {info.value or info.name: info for info in model.inputs}
    return tuple(_report(layer, shapes.get(layer.node.inputs["X"])) for layer in model.gru_layers)


def _report(gru: GruLayer, source: TensorInfo | None) -> GruReport:
    node, layer = gru.node, gru.layer
    spec = layer.spec if layer is not None else None
    dtype = spec.dtype if spec is not None else (source.dtype if source is not None else None)
    values = read_attributes(node.operator, node.attributes)
    direction = str(values.get("direction", "forward"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpecWarning)  # given when the model was loaded
        activations = read_activations(node.operator, values, 2 if direction == "bidirectional" else 1)
    facts = Facts(
        operator=node.operator.name,
        version=node.operator.version,
        attributes=node.attributes,
        dtype=dtype,
        present=frozenset((*node.inputs, *node.outputs)),
        fixed_shape=None if node.x_shape is None else None not in node.x_shape,
        constant_weights=layer is not None,
        full_length=node.full_length,
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
        attention=node.operator.attention,
        lengths=lengths is not None and lengths.name in node.inputs,
        parameters=None if layer is None else sum(array.size for array in gru.weights),
        bytes=None if layer is None else sum(array.nbytes for array in gru.weights),
        flops_per_step=None if spec is None else spec.flops_per_step,
        others=tuple(verdicts(facts)),
    )
