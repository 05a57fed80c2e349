"""Calls under load from other processes on the same cores, and interleaved with a session whose threads spin.

Nothing is pinned, because this measures the effect of the system's scheduler on a call. One contender is
timed at a time, call by call. The others sleep.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.harness.record import Record
from benchmarks.harness.turns import Worker, exact_results, prepare, settle, working
from benchmarks.models.cases import Case, Shape

__all__ = ["CONTENDERS", "SPINNING", "measure_busy"]

CASES = tuple(
    Case(Shape(T, B, H, H, 1), linear_before_reset=True)
    for T, B, H in ((20, 8, 256), (20, 1, 128), (100, 1, 256), (1, 1, 512), (20, 64, 128))
)
#: Contenders by name: a baseline, and its threads; 0 for its default.
CONTENDERS = {"default": ("onegru", 0), "one thread": ("onegru", 1), "onnxruntime": ("onnxruntime", 0)}
SPINNING = "a spinning session, in turns"
LOOPS = {"nothing": 0, "1 busy loop": 1, "2 busy loops": 2, "4 busy loops": 4, SPINNING: 0}
WINDOW = 0.4  # seconds of a turn: many of the scheduler's slices
START = 0.3  # seconds until a loop has started
# The loop ends when its parent ends, for any reason.
BUSY = f"import os\nwhile os.getppid() == {os.getpid()}:\n for _ in range(100000): pass"


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Run other processes with the same priority, which each keep a core busy."""
    loops: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            loops.append(subprocess.Popen([sys.executable, "-S", "-c", BUSY], stderr=subprocess.DEVNULL))
        time.sleep(START if count else 0)
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measure_busy(record: Record, options: Namespace) -> None:
    """Measure median and mean of a call of every contender, under each load in `LOOPS`."""
    cases = [case for case in CASES if options.only in str(case)]
    keys = [{"kind": "busy", "case": str(case), "load": load} for case in cases for load in LOOPS]
    window = WINDOW / 8 if options.quick else WINDOW
    for key in record.left(keys):
        workers = {name: Worker(*peer, pinned=False) for name, peer in CONTENDERS.items()}
        with working(workers):
            order = {"case": key["case"]}
            results = prepare(order, workers, exact_results(Case.read(key["case"])))
            able = [name for name, answer in results.items() if answer.pop("each", None)]
            calls: dict[str, list[int]] = {name: [] for name in able}
            with busy_loops(LOOPS[key["load"]]):
                for _ in range(options.rounds):
                    for name in able:
                        settle(workers.values())
                        turn = workers[name].ask(
                            do="window", seconds=window, spinning=key["load"] == SPINNING
                        )
                        calls[name] += turn["nanoseconds"]
        for name, times in calls.items():
            median, mean = np.median(times) * 1e-9, np.mean(times) * 1e-9
            results[name] |= {"median": float(median), "mean": float(mean), "calls": len(times)}
        record.add({"peers": results}, shown(results))


def shown(results: dict[str, Any]) -> str:
    parts = (
        f"{name} {e['median'] * 1e6:.1f}/{e['mean'] * 1e6:.1f}" if "mean" in e else f"{name} -"
        for name, e in results.items()
    )
    return "median/mean µs: " + ", ".join(parts)
