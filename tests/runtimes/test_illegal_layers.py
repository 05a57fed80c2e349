"""Illegal layers in OpenVINO: functions, operators and replaced layers refuse and warn in the same words."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import openvino
import pytest
from openvino import opset13 as ops

import onegru
from onegru.operators.openvino import OPERATORS
from onegru.runtimes import openvino_failures
from tests.support.operator_arguments import ARGUMENTS
from tests.support.refusals import OPENVINO_REFUSALS

NAMES = {"gru_cell": "GRUCell", "gru_sequence": "GRUSequence", "augru_cell": "AUGRUCell"} | {
    "augru_sequence": "AUGRUSequence"
}
# "stated": the graph states all shapes; "open": only ranks; "replaced": open, and replaced.
FORMS = ("stated", "open", "replaced")


def model_of(function: str, arguments: dict[str, Any], form: str) -> tuple[Any, dict[str, Any]]:
    """A layer in a graph of OpenVINO's, all of whose inputs are those of the graph; and these."""
    operator = OPERATORS[NAMES[function]]
    arrays = {port.name: np.asarray(arguments[port.name]) for port in operator.inputs}
    if "sequence_lengths" in arrays:
        arrays["sequence_lengths"] = arrays["sequence_lengths"].astype(np.int32)
    parameters = {
        name: ops.parameter(array.shape if form == "stated" else [-1] * array.ndim, array.dtype)
        for name, array in arrays.items()
    }
    for name, parameter in parameters.items():
        parameter.output(0).set_names({name})
    (kind,) = (item for item in onegru.openvino.extensions() if item.operator is operator)
    attributes = {name: value for name, value in arguments.items() if name not in arrays}
    node = kind([parameter.output(0) for parameter in parameters.values()], **attributes)
    return openvino.Model(node.outputs(), list(parameters.values())), arrays


def run(function: str, arguments: dict[str, Any], form: str) -> list[Any]:
    """The outputs of such a graph."""
    model, arrays = model_of(function, arguments, form)
    if form == "replaced":
        assert onegru.openvino.replace_grus(model) == 1
    results = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(arrays)
    if lost := onegru.openvino.errors():  # on one CPU
        raise RuntimeError(lost[0])
    return [np.array(results[index]) for index in range(len(model.outputs))]


def cases() -> list[tuple[str, str, dict[str, Any], str]]:
    """No graph of OpenVINO's can lack an input before others, and all of them state the ranks."""
    return [
        (function, message, changes, form)
        for function, message, changes in OPENVINO_REFUSALS
        for form in FORMS
        if "missing" not in message and (form == "stated" or ": rank" not in message)
    ]


@pytest.mark.parametrize(("function", "message", "changes", "form"), cases())
def test_all_refuse_alike(function: str, message: str, changes: dict[str, Any], form: str) -> None:
    arguments = {**ARGUMENTS[function](), **changes}
    with pytest.raises(onegru.SpecError) as caught:
        getattr(onegru, function)(**arguments)
    said = str(caught.value)
    assert said.startswith(message)
    with pytest.raises((onegru.SpecError, RuntimeError)) as by_openvino:
        run(function, arguments, form)
    assert said in str(by_openvino.value)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("function", NAMES)
def test_legal_arguments_are_accepted(function: str, form: str) -> None:
    arguments = ARGUMENTS[function]()
    expected = getattr(onegru, function)(**arguments)
    wanted = expected if isinstance(expected, tuple) else (expected,)
    for found, array in zip(run(function, arguments, form), wanted, strict=True):
        np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("function", ["gru_cell", "gru_sequence"])
def test_all_warn_alike(function: str, form: str) -> None:
    arguments = {**ARGUMENTS[function](), "activations_alpha": [0.5]}
    with pytest.warns(onegru.SpecWarning) as by_function:
        getattr(onegru, function)(**arguments)
    (said,) = {str(item.message) for item in by_function}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run(function, arguments, form)
    assert found and all(str(item.message).endswith(said) for item in found)


def test_copies_of_a_model_refuse_what_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one thread, too, where a run goes on with what cannot be raised."""
    monkeypatch.setattr(openvino_failures, "are_lost", lambda: True)
    model, arrays = model_of("gru_sequence", ARGUMENTS["gru_sequence"](), "open")
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    batch_size, seq_length, input_size = shapes["X"]
    for copy in (model.clone(), model):
        copy.reshape(shapes)
        with pytest.raises(onegru.SpecError, match=r"X: shape .*; must be "):
            copy.reshape({**shapes, "X": [batch_size, seq_length, input_size + 1]})
