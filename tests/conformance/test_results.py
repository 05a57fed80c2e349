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
    "b": Outcome("differs", "Y: 1 of 4 numbers are off", "Y", (0, 1), float("nan"), float("-inf"), 0.0),
    "c": Outcome("refuses", "no"),
    "d": Outcome("crashes", "signal 11, SIGSEGV"),
    "e": Outcome("differs", "Y: 2 of 4 numbers are off", "Y", (), 1.5, 2.5, 1e-6),
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


def test_the_document() -> None:
    found = document(RESULTS)
    assert found["lists"] == [list(OUTCOMES), ["a", "f"]]
    assert [entry["list"] for entry in found["runtimes"]] == [0, 1, 0]
    first = found["runtimes"][0]
    assert first["counts"] == {"passes": 1, "differs": 2, "refuses": 1, "crashes": 1}
    assert first["outcomes"]["b"]["got"] == "-inf" and "a" not in first["outcomes"]
    short = document(RESULTS, figures=False)["runtimes"][0]["outcomes"]
    assert short["b"] == {"status": "differs", "reason": "Y: 1 of 4 numbers are off"}
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"runtimes": [{}], "lists": []}',
        b'{"runtimes": [{"list": 0, "outcomes": {"a": {"status": "odd"}}}], "lists": [["a"]]}',
        b'{"runtimes": [{"list": 0, "outcomes": {"a": {"status": "differs", "got": "x"}}}], "lists": [[]]}',
        b'{"runtimes": [{"list": 0, "outcomes": {"a": {"status": "refuses", "why": ""}}}], "lists": [[]]}',
        b'{"runtimes": [{"list": 0, "outcomes": []}], "lists": [[]]}',
    ],
)
def test_other_files(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(text)
    with pytest.raises(FormatError, match=r"r\.json: not results of the conformance kit"):
        read_results(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        read_results(tmp_path / "none.json")
    with pytest.raises(OSError):
        write_results(tmp_path / "none" / "r.json", RESULTS)
