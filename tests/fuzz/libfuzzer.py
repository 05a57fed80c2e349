"""Fuzzers that run until their time is over: started again after a fault, their figures in a table."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Fuzzer", "campaign"]

# Where inputs are kept: those that reach new code, for the next time, and those that bring about a fault.
_KEPT = Path("build/fuzz")

# After so many faults a fuzzer ends: it would go on finding the same.
_PATIENCE = 60.0  # seconds after the end
_MOST_FAULTS = 3

# Seconds and MB that an input may take. As long as it may be from the start: short ones say little here.
_OPTIONS = (
    "-timeout=20",
    "-rss_limit_mb=4000",
    "-malloc_limit_mb=2000",
    "-len_control=0",
    "-print_final_stats=1",
)


@dataclass(frozen=True, slots=True)
class Fuzzer:
    """A program that takes libFuzzer's options.

    Attributes:
        command: how it is started.
        longest: the bytes that an input may have.
        seeds: makes the inputs that it starts from.
        may_crash: whether crashes and hangs of the process are not onegru's.
    """

    command: Sequence[str]
    longest: int
    seeds: Callable[[], list[bytes]] = list
    may_crash: bool = False


@dataclass(slots=True)
class _Figures:
    runs: int = 0
    coverage: int = 0
    inputs: int = 0
    faults: int = 0
    crashes: int = 0
    seconds: float = 0


def campaign(fuzzers: Mapping[str, Fuzzer], minutes: float) -> int:
    """Run fuzzers one after another, each for as long; 1 if there were faults, or no code was counted."""
    figures = {}
    for name, fuzzer in fuzzers.items():
        print(f"{name}: {60 * minutes / len(fuzzers):.0f} s", file=sys.stderr, flush=True)
        figures[name] = _fuzz(name, fuzzer, 60 * minutes / len(fuzzers))
    print("\nfuzzer            runs    /s  coverage  inputs  faults")
    for name, found in figures.items():
        speed = found.runs / max(found.seconds, 1e-9)
        words = f", {found.crashes} crashes of a library" if found.crashes else ""
        row = f"{name:11} {found.runs:10} {speed:5.0f} {found.coverage:9} {found.inputs:7} {found.faults:7}"
        print(row + words)
    blind = [name for name, found in figures.items() if not found.coverage]
    if blind:
        print(f"not guided, as none of the code that runs is counted: {', '.join(blind)}")
    faults = sum(found.faults for found in figures.values())
    print(f"{faults} faults")
    return int(bool(faults or blind))


def _fuzz(name: str, fuzzer: Fuzzer, seconds: float) -> _Figures:
    inputs, log = _KEPT / "inputs" / name, _KEPT / f"{name}.log"
    inputs.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(fuzzer.seeds()):
        (inputs / f"seed-{number}").write_bytes(seed)
    figures = _Figures()
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0.5 and figures.faults < _MOST_FAULTS:
        options = [f"-max_total_time={math.ceil(left)}", f"-max_len={fuzzer.longest}", *_OPTIONS]
        options += [f"-artifact_prefix={_KEPT.absolute() / name}-", str(inputs)]
        began = time.monotonic()
        # libFuzzer ends without cleaning up.
        with log.open("wb") as stream, tempfile.TemporaryDirectory(prefix="onegru-fuzz-") as place:
            try:
                code = subprocess.run(
                    [*fuzzer.command, *options],
                    stderr=stream,
                    stdout=stream,
                    env={**os.environ, "TMPDIR": place},
                    timeout=left + _PATIENCE,
                ).returncode
            except subprocess.TimeoutExpired:  # of native code, which libFuzzer cannot always end
                code = -signal.SIGKILL
        figures.seconds += time.monotonic() - began
        text = log.read_text(errors="replace")
        _count(text, figures)
        if code == 0:
            continue
        # An exception of Python ends libFuzzer too, but by way of atheris.
        if fuzzer.may_crash and "Uncaught Python exception" not in text:
            figures.crashes += 1
            continue
        figures.faults += 1
        _tell(name, fuzzer, text)
    return figures


def _count(text: str, figures: _Figures) -> None:
    """Add the figures of a log."""
    runs = re.findall(r"^(?:#|stat::number_of_executed_units: )([0-9]+)", text, re.MULTILINE)
    figures.runs += int(runs[-1]) if runs else 0
    for coverage, inputs in re.findall(r"cov: ([0-9]+) .*?corp: ([0-9]+)", text)[-1:]:
        figures.coverage, figures.inputs = max(figures.coverage, int(coverage)), int(inputs)


def _tell(name: str, fuzzer: Fuzzer, text: str) -> None:
    """Print a fault, and how it is run again."""
    start = re.search(r"Uncaught Python exception|^==[0-9]+==|runtime error|^FAILED", text, re.MULTILINE)
    lines = text[start.start() if start else 0 :].splitlines()
    kept = re.search(r"Test unit written to (\S+)", text)
    again = f"{' '.join(fuzzer.command)} {kept[1]}" if kept else "no input was kept"
    print(f"\n{name}: a fault; again: {again}", *lines[:40], sep="\n    ", flush=True)
