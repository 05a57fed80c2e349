"""The drawn models compute what they are said to, by ONNX Runtime and by onnx's own evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.support.decomposed.activations import FORMS
from tests.support.decomposed.draw import (
    FLAGS,
    KINDS,
    NEAR_MISSES,
    Decomposed,
    chain,
    decomposed,
    draw_decomposed,
    draw_near_miss,
    near_miss,
    single_cell,
)
from tests.support.decomposed.graph import Array, Generator
from tests.support.oracle import onnx_gru

ort = pytest.importorskip("onnxruntime")

# Largest error of float32 against float64, relative to the largest output or 1: 5e-6 over 20000 models.
BOUND = 2e-5


def by_onnxruntime(case: Decomposed) -> dict[str, Array]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    # ONNX Runtime 1.31 loses a tensor where it fuses the reciprocals in Mul(Div(1, a), Div(1, b)).
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = case.model.SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(case.feeds)), strict=True))


def by_onnx(case: Decomposed) -> dict[str, Array]:
    names = [output.name for output in case.model.graph.output]
    with np.errstate(invalid="ignore"):  # BLAS may set the flag for unused lanes of a register
        found = ReferenceEvaluator(case.model).run(None, dict(case.feeds))
    return dict(zip(names, map(np.asarray, found), strict=True))


def assert_expected(case: Decomposed, found: Mapping[str, Array]) -> None:
    assert set(found) == set(case.expected), case.recipe
    for name, values in case.expected.items():
        assert found[name].shape == values.shape, f"{name}: {case.recipe}"
        error = np.max(np.abs(found[name] - values), initial=0.0)
        assert error <= BOUND * max(1.0, np.max(np.abs(values), initial=0.0)), f"{name}: {case.recipe}"


def check(case: Decomposed, run: Callable[[Decomposed], dict[str, Array]]) -> None:
    onnx.checker.check_model(case.model, full_check=True)
    assert all(node.op_type != "GRU" for node in case.model.graph.node)
    assert case.flags <= set(FLAGS), case.recipe
    assert case.grus, case.recipe
    assert_expected(case, run(case))


def check_parameters(case: Decomposed) -> None:
    """The GRUs that a model is said to hold have legal shapes and symmetric bounds."""
    for gru in case.grus:
        H = gru.R.shape[1]
        assert gru.W.shape[0] == gru.R.shape[0] == 3 * H and gru.B.shape == (6 * H,), case.recipe
        assert gru.clip is None or gru.clip > 0, case.recipe


@pytest.mark.parametrize("seed", range(8))
def test_models_that_hold_grus_compute_them(seed: int) -> None:
    rng: Generator = np.random.default_rng(1000 + seed)
    for _ in range(40):
        case = draw_decomposed(rng)
        assert case.fault is None and not case.must_not_fuse, case.recipe
        check(case, by_onnxruntime)
        check_parameters(case)


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_compute_their_own_equations(name: str) -> None:
    rng: Generator = np.random.default_rng(list(NEAR_MISSES).index(name))
    for _ in range(4):
        case = near_miss(name, rng)
        assert case.fault is not None and case.difference > 0.0, case.recipe
        check(case, by_onnxruntime)
        check_parameters(case)


@pytest.mark.parametrize("name", KINDS)
def test_models_of_a_kind_compute_their_grus(name: str) -> None:
    rng: Generator = np.random.default_rng(list(KINDS).index(name))
    for _ in range(6):
        check(decomposed(name, rng), by_onnxruntime)


def zeros(*shape: int) -> Array:
    return np.zeros(shape)


def by_oracle(case: Decomposed) -> Array:
    """The last state of a model of one GRU by the oracle, from W, R and B."""
    gru = case.grus[0]
    feeds = {name: np.asarray(values, np.float64) for name, values in case.feeds.items()}
    X = feeds["x"][None] if case.kind == "cell" else feeds["X"]
    X = X.swapaxes(0, 1) if "batch first" in case.flags else X
    h = feeds.get("h", feeds.get("layer0_h0", feeds.get("layer0b_h0", zeros(X.shape[1], gru.R.shape[1]))))
    W, R, B = (np.asarray(array, np.float64)[None] for array in (gru.W, gru.R, gru.B))
    _, last = onnx_gru(
        X, W, R, B, case.feeds.get("lengths"), h[None],
        direction=gru.direction,
        linear_before_reset=gru.linear_before_reset,
        clip=gru.clip,
        activations=gru.activations,
        activation_alpha=[value for value in gru.alphas if value is not None],
        activation_beta=[value for value in gru.betas if value is not None],
    )  # fmt: skip
    return np.asarray(last[0])


def test_the_oracle_computes_the_same_from_w_r_and_b() -> None:
    rng = np.random.default_rng(4)
    compared = 0
    while compared < 150:
        case = draw_decomposed(rng)
        found = case.expected.get("h_new", case.expected.get("last0"))
        lengths = case.feeds.get("lengths", np.ones(1))
        if (
            case.count > 1
            or found is None
            or case.grus[0].attention
            or "mask" in case.flags
            or not lengths.all()
        ):
            continue
        np.testing.assert_allclose(by_oracle(case), found, rtol=1e-9, atol=1e-9, err_msg=case.recipe)
        compared += 1


@pytest.mark.parametrize("seed", range(4))
def test_onnx_agrees_with_the_models(seed: int) -> None:
    rng: Generator = np.random.default_rng(2000 + seed)
    for _ in range(8):
        # Not the loops: onnx knows a Scan without axes and directions, and its Loop does not stack outputs.
        check(single_cell(rng), by_onnx)
        check(chain(rng), by_onnx)


def test_the_same_seed_draws_the_same_model() -> None:
    for draw in (draw_decomposed, draw_near_miss):
        first, second = (draw(np.random.default_rng(7)) for _ in range(2))
        assert first.model.SerializeToString() == second.model.SerializeToString()
        assert first.recipe == second.recipe


@pytest.mark.long
def test_every_kind_is_drawn() -> None:
    rng = np.random.default_rng(3)
    cases = [draw_decomposed(rng) for _ in range(300)]
    assert {case.kind for case in cases} == {"cell", "chain", "Scan", "Loop"}
    assert {case.count for case in cases} == {1, 2, 4}
    assert {"GRU"}.isdisjoint(node.op_type for case in cases for node in case.model.graph.node)
    gates = {gru.activations[0] for case in cases for gru in case.grus}
    candidates = {gru.activations[1] for case in cases for gru in case.grus}
    assert gates | candidates == set(FORMS)
    opsets = {case.model.opset_import[0].version for case in cases}
    assert opsets == set(range(13, 22))
