"""Illegal nodes and calls: functions, `load` and the execution provider refuse and warn in the same words."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import onegru
from onegru import execution_provider
from onegru.formats.onnx.functions.augru import add_augru_functions
from tests.support.comparison import same_bits
from tests.support.files import onnx_models as m
from tests.support.machine.processes import run_python
from tests.support.machine.repository import ROOT
from tests.support.operator_arguments import gru_arguments, zeros
from tests.support.refusals import GRU_REFUSALS

INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h")


def model_of(arguments: Mapping[str, Any], constants: str) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A model of one node, and what it is fed. Its ranks are open, or ONNX Runtime itself looks first."""
    arrays = {name: np.asarray(arguments[name]) for name in INPUTS}
    arrays["sequence_lens"] = arrays["sequence_lens"].astype(np.int32)
    attributes = {name: item for name, item in arguments.items() if name not in (*INPUTS, "opset")}
    node = onnx.helper.make_node("GRU", INPUTS, ["Y", "Y_h"], name="gru")
    for name, item in attributes.items():
        of_empty = onnx.AttributeProto.STRINGS if name == "activations" else onnx.AttributeProto.FLOATS
        kind = of_empty if item == [] else None
        node.attribute.append(onnx.helper.make_attribute(name, item, attr_type=kind))
    feeds = {name: array for name, array in arrays.items() if name not in constants}
    graph = m.graph(
        [node],
        [m.value(name, array.dtype.name) for name, array in feeds.items()],
        [m.value(name, arrays["X"].dtype.name) for name in ("Y", "Y_h")],
        {name: array for name, array in arrays.items() if name in constants},
    )
    return m.model(graph, opset=arguments.get("opset", 22)), feeds


def run_session(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    providers = [execution_provider.register(), "CPUExecutionProvider"]
    opened = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=providers, enable_fallback=0
    )
    return opened.run(None, feeds)[0]


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught:  # ONNX Runtime's share no base class
        call()
    return str(caught.value)


# ONNX Runtime compares these with the specification itself, before it asks a provider.
CHECKED_BEFORE = ("type ", "not an attribute of")


@pytest.mark.parametrize("constants", ["WRB", ""], ids=["constants", "fed"])
@pytest.mark.parametrize(("message", "changes"), GRU_REFUSALS)
def test_all_refuse_alike(message: str, changes: dict[str, Any], constants: str, tmp_path: Path) -> None:
    arguments = {**gru_arguments(), **changes}
    said = refusal(lambda: onegru.gru(**arguments))
    assert said.startswith(message)
    model, feeds = model_of(arguments, constants)
    assert said in refusal(lambda: onegru.load(m.save(tmp_path, model)).run(feeds))
    by_session = refusal(lambda: run_session(model, feeds))
    if not any(words in said for words in CHECKED_BEFORE):
        assert f"onegru: GRU node 'gru': {said}" in by_session


@pytest.mark.parametrize("opset", [1, 2])
def test_all_take_the_first_versions_misspelt_default(opset: int, tmp_path: Path) -> None:
    arguments = {**gru_arguments(), "X": m.numbers(1, 4, 3, 2), "direction": "foward", "opset": opset}
    wanted = onegru.gru(**arguments)[0]
    model, feeds = model_of(arguments, "WRB")
    assert same_bits(onegru.load(m.save(tmp_path, model)).run(feeds)["Y"], wanted)
    assert same_bits(run_session(model, feeds), wanted)


SPARE: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"activation_alpha": [0.5]},
        ["activation_alpha: 1 value too many for Sigmoid, Tanh"],
    ),
    (
        {
            "activation_alpha": [0.5, 1.0],
            "activation_beta": [2.0, 3.0, 4.0],
            "activations": ["HardSigmoid", "elu"],
        },
        ["activation_beta: 2 values too many for HardSigmoid, Elu"],
    ),
    (
        {"activation_alpha": [0.5, 1.0], "activation_beta": [1.0]},
        ["activation_alpha: 2 values too many", "activation_beta: 1 value too many"],
    ),
    ({"activation_alpha": [0.5], "activations": ["LeakyRelu", "Tanh"]}, []),
    ({"activation_alpha": [], "activation_beta": []}, []),
]


def warned(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = call()
    assert all(item.category is onegru.SpecWarning for item in found)
    assert all(item.filename == __file__ for item in found), "a warning names the line that the caller wrote"
    return result, [str(item.message) for item in found]


@pytest.mark.parametrize(("attributes", "messages"), SPARE)
def test_all_warn_alike(attributes: dict[str, Any], messages: list[str], tmp_path: Path) -> None:
    arguments = {**gru_arguments(), "X": m.numbers(1, 4, 3, 2), "R": m.numbers(2, 1, 15, 5), **attributes}
    (wanted, _), said = warned(lambda: onegru.gru(**arguments))
    assert len(said) == len(messages)
    assert all(map(str.startswith, said, messages))
    model, feeds = model_of(arguments, "WRB")
    loaded, by_load = warned(lambda: onegru.load(m.save(tmp_path, model)))
    assert [text.partition("node 'gru': ")[2] for text in by_load] == said
    found, by_session = warned(lambda: run_session(model, feeds))
    assert by_session == [f"GRU node 'gru': {text}" for text in said]
    for array in (found, loaded.run(feeds)["Y"]):
        assert same_bits(array, wanted)


def test_a_warning_comes_once(tmp_path: Path) -> None:
    """As `load` reads the model, which ONNX Runtime then runs; or with the session, which reads it later."""
    model, feeds = model_of({**gru_arguments(), "activation_alpha": [0.5]}, "WRB")
    model.graph.node.append(m.node("Neg", ["Y"], ["Z"]))
    model.graph.output.append(m.value("Z"))
    path = m.save(tmp_path, model)
    _, messages = warned(lambda: onegru.load(path).run(feeds))
    assert len(messages) == 1
    _, messages = warned(lambda: onegru.InferenceSession(path).model.gru_nodes)
    assert len(messages) == 1


def test_a_warning_may_be_an_error() -> None:
    model, feeds = model_of({**gru_arguments(), "activation_alpha": [0.5]}, "WRB")
    with warnings.catch_warnings(action="error", category=onegru.SpecWarning):
        said = refusal(lambda: run_session(model, feeds))
    assert "onegru: GRU node 'gru': activation_alpha: 1 value too many" in said


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"direction": "foward"}, "direction: 'foward'; must be 'forward', 'reverse' or 'bidirectional'"),
        ({"output_sequence": 1}, "output_sequence: not an attribute of AUGRU-1; must be one of"),
    ],
)
def test_attention_follows_the_newest_version(attributes: dict[str, Any], message: str) -> None:
    model, feeds = model_of({**gru_arguments(), "direction": "reverse"}, "WRB")
    node = model.graph.node[0]
    node.op_type, node.domain = "AUGRU", "onegru"
    node.input.append("A")
    model.graph.input.append(m.value("A"))
    add_augru_functions(model)
    feeds["A"] = zeros(4, 3, 1)
    run_session(model, feeds)
    if "direction" in attributes:
        del node.attribute[:]
    node.attribute.extend(onnx.helper.make_attribute(name, item) for name, item in attributes.items())
    assert f"onegru: AUGRU node 'gru': {message}" in refusal(lambda: run_session(model, feeds))


def test_without_python_warnings_go_to_onnx_runtimes_log(tmp_path: Path) -> None:
    model, _ = model_of({**gru_arguments(), "activation_alpha": [0.5]}, "WRB")
    path = m.save(tmp_path, model)
    built = max(ROOT.glob("build/*/libonegru_execution_provider.so"), key=lambda path: path.stat().st_mtime)
    program = """
import sys, onnxruntime
onnxruntime.register_execution_provider_library("OnegruExecutionProvider", sys.argv[1])
onnxruntime.InferenceSession(sys.argv[2], providers=["OnegruExecutionProvider", "CPUExecutionProvider"])
"""
    done = run_python(program, str(built), str(path))
    assert "onegru: GRU node 'gru': activation_alpha: 1 value too many for Sigm" in done.stderr
