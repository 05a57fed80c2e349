"""Results in files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from onegru import FormatError
from onegru.conformance.results import Outcome, RuntimeResults, document, read_results, write_results

OUTCOMES = {
    "a": Outcome("passes"),
    "b": Outcome("differs", "Y beyond the tolerance", "Y", (0, 1), float("nan"), float("-inf"), 0.0),
    "c": Outcome("refuses", "no"),
    "d": Outcome("crashes", "signal 11, SIGSEGV"),
    "e": Outcome("differs", "Y beyond the tolerance", "Y", (), 1.5, 2.5, 1e-6),
}
RESULTS = [
    RuntimeResults("one", "1.0", {"engine": "native"}, OUTCOMES, {"b": {"Y": np.ones(4)}}),
    RuntimeResults("two", "2.0", {}, {"a": Outcome("passes"), "f": Outcome("refuses", "é")}),
    RuntimeResults("three", "3.0", {}, {name: Outcome("passes") for name in OUTCOMES}),
]


def test_written_and_read_again(tmp_path: Path) -> None:
    write_results(tmp_path / "r.json", RESULTS)
    read = read_results(tmp_path / "r.json")
    assert repr(read) == repr([replace(item, outputs={}) for item in RESULTS])  # NaN equals nothing
    assert list(read[0].outcomes) == list(OUTCOMES)


def test_the_document(tmp_path: Path) -> None:
    found = document(RESULTS)
    assert found["cases"] == [*OUTCOMES, "f"]
    first, second, third = found["runtimes"]
    assert first["counts"] == {"passes": 1, "differs": 2, "refuses": 1, "crashes": 1}
    assert first["outcomes"][0] == {"status": "passes", "cases": [0]}
    assert first["outcomes"][1]["got"] == "-inf" and first["outcomes"][1]["cases"] == [1]
    assert second["outcomes"] == [
        {"status": "passes", "cases": [0]},
        {"status": "refuses", "reason": "é", "cases": [5]},
    ]
    assert third["outcomes"] == [{"status": "passes", "cases": [0, 1, 2, 3, 4]}]
    short = document(RESULTS, figures=False)["runtimes"][0]["outcomes"][1]
    assert short == {"status": "differs", "reason": "Y beyond the tolerance", "cases": [1, 4]}
    write_results(tmp_path / "r.json", RESULTS)
    text = (tmp_path / "r.json").read_text()
    assert json.loads(text) == json.loads(json.dumps(found, allow_nan=False))
    assert text.splitlines()[1:7] == ['"a",', '"b",', '"c",', '"d",', '"e",', '"f"']  # for those who compare


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"runtimes": [{}], "cases": []}',
        *(
            b'{"runtimes": [{"outcomes": %s, "runtime": "", "version": "", "options": {}}], "cases": ["a"]}'
            % item
            for item in (
                b'[{"status": "odd", "cases": [0]}]',
                b'[{"status": "differs", "got": "x", "cases": [0]}]',
                b'[{"status": "refuses", "why": "", "cases": [0]}]',
                b'[{"status": "passes", "cases": [1]}]',
                b'[{"status": "passes", "cases": ["a"]}]',
                b'[{"status": "passes"}]',
                b'{"a": 1}',
            )
        ),
    ],
)
def test_other_files(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(text)
    with pytest.raises(FormatError, match=r"r\.json: not results of the conformance suite"):
        read_results(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        read_results(tmp_path / "none.json")
    with pytest.raises(OSError):
        write_results(tmp_path / "none" / "r.json", RESULTS)
