"""Chooses the cases that `make test` runs: another share for each commit. `make test-long` runs all."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.support.suite import selection
from tests.support.suite.durations import CASES, Durations


def _commit() -> str:
    """The commit that is tested, in hexadecimal; "0" where there is no repository."""
    if given := os.environ.get("ONEGRU_COMMIT"):  # of the copy that continuous integration tests
        return given
    command = ["git", "rev-parse", "HEAD"]
    try:
        found = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        )
    except OSError:
        return "0"
    return found.stdout.strip() or "0"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    parser.addoption("--long", action="store_true", help="run every case, and the tests that are marked long")
    parser.addoption(
        "--seconds",
        type=float,
        default=selection.SECONDS,
        help="CPU seconds of a test function; default: %(default)s",
    )
    parser.addoption("--seed", type=int, help="choose the cases that are run; default: from the commit")
    parser.addoption(
        "--budget", action="store_true", help="fail where a file takes half as long again as it did"
    )
    parser.addoption("--write-durations", action="store_true", help="store how long the tests take")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Seed what is chosen by chance with the commit, and measure the tests."""
    if config.option.seed is None:
        config.option.seed = int(_commit()[:7], 16)
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(config.option.seed)
    selection.runs_all = config.option.long
    config.pluginmanager.register(Durations(config))


def pytest_report_header(config: pytest.Config) -> str:
    """Name the seed."""
    return f"seed: {config.option.seed}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the command that repeats the failures."""
    failed = [
        report.nodeid for kind in ("failed", "error") for report in terminalreporter.stats.get(kind, [])
    ]
    if failed:
        long = " --long" if config.option.long else ""
        names = " ".join(f"'{name}'" for name in dict.fromkeys(failed[:5]))
        terminalreporter.write_line(
            f"Repeat: .venv/bin/python -m pytest{long} --seed={config.option.seed} {names}"
        )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect long tests, and the cases of other commits. A test that is named is run."""
    functions = [item.nodeid.partition("[")[0] for item in items]
    cases = Counter(functions)
    for item, function in zip(items, functions, strict=True):
        item.stash[CASES] = cases[function]
    if config.option.long or any("::" in argument for argument in config.args):
        return
    durations = selection.stored_durations()
    steps = {
        function: selection.every(function, count, durations, config.option.seconds)
        for function, count in cases.items()
    }
    seen: Counter[str] = Counter()
    kept: list[pytest.Item] = []
    deselected: list[pytest.Item] = []
    for item, function in zip(items, functions, strict=True):
        is_long = item.get_closest_marker("long") is not None
        is_turn = selection.is_turn(function, seen[function], steps[function], config.option.seed)
        (kept if is_turn and not is_long else deselected).append(item)
        seen[function] += 1
    config.hook.pytest_deselected(items=deselected)
    items[:] = kept
