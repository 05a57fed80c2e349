"""Cases in runtimes: whatever one does to itself is a result, and the next case gets its turn."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onegru.conformance.results import Outcome, RuntimeResults
from onegru.conformance.runtimes import run
from onegru.conformance.runtimes.registry import RuntimeConfig
from onegru.conformance.runtimes.run import run_cases
from onegru.system.child_process import run_child
from tests.support.faulty_runtime import FaultyRuntime, named
from tests.support.machine.systems import posix
from tests.support.models.mutants import Fake

pytest.importorskip("onnx")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes import nothing from the current folder, where tests may lie."""
    monkeypatch.chdir(tmp_path)


CASES = named("usual", "initial_h_given", "B_none", "clip_reached", "direction_reverse")


def moody(*faults: str, **options: Any) -> RuntimeResults:
    """The results of the first cases, the runtime being in these faults."""
    names = [case.name for case in CASES]
    runtime = FaultyRuntime(faults=dict(zip(names, faults, strict=False)))
    return run_cases(RuntimeConfig(runtime), CASES[: len(faults) + 1], **options)


def test_whatever_a_runtime_may_do() -> None:
    steps: list[tuple[int, int]] = []
    found = moody("signal", "raise", "exit", "off", progress=lambda done, total: steps.append((done, total)))
    assert [(item.status, item.reason) for item in found.outcomes.values()] == [
        ("crashes", "signal 11, SIGSEGV"),
        ("refuses", "no such operator"),
        ("crashes", "exit code 3"),
        ("differs", "Y beyond the tolerance"),
        ("passes", ""),
    ]
    assert steps == [(number, 5) for number in range(1, 6)]
    assert (found.runtime, found.version, found.counts()) == (
        "fake",
        "1.0",
        {"passes": 1, "differs": 1, "refuses": 1, "crashes": 2},
    )
    ((name, outputs),) = found.outputs.items()
    outcome = found.outcomes[name]
    assert name == CASES[3].name and (outcome.output, outcome.where) == ("Y", (2, 0, 1, 3))
    assert outputs["Y"][2, 0, 1, 3] == outcome.got
    assert outcome.got == pytest.approx((outcome.expected or 0) + 0.5, abs=1e-4)


def test_outputs_of_another_form() -> None:
    found = moody("nothing", "type", "shape")
    assert [(item.status, item.reason) for item in found.outcomes.values()] == [
        ("differs", "returned nothing; must return Y, Y_h"),
        ("differs", "Y: type float64; must be float32"),
        ("differs", "Y: shape [5, 1, 3, 5, 1]; must be [5, 1, 3, 5]"),
        ("passes", ""),
    ]


def test_a_hang() -> None:
    runtime = FaultyRuntime(faults={CASES[0].name: "hang"})
    (outcome,) = run_cases(RuntimeConfig(runtime), CASES[:1], seconds=1.0).outcomes.values()
    assert outcome == Outcome("crashes", "took longer than 1 s")


def test_no_memory_left() -> None:
    found = moody("memory", "memory and abort", "leaves")
    assert [(item.status, item.reason) for item in found.outcomes.values()] == [
        ("crashes", "out of memory"),
        ("crashes", "out of memory"),
        ("crashes", "exit code 0"),
        ("passes", ""),
    ]


def test_reasons_do_not_tell_where_a_process_works() -> None:
    runtime = FaultyRuntime(faults={CASES[1].name: "tell"}, place=1)
    _, outcome = run_cases(RuntimeConfig(runtime), CASES[:2]).outcomes.values()
    assert outcome == Outcome("refuses", "cannot read model.xml")


def test_an_answer_that_cannot_be_read() -> None:
    first, second = moody("garbage").outcomes.values()
    assert first.status == "crashes" and first.reason.startswith("left no readable answer")
    assert second == Outcome("passes")


@posix
def test_a_process_that_replaces_files_of_the_next() -> None:
    found = moody("pipe", "")
    assert [item.status for item in found.outcomes.values()] == ["crashes", "passes", "passes"]
    first = next(iter(found.outcomes.values()))
    assert first.reason == "left no readable answer (an answer that is not a regular file with one name)"


def test_a_process_that_removes_its_folder() -> None:
    found = moody("no folder", "")
    assert [item.status for item in found.outcomes.values()] == ["crashes"] * 3


def test_a_process_runs_many_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = []

    def counted(module: str, arguments: list[str], *more: Any) -> Any:
        starts.append(arguments)
        return run_child(module, arguments, *more)

    monkeypatch.setattr(run, "run_child", counted)
    monkeypatch.setattr(run, "_BATCH", 4)
    assert set(moody("", "", "exit", "").counts().items()) >= {("passes", 4), ("crashes", 1)}
    assert starts == [["0"], ["3"], ["0"]]


def test_one_that_dies_as_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "broken_runtime.py").write_text("import os\nos.abort()\n")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    found = run_cases(RuntimeConfig(Fake(name="broken_runtime")), CASES[:2])
    expected = Outcome("crashes", "at its start: signal 6, SIGABRT")
    assert list(found.outcomes.values()) == [expected, expected]


def test_memory_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def seen(module: str, arguments: list[str], folder: Path, given: Any, watch: Any) -> Any:
        limits.append(given.memory)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run_child", seen)
    for provider in ("CPUExecutionProvider", "CUDAExecutionProvider"):
        with pytest.raises(KeyboardInterrupt):
            run_cases(RuntimeConfig(Fake(), {"provider": provider}), CASES[:1], memory=1 << 33)
    assert limits[0] == 1 << 33 < limits[1]  # a GPU's libraries reserve address space beyond all bounds


def test_the_environment_reaches_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "ONEGRU_TARGET", "no-such-target")
    (outcome,) = run_cases(RuntimeConfig(Fake()), CASES[:1]).outcomes.values()
    assert outcome.status == "crashes" and "ONEGRU_TARGET: 'no-such-target'" in outcome.reason


def test_cases_of_other_files_are_left_out() -> None:
    assert run_cases(RuntimeConfig(Fake(), kinds=("openvino",)), CASES).outcomes == {}


def test_arrays_are_not_changed_by_a_run() -> None:
    case = CASES[0]
    before = {name: array.copy() for name, array in case.inputs.items()}
    run_cases(RuntimeConfig(Fake()), [case])
    assert all(np.array_equal(array, before[name]) for name, array in case.inputs.items())
