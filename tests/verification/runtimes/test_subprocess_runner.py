"""Verification: what runtimes do to themselves cannot harm us, and what real ones do wrong is found."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onegru.core.compare import TOLERANCE_ACROSS_RUNTIMES
from onegru.verification.runtimes.base import Runtime
from onegru.verification.runtimes.onnx_reference import OnnxEvaluator
from onegru.verification.runtimes.onnxruntime import OnnxRuntime
from onegru.verification.runtimes.openvino import OpenVino
from tests.support import mutants
from tests.support.onnx_models import I, save
from tests.support.verify_cases import (
    REAL,
    B,
    T,
    chain,
    fault_of,
    feeds,
    ir,
    only,
    verified,
)

# ---- what runtimes may do to themselves


def test_a_crash(tmp_path: Path) -> None:
    path = save(tmp_path, chain())
    for number in (signal.SIGSEGV, signal.SIGABRT):
        found = verified(path, feeds(), mutants.Crashing(signal=number))
        result = only(found)
        assert (result.status, result.reason) == ("crashed", f"crashed (signal {number:d}, {number.name})")
        assert found.agrees
    assert only(verified(path, feeds(), mutants.Quitting())).reason == "crashed (exit code 3)"


def test_a_hang(tmp_path: Path) -> None:
    found = verified(save(tmp_path, chain()), feeds(), mutants.Hanging(), timeout=3)
    assert (only(found).status, only(found).reason) == ("timed out", "took longer than 3 s")
    assert found.agrees


def test_a_refusal(tmp_path: Path) -> None:
    found = verified(save(tmp_path, chain()), feeds(), mutants.Refusing())
    assert (only(found).status, only(found).reason) == ("refuses", "no such operator")
    assert found.agrees


def test_an_output_left_out(tmp_path: Path) -> None:
    result = only(verified(save(tmp_path, chain()), feeds(), mutants.Forgetful()))
    assert result.status == "differs"
    assert [(item.agrees, item.reason) for item in result.outputs] == [(True, ""), (False, "is not given")]


def test_what_is_not_installed(tmp_path: Path) -> None:
    found = verified(save(tmp_path, chain()), feeds(), mutants.Absent(name="elsewhere"))
    assert found.absent == ("elsewhere",) and len(found.runtimes) == 1 and found.agrees


def test_a_shape_that_ends_onnxruntime(tmp_path: Path) -> None:
    """With no time steps it ends its process, and OpenVINO's Y_h is whatever lay in memory."""
    pytest.importorskip("onnxruntime")
    inputs = {"X": np.zeros((0, B, I), np.float32)}
    result = only(verified(save(tmp_path, chain(True)), inputs, OnnxRuntime()))
    assert result.status == "crashed" and "signal" in result.reason


# ---- real runtimes


@pytest.mark.parametrize("runtime", REAL, ids=lambda runtime: runtime.name)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_agreement(tmp_path: Path, runtime: Runtime, dtype: str) -> None:
    pytest.importorskip(runtime.name)
    result = only(verified(save(tmp_path, chain(True, dtype)), feeds(True, dtype), runtime))
    assert result.status == "agrees", result
    assert all(
        item.max_abs is not None and item.max_abs <= TOLERANCE_ACROSS_RUNTIMES[dtype]
        for item in result.outputs
    )


# A runtime, the second GRU's attributes, and what it is known to do.
KNOWN: list[tuple[Runtime, dict[str, Any], str]] = [
    (OnnxRuntime(), {"activations": ["Sigmoid", "Affine"]}, "alpha were 0"),
    (OnnxRuntime(), {"activations": ["Sigmoid", "ThresholdedRelu"]}, "alpha were 0"),
    (OnnxEvaluator(), {"clip": 0.25}, "clip were ignored"),
    (
        OnnxEvaluator(),
        {"activations": ["Relu", "Softsign"]},
        "activations were ignored: Sigmoid and Tanh",
    ),
]


@pytest.mark.parametrize(("runtime", "attributes", "words"), KNOWN)
def test_known_faults(tmp_path: Path, runtime: Runtime, attributes: dict[str, Any], words: str) -> None:
    pytest.importorskip(runtime.name)
    scaled = {**feeds(True), "X": feeds(True)["X"] * 4}
    found = fault_of(verified(save(tmp_path, chain(True, **attributes)), scaled, runtime))
    assert (found.node, found.diagnosis) == ("GRU_1", words)
    assert len(found.known) == 1


def test_lengths_that_the_evaluator_ignores(tmp_path: Path) -> None:
    found = fault_of(verified(save(tmp_path, chain()), feeds(), OnnxEvaluator()))
    assert (found.node, found.diagnosis) == ("GRU_1", "sequence_lens were ignored")
    assert (found.step, found.row) == (2, 1)


def test_lengths_that_openvino_ignores(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    found = fault_of(verified(save(tmp_path, chain()), feeds(), OpenVino()))
    assert (found.node, found.diagnosis) == ("GRU_1", "sequence_lens were ignored")


def test_layout_that_openvino_ignores(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    found = fault_of(verified(save(tmp_path, chain(True, layout=1)), feeds(True), OpenVino()))
    assert (found.node, found.diagnosis) == ("GRU_1", "layout were ignored: 0 in place of 1")
    assert found.reason.startswith("shape ")


def test_float64_that_openvino_rounds(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    path = save(tmp_path, chain(True, "float64"))
    found = fault_of(verified(path, feeds(True, "float64"), OpenVino()))
    assert (found.node, found.diagnosis) == ("GRU_0", "it were computed in float32")


def test_a_refusal_that_is_known(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    result = only(verified(save(tmp_path, chain(True, layout=1)), feeds(True), OnnxRuntime()))
    assert result.status == "refuses" and result.known == ("GRU_1: does not support layout = 1",)


# ---- OpenVINO IRs


def test_an_ir_that_openvino_runs_right(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    found = verified(*ir(tmp_path, (T, T)), *REAL)
    statuses = {item.runtime: item.status for item in found.runtimes}
    assert statuses == {"onegru": "agrees", "openvino": "agrees"}  # the others read no IR
    openvino = found.runtimes[1]
    assert len(openvino.outputs) == 4 and all(item.max_abs is not None for item in openvino.outputs)


def test_an_ir_that_openvino_runs_wrong(tmp_path: Path) -> None:
    """It ignores lengths where its fused kernel runs, which it does only for the layer without a clip."""
    pytest.importorskip("openvino")
    found = fault_of(verified(*ir(tmp_path, (T, 2)), OpenVino()))
    assert (found.node, found.operator) == ("gru 0", "GRUSequence-5")
    assert found.diagnosis == "sequence_lens were ignored"
    assert found.output == "Y" and (found.step, found.row) == (2, 1)
