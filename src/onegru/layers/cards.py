"""HTML cards of layers for notebooks."""

from __future__ import annotations

from collections.abc import Sequence

from onegru.core.dtypes import numpy_dtype
from onegru.core.spec import Spec
from onegru.core.wording import count
from onegru.drawing.card import card


def layer_card(spec: Spec, facts: Sequence[tuple[str, str]], storage: str) -> str:
    """Return the card of a layer."""
    what = [
        ("computes", "GRU with attention" if spec.attention else "GRU"),
        ("input → hidden", f"{spec.input_size} → {spec.hidden_size}, {spec.dtype}"),
        ("direction", spec.direction),
        ("reset gate", f"{_reset(spec)} the recurrent product"),
        ("activations", _activations(spec)),
        ("clip", "none" if spec.clip is None else f"{spec.clip:g}"),
        ("parameters", f"{spec.parameter_count:,}"),
        (
            "memory",
            f"{_bytes(spec, storage):,} bytes" + (f", W and R in {storage}" if storage != spec.dtype else ""),
        ),
        ("FLOPs per step", f"{spec.flops_per_step:,} for each row"),
    ]
    return card(f"GRU {spec.input_size} → {spec.hidden_size}", [*what, *facts])


def stack_card(layers: Sequence[tuple[Spec, str]], facts: Sequence[tuple[str, str]]) -> str:
    """Return the card of a stack. `layers` holds each layer's spec and the storage type of W and R."""
    headings = ("layer", "input → hidden", "direction", "reset gate", "activations", "parameters")
    rows = [
        (
            str(index),
            f"{spec.input_size} → {spec.hidden_size}",
            spec.direction,
            _reset(spec),
            _activations(spec),
            f"{spec.parameter_count:,}",
        )
        for index, (spec, _) in enumerate(layers)
    ]
    what = [
        ("type", layers[0][0].dtype),
        ("parameters", f"{sum(spec.parameter_count for spec, _ in layers):,}"),
        ("memory", f"{sum(_bytes(spec, storage) for spec, storage in layers):,} bytes"),
    ]
    return card(f"Stack of {count(len(layers), 'layer')}", [*what, *facts], headings, rows)


def _reset(spec: Spec) -> str:
    return "after" if spec.linear_before_reset else "before"


def _activations(spec: Spec) -> str:
    return " | ".join(f"{f}, {g}" for f, g in spec.activations)


def _bytes(spec: Spec, storage: str) -> int:
    """Return the size of W, R and B in bytes."""
    biases = spec.num_directions * 6 * spec.hidden_size
    matrices = spec.parameter_count - biases
    return matrices * numpy_dtype(storage).itemsize + biases * numpy_dtype(spec.dtype).itemsize
