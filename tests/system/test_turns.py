"""Times of calls that take turns."""

from __future__ import annotations

import time
from itertools import count

import pytest

from onegru.system.turns import cpu_share, take_turns


def test_a_turn_is_the_median_of_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call in eight is interrupted for much longer than it takes."""
    calls = count()
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: None)

    def call() -> None:
        clock[0] += 0.1 if next(calls) % 8 == 7 else 1e-3

    assert take_turns({"a": call}, 3, turn=0.04)["a"] == pytest.approx([1e-3] * 3)


def test_short_calls_are_timed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: None)

    def call() -> None:
        clock[0] += 1e-6

    assert take_turns({"a": call}, 2, turn=1e-4)["a"] == pytest.approx([1e-6] * 2)


def test_the_share_of_a_cpu_that_others_use(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.perf_counter()
    assert 0 < cpu_share(0.01) <= 1
    monkeypatch.setattr(time, "thread_time", lambda: (time.perf_counter() - began) / 4)
    assert cpu_share(0.01) == pytest.approx(0.25, abs=0.02)
