"""Measures onegru and its peers, in turns, and reports:  python -m benchmarks.run [--quick] [--threads 1,2]

Each peer is a process of its own, pinned to as many cores as it may use threads. Results are checked against
float64 first. Then all take turns, A B C A B C …, each for a fraction of a second, and the medians count.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import CASES, Case, draw
from benchmarks.models import speech_model
from benchmarks.peers import PEERS, version
from benchmarks.report import write_report
from benchmarks.whole import WHOLE, WHOLE_CASES, exact

ROOT = Path(__file__).parent.parent
SETTLE = 0.02  # seconds; so long no peer may use a core before the next one is timed
LONGEST_SETTLE = 2.0
TOLERANCE = 2e-4  # float32 over up to a thousand steps
BFLOAT16_TOLERANCE = 0.2  # rounded weights; the cost is measured in docs/numerics.md


class Worker:
    """A peer's process."""

    def __init__(self, name: str, threads: int) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "ONEGRU_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.worker", name, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env=environment,
        )

    def ask(self, **order: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        return dict(json.loads(line)) if line else {"refuses": "the process ended"}

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def cpu_seconds(self) -> float:
        """What all its threads have used; 0 where the system does not tell."""
        used = 0
        for entry in Path(f"/proc/{self.process.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError, ValueError, IndexError):  # a thread that has just ended
                used += int(entry.read_text().split()[0])
        return used * 1e-9


def settle(workers: Iterable[Worker]) -> None:
    """Wait until the threads of every peer sleep: some spin for 50 ms after it, on the next one's CPU."""
    began, used = time.monotonic(), -1.0
    while time.monotonic() - began < LONGEST_SETTLE:
        now = sum(worker.cpu_seconds() for worker in workers)
        if now - used < SETTLE / 20 and used >= 0:
            return
        used = now
        time.sleep(SETTLE)


def applies(name: str, case: Case) -> bool:
    shape = case.shape
    if name == "onegru step":
        return shape.T == 1 and shape.D == 1 and shape.B == 1
    if name == "onegru alloc":
        return shape.T == 1
    if name == "onegru bfloat16":
        return shape.B == 1 and shape.H >= 512
    if name == "torch":
        return case.linear_before_reset
    return True


def measure(case: Case, workers: dict[str, Worker], rounds: int, block: float) -> dict[str, Any]:
    """Medians and spreads of every peer on a case."""
    index = CASES.index(case)
    arrays = draw(case)
    import onegru

    layer = onegru.GRU(
        arrays["W"],
        arrays["R"],
        arrays["B"],
        direction="bidirectional" if case.shape.D == 2 else "forward",
        linear_before_reset=case.linear_before_reset,
        engine="reference",
    )
    Y, Y_h = layer(arrays["X"], arrays["h0"])
    able = {name: worker for name, worker in workers.items() if applies(name, case)}
    return take_turns({"case": index}, able, (Y, Y_h), rounds, block)


def measure_whole(workers: dict[str, Worker], rounds: int, block: float) -> list[dict[str, Any]]:
    """The same for a whole model, in each way to run it."""
    able = {name: worker for name, worker in workers.items() if name in WHOLE}
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "speech.onnx")
        path.write_bytes(speech_model().SerializeToString())
        for index, case in enumerate(WHOLE_CASES):
            mask = exact(case, str(path))
            found.append(
                {"case": str(case), "peers": take_turns({"whole": index}, able, (mask, mask), rounds, block)}
            )
    return found


def take_turns(
    order: dict[str, Any], workers: dict[str, Worker], right: tuple[Any, Any], rounds: int, block: float
) -> dict[str, Any]:
    """Check what each gives against what is right, then time them in turns."""
    results: dict[str, Any] = {}
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "right.npz")
        np.savez(file, Y=right[0], Y_h=right[1])
        for name, worker in workers.items():
            answer = worker.ask(do="prepare", exact=str(file), **order)
            tolerance = BFLOAT16_TOLERANCE if name.endswith("bfloat16") else TOLERANCE
            if "refuses" in answer:
                results[name] = {"refuses": answer["refuses"]}
            elif not answer["error"] <= tolerance:
                results[name] = {"refuses": f"wrong by {answer['error']:.2g}"}
            else:
                results[name] = {"error": answer["error"], "seconds": []}
                counts[name] = max(1, int(block / answer["each"]))
    for _ in range(rounds):
        for name, count in counts.items():
            settle(workers.values())
            results[name]["seconds"].append(workers[name].ask(do="time", count=count)["seconds"])
    for name in counts:
        seconds = results[name].pop("seconds")
        results[name] |= {"median": statistics.median(seconds), "low": min(seconds), "high": max(seconds)}
    return results


def machine() -> dict[str, Any]:
    """Where and with what this runs."""
    import onegru

    info = Path("/proc/cpuinfo")
    names = [
        line.split(":", 1)[1].strip()
        for line in info.read_text().splitlines()
        if line.startswith("model name")
    ]
    versions = {}
    for name in ("onegru", "onnxruntime", "openvino", "torch", "numpy"):
        if importlib.util.find_spec(name) is not None:
            versions[name] = version(name)
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "target": onegru.targets().chosen,
        "python": platform.python_version(),
        "versions": versions,
        "date": time.strftime("%Y-%m-%d"),
    }


def limits(threads: int) -> dict[str, float]:
    """The FMA peak in FLOP/s and the read bandwidths in bytes/s, of `threads` cores together."""
    from onegru import _native

    kib = 1024
    sizes = {"L1": 16 * kib, "L2": 256 * kib, "L3": 8 * kib * kib, "memory": 256 * kib * kib}
    return {"fma": threads * _native.fma_peak(0.3)} | {
        name: threads * _native.read_bandwidth(size, 0.2) for name, size in sizes.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", default="1,2", help="comma-separated; default 1,2")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--block", type=float, default=0.12, help="seconds a turn; default 0.12")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--quick", action="store_true", help="three short turns of fewer cases")
    parser.add_argument("--out", default=str(ROOT / "build" / "benchmarks"), help="folder for results")
    options = parser.parse_args()
    rounds, block = (3, 0.03) if options.quick else (options.rounds, options.block)
    cases = [case for case in CASES if options.only in str(case)]
    peers = [name for name in PEERS if importlib.util.find_spec(name.split()[0]) is not None]
    document: dict[str, Any] = {"machine": machine(), "limits": {}, "results": [], "whole": []}
    print(json.dumps(document["machine"]))
    for threads in (int(part) for part in options.threads.split(",")):
        document["limits"][str(threads)] = limits(threads)
        workers = {name: Worker(name, threads) for name in peers}
        try:
            for number, case in enumerate(cases, 1):
                results = measure(case, workers, rounds, block)
                document["results"].append({"case": str(case), "threads": threads, "peers": results})
                shown = ", ".join(
                    f"{name} {entry['median'] * 1e6:.1f}" if "median" in entry else f"{name} -"
                    for name, entry in results.items()
                )
                print(f"{threads} thread(s) {number}/{len(cases)}  {case}  µs: {shown}", flush=True)
            for entry in measure_whole(workers, rounds, block) if not options.only else ():
                document["whole"].append({**entry, "threads": threads})
        finally:
            for worker in workers.values():
                worker.stop()
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(document, indent=1))
    write_report(document, folder)


if __name__ == "__main__":
    main()
