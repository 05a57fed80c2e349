"""The operators as functions: which values they take, and in which order."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import onegru
from tests.support.operator_arguments import ARGUMENTS, B, H, I, cell_arguments, gru_arguments, zeros


@pytest.mark.parametrize("function", ARGUMENTS)
def test_the_arguments_that_the_others_change_are_legal(function: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        getattr(onegru, function)(**ARGUMENTS[function]())


@pytest.mark.parametrize("clip", [None, 0, 0.0, float("inf")])
def test_openvino_spellings_of_no_clip(clip: float | None) -> None:
    arguments = cell_arguments()
    arguments["X"] = arguments["X"] + 9
    arguments["W"] = arguments["W"] + 1
    np.testing.assert_array_equal(onegru.gru_cell(**arguments, clip=clip), onegru.gru_cell(**arguments))
    assert not np.array_equal(onegru.gru_cell(**arguments, clip=0.5), onegru.gru_cell(**arguments))


def test_values_are_rounded_to_float32_first() -> None:
    arguments: dict[str, Any] = {
        name: np.full(a.shape, 0.3, np.float64) for name, a in gru_arguments().items() if name in "XWR"
    }
    for name, value in (("activation_alpha", 0.1), ("activation_beta", 0.7)):
        given: dict[str, Any] = {
            "activations": ["Affine", "Affine"],
            "activation_alpha": [0.3],
            "activation_beta": [0.1],
            name: [value],
        }
        rounded = {**given, name: [float(np.float32(value))]}
        np.testing.assert_array_equal(
            onegru.gru(**arguments, **given)[0], onegru.gru(**arguments, **rounded)[0]
        )
    np.testing.assert_array_equal(
        onegru.gru(**arguments, clip=0.1)[0], onegru.gru(**arguments, clip=float(np.float32(0.1)))[0]
    )
    assert not np.array_equal(onegru.gru(**arguments, clip=0.1)[0], onegru.gru(**arguments, clip=0.1001)[0])


def test_values_go_to_the_functions_that_take_them_in_order() -> None:
    # LeakyRelu takes only alpha, so beta's first value is Affine's.
    arguments: dict[str, Any] = {"X": -np.ones((1, 1, 1)), "W": np.ones((1, 3, 1)), "R": np.zeros((1, 3, 1))}
    Y, _ = onegru.gru(
        **arguments,
        activations=["LeakyRelu", "Affine"],
        activation_alpha=[0.25, 0.5],
        activation_beta=[0.125],
    )
    z, n = -0.25, -0.5 + 0.125
    assert Y.item() == (1 - z) * n


def test_lengths_0_and_no_steps_give_zeros_whatever_the_initial_state() -> None:
    arguments = gru_arguments()
    arguments["initial_h"] = arguments["initial_h"] + 7
    Y, Y_h = onegru.gru(**{**arguments, "sequence_lens": [0, 1, 0]})
    assert not Y[:, :, [0, 2]].any()
    assert not Y_h[:, [0, 2]].any()
    assert Y_h[:, 1].all()
    Y, Y_h = onegru.gru(**{**arguments, "X": zeros(0, B, I), "sequence_lens": [0] * B})
    assert Y.shape == (0, 1, B, H)
    assert not Y_h.any()


def test_byte_order_is_not_a_type() -> None:
    swapped: dict[str, Any] = {
        name: value.astype(value.dtype.newbyteorder(">")) if isinstance(value, np.ndarray) else value
        for name, value in gru_arguments().items()
    }
    np.testing.assert_array_equal(onegru.gru(**swapped)[0], onegru.gru(**gru_arguments())[0])


def test_warnings_point_at_the_caller() -> None:
    arguments: dict[str, Any] = {**cell_arguments(), "activations_alpha": [0.5]}
    with pytest.warns(onegru.SpecWarning) as caught:
        onegru.gru_cell(**arguments)
        onegru.GRU(zeros(1, 3, 1), zeros(1, 3, 1), activation_beta=[1.0])
    assert [warning.filename for warning in caught] == [__file__] * 2
