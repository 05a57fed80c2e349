"""Refusals of the operators: each names the argument, what it is, and what it must be."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import pytest

import onegru
from tests.support.operator_arguments import ARGUMENTS, B, I, T, gru_arguments, zeros
from tests.support.refusals import GRU_REFUSALS, OPENVINO_REFUSALS, PYTHON_REFUSALS


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


@pytest.mark.parametrize(("function", "message", "changes"), OPENVINO_REFUSALS)
def test_openvino_operators_refuse(function: str, message: str, changes: dict[str, Any]) -> None:
    refuse(function, message, **changes)


@pytest.mark.parametrize("name", ["activations_alpha", "activations_beta"])
@pytest.mark.parametrize("function", ["gru_cell", "gru_sequence"])
def test_openvino_values_without_a_function_warn(function: str, name: str) -> None:
    arguments = {**ARGUMENTS[function](), name: [0.5]}
    with pytest.warns(onegru.SpecWarning, match=rf"{name}: 1 value too many.*Sigmoid, Tanh"):
        getattr(onegru, function)(**arguments)
