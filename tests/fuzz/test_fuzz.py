"""A few seconds of `make fuzz`: files that are broken are read or refused, whatever is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

import onegru
from onegru.core.activations import find_kind
from tests.fuzz import worker
from tests.fuzz.corpus import KINDS, NEEDS, corpus
from tests.fuzz.mutate import mutated
from tests.fuzz.run import Worker, main


@pytest.mark.parametrize("cases", [8, pytest.param(40, marks=pytest.mark.long)])
def test_broken_files_are_read_or_refused(cases: int, capsys: pytest.CaptureFixture[str]) -> None:
    kinds = [kind for kind in KINDS if kind not in NEEDS]
    status = main(["--ways", "drawn", "--cases", str(cases), "--kinds", *kinds])
    assert status == 0, capsys.readouterr().out


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf", "x"])
def test_no_time_is_refused(minutes: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--minutes", minutes, "--cases", "1"])
    assert f"argument --minutes: {minutes}; must be a finite number above 0" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("kind", sorted(NEEDS))
def test_broken_files_of_frameworks_are_read_or_refused(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(NEEDS[kind])
    status = main(["--ways", "drawn", "--cases", "8", "--kinds", kind])
    assert status == 0, capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_files_again(kind: str) -> None:
    if not corpus(kind):
        pytest.skip(f"{NEEDS[kind]} is not installed")
    for number in range(5):
        assert mutated(Random(number), kind) == mutated(Random(number), kind)


def test_crashes_and_hangs_are_faults() -> None:
    for action, words in (("os.abort()", "ended with -6"), ("time.sleep(60)", "over 1 s")):
        process = Worker(("-c", f"import os, time; input(); print('{{}}', flush=True); input(); {action}"), 1)
        try:
            assert process.judge("npy:0:1")["fault"] == words
        finally:
            process.close()


def test_a_crash_names_the_place_in_the_package() -> None:
    program = """
import faulthandler, os
from onegru.core.arguments import shown
faulthandler.enable()
input()
print("{}", flush=True)
input()
shown(type("Crash", (), {"__repr__": lambda self: os.abort()})())
"""
    process = Worker(("-c", program))
    try:
        assert process.judge("npy:0:1")["fault"] == "ended with -6 in arguments.py, shown"
    finally:
        process.close()


def test_other_errors_and_too_much_memory_are_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MEGABYTES", 50)
    monkeypatch.chdir(tmp_path)

    def fault(action: Callable[[], str]) -> object:
        monkeypatch.setattr(worker, "_read", lambda *arguments: action())
        return worker.judged("npy:0:0", []).get("fault")

    def refuse() -> str:
        raise onegru.FormatError("m.npy: broken")

    assert fault(refuse) is None
    assert fault(lambda: "m.npy"[9]) == "IndexError"
    assert fault(lambda: find_kind([]).name) == "AttributeError in activations.py, find_kind"  # type: ignore[arg-type]
    assert fault(lambda: str(np.ones(10**7).size)) == "over 50 MB of memory"
