"""The example of scoring: from Python, by the command, against ONNX Runtime."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.support.machine.repository import ROOT

pytest.importorskip("pyarrow")
pytest.importorskip("matplotlib")


@pytest.mark.long
def test_the_example_runs() -> None:
    picture = ROOT / "build" / "scoring.png"
    picture.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "scoring" / "score.py", "--rows", "600"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "300"},
    )
    assert done.returncode == 0, done.stderr
    assert "scored 600 rows" in done.stdout and "the command gives the same files: True" in done.stdout
    rates = re.findall(r"sorted by onegru\.scoring ([0-9,]+)/s", done.stdout)
    assert len(rates) == 6 and "0" not in rates
    assert picture.stat().st_size > 20_000
