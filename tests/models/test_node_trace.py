"""The gates of a model's nodes, wherever they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import SpecError
from onegru.core.dtypes import Array
from tests.support.files.onnx_models import WEIGHTS, H, X, graph, gru, loaded, model, node, value
from tests.support.layers import make_gru, make_stack
from tests.support.machine.repository import DENOISER, DIGITS

B = X.shape[1]


def equal(trace: onegru.reports.GateTrace, other: onegru.reports.GateTrace) -> None:
    assert trace.spec == other.spec
    for name in ("z", "r", "n", "h", "initial_h", "lengths"):
        np.testing.assert_array_equal(getattr(trace, name), getattr(other, name))


@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_the_nodes_of_a_whole_model(engine: str) -> None:
    ours = onegru.load(DIGITS, engine=engine)
    rows = np.random.default_rng(0).uniform(0, 1, (3, 8, 8)).astype(np.float32)
    for index, arrays in enumerate(ours.trace({"rows": rows})):
        trace = ours.trace({"rows": rows}, node=index)
        assert (trace.name, trace.source) == (ours.gru_nodes[index].name, "digits.onnx")
        np.testing.assert_array_equal(trace.h, arrays["Y"])
        layer = ours.gru_nodes[index].layer
        assert layer is not None
        equal(trace, layer.trace(arrays["X"]))
        equal(trace, ours.trace({"rows": rows}, trace.name))


def test_a_state_and_lengths(tmp_path: Path) -> None:
    nodes = [gru("X", ["", "Y_h"], bias="B", lens="lens", initial_h="h", layout=1, name="g")]
    inputs = [value("X", "float32", [B, 4, 5]), value("lens", "int32", [B]), value("h", "float32", [B, 1, H])]
    ours = loaded(tmp_path, model(graph(nodes, inputs, ["Y_h"], WEIGHTS)))
    x, h, lens = X.swapaxes(0, 1), np.full((B, 1, H), 0.5, np.float32), np.array([4, 2], np.int32)
    trace = ours.trace({"X": x, "lens": lens, "h": h}, "g")  # which gives no Y itself
    layer = ours.gru_nodes[0].layer
    assert layer is not None
    equal(trace, layer.trace(x, h, sequence_lens=lens, layout=1))
    assert trace.lengths.tolist() == [4, 2] and np.isnan(trace.z[2:, 0, 1]).all()


def test_weights_that_are_inputs(tmp_path: Path) -> None:
    inputs = [value("X", "float32", X.shape)]
    inputs += [value(name, "float32", array.shape) for name, array in WEIGHTS.items()]
    ours = loaded(tmp_path, model(graph([gru("X", ["Y"], bias="B", name="g")], inputs, ["Y"])))
    assert ours.gru_nodes[0].layer is None
    equal(ours.trace({"X": X, **WEIGHTS}, 0), onegru.GRU(**WEIGHTS).trace(X))


def branches(tmp_path: Path) -> Any:
    """A GRU in each branch of an If; both are called the same."""
    parts = {
        name: graph([gru("X", ["Y"], bias="B", name="g"), node("Mul", ["Y", f], [name])], [], [name])
        for name, f in (("then_branch", "one"), ("else_branch", "two"))
    }
    constants = {**WEIGHTS, "one": np.float32(1), "two": np.float32(2)}
    inputs = [value("X", "float32", X.shape), value("c", "bool", [])]
    return loaded(tmp_path, model(graph([node("If", ["c"], ["Z"], **parts)], inputs, ["Z"], constants)))


def test_nodes_in_bodies(tmp_path: Path) -> None:
    ours = branches(tmp_path)
    feeds: dict[str, Array] = {"X": X, "c": np.array(True)}
    seen = [index for index, arrays in enumerate(ours.trace(feeds)) if arrays]
    equal(ours.trace(feeds, seen[0]), onegru.GRU(**WEIGHTS).trace(X))
    with pytest.raises(SpecError, match=r"^node: 'g' did not run on these inputs; must be a node that runs"):
        ours.trace(feeds, 1 - seen[0])
    with pytest.raises(SpecError, match=r"^node: 2 nodes are called 'g'; use an index: 0 or 1"):
        ours.trace(feeds, "g")


@pytest.mark.parametrize("make", [lambda: make_gru(direction="bidirectional"), lambda: make_stack(2)])
def test_an_ir(make: Any, tmp_path: Path) -> None:
    layers = make()
    onegru.save_layers(layers, tmp_path / "layers.xml", sequence_lens=True)
    ours = onegru.load(tmp_path / "layers.xml")
    x = np.random.default_rng(0).standard_normal((2, 6, 5)).astype(np.float32)
    feeds = {"X": x, "sequence_lengths": np.array([6, 6], np.int32)}
    traces = [ours.trace(feeds, index) for index in range(len(ours.gru_nodes))]
    wanted = layers.trace(x, layout=1)
    for trace, other in zip(traces, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        np.testing.assert_array_equal(trace.h, other.h)
        np.testing.assert_allclose(trace.z, other.z, atol=1e-6)  # with biases that are summed


def test_names_and_indices() -> None:
    ours = onegru.load(DENOISER)
    feeds = {"x": np.zeros((1, 3, 16), np.float32), "h": np.zeros((1, 1, 48), np.float32)}
    assert ours.trace(feeds, "/gru/GRU").h.shape == (3, 1, 1, 48)
    for given, message in (
        (1, "node: 1; must be the index of one of 1 GRU node"),
        (-1, "node: -1; must be the index"),
        (True, "node: True; must be an integer"),
        ("", "node: ''; must be one of the GRU nodes: '/gru/GRU'"),
    ):
        with pytest.raises(SpecError, match=f"^{message}"):
            ours.trace(feeds, given)
