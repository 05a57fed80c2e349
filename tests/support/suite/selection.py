"""Choose the cases of a test function for one run, and the number of examples of property tests.

`tests/durations.json` has the CPU seconds that all cases of a test function take. `make test` gives each
function about `SECONDS`: it runs a share of the cases, and another share for each commit.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from math import ceil
from pathlib import Path

from hypothesis import HealthCheck, settings

DURATIONS = Path(__file__).parents[2] / "durations.json"
SECONDS = 0.2
RAREST = 6  # a function with a single case runs at least in every sixth commit

runs_all = False  # set by conftest.py before tests are imported


def stored_durations() -> dict[str, float]:
    """Read the CPU seconds of the test functions."""
    found: dict[str, float] = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    return found


def every(function: str, cases: int, durations: Mapping[str, float], seconds: float) -> int:
    """Return n, so that a run takes every n-th case of a function."""
    return min(max(ceil(durations.get(function, 0) / seconds), 1), max(cases, RAREST))


def is_turn(function: str, case: int, step: int, seed: int) -> bool:
    """Decide whether a case is among those of this seed; functions are out of phase."""
    return (case + seed + zlib.crc32(function.encode())) % step == 0


def examples(count: int) -> settings:
    """Draw `count` examples in `make test-long`, and a quarter of them in `make test`."""
    drawn = count if runs_all else max(count // 4, 10)
    return settings(
        deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True, max_examples=drawn
    )
