"""What counts as agreement."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import onegru
from onegru.core.compare import TOLERANCE_ACROSS_RUNTIMES, compare, difference
from onegru.peers.onnx_reference import OnnxEvaluator
from tests.support.files.onnx_models import graph, gru, model, save, value, weights
from tests.support.models import mutants
from tests.support.models.verify_cases import chain, feeds, verified

# ---- what counts as agreement


def test_a_model_that_enlarges_rounding(tmp_path: Path) -> None:
    """Large weights make a GRU chaotic: no two runtimes agree on it, and none is at fault."""
    constants = {name: array * 2 for name, array in weights(I=16, H=16).items()}
    nodes = [gru("X", ["Y"], bias="B", hidden_size=16, linear_before_reset=1)]
    path = save(tmp_path, model(graph(nodes, [value("X", shape=["t", "b", 16])], ["Y"], constants)))
    inputs = {"X": np.random.default_rng(0).standard_normal((100, 2, 16)).astype(np.float32)}
    found = verified(path, inputs, OnnxEvaluator())
    outputs = found.runtimes[1].outputs
    assert found.agrees
    assert outputs[0].tolerance > TOLERANCE_ACROSS_RUNTIMES["float32"] and outputs[0].max_abs is not None
    assert outputs[0].max_abs > TOLERANCE_ACROSS_RUNTIMES["float32"]
    assert not verified(path, inputs, OnnxEvaluator(), tolerance=1e-5).agrees


@pytest.mark.usefixtures("in_this_process")
def test_the_tolerance_that_is_given(tmp_path: Path) -> None:
    path = save(tmp_path, chain())
    assert not verified(path, feeds(), mutants.Outside(), tolerance=0.1).agrees
    found = verified(path, feeds(), mutants.Outside(), tolerance=0.3)
    assert found.agrees and found.runtimes[1].outputs[0].tolerance == 0.3
    for tolerance in (-1.0, np.inf, np.nan):
        with pytest.raises(onegru.SpecError, match=r"^tolerance: "):
            onegru.verify(path, feeds(), tolerance=tolerance)
    with pytest.raises(onegru.SpecError, match="timeout"):
        onegru.verify(path, feeds(), timeout=0.0)


def test_agreement_of_what_is_not_finite() -> None:
    a = np.array([1.0, np.nan, np.inf, -np.inf], np.float32)
    assert compare(a, a.copy(), 0.0).agrees
    for index, other in ((0, np.nan), (1, 0.0), (2, -np.inf), (2, 1e38), (3, 0.0)):
        b = a.copy()
        b[index] = other
        found = compare(a, b, 0.5)
        assert not found.agrees and found.where == (index,)
    assert compare(a, a.astype(np.float64), 1.0).reason == "type float64; must be float32"
    assert compare(a, a[:2], 1.0).reason == "shape [2]; must be [4]"


def test_agreement_of_what_is_no_number() -> None:
    words = np.array(["a", "b"], object)
    assert compare(words, words.copy(), 0.0).agrees
    found = compare(words, np.array(["a", "c"], object), 0.0)
    assert (found.agrees, found.where, found.expected, found.got) == (False, (1,), "b", "c")
    assert not compare(np.array([1, 2]), np.array([1, 3]), 10.0).agrees
    assert compare({"a": 1}, {"a": 1}, 0.0).reason == "not a tensor; not compared"


def test_agreement_of_sequences() -> None:
    a, b = np.zeros(3, np.float32), np.ones(2, np.float32)
    found = compare([a, b], [a, b], 0.0)
    assert found.agrees and found.compared == 5
    assert not compare([a, b], [a, b + 1], 0.5).agrees and compare([a, b], [a, b + 1], 1.5).agrees
    assert compare([a], [a, b], 0.0).reason == "a sequence of 2 items; must be a sequence of 1 item"
    assert compare(a, [a], 0.0).reason == "a sequence of 1 item; must be a tensor"
    assert compare([a], a, 0.0).reason == "a tensor; must be a sequence of 1 item"
    assert not compare([a], [a.astype(np.float64)], 1.0).agrees and not compare([], None, 0.0).agrees
    assert compare([{"a": 1}], None, 0.0).reason == "not a tensor; not compared"


def test_difference() -> None:
    a = np.array([[1.0, 2.0], [3.0, np.nan]], np.float32)
    b = a.copy()
    assert (difference(a, b).max_abs, difference(a, b).max_ulp, difference(a, b).where) == (0.0, 0, None)
    b[1, 0] = np.nextafter(np.float32(3), np.float32(4))
    found = difference(a, b)
    assert (found.max_ulp, found.where) == (1, (1, 0)) and found.max_abs == b[1, 0] - np.float32(3)
    b[0, 1] = -2.0
    assert difference(a, b).where == (0, 1) and difference(a, b).max_abs == 4.0
    tiny = np.float64(5e-324)
    assert difference(np.array([tiny]), np.array([-tiny])).max_ulp == 2
    assert difference(np.array([1.0]), np.array([np.nan])).max_abs == np.inf
    with pytest.raises(onegru.SpecError):
        difference(a, b[0])
