"""`make test` runs a share of what takes long; `make test-long` all of it."""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --long."""
    parser.addoption("--long", action="store_true", help="run every case of the tests that are marked long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked `long`, but for every so many of its cases; a test that is named is run."""
    if config.getoption("--long") or any("::" in argument for argument in config.args):
        return
    seen: Counter[str] = Counter()
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        mark = item.get_closest_marker("long")
        if mark is None:
            kept.append(item)
            continue
        every = mark.kwargs.get("every")
        test = item.nodeid.partition("[")[0]
        (kept if every is not None and seen[test] % every == 0 else left).append(item)
        seen[test] += 1
    config.hook.pytest_deselected(items=left)
    items[:] = kept
