"""The drop-in session: the methods of ONNX Runtime's, and its answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import onegru
from onegru import InferenceSession, SpecError, SpecWarning

DIGITS = Path(__file__).parents[1] / "examples" / "digits" / "digits.onnx"


@pytest.fixture(scope="module")
def sessions() -> tuple[InferenceSession, onnxruntime.InferenceSession]:
    return InferenceSession(str(DIGITS)), onnxruntime.InferenceSession(str(DIGITS))


def test_answers_as_onnxruntime(
    sessions: tuple[InferenceSession, onnxruntime.InferenceSession],
) -> None:
    ours, theirs = sessions
    for mine, its in ((ours.get_inputs(), theirs.get_inputs()), (ours.get_outputs(), theirs.get_outputs())):
        assert [(a.name, a.type, a.shape) for a in mine] == [(b.name, b.type, b.shape) for b in its]
    assert ours.get_providers() == ["CPUExecutionProvider"]
    name = theirs.get_inputs()[0].name
    shape = [size if isinstance(size, int) else 3 for size in theirs.get_inputs()[0].shape]
    feed = {name: np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    for got, want in zip(ours.run(None, feed), theirs.run(None, feed), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)
    last = theirs.get_outputs()[-1].name
    assert len(ours.run([last], feed)) == 1


def test_takes_bytes() -> None:
    session = InferenceSession(DIGITS.read_bytes())
    assert session.get_inputs()[0].name == InferenceSession(DIGITS).get_inputs()[0].name
    with pytest.raises(onegru.FormatError):
        InferenceSession(b"nonsense")


def test_honours_or_refuses() -> None:
    with pytest.raises(SpecError, match="providers: CUDAExecutionProvider; must include"):
        InferenceSession(DIGITS, providers=["CUDAExecutionProvider"])
    with pytest.warns(SpecWarning, match="CUDAExecutionProvider; without effect"):
        InferenceSession(DIGITS, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = onegru.get_num_threads() + 1
    with pytest.warns(SpecWarning, match="intra_op_num_threads"):
        InferenceSession(DIGITS, options)
    session = InferenceSession(DIGITS, providers=["CPUExecutionProvider"])
    feed = {
        info.name: np.zeros([n if isinstance(n, int) else 1 for n in info.shape], np.float32)
        for info in session.get_inputs()
    }
    with pytest.raises(SpecError, match="output_names: 'nothing'"):
        session.run(["nothing"], feed)
    illegal: tuple[Any, ...] = (0, False, "", {}, 3, [3], "output")
    for names in illegal:
        with pytest.raises(SpecError, match=r"output_names: .*; must be a list of names, or None"):
            session.run(names, feed)
    assert len(session.run([], feed)) == len(session.run(None, feed))
    with pytest.raises(SpecError, match="run_options"):
        session.run(None, feed, object())
    with pytest.raises(SpecError, match="missing"):
        session.run(None, {})
