"""The real runtimes on a few cases: that the suite's files reach them, and their results come back."""

from __future__ import annotations

import pytest

from onegru.conformance.case import Case
from onegru.conformance.cases import kit_cases, quantized_cases
from onegru.conformance.results import Outcome
from onegru.conformance.runtimes.registry import RUNTIMES, configs
from onegru.conformance.runtimes.run import run_cases

BY_NAME = {case.name: case for case in kit_cases()}
PASSES = Outcome("passes")


def cases(*names: str) -> list[Case]:
    return [BY_NAME[name] for name in names]


FEW = cases(
    "gru_3__usual",
    "gru_14__layout_1",
    "gru_22__type_bfloat16",
    "augru_1__usual",
    "grucell_3__usual",
    "grusequence_5__type_of_lengths_int64",
    "augrusequence__usual",
)


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_onegru(engine: str) -> None:
    (config,) = configs(["onegru"], engines=[engine])
    found = run_cases(config, FEW)
    assert found.outcomes == dict.fromkeys([case.name for case in FEW], PASSES)


def test_onegru_as_the_only_provider() -> None:
    pytest.importorskip("onnxruntime")
    (config,) = configs(["onnxruntime"], ["OnegruExecutionProvider"])
    found = run_cases(config, FEW)
    assert found.outcomes == dict.fromkeys([case.name for case in FEW[:4]], PASSES)


def test_quantized_cases() -> None:
    """onegru's provider takes the GRUs and leaves the other nodes; nn.GRU has no integers."""
    pytest.importorskip("onnxruntime")
    found = [
        run_cases(config, quantized_cases())
        for config in configs(
            ["onegru", "onnxruntime"], ["OnegruExecutionProvider", "CPUExecutionProvider"], ["native"]
        )
    ]
    assert all(set(item.outcomes.values()) == {PASSES} for item in found) and len(found) == 3
    if RUNTIMES["torch"].version():
        (config,) = configs(["torch"])
        (outcome,) = set(run_cases(config, quantized_cases()).outcomes.values())
        assert outcome.status == "refuses" and outcome.reason.startswith("quantized tensors around the node;")


def test_onnxruntime() -> None:
    pytest.importorskip("onnxruntime")
    (config,) = configs(["onnxruntime"])
    right = cases("gru_14__usual", "gru_7__direction_bidirectional", "gru_14__sequence_lens_zero")
    found = run_cases(config, [*right, BY_NAME["gru_14__type_float64"]])
    *first, last = found.outcomes.values()
    assert first == [PASSES] * 3
    assert last.status == "refuses" and "double" in last.reason


def test_openvino() -> None:
    pytest.importorskip("openvino")
    (config,) = configs(["openvino"])
    right = cases("gru_14__usual", "grucell_3__clip_reached", "grusequence_5__usual")
    found = run_cases(config, [*right, BY_NAME["gru_14__f_Softsign"]])
    *first, last = found.outcomes.values()
    assert first == [PASSES] * 3
    # Without the places in its source, or its own numbers for nodes.
    assert last == Outcome("refuses", "Unknown activation function: softsign")


def test_the_evaluator_of_onnx() -> None:
    (config,) = configs(["onnx"])
    found = run_cases(config, cases("gru_14__layout_1", "gru_14__clip_reached", "grucell_3__usual"))
    assert [outcome.status for outcome in found.outcomes.values()] == ["passes", "differs"]


def test_torch() -> None:
    pytest.importorskip("torch")
    (config,) = configs(["torch"])
    may_vary = {
        "linear_before_reset",
        "sequence_lens",
        "sequence_lengths",
        "initial_h",
        "B",
        "layout",
        "weights",
    }
    after = [
        case
        for case in BY_NAME.values()
        if not case.operator.attention
        and case.level("linear_before_reset") in ("1", "true")
        and case.level("direction") in ("none", "bidirectional", "")
        and case.choices.keys() <= {*may_vary, "direction"}
        and "zero" not in f"{case.level('sequence_lens')}{case.level('sequence_lengths')}"
    ]
    found = run_cases(config, [*after, *cases("gru_14__usual", "gru_14__clip_reached")])
    *passed, usual, clip = found.outcomes.values()
    assert set(passed) == {PASSES} and {str(case.operator) for case in after} > {"GRU-14", "GRUSequence-5"}
    assert usual.status == "refuses" and usual.reason.startswith("linear_before_reset: False; must be True")
    assert clip.status == "refuses" and clip.reason.startswith("clip: 0.25; must be None")
