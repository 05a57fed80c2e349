"""Define the inputs and value names of models that onegru writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onegru.core.spec import Spec, Weights

#: Layers in canonical form, the first layer first. The last item is the group size of int8 weights: the
#: number of weights of a row that share a scale; 0 for all of them, None for float weights.
Layers = Sequence[tuple[Spec, Weights, int | None]]


@dataclass(frozen=True, slots=True)
class Interface:
    """Inputs of a written model."""

    initial_h: bool = True  # whether it has initial states as inputs; otherwise zeros
    sequence_lens: bool = False  # whether it has lengths as inputs; otherwise all steps of X
    batch_size: int | None = None  # the only batch size; None for any
    seq_length: int | None = None  # the only number of steps; None for any


def suffixes(layers: Layers) -> list[str]:
    """Return the name suffix of each layer's values: its number, if there are several layers."""
    return [f"_{index}" for index in range(len(layers))] if len(layers) > 1 else [""]
