"""The drawn models compute what they are said to, by ONNX Runtime and by onnx's own evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.support.written_out import FLAGS, WrittenOut, chain, draw_written_out, single_cell
from tests.support.written_out_graph import Array, Generator

ort = pytest.importorskip("onnxruntime")

# Largest error of float32 against float64, relative to the largest output or 1: 4e-6 over 3000 models.
BOUND = 2e-5


def by_onnxruntime(case: WrittenOut) -> dict[str, Array]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    data = case.model.SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(case.feeds)), strict=True))


def by_onnx(case: WrittenOut) -> dict[str, Array]:
    names = [output.name for output in case.model.graph.output]
    found = ReferenceEvaluator(case.model).run(None, dict(case.feeds))
    return dict(zip(names, map(np.asarray, found), strict=True))


def assert_expected(case: WrittenOut, found: Mapping[str, Array]) -> None:
    assert set(found) == set(case.expected), case.recipe
    for name, values in case.expected.items():
        assert found[name].shape == values.shape, f"{name}: {case.recipe}"
        error = np.max(np.abs(found[name] - values), initial=0.0)
        assert error <= BOUND * max(1.0, np.max(np.abs(values), initial=0.0)), f"{name}: {case.recipe}"


def check(case: WrittenOut, run: Callable[[WrittenOut], dict[str, Array]]) -> None:
    onnx.checker.check_model(case.model, full_check=True)
    assert all(node.op_type != "GRU" for node in case.model.graph.node)
    assert case.flags <= set(FLAGS), case.recipe
    assert case.grus, case.recipe
    assert_expected(case, run(case))


@pytest.mark.parametrize("seed", range(8))
def test_models_that_hold_grus_compute_them(seed: int) -> None:
    rng: Generator = np.random.default_rng(1000 + seed)
    for _ in range(40):
        check(draw_written_out(rng), by_onnxruntime)


@pytest.mark.parametrize("seed", range(4))
def test_onnx_agrees_with_the_models(seed: int) -> None:
    rng: Generator = np.random.default_rng(2000 + seed)
    for _ in range(8):
        # Not the loops: onnx's Scan knows no axes and directions, and its Loop joins outputs without stacking.
        check(single_cell(rng), by_onnx)
        check(chain(rng), by_onnx)
