"""The figures of docs/why.md: the first table of docs/performance.md."""

from __future__ import annotations

import re
from pathlib import Path

_REPORT = Path(__file__).resolve().parents[1] / "performance.md"


def figures() -> str:
    """How many times as fast as other runtimes, by machine and number of threads."""
    found = re.search(r"^\| .*?(?=\n\n)", _REPORT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[0]
