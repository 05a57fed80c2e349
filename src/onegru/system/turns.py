"""Times of calls that take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

#: Seconds that a turn takes.
TURN = 0.1

_SETTLE = 0.02  # seconds, for another runtime's threads to fall asleep


def take_turns(
    calls: Mapping[str, Callable[[], object]], rounds: int, turn: float = TURN, settle: float = _SETTLE
) -> dict[str, list[float]]:
    """Time calls in turns, so that whatever else the machine does meets all of them alike.

    Args:
        calls: what is timed, by its name.
        rounds: the number of turns that each takes.
        turn: about how long one turn is, in seconds.
        settle: the seconds before a turn in which another runtime's threads fall asleep.

    Returns:
        for each, the mean time of a call in each of its turns, in seconds.
    """
    counts = {name: max(1, int(turn / _once(call))) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            time.sleep(settle)
            call()
            began = time.perf_counter()
            for _ in range(counts[name]):
                call()
            seconds[name].append((time.perf_counter() - began) / counts[name])
    return seconds


def _once(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return max(time.perf_counter() - began, 1e-7)
