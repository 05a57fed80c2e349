"""Verification: what real runtimes do wrong is found, and what is known of it is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onegru import FormatError
from onegru.core.compare import TOLERANCE_ACROSS_RUNTIMES
from onegru.peers.base import ModelUnderTest, Runtime
from onegru.peers.onnx_reference import OnnxEvaluator
from onegru.peers.onnxruntime import OnnxRuntime
from onegru.peers.openvino import OpenVino
from tests.support.files.onnx_models import graph, gru, model, node, save, value, weights
from tests.support.models.verify_cases import REAL, T, chain, fault_of, feeds, ir, only, verified


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
    assert (found.node, found.diagnosis) == ("GRU_1", "layout were ignored: 0 instead of 1")
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


def test_a_provider_without_others() -> None:
    pytest.importorskip("onnxruntime")
    own = OnnxRuntime(provider="OnegruExecutionProvider")
    nodes = [gru("X", ["Y", "Y_h"], bias="B")]
    inputs = {"X": feeds()["X"]}
    for more in ([], [node("Relu", ["Y_h"], ["Z"])]):
        outputs = ["Y_h"] if not more else ["Z"]
        proto = model(graph([*nodes, *more], [value("X", shape=[*inputs["X"].shape])], outputs, weights()))
        subject = ModelUnderTest("it", proto.SerializeToString(), {name: () for name in outputs})
        if not more:
            assert own.run(subject, inputs).keys() == {"Y_h"}
            continue
        assert OnnxRuntime().run(subject, inputs).keys() == {"Z"}
        with pytest.raises(FormatError, match="fallback to CPU EP has been explicitly disabled"):
            own.run(subject, inputs)
