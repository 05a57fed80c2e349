"""What docs/guides/scoring.md shows is so."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from tests.support.repository import ROOT

pytest.importorskip("pyarrow")


def test_the_examples_print_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    said, printed = [], io.StringIO()
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/guides/scoring.md").read_text(), re.S | re.M)
    for block in blocks:
        said += re.findall(r"^ *print\(.*\)  # (.*)$", block, re.MULTILINE)
        with redirect_stdout(printed):
            exec(compile(block, "scoring.md", "exec"), names)
    assert len(blocks) == 2 and printed.getvalue().splitlines() == said
