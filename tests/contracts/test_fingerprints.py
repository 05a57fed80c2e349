"""Test that onegru still reads and writes the same for each kind of model file."""

from __future__ import annotations

import pytest

from tests.contracts.fingerprints import cases, differences, fingerprint, stored

CASES = cases()
STORED = stored()


def test_each_case_is_stored() -> None:
    assert CASES.keys() == STORED.keys()


@pytest.mark.parametrize("name", CASES)
def test_results_and_files_are_as_stored(name: str) -> None:
    lines = differences(fingerprint(CASES[name]), STORED[name])
    assert not lines, f"python -m tests.contracts.fingerprints --show {name!r}"
