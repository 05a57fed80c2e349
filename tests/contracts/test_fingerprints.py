"""Test that onegru still reads and writes the same for each kind of model file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.contracts.fingerprints import (
    cases,
    changed_versions,
    differences,
    fingerprint,
    not_compared,
    stored,
)

CASES = cases()
STORED = stored()
MOST = 0.1  # of the cases may be without a comparison


def test_each_case_is_stored() -> None:
    assert CASES.keys() == STORED.keys()


@pytest.mark.parametrize("name", CASES)
def test_results_and_files_are_as_stored(name: str) -> None:
    found = fingerprint(CASES[name])
    if reason := not_compared(CASES[name], found, STORED[name]):
        pytest.skip(reason)
    lines = differences(found, STORED[name])
    assert not lines, f"python -m tests.contracts.fingerprints --show {name!r}"


def test_most_cases_are_compared() -> None:
    """Files of other packages may differ. If many do with the same versions, the test above tests nothing."""
    without = [
        name
        for name, case in CASES.items()
        if not_compared(case, fingerprint(replace(case, operations={})), STORED[name])
    ]
    if versions := changed_versions():
        pytest.skip(f"{len(without)} of {len(CASES)} cases cannot be compared: {', '.join(versions)}")
    assert len(without) <= MOST * len(CASES), without
