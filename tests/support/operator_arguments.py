"""Provide valid arguments of every operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from onegru.core.dtypes import Array

T, B, I, H = 4, 3, 2, 5
F32 = np.dtype(np.float32)


def zeros(*shape: int, dtype: Any = F32) -> Array:
    return np.zeros(shape, dtype)


def gru_arguments(d: int = 1) -> dict[str, Any]:
    return {
        "X": zeros(T, B, I),
        "W": zeros(d, 3 * H, I),
        "R": zeros(d, 3 * H, H),
        "B": zeros(d, 6 * H),
        "sequence_lens": [T] * B,
        "initial_h": zeros(d, B, H),
    }


def cell_arguments() -> dict[str, Any]:
    return {
        "X": zeros(B, I),
        "initial_hidden_state": zeros(B, H),
        "W": zeros(3 * H, I),
        "R": zeros(3 * H, H),
        "B": zeros(3 * H),
        "hidden_size": H,
    }


def sequence_arguments(d: int = 1) -> dict[str, Any]:
    return {
        "X": zeros(B, T, I),
        "initial_hidden_state": zeros(B, d, H),
        "sequence_lengths": [T] * B,
        "W": zeros(d, 3 * H, I),
        "R": zeros(d, 3 * H, H),
        "B": zeros(d, 3 * H),
        "hidden_size": H,
    }


def attention_cell_arguments() -> dict[str, Any]:
    arguments = cell_arguments()
    arguments["H_t"] = arguments.pop("initial_hidden_state")
    return {**arguments, "A": zeros(B, 1)}


def attention_sequence_arguments() -> dict[str, Any]:
    arguments = sequence_arguments()
    arguments["H_t"] = arguments.pop("initial_hidden_state")
    return {**arguments, "A": zeros(B, T, 1)}


ARGUMENTS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "gru": gru_arguments,
    "gru_cell": cell_arguments,
    "gru_sequence": sequence_arguments,
    "augru_cell": attention_cell_arguments,
    "augru_sequence": attention_sequence_arguments,
}
