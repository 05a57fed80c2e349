"""One contender in a separate process, so that no other's spinning threads use its cores:

python -m benchmarks.harness.worker PEER THREADS pinned|free. Reads lines of JSON, {"do": "prepare" | "time" |
"window", …}, and answers each with one line.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from typing import Any

import numpy as np

from benchmarks.harness.peers import PEERS, Call, Prepared, pin, spinning_session
from benchmarks.harness.turns import cpu_seconds
from benchmarks.models.cases import Case, draw
from benchmarks.parts.whole import WHOLE, whole_case

WARM = 0.25  # of a window, before calls count
SPINNING = 0.2  # seconds; for about 50 ms after a session is made, its threads slow down all others


def prepare(order: dict[str, Any], name: str, threads: int) -> tuple[Prepared, dict[str, float]]:
    """Return the call, its difference from the exact result, if that is given, and its seconds."""
    answer: dict[str, float] = {}
    if "whole" in order:
        prepared = WHOLE[name](whole_case(order["whole"]), threads)
        answer["opening"] = prepared.opening or 0.0
    else:
        case = Case.read(order["case"])
        prepared = PEERS[name](case, draw(case), threads)
        prepared.call()
    if "exact" in order:
        Y, Y_h = prepared.outputs()
        exact = np.load(order["exact"])
        answer["error"] = float(max(np.abs(Y - exact["Y"]).max(), np.abs(Y_h - exact["Y_h"]).max()))
    began, count = time.perf_counter(), 0
    while "whole" in order and time.perf_counter() - began < SPINNING:
        prepared.call()
    began = time.perf_counter()
    while time.perf_counter() - began < 0.05 or count < 2:
        prepared.call()
        count += 1
    return prepared, answer | {"each": (time.perf_counter() - began) / count}


def mean_of(call: Call, count: int) -> float:
    """Return the mean seconds of a number of calls in a row."""
    for _ in range(max(1, count // 10)):
        call()
    began = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - began) / count


def each_of(call: Call, between: Call | None, seconds: float) -> list[int]:
    """Return nanoseconds of each call, after a quarter of the time as warm-up, alternating with `between`."""
    clock = time.perf_counter_ns
    warm = clock() + int(seconds * WARM * 1e9)
    last = warm + int(seconds * 1e9)
    found: list[int] = []
    while True:
        if between is not None:
            between()
        began = clock()
        call()
        ended = clock()
        if began >= warm:
            found.append(ended - began)
            if ended >= last:
                return found


class Pause:
    """Sleeps between calls. In the second half of the first pauses, it measures CPU use of other threads."""

    def __init__(self, seconds: float, looks: int) -> None:
        self.half, self.looks = seconds / 2, looks
        self.used = self.slept = 0.0

    def __call__(self) -> None:
        time.sleep(self.half)
        began = cpu_seconds("self", os.getpid()) if self.looks else 0.0
        time.sleep(self.half)
        if self.looks:
            self.used += cpu_seconds("self", os.getpid()) - began
            self.slept += self.half
            self.looks -= 1


def main() -> None:
    name, threads = sys.argv[1], int(sys.argv[2])
    if sys.argv[3] == "pinned":
        pin(threads)
    prepared: Prepared | None = None
    spinning: Call | None = None
    for line in sys.stdin:
        order = json.loads(line)
        answer: dict[str, object] = {}
        if order["do"] == "prepare":
            prepared = None
            gc.collect()
            try:
                prepared, figures = prepare(order, name, threads)
                answer |= figures
            except Exception as error:  # a contender that cannot run a case is omitted from it
                answer["refuses"] = " ".join(str(error).split())[:200]
        else:
            assert prepared is not None
            if order["do"] == "time":
                answer["seconds"] = mean_of(prepared.call, order["count"])
            else:
                if order.get("spinning") and spinning is None:
                    spinning = spinning_session()
                seconds, length = order["seconds"], order.get("pause", 0.0)
                pause = Pause(length, max(1, int(WARM * seconds / length))) if length else None
                between = spinning if order.get("spinning") else pause
                answer["nanoseconds"] = each_of(prepared.call, between, seconds)
                if pause is not None:
                    answer["idle"] = pause.used / pause.slept
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
