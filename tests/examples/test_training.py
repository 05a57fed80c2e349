"""The programs that are trained with PyTorch's GRUs and with onegru's, and those that are timed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.machine.repository import ROOT

pytest.importorskip("torch")


def test_the_example_runs(tmp_path: Path) -> None:
    picture = tmp_path / "training.png"
    program = ROOT / "examples" / "training" / "train.py"
    done = subprocess.run(
        [sys.executable, str(program), "--scale", "0.01", "--picture", str(picture)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "recommender" in done.stdout and picture.stat().st_size


def test_what_is_timed_computes_the_same() -> None:
    import torch

    from benchmarks.training import Case, pair

    for form in ("", "reset before", "AUGRU", "resets"):
        theirs, ours, more = pair(Case(6, 3, 5, 7, 1.0, form=form, name=""))
        x = torch.randn(6, 3, 5)
        with torch.no_grad():
            torch.testing.assert_close(ours(x, **more)[0], theirs(x, **more)[0], rtol=1e-4, atol=1e-5)
