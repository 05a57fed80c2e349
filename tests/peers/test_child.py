"""Verification: what runtimes do to themselves cannot harm us."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from onegru.peers.base import ModelUnderTest
from onegru.peers.child import run_apart
from onegru.peers.onnxruntime import OnnxRuntime
from onegru.peers.openvino import OpenVino
from tests.support.files.onnx_models import I, save
from tests.support.machine.systems import posix
from tests.support.models import mutants
from tests.support.models.verify_cases import B, chain, feeds, only, verified


@posix
def test_a_crash(tmp_path: Path) -> None:
    path = save(tmp_path, chain())
    for number in (signal.SIGSEGV, signal.SIGABRT):
        found = verified(path, feeds(), mutants.Crashing(signal=number))
        result = only(found)
        assert (result.status, result.reason) == ("crashed", f"crashed (signal {number:d}, {number.name})")
        assert found.agrees
    assert only(verified(path, feeds(), mutants.Quitting())).reason == "crashed (exit code 3)"


def test_a_process_that_cannot_import(tmp_path: Path) -> None:
    reason = only(verified(save(tmp_path, chain()), feeds(), mutants.Unimportable())).reason
    assert reason == "crashed (exit code 1, ModuleNotFoundError: No module named 'missing')"


def test_a_hang(tmp_path: Path) -> None:
    found = verified(save(tmp_path, chain()), feeds(), mutants.Hanging(), timeout=3)
    assert (only(found).status, only(found).reason) == ("timed out", "took longer than 3 s")
    assert found.agrees


def test_a_failure_of_our_own_is_no_refusal(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    path = save(tmp_path, chain())
    subject = ModelUnderTest(str(path), path.read_bytes(), {"Y": ("Y",)})
    result = run_apart(OpenVino(), subject, {}, 60)  # without any input
    assert result.status == "failed"
    assert "onegru failed (input" in result.reason and "which is a bug in onegru" in result.reason
    broken = ModelUnderTest(str(path), b"no model", {"Y": ("Y",)})
    assert run_apart(OpenVino(), broken, {}, 60).status == "refuses"


def test_a_refusal(tmp_path: Path) -> None:
    found = verified(save(tmp_path, chain()), feeds(), mutants.Refusing())
    assert (only(found).status, only(found).reason) == ("refuses", "no such operator")
    assert found.agrees


def test_an_output_left_out(tmp_path: Path) -> None:
    result = only(verified(save(tmp_path, chain()), feeds(), mutants.Forgetful()))
    assert result.status == "differs"
    assert [(item.agrees, item.reason) for item in result.outputs] == [(True, ""), (False, "is missing")]


def test_what_is_not_installed(tmp_path: Path) -> None:
    found = verified(save(tmp_path, chain()), feeds(), mutants.Absent(name="elsewhere"))
    assert found.absent == ("elsewhere",) and len(found.runtimes) == 1 and found.agrees


@posix
def test_a_shape_that_ends_onnxruntime(tmp_path: Path) -> None:
    """With no time steps it ends its process, and OpenVINO's Y_h is whatever lay in memory."""
    pytest.importorskip("onnxruntime")
    inputs = {"X": np.zeros((0, B, I), np.float32)}
    result = only(verified(save(tmp_path, chain(True)), inputs, OnnxRuntime()))
    assert result.status == "crashed" and "signal" in result.reason
