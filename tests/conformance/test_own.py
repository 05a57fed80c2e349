"""A runtime of one's own, compared in Python."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru.conformance import Case, kit_cases, try_runtime
from onegru.conformance.cases import select_cases
from onegru.conformance.runtimes.registry import configs
from onegru.conformance.runtimes.run import run_cases
from onegru.core.dtypes import Array
from tests.support.machine.systems import posix

NAMES = [case.name for case in kit_cases() if case.name.startswith("gru_7__") and case.dtype == "float32"][
    :12
]


def right(case: Case) -> Mapping[str, Array]:
    return {name: case.expected[name].astype(case.output_dtype()) for name in case.outputs}


def test_what_is_right_passes() -> None:
    reported: list[tuple[int, int]] = []
    found = try_runtime(
        right, NAMES, name="theirs", version="2", progress=lambda *step: reported.append(step)
    )
    assert found.summary() == f"{len(NAMES)} passed" and found.label == "theirs 2"
    assert reported == [(done, len(NAMES)) for done in range(1, len(NAMES) + 1)]


def test_what_is_wrong_is_reported() -> None:
    """A number, a name and an exception; the arrays that a runtime gave are kept."""

    def wrong(case: Case) -> Mapping[str, Array]:
        if case.name == NAMES[0]:
            raise NotImplementedError("no  lengths\nyet")
        outputs = dict(right(case))
        if case.name == NAMES[1]:
            outputs["Z"] = np.zeros(1)
        else:
            outputs["Y"] = outputs["Y"] + np.float32(1e-3)
        return outputs

    found = try_runtime(wrong, NAMES[:3])
    first, second, third = found.outcomes.values()
    assert (first.status, first.reason) == ("refuses", "NotImplementedError: no lengths yet")
    assert second.status == "differs" and second.reason.startswith("returned ")
    assert third.status == "differs" and third.expected is not None and third.got is not None
    assert third.got - third.expected == pytest.approx(1e-3, rel=1e-2)
    assert list(found.outputs) == NAMES[1:3]


@pytest.mark.parametrize(
    ("run", "cases", "argument"),
    [
        (3, "*", "run"),
        ("no_such_module:run", "*", "runtime"),
        ("math:", "*", "runtime"),
        *((right, cases, "cases") for cases in ("nothing", ["x", "y"], 3, None, [], [3])),
    ],
)
def test_illegal_arguments(run: object, cases: object, argument: str) -> None:
    with pytest.raises(onegru.SpecError) as caught:
        try_runtime(run, cases)  # type: ignore[arg-type]
    assert caught.value.argument == argument


class _Odd:
    """Not even its words can be had."""

    def __array__(self, *_: object, **__: object) -> Array:
        raise RuntimeError("on another device")

    def __repr__(self) -> str:
        raise RuntimeError


class _Empty(dict[str, object]):
    def __getitem__(self, name: str) -> object:
        raise KeyError(name)


class _Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_what_cannot_be_read() -> None:
    """Outputs that raise, or are far too large, differ; a refusal without words is one."""
    odd: Any = _Odd()

    def gives(value: Any) -> Any:
        return lambda case: dict.fromkeys(case.outputs, value)

    def empty(case: Case) -> Any:
        return _Empty(right(case))

    for run in (gives(odd), gives(np.broadcast_to(np.float32(0), (1 << 40,))), empty):
        assert try_runtime(run, NAMES[:2]).summary() == "2 differed"

    def refuse(case: Case) -> Mapping[str, Array]:
        raise _Wordless

    (outcome,) = try_runtime(refuse, NAMES[:1]).outcomes.values()
    assert (outcome.status, outcome.reason) == ("refuses", "_Wordless")


def test_a_runtime_that_gives_nothing_by_name() -> None:
    found = try_runtime(lambda case: None, NAMES[:2])  # type: ignore[arg-type, return-value]
    assert [item.reason for item in found.outcomes.values()] == [
        "returned None; must return a mapping from names to arrays"
    ] * 2


def test_timeouts_that_are_no_time() -> None:
    for timeout in (0, -1, float("inf"), "x"):
        with pytest.raises(onegru.SpecError) as caught:
            try_runtime(right, NAMES[:1], timeout=timeout)  # type: ignore[arg-type]
        assert caught.value.argument == "timeout"


@posix
def test_a_case_that_crashes_or_hangs_takes_no_other_with_it() -> None:
    def moody(case: Case) -> Mapping[str, Array]:
        match NAMES.index(case.name):
            case 0:
                os.abort()
            case 1:
                os._exit(3)
            case 2:
                time.sleep(600)
            case 3:
                np.ones(1 << 50)
        return right(case)

    found = try_runtime(moody, NAMES[:5], timeout=5)
    assert [(item.status, item.reason) for item in found.outcomes.values()] == [
        ("crashes", "signal 6, SIGABRT"),
        ("crashes", "exit code 3"),
        ("crashes", "took longer than 5 s"),
        ("crashes", "out of memory"),
        ("passes", ""),
    ]


def test_without_a_time_limit_everything_runs_in_this_process() -> None:
    seen: list[str] = []

    def noted(case: Case) -> Mapping[str, Array]:
        seen.append(case.name)
        if case.name == NAMES[0]:
            raise ValueError("no")
        return right(case) if case.name == NAMES[1] else {}

    found = try_runtime(noted, NAMES[:3], timeout=None)
    assert seen == NAMES[:3]
    assert [item.status for item in found.outcomes.values()] == ["refuses", "passes", "differs"]
    assert try_runtime(lambda case: None, NAMES[:1], timeout=None).summary() == "1 differed"  # type: ignore[arg-type, return-value]


OWN = """
import os
import helper_of_own

def run(case):
    if case.attributes.get("direction") == "reverse":
        os.abort()
    return helper_of_own.right(case)
"""
HELPER = """
def right(case):
    return {name: case.expected[name].astype(case.output_dtype()) for name in case.outputs}
"""


@posix
def test_a_function_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a file, whose folder has what it imports, or by a module that Python finds."""
    (tmp_path / "own_runtime.py").write_text(OWN)
    (tmp_path / "helper_of_own.py").write_text(HELPER)
    cases = ["gru_7__usual", "gru_7__direction_reverse"]
    expected = ["passes", "crashes"]
    found = try_runtime(f"{tmp_path}/own_runtime.py:run", cases)
    assert [item.status for item in found.outcomes.values()] == expected
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.syspath_prepend(str(tmp_path))
    (result,) = (run_cases(item, select_cases(kit_cases(), cases)) for item in configs(["own_runtime:run"]))
    assert [item.status for item in result.outcomes.values()] == expected
    assert result.label == "own_runtime:run"
    found = try_runtime("own_runtime:no_such_function", cases[:1])
    (outcome,) = found.outcomes.values()
    assert outcome.status == "crashes" and "has no attribute 'no_such_function'" in outcome.reason
