"""Test the values that the benchmarks compute from their measurements."""

from __future__ import annotations

import importlib.util
import itertools
import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onegru
from benchmarks.harness.limits import cache_shares, least_seconds
from benchmarks.harness.record import Record
from benchmarks.models import ways
from benchmarks.models.cases import CASES, MOST_FLOPS, SIZES, Case, Shape, draw_cases
from benchmarks.page.figures import busy_ratio, drawn_ratios, falls
from benchmarks.page.machines import FOLDER, labels, read_machines, write_machines
from benchmarks.page.story import story
from benchmarks.page.targets import LIMITS as SHARES
from benchmarks.page.targets import verdicts
from benchmarks.parts.paced import PAUSES, measure_paced
from benchmarks.parts.ways import measure_ways
from benchmarks.report import write_report
from tests.support.machine.repository import ROOT
from tests.support.models.runtimes import onnxruntime_results, openvino_results

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
    assert least_seconds(rows, LIMITS) == rows.flops / 100e9  # many rows are limited by computing
    # One row is limited by reading: R fits into the second-level cache, R and W do not; W is read once for
    # eight steps.
    reading = 100 * R / 100e9 + 13 * W / 50e9
    assert least_seconds(Shape(100, 1, 128, 256, 1), LIMITS | {"fma": 1e15}) == pytest.approx(reading)
    # Two cores have half each, and read at twice the rate. The limits are given for both.
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

    assert busy_ratio(entry(default=3, one_thread=2, onnxruntime=5), "mean") == 1.5
    refused = entry(onnxruntime=1) | {"case": "2,1,1,1,1 after"}
    parts = {"drawn": {"entries": [entry(onegru=2, onnxruntime=3), refused, entry(onegru=1)]}}
    assert drawn_ratios(parts, "1") == [
        0.0,
        1.5,
    ]  # without an onegru result: slower; without another result: skipped
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
    (parts,) = read_machines([record.path, later]).values()
    merged = parts["drawn"]["entries"]
    assert merged == [key | {"peers": {}} for key in keys]


def test_shapes_have_labels_that_people_understand() -> None:
    labels = {str(case): case.shape.label for case in CASES}
    assert labels["1,1,256,256,1 after"] == "RNNoise or DeepFilterNet step, H = 256"
    assert labels["1,1,64,64,1 after"] == "Step, H = 64"
    assert labels["33,1,8,4,2 after"] == "GTCRN, 33 steps, H = 4, both directions"
    assert labels["1,33,8,8,1 after"] == "GTCRN, 1 step × 33 rows, H = 8"
    assert labels["100,32,256,256,1 after"] == "100 steps × 32 rows, H = 256"


MACHINE = {"cpu": "One", "vendor": "V", "cores": 2, "target": "avx2", "caches": {"L1": 32 << 10, "L2": MB}}
SOFTWARE = {"python": "3", "versions": {"onegru": "1"}, "date": "2026-01-02"}


def tables(cpu: str, ours: float) -> dict[str, Any]:
    """Return a file of results: a batch and a step, on one thread; another runtime takes 3 ms and 0.5 ms."""
    cases = {"100,32,256,256,1 after": 3e-3, "1,1,512,512,1 after": 5e-4}
    entries = [
        {
            "kind": "case",
            "case": case,
            "threads": 1,
            "peers": {"onegru": {"median": ours * peer}, "torch": {"median": peer}},
        }
        for case, peer in cases.items()
    ]
    machine = MACHINE | SOFTWARE | {"cpu": cpu}
    return {"part": "tables", "settings": {}, "machine": machine, "limits": {"1": LIMITS}, "entries": entries}


def test_machines_side_by_side(tmp_path: Path) -> None:
    for name, ours in (("One", 0.25), ("Two", 2.0)):
        (tmp_path / f"{name}.json").write_text(json.dumps(tables(name, ours)))
    machines = read_machines(sorted(tmp_path.glob("*.json")))
    write_machines(machines, tmp_path / "machines")
    assert read_machines(sorted((tmp_path / "machines").iterdir())) == machines
    page = "\n".join(story(machines))
    for line in (
        "| | baseline | One (AVX2) | Two (AVX2) |",
        "| GRUs of real models | fastest other runtime | 4.0× / – | 0.5× / – |",
        "| a call every 10 ms | fastest other runtime | – | – |",
    ):
        assert line in page.split("\n")
    assert "| One (AVX2) | 32 KiB, 1 MiB | 100 | " in page


def test_openvino_is_compared_at_its_best() -> None:
    """OpenVINO is faster with fixed sizes: the rows compare with these, not with dynamic sizes."""
    found = tables("One", 1.0) | {
        "part": "whole",
        "entries": [
            {
                "kind": "whole",
                "case": f"gtcrn 1 {form}",
                "threads": 1,
                "peers": {
                    "onegru": {"median": 1e-4, "opening": 0.3},
                    "openvino": {"median": peer, "opening": 0.1},
                },
            }
            for form, peer in (("ir", 3e-4), ("ir, reshaped", 2e-4))
        ],
    }
    page = story({"One": {"tables": tables("One", 1.0), "whole": found}})
    assert "| whole OpenVINO models | OpenVINO | 2.0× / – |" in page
    assert "| GTCRN, 1 | – / 2.00× |" in page
    assert any("3.00 to 3.0 (mean 3.00) times for IRs" in line for line in page)


def test_machines_that_share_a_label_have_their_whole_names() -> None:
    def parts(cpu: str, **other: Any) -> dict[str, Any]:
        found = tables(cpu, 1.0)
        return {"tables": found | {"machine": found["machine"] | other}}

    machines = {
        "a": parts("One"),
        "b": parts("One"),
        "c": parts("One", target="avx3_zen4"),
        "d": parts("Two"),
    }
    assert labels(machines) == {"a": "a", "b": "b", "c": "One (AVX-512)", "d": "Two (AVX2)"}


def test_targets_are_shares_of_the_limit() -> None:
    parts = {"tables": tables("One", 1.0)}
    batch, step, row = SHARES
    flops = 6 * 256 * 512 * 32 * 100
    assert batch.shares(parts, "1") == [pytest.approx(flops / 3e-3 / 100e9)]
    assert step.shares(parts, "1") == [pytest.approx(2 * 12 * 512 * 512 / 50e9 / 5e-4)]
    assert row.shares(parts, "1") == []
    found = {(verdict.what, verdict.threads): verdict for verdict in verdicts(parts)}
    assert found[f"share of the limit: {batch.name}", "1"].reached
    assert not found[f"share of the limit: {step.name}", "1"].reached
    assert not any("random shapes" in what or "whole models" in what for what, _ in found)


def test_the_pages_show_the_results(tmp_path: Path) -> None:
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    for curves in (ROOT / "benchmarks" / "results").glob("drawn-*.png"):
        (results / curves.name).touch()  # of a machine whose single shapes were not stored
    write_report(read_machines(sorted(FOLDER.glob("*.json"))), tmp_path)
    for name in ("docs/performance.md", "benchmarks/results/performance.md", "benchmarks/targets.md"):
        shown = (ROOT / name).read_text(encoding="utf-8")
        assert (tmp_path / name).read_text(encoding="utf-8") == shown, "run: python -m benchmarks.report"
    assert (tmp_path / "docs" / "performance.png").stat().st_size > 10_000


def test_models_by_ways_of_carrying_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has one name, and its runtime without onegru computes the correct outputs."""
    monkeypatch.setattr(ways, "FOLDER", tmp_path)
    seen = set() if importlib.util.find_spec("onnx_ir") else {"4 bits"}
    for form in ("onnx", "ir"):
        for way in (ways.draw_way(form, 34, number) for number in range(30)):
            assert ways.Way.read(str(way)) == way
            drawn = {way.writer, way.place, way.stored, way.last, *way.links}
            is_quick = way.writer in (ways.BY_HAND, ways.NNCF, ways.OPTIMIZER) and "converted" not in way.last
            if not is_quick or drawn <= seen or (way.last == "4 bits" and "4 bits" in seen):
                continue
            seen |= drawn
            path = way.write()
            if form == "ir":
                found = openvino_results(path, way.feed)
            elif way.tolerance > ways.EXACT:  # ONNX Runtime has the correct result
                found = onegru.load(path).run(way.feed)
            else:
                found = onnxruntime_results(onnx.load(path), way.feed)
            assert np.abs(next(iter(found.values())) - way.right).max() <= way.tolerance, way
    by_hand = {*ways.LINKS, *ways.ENDS, *ways.PLACES, *ways.STORED, *ways.QUANTISERS}
    assert seen >= by_hand | {ways.NNCF, ways.OPTIMIZER}


def test_ways_and_paced_calls_reach_the_pages(tmp_path: Path) -> None:
    """Both are measured briefly, and are on the pages, with the missing measurements."""
    options = Namespace(seed=0, only="onnx 0/0:", rounds=1, block=1e-3, quick=True)
    record = Record(tmp_path / "ways.json", {}, MACHINE | SOFTWARE, resume=False)
    measure_ways(record, 1, 1.0, options)
    (entry,) = record.document["entries"]
    assert {name for name, found in entry["peers"].items() if found["median"] > 0} == {
        "onnxruntime",
        "onegru",
        "onegru provider",
    }
    entry["peers"]["onegru"] = {"refuses": "no"}
    record.write()
    record = Record(tmp_path / "paced.json", {}, MACHINE | SOFTWARE, resume=False)
    measure_paced(record, 1, ["onegru", "onnxruntime"], Namespace(only="1,1,80,320", quick=True))
    paces = {entry["pace"]: entry["peers"]["onegru"] for entry in record.document["entries"]}
    assert list(paces) == list(PAUSES) and all(0 < found["median"] < 1 for found in paces.values())
    assert [found.get("idle", 1) < 0.1 for found in paces.values()] == [False, True, True]
    write_report(read_machines([tmp_path / "ways.json", record.path]), tmp_path)
    names = ("docs/performance.md", "benchmarks/results/performance.md", "benchmarks/targets.md")
    pages = [(tmp_path / name).read_text("utf-8") for name in names]
    assert "| random weight encodings, ONNX | ONNX Runtime | 0.00× to " in pages[0]
    assert "| a call every 10 ms | fastest other runtime | " in pages[0]
    assert "| weight encodings, ONNX files, onegru.load, lowest | 1 | ≥ 1 | 0 | missed |" in pages[2]
    assert "- ONNX files, onegru.load, 1 thread: `onnx 0/0: by hand;" in pages[1]
    assert "| 1,1,80,320,1 | every 100 ms | 1 | " in pages[1]
