"""The guided half of `make fuzz` without libFuzzer: inputs, what reads them, and how figures are reported."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import pytest

import onegru
from onegru.formats import keras_archive
from tests.fuzz import guided, libfuzzer
from tests.fuzz.corpus import KINDS, NEEDS, corpus
from tests.fuzz.libfuzzer import Fuzzer, campaign


def _of_bytes(data: bytes, most: int) -> bytes:
    """In place of libFuzzer's own changes."""
    return (data[::-1] + b"\0")[:most]


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_are_read_or_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not corpus(kind):
        pytest.skip(f"{NEEDS[kind]} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(keras_archive, "run_child", guided.run_here)
    seeds = guided.seeds(kind)
    assert {guided.judge(kind, seed, []) for seed in Random(0).sample(seeds, min(len(seeds), 16))} - {
        "FormatError",
        "SpecError",
    }
    data = seeds[0]
    for seed in range(15):
        data = guided.mutate(kind, data, guided.LONGEST, seed, _of_bytes)
        guided.judge(kind, data, [])
    guided.judge(kind, b"", [])


@pytest.mark.parametrize("kind", ["onnx", "xml"])
def test_inputs_come_only_from_the_seed_and_stay_short(kind: str) -> None:
    seed = guided.seeds(kind)[0]
    way, files = guided.unpacked(seed, kind)
    assert guided.packed(way, files) == seed
    most = len(seed) + 500
    made = [guided.mutate(kind, seed, most, number, _of_bytes) for number in range(40)]
    assert made == [guided.mutate(kind, seed, most, number, _of_bytes) for number in range(40)]
    assert max(map(len, made)) <= most
    assert len(set(made)) > 20
    assert guided.unpacked(guided.mutate(kind, seed, 10, 1, _of_bytes), kind)[1] == corpus(kind)[0]


def test_what_a_reader_raises_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise KeyError(str(path))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(onegru, "load_layers", fail)
    seed = guided.seeds("safetensors")[0]
    _, files = guided.unpacked(seed, "safetensors")
    way = next(way for way in range(64) if Random(way).random() >= 0.5)  # not by the command line
    with pytest.raises(KeyError):
        guided.judge("safetensors", guided.packed(way, files), [])


_LOG = """
import sys
print("#7 NEW cov: 30 ft: 40 corp: 5/9b", file=sys.stderr)
print("stat::number_of_executed_units: 12", file=sys.stderr)
"""
_FAULT = """
print(" === Uncaught Python exception: ===", "KeyError: 'x'", sep="\\n", file=sys.stderr)
print("Test unit written to build/fuzz/onnx-crash-1", file=sys.stderr)
sys.exit(77)
"""


def test_figures_and_faults_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(libfuzzer, "_MOST_FAULTS", 1)
    whole = Fuzzer([sys.executable, "-c", _LOG + "import time; time.sleep(1)"], 9, lambda: [b"a", b"b"])
    assert campaign({"onnx": whole}, 1 / 60) == 0
    said = capsys.readouterr().out
    name, runs, _, *figures = said.splitlines()[-2].split()
    assert (name, runs, figures) == ("onnx", "12", ["30", "5", "0"])
    assert len(list((tmp_path / "build/fuzz/inputs/onnx").iterdir())) == 2
    assert campaign({"onnx": Fuzzer([sys.executable, "-c", _LOG + _FAULT], 9)}, 1) == 1
    said = capsys.readouterr().out
    assert "KeyError: 'x'" in said and "build/fuzz/onnx-crash-1" in said and said.endswith("1 faults\n")


def test_a_fuzzer_that_counts_no_code_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    log = _LOG.replace(" cov: 30 ft: 40", "") + "import time; time.sleep(1)"
    assert campaign({"onnx": Fuzzer([sys.executable, "-c", log], 9)}, 1 / 60) == 1
    said = capsys.readouterr().out
    assert "not guided" in said and said.endswith("0 faults\n")


def test_crashes_of_a_library_that_has_a_process_of_its_own_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    crash = Fuzzer(
        [sys.executable, "-c", _LOG + "import os, time; time.sleep(1); os.abort()"], 9, may_crash=True
    )
    assert campaign({"h5": crash}, 1 / 60) == 0
    assert "1 crashes of a library" in capsys.readouterr().out
