"""The CPU time of each test file, held against the times in tests/budget.json.

Times are those of the process and its children, so that a busy machine changes them little. A slower machine
takes longer for all files, so the median over all files is the unit.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Generator, Mapping
from pathlib import Path
from statistics import median

import pytest

STORED = Path(__file__).parents[1] / "budget.json"
GROWTH, SLACK = 1.5, 3.0  # of a file's time; seconds more, which the cases of another commit may take


def exceeded(found: Mapping[str, float], stored: Mapping[str, float]) -> list[str]:
    """The files that take longer than they may, one line each."""
    common = [found[name] / stored[name] for name in found.keys() & stored.keys() if stored[name] >= 1]
    unit = median(common) if common else 1.0
    lines = []
    for name, seconds in sorted(found.items()):
        most = unit * (GROWTH * stored.get(name, 0.0) + SLACK)
        if seconds > most:
            lines.append(f"{name} took {seconds:.1f} s of CPU time; must take at most {most:.1f} s")
    return lines


class Budget:
    """Adds up the times of the reports; with `--budget`, files that take too long fail the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._before = os.times()
        self._seconds: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note what a phase of a test took; pytest-xdist passes attributes of reports on."""
        report = yield
        now = os.times()
        report.__dict__["cpu"] = sum(now[:4]) - sum(self._before[:4])
        self._before = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up what the phases took."""
        self._seconds[report.nodeid.partition("::")[0]] += getattr(report, "cpu", 0.0)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Compare or store the times, where the reports come together."""
        if hasattr(session.config, "workerinput"):
            return
        stored: dict[str, float] = json.loads(STORED.read_text()) if STORED.exists() else {}
        if self._config.option.write_budget:
            most = {name: max(seconds, stored.get(name, 0)) for name, seconds in self._seconds.items()}
            kept = {name: round(seconds, 1) for name, seconds in sorted(most.items()) if seconds >= 0.5}
            STORED.write_text(json.dumps(kept, indent=0) + "\n")
        elif self._config.option.budget and (lines := exceeded(self._seconds, stored)):
            print("", *lines, "Make the tests faster, or run `make budget` and commit the times.", sep="\n")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
