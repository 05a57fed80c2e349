"""Contenders in separate processes, and their interleaved timing."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models.cases import Array, Case, draw, layer_of

__all__ = [
    "AGAIN",
    "ROOT",
    "Worker",
    "Workers",
    "compare",
    "cpu_seconds",
    "exact_results",
    "prepare",
    "settle",
    "shown",
    "take_turns",
    "working",
]

ROOT = Path(__file__).resolve().parents[2]
AGAIN = 1.05  # a ratio below this is measured again, longer, before it counts
SETTLE = 0.02  # seconds without CPU use before the next contender is timed
LONGEST_SETTLE = 2.0
TOLERANCE = 2e-4  # float32 over up to a thousand steps
BFLOAT16_TOLERANCE = 0.2  # the cost is measured in docs/accuracy.md
#: Contenders that round weights, or weights and activations, to bfloat16.
ROUNDED = ("onegru bfloat16", "onegru W16A16", "openvino default")


def cpu_seconds(pid: int | str, leave_out: int = 0) -> float:
    """Return the CPU time of all threads of a process, except one; 0 if the system does not give it."""
    used = 0
    for entry in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        if entry.parent.name != str(leave_out):
            with contextlib.suppress(OSError, ValueError, IndexError):  # a thread that has just ended
                used += int(entry.read_text().split()[0])
    return used * 1e-9


class Worker:
    """A contender's process, pinned to one core per thread; with 0, not pinned, with its default threads."""

    def __init__(self, name: str, threads: int, pinned: bool = True) -> None:
        environment = dict(os.environ)
        for variable in ("OMP_NUM_THREADS", "ONEGRU_NUM_THREADS"):
            environment.pop(variable, None)
            if threads:
                environment[variable] = str(threads)
        where = "pinned" if pinned else "free"
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.harness.worker", name, str(threads), where],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env=environment,
        )

    def ask(self, **order: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        return dict(json.loads(line)) if line else {"refuses": "the process ended"}

    def stop(self) -> None:
        with self.process:  # it closes the pipes
            self.process.kill()

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def cpu_seconds(self) -> float:
        """Return the CPU time of all its threads."""
        return cpu_seconds(self.process.pid)


Workers = Mapping[str, Worker]


@contextlib.contextmanager
def working(workers: Workers) -> Iterator[Workers]:
    """Stop the workers at the end, also after errors."""
    try:
        yield workers
    finally:
        for worker in workers.values():
            worker.stop()


def settle(workers: Iterable[Worker]) -> None:
    """Wait until the threads of all contenders sleep: some spin for 50 ms, on the CPU of the next one."""
    began, used = time.monotonic(), -1.0
    while time.monotonic() - began < LONGEST_SETTLE:
        now = sum(worker.cpu_seconds() for worker in workers)
        if now - used < SETTLE / 20 and used >= 0:
            return
        used = now
        time.sleep(SETTLE)


def exact_results(case: Case) -> tuple[Array, Array]:
    """Return Y and Y_h from the float64 reference."""
    arrays = draw(case)
    layer = layer_of(case, arrays, "reference")
    Y, Y_h = layer(arrays["X"], arrays["h0"])
    return Y, Y_h


def prepare(order: dict[str, Any], workers: Workers, right: tuple[Array, Array]) -> dict[str, dict[str, Any]]:
    """Prepare a case in all workers. Return "error" and seconds of "each" call by name, or "refuses"."""
    answers: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "right.npz")
        np.savez(file, Y=right[0], Y_h=right[1])
        for name, worker in workers.items():
            answer = worker.ask(do="prepare", exact=str(file), **order)
            tolerance = order.get("tolerance", BFLOAT16_TOLERANCE if name in ROUNDED else TOLERANCE)
            if "refuses" not in answer and not answer["error"] <= tolerance:
                answer = {"refuses": f"wrong by {answer['error']:.2g}"}
            answers[name] = answer
    return answers


def take_turns(
    order: dict[str, Any], workers: Workers, right: tuple[Array, Array], rounds: int, block: float
) -> dict[str, dict[str, Any]]:
    """Check each result, then time interleaved calls: return medians and spreads."""
    results = prepare(order, workers, right)
    counts = {name: max(1, int(block / e.pop("each"))) for name, e in results.items() if "each" in e}
    seconds: dict[str, list[float]] = {name: [] for name in counts}
    for _ in range(rounds):
        for name, count in counts.items():
            settle(workers.values())
            seconds[name].append(workers[name].ask(do="time", count=count)["seconds"])
    for name, found in seconds.items():
        results[name] |= {"median": statistics.median(found), "low": min(found), "high": max(found)}
    return results


def compare(
    order: dict[str, Any],
    workers: Workers,
    right: tuple[Array, Array],
    options: Namespace,
    ours: Iterable[str],
    other: str,
) -> dict[str, dict[str, Any]]:
    """Call `take_turns` with short turns; if onegru is not clearly faster, again with longer ones."""
    rounds, block = max(3, options.rounds - 2), options.block / 2
    results = take_turns(order, workers, right, rounds, block)
    medians = {name: entry["median"] for name, entry in results.items() if "median" in entry}
    if any(0 < medians.get(other, 0) < AGAIN * medians.get(name, 0) for name in ours):
        results = take_turns(order, workers, right, 3 * rounds, 2 * block)
    return results


def shown(results: dict[str, dict[str, Any]]) -> str:
    """Format medians in a line, or that there are none."""
    parts = (f"{n} {e['median'] * 1e6:.1f}" if "median" in e else f"{n} -" for n, e in results.items())
    return "µs: " + ", ".join(parts)
