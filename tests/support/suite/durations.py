"""Measure the CPU time of the tests, and compare it with the times in tests/durations.json.

Times are those of the process and its children, so that other load changes them little. A slower machine
takes longer for all files, so the median over all files is the unit.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Generator, Mapping
from statistics import median

import pytest

from tests.support.suite.selection import DURATIONS, stored_durations

GROWTH, SLACK = 1.5, 5.0  # allowed factor of a file's time, and seconds for functions without a stored time
LEAST = 0.2  # shortest stored time of a function, in seconds
CASES = pytest.StashKey[int]()  # the number of cases of an item's function


def exceeded(found: Mapping[str, float], expected: Mapping[str, float]) -> list[str]:
    """Return the files that exceed their allowed time, one line each."""
    common = [found[name] / expected[name] for name in found.keys() & expected.keys() if expected[name] >= 1]
    unit = median(common) if common else 1.0
    lines = []
    for name, seconds in sorted(found.items()):
        most = unit * (GROWTH * expected.get(name, 0.0) + SLACK)
        if seconds > most:
            lines.append(f"{name} took {seconds:.1f} s of CPU time; must take at most {most:.1f} s")
    return lines


class Durations:
    """Plugin: with `--budget`, slow files fail the run; `--write-durations` stores the times."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._stored = stored_durations()
        self._before = os.times()
        self._found: defaultdict[str, float] = defaultdict(float)  # seconds of each file
        self._expected: defaultdict[str, float] = defaultdict(float)
        self._functions: defaultdict[str, float] = defaultdict(float)  # seconds of each function
        self._run: Counter[str] = Counter()  # cases of each function
        self._cases: dict[str, int] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        """Ignore time before a test, such as the collection."""
        self._before = os.times()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Record the time of a phase; pytest-xdist transfers attributes of reports."""
        report = yield
        now = os.times()
        report.__dict__["cpu"] = sum(now[:4]) - sum(self._before[:4])
        report.__dict__["cases"] = item.stash.get(CASES, 1)
        self._before = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Sum the phases."""
        file, function = report.nodeid.partition("::")[0], report.nodeid.partition("[")[0]
        seconds, cases = getattr(report, "cpu", 0.0), getattr(report, "cases", 1)
        self._found[file] += seconds
        self._functions[function] += seconds
        self._cases[function] = cases
        if report.when == "teardown":
            self._run[function] += 1
            self._expected[file] += self._stored.get(function, 0.0) / cases

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Compare or store the times in the process that collects the reports."""
        if hasattr(session.config, "workerinput"):
            return
        if self._config.option.write_durations:
            self._write()
        elif self._config.option.budget and (lines := exceeded(self._found, self._expected)):
            print("", *lines, "Make the tests faster, or run `make durations` and commit it.", sep="\n")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _write(self) -> None:
        """Store the times of all cases of each function, from the mean of those that ran."""
        for function, run in self._run.items():
            seconds = self._functions[function] / run * self._cases[function]
            self._stored.pop(function, None)
            if seconds >= LEAST:
                self._stored[function] = round(seconds, 1)
        DURATIONS.write_text(json.dumps(dict(sorted(self._stored.items())), indent=0) + "\n")
