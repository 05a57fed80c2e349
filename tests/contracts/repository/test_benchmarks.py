"""What the benchmarks compute from their measurements."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.limits import cache_shares, least_seconds
from benchmarks.models.cases import CASES, MOST_FLOPS, SIZES, Case, Shape, draw_cases
from benchmarks.page.figures import beside_ratio, drawn_ratios, falls, read_parts
from benchmarks.record import Record

MB = 1 << 20
LIMITS = {
    "fma": 100e9,
    "threads": 1,
    "levels": [["L2", MB, 100e9], ["L3", 32 * MB, 50e9], ["memory", None, 10e9]],
}


def test_cases_are_known_by_their_names() -> None:
    drawn = list(itertools.islice(draw_cases(3), 200))
    assert drawn == list(itertools.islice(draw_cases(3), 200)) != list(itertools.islice(draw_cases(4), 200))
    for case in (*CASES, *drawn):
        assert Case.read(str(case)) == case
    for name, (low, high) in SIZES.items():
        assert all(low <= getattr(case.shape, name) <= high for case in drawn)
    assert max(case.shape.flops for case in drawn) <= MOST_FLOPS


def test_least_time() -> None:
    R, W = 12 * 256 * 256, 12 * 256 * 128
    rows = Shape(100, 64, 128, 256, 1)
    assert least_seconds(rows, LIMITS) == rows.flops / 100e9  # many rows compute
    # One row reads: R alone fits into the second level, with W it does not; W is read once for eight steps.
    reading = 100 * R / 100e9 + 13 * W / 50e9
    assert least_seconds(Shape(100, 1, 128, 256, 1), LIMITS | {"fma": 1e15}) == pytest.approx(reading)
    # Two cores hold half each, and read at twice the rate, which their limits are given as.
    assert least_seconds(Shape(1, 1, 128, 256, 1), LIMITS | {"threads": 2, "fma": 1e15}) == (R + W) / 100e9


def test_share_of_a_cache(tmp_path: Path) -> None:
    for index, (level, kind, size, sharers) in enumerate(
        (
            ("1", "Data", "48K", "1"),
            ("1", "Instruction", "32K", "1"),
            ("3", "Unified", "32768K", "0,0000000f"),
        )
    ):
        folder = tmp_path / "cpu0" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("type", kind), ("size", size), ("shared_cpu_map", sharers)):
            (folder / name).write_text(text + "\n")
    assert cache_shares([0, 1], tmp_path) == {"L1": 48 << 10, "L3": 16 * MB}


def test_ratios() -> None:
    def entry(**medians: float) -> dict[str, Any]:
        peers = {
            name.replace("_", " "): {"median": value, "mean": 2 * value} for name, value in medians.items()
        }
        return {"kind": "drawn", "case": "1,1,1,1,1 after", "threads": 1, "peers": peers}

    assert beside_ratio(entry(default=3, one_thread=2, onnxruntime=5), "mean") == 1.5
    refused = entry(onnxruntime=1) | {"case": "2,1,1,1,1 after"}
    parts = {"drawn": {"entries": [entry(onegru=2, onnxruntime=3), refused, entry(onegru=1)]}}
    assert drawn_ratios(parts, "1") == [
        0.0,
        1.5,
    ]  # none of onegru's counts as slower, none of the other's not at all
    assert falls([100, 90, 120]) == pytest.approx([0, 0.1, -1 / 3])


def test_files_are_resumed_and_merged(tmp_path: Path) -> None:
    keys = [{"kind": "drawn", "case": name, "threads": 1} for name in "ab"]
    record = Record(tmp_path / "drawn.json", {"seed": 0}, {}, resume=False)
    next(record.left(keys))
    record.add({"peers": {"first": {}}}, "")
    again = Record(record.path, {"seed": 0}, {}, resume=True)
    assert list(again.left(keys)) == keys[1:]
    with pytest.raises(SystemExit, match="--resume"):
        Record(record.path, {"seed": 1}, {}, resume=True)
    later = tmp_path / "later.json"
    later.write_text(
        json.dumps(again.document | {"entries": [keys[0] | {"peers": {}}, keys[1] | {"peers": {}}]})
    )
    merged = read_parts([record.path, later])["drawn"]["entries"]
    assert merged == [key | {"peers": {}} for key in keys]
