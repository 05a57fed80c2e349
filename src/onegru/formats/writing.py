"""Inputs and value names of models that onegru writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onegru.core.spec import Spec, Weights

#: Layers in canonical form, the first layer first. The last item is the group size of int8 weights: how many
#: weights of a row share a scale, or 0 for all of them. None for weights that are not quantized.
Layers = Sequence[tuple[Spec, Weights, int | None]]


@dataclass(frozen=True, slots=True)
class Interface:
    """The inputs of a written model."""

    initial_h: bool = True  # whether it takes initial states; else they are zeros
    sequence_lens: bool = False  # whether it takes lengths; else all rows are as long as X
    batch_size: int | None = None  # the only batch size that it takes; None for any
    seq_length: int | None = None  # the only number of steps that it takes; None for any


def suffixes(layers: Layers) -> list[str]:
    """Return the name suffix of each layer's values: its number, if there are several layers."""
    return [f"_{index}" for index in range(len(layers))] if len(layers) > 1 else [""]
