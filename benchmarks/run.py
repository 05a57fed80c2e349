"""Measures onegru and its peers, in turns, and reports:  python -m benchmarks.run [--quick] [--threads 1,2]

Each peer is a process of its own, pinned to as many cores as it may use threads. Results are checked against
float64 first. Then all take turns, A B C A B C …, each for a fraction of a second, and the medians count.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import CASES, Case, draw
from benchmarks.peers import PEERS, version
from benchmarks.report import write_report

ROOT = Path(__file__).parent.parent
SETTLE = 0.02  # seconds for the last peer's threads to fall asleep
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
    results: dict[str, Any] = {}
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        exact = Path(folder, "exact.npz")
        Y, Y_h = layer(arrays["X"], arrays["h0"])
        np.savez(exact, Y=Y, Y_h=Y_h)
        for name, worker in workers.items():
            if not applies(name, case):
                continue
            answer = worker.ask(do="prepare", case=index, exact=str(exact))
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
            time.sleep(SETTLE)
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
    document: dict[str, Any] = {"machine": machine(), "limits": {}, "results": []}
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
        finally:
            for worker in workers.values():
                worker.stop()
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(document, indent=1))
    write_report(document, folder)


if __name__ == "__main__":
    main()
