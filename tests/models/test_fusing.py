"""Models loaded with their decomposed GRUs as GRU nodes; what `onegru.inspect` reports about them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onegru
from tests.support.decomposed.draw import Decomposed, decomposed, near_miss
from tests.support.files.onnx_models import graph, gru, model, node, save, value, weights
from tests.support.machine.repository import DENOISER

# Of float32 outputs against float64 by the equations, as in tests/fusion/test_decomposed.py.
BOUND = 2e-5


@pytest.fixture
def chain() -> Decomposed:
    return decomposed("chain", np.random.default_rng(1))


def assert_computes(loaded: onegru.Model, case: Decomposed) -> None:
    for name, found in loaded.run(dict(case.feeds)).items():
        scale = max(1.0, np.max(np.abs(case.expected[name]), initial=0.0))
        assert np.max(np.abs(found - case.expected[name]), initial=0.0) <= BOUND * scale, case.recipe


# ---- loading


@pytest.mark.parametrize("given", ["path", "bytes", "ModelProto"])
def test_load(given: str, chain: Decomposed, tmp_path: Path) -> None:
    path = save(tmp_path, chain.model)
    before = chain.model.SerializeToString()
    source: Any = {"path": path, "bytes": before, "ModelProto": chain.model}[given]
    fused = onegru.load(source, fuse=True)
    assert len(fused.gru_nodes) == chain.count
    assert_computes(fused, chain)
    plain = onegru.load(source)
    assert plain.gru_nodes == () and plain.path == fused.path
    assert (plain.inputs, plain.outputs) == (fused.inputs, fused.outputs)
    # Neither the file nor the caller's object changes.
    assert path.read_bytes() == before == chain.model.SerializeToString()


@pytest.mark.parametrize("kind", ["cell", "Scan of two layers", "chain with lengths"])
def test_other_kinds(kind: str) -> None:
    case = decomposed(kind, np.random.default_rng(1))
    loaded = onegru.load(case.model, fuse=True)
    assert len(loaded.gru_nodes) == case.count
    assert_computes(loaded, case)


def test_external_data_stay_where_they_are(chain: Decomposed, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save_model(chain.model, str(path), save_as_external_data=True, size_threshold=100, location="w.bin")
    assert (tmp_path / "w.bin").exists()
    loaded = onegru.load(path, fuse=True)
    assert len(loaded.gru_nodes) == chain.count
    assert_computes(loaded, chain)


def test_what_is_loaded_pickles_and_traces(chain: Decomposed) -> None:
    loaded = onegru.load(chain.model, fuse=True)
    assert_computes(pickle.loads(pickle.dumps(loaded)), chain)
    (arrays,) = loaded.trace(dict(chain.feeds))
    assert {"X", "W", "R", "Y_h"} <= arrays.keys()
    exact = onegru.load(chain.model, engine="reference", fuse=True)
    assert_computes(exact, chain)


def test_a_model_without_any_is_loaded_as_it_is() -> None:
    plain, fused = onegru.load(DENOISER), onegru.load(DENOISER, fuse=True)
    assert [item.name for item in plain.gru_nodes] == [item.name for item in fused.gru_nodes]
    assert plain.graph.whole is not None and fused.graph.whole is not None
    assert plain.other_node_count == fused.other_node_count


@pytest.mark.parametrize("wrong", [None, 0, 1, "yes", [], np.array([True, False])])
def test_fuse_is_true_or_false(wrong: Any) -> None:
    with pytest.raises(onegru.SpecError, match=r"fuse: .*; must be True or False"):
        onegru.load(DENOISER, fuse=wrong)


@pytest.mark.parametrize("data", [b"", b"not a model", b"\x08\x08\x3a\x05ab"])
def test_broken_models(data: bytes, tmp_path: Path) -> None:
    for source in (data, save(tmp_path, data)):
        with pytest.raises(onegru.FormatError):
            onegru.load(source, fuse=True)


# ---- inspecting


def test_inspect(chain: Decomposed, tmp_path: Path) -> None:
    path = save(tmp_path, chain.model)
    found = onegru.inspect(path)
    assert found.grus == () and found.near_misses == ()
    (item,), (gru_of_chain,) = found.decomposed, chain.grus
    assert (item.form, item.steps, item.operator) == ("chain", 6, "GRU")
    assert item.place in {output.name for output in chain.model.graph.output}
    assert (item.hidden_size, item.input_size) == (gru_of_chain.R.shape[1], gru_of_chain.W.shape[1])
    assert item.linear_before_reset == bool(gru_of_chain.linear_before_reset)
    assert tuple(words.partition("(")[0] for words in item.activations) == gru_of_chain.activations
    report = onegru.fuse(path, tmp_path / "target.onnx")
    assert (report.fused, report.near_misses, report.nodes) == (
        found.decomposed,
        found.near_misses,
        found.fused_nodes,
    )


def test_inspect_counts_nodes_in_bodies(tmp_path: Path) -> None:
    case = decomposed("Scan of two layers", np.random.default_rng(1))
    found = onegru.inspect(save(tmp_path, case.model))
    assert {item.form for item in found.decomposed} == {"loop"}
    assert found.fused_nodes is not None
    assert found.fused_nodes[0] > len(case.model.graph.node) > found.fused_nodes[1] - 10


def test_near_misses_tell_which_part_does_not_fit(tmp_path: Path) -> None:
    case = near_miss("cell: mixed gates", np.random.default_rng(1))
    found = onegru.inspect(save(tmp_path, case.model))
    assert found.decomposed == () and found.fused_nodes is None
    (miss,) = found.near_misses
    assert miss.place and "old state" in miss.reason


def test_ordinary_models_have_none(tmp_path: Path) -> None:
    """Biases, scales, gates and residuals are no recurrences."""
    nodes = [
        node("MatMul", ["x", "w"], ["p"]),
        node("Sigmoid", ["p"], ["gate"]),
        node("Mul", ["p", "gate"], ["swish"]),
        node("Mul", ["swish", "scale"], ["scaled"]),
        node("Add", ["scaled", "scale"], ["biased"]),
        node("Add", ["biased", "x"], ["residual"]),
        gru("sequence", ["Y"]),
    ]
    constants = weights() | {"w": np.eye(5, dtype=np.float32), "scale": np.ones(5, np.float32)}
    inputs = [value("x", shape=["rows", 5]), value("sequence", shape=[3, "rows", 5])]
    path = save(tmp_path, model(graph(nodes, inputs, ["residual", "Y"], constants)))
    found = onegru.inspect(path)
    assert (found.decomposed, found.near_misses, found.fused_nodes) == ((), (), None)
    assert len(found.grus) == 1
