"""AUGRU nodes in sessions of ONNX Runtime with onegru's execution provider, which takes them before they are
put in the place of their functions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

import onegru
from onegru import execution_provider
from onegru.formats.onnx.functions.augru import add_augru_functions
from onegru.layers.call import apply
from onegru.operators.lowering import lower
from onegru.operators.onnx import AUGRU
from tests.runtimes.test_execution_provider import CPU, run, session
from tests.support.cases import Case, augru_cases, onnx_model
from tests.support.comparison import same_bits
from tests.support.files import onnx_models as m
from tests.support.files.onnx_models import augru_node
from tests.support.suite.selection import examples

A = m.numbers(7, m.T, m.B, 1)
STATE = m.numbers(2, 1, m.B, m.H)
WEIGHTS = {name: name for name in ("W", "R", "B")}


def model_of(node: onnx.NodeProto, outputs: Any = ("Y",), **arguments: Any) -> onnx.ModelProto:
    values = [m.value(name, "int32" if name == "lens" else "float32") for name in ("X", "A", "lens", "h")]
    values = [value for value in values if value.name in node.input]
    model = m.model(m.graph([node], values, outputs, m.WEIGHTS), **{"opset": 22, **arguments})
    add_augru_functions(model)
    return model


def node(attributes: Any = None, **inputs: str) -> onnx.NodeProto:
    return augru_node({"X": "X", **WEIGHTS, "A": "A", **inputs}, {"Y": "Y"}, attributes, "attention")


@examples(100)
@given(augru_cases((15, 18, 22)), st.booleans(), st.sampled_from(["auto", "reference"]))
def test_one_node_has_the_bits_of_a_layer(case: Case, constant_weights: bool, engine: Any) -> None:
    opened = session(onnx_model(case, constant_weights=constant_weights), engine=engine)
    used = {info.name for info in opened.get_inputs()}
    feeds = {name: array for name, array in case.inputs.items() if array is not None and name in used}
    lowered = lower(AUGRU, case.attributes, *(case.inputs[name] for name in "WRB"))
    layer = onegru.GRU.from_canonical(lowered.spec, lowered.weights, engine=engine)
    given = {name: case.inputs[name] for name in ("X", "sequence_lens", "initial_h", "A")}
    wanted = apply(layer, lowered.ports, given, {"Y": None, "Y_h": None}).values()
    for got, want in zip(run(opened, feeds), wanted, strict=True):
        assert same_bits(got, want), (case, got, want)


def test_the_node_stays_a_node(tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    providers = [execution_provider.register(), CPU]
    model = model_of(node()).SerializeToString()
    own = onnxruntime.InferenceSession(model, options, providers=providers)
    assert [item.op_type for item in onnx.load(tmp_path / "optimized.onnx").graph.node] == ["AUGRU"]
    plain = onnxruntime.InferenceSession(model, options, providers=[CPU])
    assert "Scan" in [item.op_type for item in onnx.load(tmp_path / "optimized.onnx").graph.node]
    feeds = {"X": m.X, "A": A}
    wanted = onegru.GRU(**m.WEIGHTS, attention=True)(m.X, attention=A[..., 0])[0]
    assert same_bits(own.run(None, feeds)[0], wanted)
    assert same_bits(onegru.InferenceSession(model).run(None, feeds)[0], wanted)
    # Two sums of float32 in other orders: seen at most 1e-7.
    np.testing.assert_allclose(plain.run(None, feeds)[0], wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("domain", ["onegru", "onegru.8"])
@pytest.mark.parametrize("way", ["by its device", "by its name", "both"])
def test_a_file_without_the_function_opens(way: str, domain: str, tmp_path: Path) -> None:
    """As PyTorch's exporters write it; ONNX Runtime reads a file before it asks a provider given by name."""
    model = model_of(node())
    del model.functions[:]
    model.graph.node[0].domain = model.opset_import[-1].domain = domain
    data = model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    name = execution_provider.register()
    if way != "by its device":
        options.register_custom_ops_library(execution_provider.get_library_path())
    if way == "by its name":
        opened = onnxruntime.InferenceSession(data, options, providers=[name, CPU])
    else:
        devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
        options.add_provider_for_devices(devices, {"threads": "1"})
        opened = onnxruntime.InferenceSession(data, options)
    assert [item.op_type for item in onnx.load(tmp_path / "optimized.onnx").graph.node] == ["AUGRU"]
    wanted = onegru.GRU(**m.WEIGHTS, attention=True)(m.X, attention=A[..., 0])[0]
    assert same_bits(opened.run(None, {"X": m.X, "A": A})[0], wanted)


@pytest.mark.parametrize("removed", [(3, "A: missing; must be given"), (1, "W|Input1|invalid model")])
def test_without_the_function_missing_inputs_are_reported(removed: tuple[int, str]) -> None:
    place, message = removed
    model = model_of(node())
    del model.functions[:]
    if place == 3:
        del model.graph.node[0].input[place:]
    else:
        model.graph.node[0].input[place] = ""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(execution_provider.get_library_path())
    providers = [execution_provider.register(), CPU]
    with pytest.raises(Exception, match=message):
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers).run(
            None, {"X": m.X, "A": A}
        )


def test_an_observer_sees_the_scores() -> None:
    seen: dict[str, Any] = {}

    def look(node: str, moment: str, arrays: Mapping[str, Any]) -> None:
        seen.update({f"{moment} {name}": array.copy() for name, array in arrays.items()})

    number = execution_provider.add_observer(look)
    session(model_of(node()), observer=str(number)).run(None, {"X": m.X, "A": A})
    execution_provider.remove_observer(number)
    assert {"weights W", "weights R", "weights B", "done X", "done A", "done Y"} <= seen.keys()
    assert same_bits(seen["done A"], A)


def test_a_node_of_only_constants() -> None:
    constants = {**m.WEIGHTS, "X": m.X, "A": A}
    model = m.model(m.graph([node()], [], ["Y"], constants), opset=22)
    add_augru_functions(model)
    wanted = onegru.GRU(**m.WEIGHTS, attention=True)(m.X, attention=A[..., 0])[0]
    assert same_bits(session(model).run(None, {})[0], wanted)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"activations": ["Sigmoid", "Cube"]}, "activations: unknown function 'Cube'; must be one of Relu, "),
        ({"clip": -1.0}, "clip: -1; must be > 0"),
        ({"hidden_size": 7}, "hidden_size: 7; must be 3, because R has shape [1, 9, 3]"),
        ({"layout": 2}, "layout: 2; must be 0 or 1"),
    ],
)
def test_an_illegal_node_is_refused(attributes: Any, message: str) -> None:
    made = node()
    model = model_of(made)
    items = [onnx.helper.make_attribute(name, value) for name, value in attributes.items()]
    model.graph.node[0].attribute.extend(items)
    model.functions[0].attribute.extend(attributes)
    with pytest.raises(Exception, match="onegru: AUGRU node 'attention': ") as refused:
        session(model)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"A": A[..., 0]}, "A: rank 2, shape [4, 2]; must be [seq_length, batch_size, 1] = [4, 2, 1]"),
        ({"A": A[:3]}, "A: shape [3, 2, 1]; must be [seq_length, batch_size, 1] = [4, 2, 1]"),
        ({"A": A.swapaxes(0, 1)}, "A: shape [2, 4, 1]; must be [seq_length, batch_size, 1] = [4, 2, 1]"),
        ({"X": m.X[..., :4]}, "X: shape [4, 2, 4]; must be [seq_length, batch_size, input_size]"),
        ({"lens": np.array([1, 5], np.int32)}, "sequence_lens: 5; must be in 0…seq_length = 0…4"),
        (
            {"h": STATE[:, :1]},
            "initial_h: shape [1, 1, 3]; must be [num_directions, batch_size, hidden_size]",
        ),
    ],
)
def test_an_illegal_input_is_refused(feeds: Any, message: str) -> None:
    opened = session(model_of(node(sequence_lens="lens", initial_h="h")))
    given = {"X": m.X, "A": A, "lens": np.array([4, 4], np.int32), "h": STATE, **feeds}
    with pytest.raises(Exception, match="onegru: AUGRU node 'attention': ") as refused:
        opened.run(None, given)
    assert message in str(refused.value)


def any_function(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a function that takes every type and any number of inputs."""
    (function,) = model.functions
    del function.node[:]
    function.node.append(m.node("Identity", ["X"], ["Y"]))
    function.node.append(m.node("Identity", ["X"], ["Y_h"]))
    return model


@pytest.mark.parametrize(
    ("dtype", "values", "message"),
    [
        (
            "int64",
            {"X": m.X, "A": A},
            "A: ONNX's element type 7; must be float16, bfloat16, float32 or float64",
        ),
        ("float64", {"X": m.X, "A": A}, "A: type float64; must be float32, like W"),
    ],
)
def test_types_that_a_function_does_not_exclude(dtype: str, values: Any, message: str) -> None:
    model = model_of(node())
    model.graph.input[1].CopyFrom(m.value("A", dtype))
    opened = session(any_function(model))
    with pytest.raises(Exception, match="onegru: AUGRU node 'attention': ") as refused:
        opened.run(None, {**values, "A": A.astype(dtype)})
    assert message in str(refused.value)


def test_scores_that_are_missing() -> None:
    model = any_function(model_of(node()))
    del model.graph.node[0].input[3:]
    opened = session(model)
    with pytest.raises(Exception, match="onegru: AUGRU node 'attention': A: missing; must be given"):
        opened.run(None, {"X": m.X, "A": A})
