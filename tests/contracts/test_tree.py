"""The tests mirror the tree of the package, in files of moderate length."""

from __future__ import annotations

from pathlib import Path

import onegru
from tests.support.repository import ROOT

SOURCE, TESTS = Path(onegru.__file__).parent, ROOT / "tests"
MOST_LINES = 500


def test_no_file_is_long() -> None:
    for path in TESTS.rglob("*.py"):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= MOST_LINES, f"{path}: {lines} lines"


def test_every_folder_of_the_package_has_tests() -> None:
    for folder in {path.parent.relative_to(SOURCE) for path in SOURCE.rglob("*.py")}:
        assert any((TESTS / folder).glob("test_*.py")), f"tests/{folder}: no tests"
