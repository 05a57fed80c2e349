"""How the times of the test files are compared with those that are stored."""

from __future__ import annotations

from tests.support.budget import exceeded

STORED = {"a": 10.0, "b": 20.0, "c": 30.0}


def test_a_file_that_takes_twice_as_long_exceeds_its_budget() -> None:
    assert exceeded(STORED, STORED) == []
    (line,) = exceeded(STORED | {"b": 40.0}, STORED)
    assert line == "b took 40.0 s of CPU time; must take at most 33.0 s"


def test_a_slower_machine_exceeds_nothing() -> None:
    assert exceeded({name: 3 * seconds for name, seconds in STORED.items()}, STORED) == []


def test_a_new_file_has_seconds() -> None:
    assert exceeded(STORED | {"new": 2.0}, STORED) == []
    assert len(exceeded(STORED | {"new": 20.0}, STORED)) == 1
