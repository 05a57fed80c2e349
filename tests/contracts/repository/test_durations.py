"""Test how the times of the tests choose cases, and how they are compared with stored times."""

from __future__ import annotations

from tests.support.suite.durations import exceeded
from tests.support.suite.selection import every, is_turn

STORED = {"a": 10.0, "b": 20.0, "c": 30.0}


def test_a_file_that_takes_twice_as_long_exceeds_its_budget() -> None:
    assert exceeded(STORED, STORED) == []
    (line,) = exceeded(STORED | {"b": 40.0}, STORED)
    assert line == "b took 40.0 s of CPU time; must take at most 35.0 s"


def test_a_slower_machine_exceeds_nothing() -> None:
    assert exceeded({name: 3 * seconds for name, seconds in STORED.items()}, STORED) == []


def test_a_new_file_has_seconds() -> None:
    assert exceeded(STORED | {"new": 4.0}, STORED) == []
    assert len(exceeded(STORED | {"new": 20.0}, STORED)) == 1


def test_slow_functions_run_a_share_of_their_cases() -> None:
    assert every("a", 100, STORED, 0.5) == 20
    assert every("fast", 100, STORED, 0.5) == 1
    assert every("a", 1, STORED, 0.5) == 6, "a single case runs in every sixth commit"


def test_each_case_has_its_turn() -> None:
    turns = [[case for case in range(10) if is_turn("f", case, 4, seed)] for seed in range(4)]
    assert sorted(case for turn in turns for case in turn) == list(range(10))
