"""Where the weights of GRU nodes come from: constants, what is computed from them, inputs, defaults."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto

import onegru
from onegru import FormatError, Model, SpecError
from tests.support.files.onnx_checks import assert_close, check
from tests.support.files.onnx_models import (
    EXPECTED,
    PLAIN,
    WEIGHTS,
    X_INFO,
    Arrays,
    H,
    I,
    X,
    graph,
    gru,
    loaded,
    model,
    node,
    numbers,
    tensor,
    value,
    weights,
)

# Of weights that are not the same in each run.
MAY_CHANGE = pytest.mark.filterwarnings("ignore:.*are not the same in each run:onegru.SpecWarning")


def results(
    folder: Path, proto: ModelProto, feeds: Mapping[str, object] | None = None
) -> tuple[Model, Arrays]:
    ours = loaded(folder, proto)
    return ours, ours.run({"X": X} if feeds is None else feeds)


@pytest.mark.parametrize(
    "constant",
    [
        lambda name, array: [node("Constant", [], [name], value=tensor("", array))],
        lambda name, array: [
            node("Constant", [], [name + "_flat"], value_floats=array.ravel().tolist()),
            node("Constant", [], [name + "_shape"], value_ints=list(array.shape)),
            node("Reshape", [name + "_flat", name + "_shape"], [name]),
        ],
        lambda name, array: [
            node("Constant", [], [name + "_double"], value=tensor("", array.astype(np.float64))),
            node("Cast", [name + "_double"], [name], to=TensorProto.FLOAT),
        ],
        lambda name, array: [
            node("Constant", [], [name + "_swapped"], value=tensor("", array.swapaxes(0, 1))),
            node("Transpose", [name + "_swapped"], [name], perm=[1, 0, *range(2, array.ndim)]),
        ],
        lambda name, array: [
            node("Constant", [], [name + "_0"], value=tensor("", array.swapaxes(0, 1).astype(np.float64))),
            node("Cast", [name + "_0"], [name + "_1"], to=TensorProto.FLOAT),
            node("Transpose", [name + "_1"], [name + "_2"], perm=[1, 0, *range(2, array.ndim)]),
            node("Identity", [name + "_2"], [name]),
        ],
        lambda name, array: [
            node("Constant", [], [name + "_upper"], value=tensor("", array[:, :3])),
            node("Constant", [], [name + "_lower"], value=tensor("", array[:, 3:])),
            node("Concat", [name + "_upper", name + "_lower"], [name], axis=1),
        ],
        lambda name, array: [
            node("Constant", [], [name + "_long"], value=tensor("", np.concatenate([array, array], 1))),
            node("Constant", [], [name + "_from"], value_ints=[0]),
            node("Constant", [], [name + "_to"], value_ints=[array.shape[1]]),
            node("Constant", [], [name + "_axis"], value_ints=[1]),
            node("Slice", [name + "_long", name + "_from", name + "_to", name + "_axis"], [name]),
        ],
        lambda name, array: [  # an operator that the operator table does not compute
            node("Constant", [], [name + "_zeros"], value=tensor("", np.zeros_like(array))),
            node("Constant", [], [name + "_at"], value=tensor("", np.zeros((1, 1), np.int64))),
            node("Constant", [], [name + "_rows"], value=tensor("", array)),
            node("ScatterND", [name + "_zeros", name + "_at", name + "_rows"], [name]),
        ],
    ],
    ids=["Constant", "value_floats", "Cast", "Transpose", "chain", "Concat", "Slice", "ScatterND"],
)
def test_weights_computed_from_constants(tmp_path: Path, constant: Any) -> None:
    """Once, when the model is loaded: no step of a run computes them."""
    nodes = [part for name, array in WEIGHTS.items() for part in constant(name, array)]
    ours, got = results(tmp_path, model(graph([*nodes, PLAIN], [X_INFO], ["Y", "Y_h"])))
    assert_close(got, EXPECTED, 0)
    assert ours.other_node_count == 0
    layer = ours.gru_nodes[0].layer
    assert layer is not None
    np.testing.assert_array_equal(layer.weights.W, WEIGHTS["W"])


def test_computed_weights_that_other_nodes_and_outputs_use_too(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", ["Wt"], ["W"], perm=[1, 0, 2]),
        PLAIN,
        node("ReduceSum", ["W"], ["total"], keepdims=0),
        node("Mul", ["Y_h", "total"], ["scaled"]),
    ]
    constants = {"Wt": WEIGHTS["W"].swapaxes(0, 1), "R": WEIGHTS["R"], "B": WEIGHTS["B"]}
    ours = check(tmp_path, nodes, ["scaled", "W"], constants)
    gru_layer = ours.gru_nodes[0]
    made = gru_layer.layer
    ours.run({"X": X})
    assert gru_layer.layer is made


def test_computed_weights_that_nodes_after_the_gru_use(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", ["Rt"], ["R"], perm=[1, 0, 2]),
        PLAIN,
        node("Einsum", ["Y_h", "R"], ["Z"], equation="dbh,dgh->dbg"),
    ]
    constants = {"W": WEIGHTS["W"], "Rt": WEIGHTS["R"].swapaxes(0, 1), "B": WEIGHTS["B"]}
    ours = check(tmp_path, nodes, ["Z"], constants)
    assert ours.other_node_count == 1, "the Transpose is not computed again in each run"


@MAY_CHANGE
def test_weights_computed_from_inputs(tmp_path: Path) -> None:
    """Anew in each run."""
    nodes = [
        node("Mul", ["W", "scale"], ["W_scaled"]),
        gru("X", ["Y", "Y_h"], W="W_scaled", bias="B", name="g"),
    ]
    inputs = [X_INFO, value("scale", "float32", [])]
    ours = check(tmp_path, nodes, ["Y"], inputs=inputs, feeds={"X": X, "scale": np.float32(0.5)})
    assert ours.gru_nodes[0].layer is None
    assert ours.gru_nodes[0].weights == ()
    for scale in (np.float32(2), np.float32(-1)):
        Y, _ = onegru.gru(X, WEIGHTS["W"] * scale, WEIGHTS["R"], WEIGHTS["B"])
        np.testing.assert_array_equal(ours.run({"X": X, "scale": scale})["Y"], Y)


def test_weights_as_inputs(tmp_path: Path) -> None:
    inputs = [X_INFO, *(value(name, "float32", array.shape) for name, array in WEIGHTS.items())]
    ours = loaded(tmp_path, model(graph([PLAIN], inputs, ["Y", "Y_h"])))
    assert [info.name for info in ours.inputs] == ["X", "W", "R", "B"]
    assert_close(ours.run({"X": X, **WEIGHTS}), EXPECTED, 0)
    with pytest.raises(SpecError, match=r"'R': missing; .*model\.onnx requires it, float32 \[1, 9, 3\]"):
        ours.run({"X": X, "W": WEIGHTS["W"], "B": WEIGHTS["B"]})


def test_from_ir_4_on_an_input_with_a_value_has_a_default(tmp_path: Path) -> None:
    inputs = [X_INFO, *(value(name, "float32", array.shape) for name, array in WEIGHTS.items())]
    ours = loaded(tmp_path, model(graph([PLAIN], inputs, ["Y", "Y_h"], WEIGHTS), ir=4))
    assert {info.name: info.optional for info in ours.inputs} == {"X": False, "W": True, "R": True, "B": True}
    assert_close(ours.run({"X": X}), EXPECTED, 0)
    other = weights(7)
    Y, Y_h = onegru.gru(X, other["W"], WEIGHTS["R"], WEIGHTS["B"])
    assert_close(ours.run({"X": X, "W": other["W"]}), {"Y": Y, "Y_h": Y_h}, 0)
    assert_close(ours.run({"X": X}), EXPECTED, 0)
    assert ours.gru_nodes[0].layer is not None


def test_up_to_ir_3_an_input_with_a_value_is_a_constant(tmp_path: Path) -> None:
    inputs = [X_INFO, *(value(name, "float32", array.shape) for name, array in WEIGHTS.items())]
    ours = loaded(tmp_path, model(graph([PLAIN], inputs, ["Y", "Y_h"], WEIGHTS), ir=3))
    assert [info.name for info in ours.inputs] == ["X"]
    assert_close(ours.run({"X": X}), EXPECTED, 0)
    with pytest.raises(SpecError, match=r"'W': not an input of .*model\.onnx; its inputs: 'X'"):
        ours.run({"X": X, "W": WEIGHTS["W"]})


@MAY_CHANGE
def test_what_is_computed_from_a_default_follows_it(tmp_path: Path) -> None:
    """W is computed from an input that has a default, so it is no constant."""
    nodes = [node("Neg", ["minus_W"], ["W"]), PLAIN, node("Add", ["Y_h", "extra"], ["Z"])]
    inputs = [X_INFO, value("minus_W", "float32", [1, 3 * H, I]), value("extra", "float32", ["n"])]
    constants = {**WEIGHTS, "minus_W": -WEIGHTS["W"], "extra": np.array([1], np.float32)}
    del constants["W"]
    ours = check(tmp_path, nodes, ["Z"], constants, inputs=inputs)
    other = numbers(8, 1, 3 * H, I)
    got = ours.run({"X": X, "minus_W": other, "extra": np.array([0, 1, 2], np.float32)})
    _, Y_h = onegru.gru(X, -other, WEIGHTS["R"], WEIGHTS["B"])
    np.testing.assert_allclose(got["Z"], Y_h + np.array([0, 1, 2], np.float32), atol=1e-6)


@MAY_CHANGE
def test_random_weights_are_new_in_each_run(tmp_path: Path) -> None:
    nodes = [node("RandomNormal", [], ["W"], shape=[1, 3 * H, I]), PLAIN]
    ours = loaded(tmp_path, model(graph(nodes, [X_INFO], ["Y"], {"R": WEIGHTS["R"], "B": WEIGHTS["B"]})))
    first, second = (ours.run({"X": X})["Y"] for _ in range(2))
    assert not np.array_equal(first, second)


def test_a_gru_whose_input_is_a_constant(tmp_path: Path) -> None:
    got = loaded(tmp_path, model(graph([PLAIN], [], ["Y", "Y_h"], {**WEIGHTS, "X": X}))).run({})
    assert_close(got, EXPECTED, 0)


def test_sparse_constants(tmp_path: Path) -> None:
    """ONNX Runtime reads them; a GRU or an output does not."""
    sparse = onnx.helper.make_sparse_tensor(
        tensor("K", np.array([2.0], np.float32)), tensor("", np.array([1])), [H]
    )
    nodes = [PLAIN, node("Add", ["Y_h", "K"], ["Z"])]
    proto = model(graph(nodes, [X_INFO], ["Z"], WEIGHTS, sparse=[sparse]))
    _, got = results(tmp_path, proto)
    np.testing.assert_allclose(got["Z"], EXPECTED["Y_h"] + np.array([0, 2, 0], np.float32), atol=1e-6)
    proto = model(graph(nodes, [X_INFO], ["Z", "K"], WEIGHTS, sparse=[sparse]))
    with pytest.raises(FormatError, match=r"initializer 'K': is sparse; .* must be dense"):
        loaded(tmp_path, proto)
