"""Calls after a pause, such as frames and requests: worker threads sleep in the pause, or should."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

import numpy as np

from benchmarks.harness.record import Record
from benchmarks.harness.turns import Worker, exact_results, prepare, settle, shown, working
from benchmarks.models.cases import Case, Shape

__all__ = ["PAUSES", "measure_paced"]

CASES = tuple(
    Case(Shape(T, B, I, H, 1), linear_before_reset=True)
    for T, B, I, H in (
        (20, 4, 400, 320),
        (1, 1, 512, 1024),
        (1, 32, 80, 640),
        (1, 1, 80, 320),
        (50, 1, 160, 512),
    )
)
#: By name: milliseconds of sleep before a call, and seconds of a turn.
PAUSES = {"in a row": (0, 0.1), "every 10 ms": (10, 0.4), "every 100 ms": (100, 1.0)}
ROUNDS = 3


def measure_paced(record: Record, threads: int, peers: Sequence[str], options: Namespace) -> None:
    """Measure the median of a call after each pause, and the CPU time of worker threads in the pauses."""
    cases = [str(case) for case in CASES if options.only in str(case)]
    keys = [
        {"kind": "paced", "case": case, "pace": pace, "threads": threads} for case in cases for pace in PAUSES
    ]
    with working({name: Worker(name, threads) for name in peers}) as workers:
        for key in record.left(keys):
            pause, seconds = PAUSES[key["pace"]]
            seconds /= 3 if options.quick else 1
            results = prepare({"case": key["case"]}, workers, exact_results(Case.read(key["case"])))
            able = [name for name, answer in results.items() if answer.pop("each", None)]
            calls: dict[str, list[int]] = {name: [] for name in able}
            idle: dict[str, list[float]] = {name: [] for name in able}
            for _ in range(1 if options.quick else ROUNDS):
                for name in able:
                    settle(workers.values())
                    turn = workers[name].ask(do="window", seconds=seconds, pause=pause * 1e-3)
                    calls[name] += turn["nanoseconds"]
                    idle[name] += [turn["idle"]] if pause else []
            shares = ""
            for name in able:
                results[name]["median"] = float(np.median(calls[name])) * 1e-9
                if idle[name]:
                    results[name]["idle"] = float(np.mean(idle[name]))
                    shares += f"; {name}'s idle helpers use {results[name]['idle']:.1%}"
            record.add({"peers": results}, shown(results) + shares)
