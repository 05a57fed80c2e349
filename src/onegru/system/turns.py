"""Time calls alternately."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

#: Seconds of one turn.
TURN = 0.1

#: Calls of at least this many seconds are timed one at a time: reading the clock costs less than 1 % of that.
_LONG_RUN = 20e-6

_SETTLE = 0.02  # seconds, for another runtime's threads to fall asleep


def take_turns(
    calls: Mapping[str, Callable[[], object]], rounds: int, turn: float = TURN, settle: float = _SETTLE
) -> dict[str, list[float]]:
    """Time calls alternately, so that other load on the machine affects all of them."""
    call_seconds = {name: _seconds_of(call) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            time.sleep(settle)
            call()
            calls_left = max(1, int(turn / call_seconds[name]))
            if call_seconds[name] > _LONG_RUN:
                seconds[name].append(statistics.median(_seconds_of(call) for _ in range(calls_left)))
                continue
            began = time.perf_counter()
            for _ in range(calls_left):
                call()
            seconds[name].append((time.perf_counter() - began) / calls_left)
    return seconds


def cpu_share(seconds: float = 0.05) -> float:
    """Return the share of a busy wait that this thread spent on its CPU; other processes reduce it."""
    began, used = time.perf_counter(), time.thread_time()
    while (passed := time.perf_counter() - began) < seconds:
        pass
    return min(1.0, (time.thread_time() - used) / passed)


def _seconds_of(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return max(time.perf_counter() - began, 1e-7)
