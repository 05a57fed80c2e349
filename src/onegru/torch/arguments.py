"""Options of a layer, in the types that PyTorch operators accept."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from onegru.core.activations import find_kind
from onegru.core.dtypes import Array
from onegru.core.errors import SpecError
from onegru.core.spec import (
    ATTENTIONS,
    DIRECTIONS,
    Attention,
    Direction,
    Spec,
    attention_of,
    reversed_directions,
)
from onegru.operators.attributes import read_attributes
from onegru.operators.lowering import read_activations, read_clip
from onegru.operators.onnx import NEWEST

GATES = (1, 0, 2)  # indices of z, r and n in PyTorch's order r, z, n


def swap_gates(weight: Array) -> Array:
    """Convert a weight from PyTorch's gate order r, z, n to ONNX's z, r, n, or back."""
    return np.concatenate([np.split(weight, 3)[gate] for gate in GATES])


@dataclass(frozen=True, slots=True)
class TorchGruConfig:
    """Options of a layer, without sizes and type."""

    direction: Direction = "forward"  # forward, reverse or bidirectional
    linear_before_reset: bool = True  # whether the reset gate acts after the recurrent product
    clip: float = 0.0  # clip value for the inputs of the activations; 0: no clipping
    activations: tuple[str, ...] = ("Sigmoid", "Tanh")  # f and g of each direction
    activation_alpha: tuple[float, ...] = ()  # values for the functions with a parameter, in order
    activation_beta: tuple[float, ...] = ()
    resets_to_initial: bool = False  # whether a reset restores the initial state instead of zeros
    attention: Attention = "openvino"  # the equation for attention scores; see `Spec`
    # all fields as arguments of an operator
    scalars: tuple[Any, ...] = field(init=False, compare=False, repr=False)
    matches_nn_gru: bool = field(init=False, compare=False, repr=False)  # whether `torch.nn.GRU` computes it

    def __post_init__(self) -> None:
        values = [getattr(self, item.name) for item in fields(self) if item.init]
        scalars = tuple(list(value) if isinstance(value, tuple) else value for value in values)
        object.__setattr__(self, "scalars", scalars)
        is_plain = self.activations == ("Sigmoid", "Tanh") * self.num_directions and not self.clip
        matches_nn_gru = is_plain and self.linear_before_reset and self.direction != "reverse"
        matches_nn_gru = matches_nn_gru and not self.resets_to_initial
        object.__setattr__(self, "matches_nn_gru", matches_nn_gru)

    @property
    def num_directions(self) -> int:
        """Return the number of directions D."""
        return len(reversed_directions(self.direction))


def form_of(
    direction: str,
    linear_before_reset: bool,
    clip: float | None,
    activations: Sequence[str] | None,
    activation_alpha: Sequence[float] | None,
    activation_beta: Sequence[float] | None,
    resets_to_initial: bool = False,
    attention: Attention = "openvino",
) -> TorchGruConfig:
    """Check the arguments of a module."""
    if direction not in DIRECTIONS:
        raise SpecError.of("direction", f"{direction!r}; must be {', '.join(DIRECTIONS)}")
    for name, value in (
        ("linear_before_reset", linear_before_reset),
        ("resets_to_initial", resets_to_initial),
    ):
        if not isinstance(value, bool):
            raise SpecError.of(name, f"{value!r}; must be True or False")
    count = len(reversed_directions(direction))
    given = {
        "clip": clip,
        "activations": activations,
        "activation_alpha": activation_alpha,
        "activation_beta": activation_beta,
    }
    given = {name: value for name, value in given.items() if value is not None}
    options = _read_options(given, count) if given else (0.0, ("Sigmoid", "Tanh") * count, (), ())
    kind = must_have_attention(attention)
    return TorchGruConfig(direction, linear_before_reset, *options, resets_to_initial, kind)


def _read_options(
    given: Mapping[str, object], num_directions: int
) -> tuple[float, tuple[str, ...], tuple[float, ...], tuple[float, ...]]:
    """Read clip and the activations with their values, as attributes of ONNX's GRU."""
    # Values that no function uses are dropped, so that only this call warns of them.
    values = read_attributes(NEWEST, given)
    pairs = read_activations(NEWEST, values, num_directions)
    names = tuple(function.name for pair in pairs for function in pair)
    alpha, beta = (
        tuple(values[f"activation_{kind}"] or ())[: sum(kind in find_kind(name).parameters for name in names)]
        for kind in ("alpha", "beta")
    )
    return read_clip(NEWEST, values["clip"]) or 0.0, names, alpha, beta


def must_have_attention(value: object) -> Attention:
    """Check and return the argument for the equation of attention."""
    if isinstance(value, str) and (found := attention_of(value)):
        return found
    raise SpecError.of("attention", f"{value!r}; must be one of {', '.join(ATTENTIONS)}")


def check_steps(name: str, T: int) -> None:
    """Raise SpecError if a call has no steps: PyTorch has no result then, and a state would be lost."""
    if T == 0:
        raise SpecError.of(name, "0 steps; must be 1 or more, as in PyTorch")


def form_of_scalars(scalars: Sequence[Any]) -> TorchGruConfig:
    """Return the configuration from the arguments of an operator."""
    return _form_of_scalars(
        *(
            tuple(item) if isinstance(item, Sequence) and not isinstance(item, str) else item
            for item in scalars
        )
    )


@functools.lru_cache(maxsize=256)
def _form_of_scalars(*values: Any) -> TorchGruConfig:
    return TorchGruConfig(*values)


@functools.lru_cache(maxsize=256)
def spec_of(form: TorchGruConfig, input_size: int, hidden_size: int, dtype: str, attention: bool) -> Spec:
    """Return the specification of a layer."""
    values = {
        "activations": form.activations,
        "activation_alpha": form.activation_alpha,
        "activation_beta": form.activation_beta,
    }
    return Spec(
        input_size,
        hidden_size,
        dtype,
        form.direction,
        form.linear_before_reset,
        form.clip or None,
        read_activations(NEWEST, values, form.num_directions),
        form.attention if attention else None,
    )
