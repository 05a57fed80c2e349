# ruff: noqa: E501 - messages stand whole, on one line
"""Refusals of the operators: each names the argument, what it is, and what it must be."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import onegru
from tests.support.operator_arguments import ARGUMENTS, B, H, I, T, gru_arguments, zeros
from tests.support.refusals import GRU_REFUSALS, PYTHON_REFUSALS


def refuse(function: str, message: str, **changes: Any) -> None:
    with pytest.raises(onegru.SpecError, match="^" + re.escape(message)) as caught:
        getattr(onegru, function)(**{**ARGUMENTS[function](), **changes})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("message", "changes"), GRU_REFUSALS + PYTHON_REFUSALS)
def test_gru_refuses(message: str, changes: dict[str, Any]) -> None:
    refuse("gru", message, **changes)


def test_bfloat16_needs_opset_22() -> None:
    changes: dict[str, Any] = {
        name: zeros(*array.shape, dtype=ml_dtypes.bfloat16)
        for name, array in gru_arguments().items()
        if name != "sequence_lens"
    }
    onegru.gru(**changes, opset=22)
    refuse("gru", "W: type bfloat16, which needs opset 22; must fit GRU-14", **changes, opset=21)


def test_layout_1_is_checked_along_its_own_axes() -> None:
    refuse(
        "gru",
        "initial_h: shape [1, 3, 5]; must be [batch_size, num_directions, hidden_size] = [3, 1, 5]",
        X=zeros(B, T, I),
        layout=1,
    )
    refuse("gru", "sequence_lens: shape [3]; must be [batch_size] = [4]", layout=1)


OPENVINO_REFUSALS: list[tuple[str, str, dict[str, Any]]] = [
    (
        "gru_cell",
        "X: rank 3, shape [4, 3, 2]; must be [batch_size, input_size] = [any, 2]",
        {"X": zeros(T, B, I)},
    ),
    (
        "gru_cell",
        "initial_hidden_state: shape [2, 5]; must be [batch_size, hidden_size] = [3, 5]",
        {"initial_hidden_state": zeros(2, H)},
    ),
    ("gru_cell", "initial_hidden_state: missing; must be given", {"initial_hidden_state": None}),
    ("gru_cell", "W: shape [14, 2]; must be [3*hidden_size, input_size] = [15, any]", {"W": zeros(14, I)}),
    ("gru_cell", "R: shape [14, 5]; must be [3*hidden_size, hidden_size] = [15, 5]", {"R": zeros(14, H)}),
    ("gru_cell", "B: shape [20]; must be [3*hidden_size] = [15]", {"B": zeros(4 * H)}),
    ("gru_cell", "B: shape [15]; must be [4*hidden_size] = [20]", {"linear_before_reset": True}),
    ("gru_cell", "B: shape [30]; must be [3*hidden_size] = [15]", {"B": zeros(6 * H)}),
    ("gru_cell", "hidden_size: 4; must be 5, as R has shape [15, 5]", {"hidden_size": 4}),
    ("gru_cell", "hidden_size: 0; must be at least 1", {"hidden_size": 0}),
    ("gru_cell", "hidden_size: missing; GRUCell-3 requires it", {"hidden_size": None}),
    ("gru_cell", "clip: -1; must be at least 0, where 0 is none", {"clip": -1}),
    (
        "gru_cell",
        "activations: unknown function 'elu'; must be one of Relu, Sigmoid, Tanh",
        {"activations": ["elu", "tanh"]},
    ),
    ("gru_cell", "activations: 1 names; must be 2", {"activations": ["tanh"]}),
    ("gru_cell", "activations: 3 names; must be 2", {"activations": ["tanh"] * 3}),
    (
        "gru_cell",
        "W: type int64; must be float16, bfloat16, float32 or float64",
        {"W": zeros(3 * H, I, dtype=np.int64)},
    ),
    (
        "gru_sequence",
        "X: shape [3, 4, 7]; must be [batch_size, seq_length, input_size] = [any, any, 2]",
        {"X": zeros(B, T, 7)},
    ),
    (
        "gru_sequence",
        "initial_hidden_state: shape [1, 3, 5]; must be [batch_size, num_directions, hidden_size] = [3, 1, 5]",
        {"initial_hidden_state": zeros(1, B, H)},
    ),
    ("gru_sequence", "sequence_lengths: 5; must be in 0…seq_length = 0…4", {"sequence_lengths": [5, 0, 0]}),
    ("gru_sequence", "sequence_lengths: -1; must be", {"sequence_lengths": [-1, 0, 0]}),
    (
        "gru_sequence",
        "sequence_lengths: shape [4]; must be [batch_size] = [3]",
        {"sequence_lengths": [1] * 4},
    ),
    ("gru_sequence", "sequence_lengths: missing; must be given", {"sequence_lengths": None}),
    ("gru_sequence", "B: missing; GRUSequence-5 requires it", {"B": None}),
    (
        "gru_sequence",
        "direction: 'both'; must be 'forward', 'reverse' or 'bidirectional'",
        {"direction": "both"},
    ),
    (
        "gru_sequence",
        "R: shape [1, 15, 5]; must be [num_directions, 3*hidden_size, hidden_size] = [2, 15, 5]",
        {"direction": "bidirectional"},
    ),
    ("gru_sequence", "activations: 4 names; must be 2", {"activations": ["tanh"] * 4}),
    ("augru_cell", "A: rank 1, shape [3]; must be [batch_size, 1] = [3, 1]", {"A": zeros(B)}),
    ("augru_cell", "A: shape [2, 1]; must be [batch_size, 1] = [3, 1]", {"A": zeros(2, 1)}),
    ("augru_cell", "A: shape [3, 2]; must be [batch_size, 1] = [3, 1]", {"A": zeros(B, 2)}),
    ("augru_cell", "A: type float64; must be float32, like W", {"A": zeros(B, 1, dtype=np.float64)}),
    ("augru_cell", "A: missing; must be given", {"A": None}),
    ("augru_cell", "B: missing; AUGRUCell requires it", {"B": None}),
    ("augru_cell", "B: shape [20]; must be [3*hidden_size] = [15]", {"B": zeros(4 * H)}),
    ("augru_cell", "clip: 1.0; must be 0.0", {"clip": 1.0}),
    ("augru_cell", "clip: inf; must be 0.0", {"clip": float("inf")}),
    ("augru_cell", "linear_before_reset: True; must be False", {"linear_before_reset": True}),
    ("augru_cell", "activations_alpha: (1.0,); must be empty", {"activations_alpha": [1.0]}),
    ("augru_cell", "activations_beta: (1.0,); must be empty", {"activations_beta": [1.0]}),
    (
        "augru_cell",
        "activations: unknown function 'relu'; must be one of Sigmoid, Tanh",
        {"activations": ["relu", "tanh"]},
    ),
    (
        "augru_sequence",
        "A: rank 2, shape [3, 4]; must be [batch_size, seq_length, 1] = [3, 4, 1]",
        {"A": zeros(B, T)},
    ),
    (
        "augru_sequence",
        "A: shape [3, 5, 1]; must be [batch_size, seq_length, 1] = [3, 4, 1]",
        {"A": zeros(B, 5, 1)},
    ),
    ("augru_sequence", "A: shape [2, 4, 1]; must be", {"A": zeros(2, T, 1)}),
    ("augru_sequence", "direction: 'reverse'; must be 'forward'", {"direction": "reverse"}),
    ("augru_sequence", "clip: 0.5; must be 0.0", {"clip": 0.5}),
    ("augru_sequence", "linear_before_reset: True; must be False", {"linear_before_reset": 1}),
    (
        "augru_sequence",
        "H_t: shape [3, 2, 5]; must be [batch_size, num_directions, hidden_size] = [3, 1, 5]",
        {"H_t": zeros(B, 2, H)},
    ),
]


@pytest.mark.parametrize(("function", "message", "changes"), OPENVINO_REFUSALS)
def test_openvino_operators_refuse(function: str, message: str, changes: dict[str, Any]) -> None:
    refuse(function, message, **changes)


@pytest.mark.parametrize("name", ["activations_alpha", "activations_beta"])
@pytest.mark.parametrize("function", ["gru_cell", "gru_sequence"])
def test_openvino_values_without_a_function_warn(function: str, name: str) -> None:
    arguments = {**ARGUMENTS[function](), name: [0.5]}
    with pytest.warns(onegru.SpecWarning, match=rf"{name}: 1 value left over.*Sigmoid, Tanh"):
        getattr(onegru, function)(**arguments)
