"""Refusals within OpenVINO, which loses exceptions of synchronous runs on one thread, in every way to run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.machine.repository import ROOT
from tests.support.machine.systems import linux

pytest.importorskip("openvino")
pytest.importorskip("pyarrow")


@linux
@pytest.mark.parametrize("operator", ["C++", "Python"])
@pytest.mark.parametrize("cpus", [1, os.cpu_count()])
@pytest.mark.parametrize("threads", [1, 2])
def test_every_refusal_reaches_the_caller(tmp_path: Path, threads: int, cpus: int, operator: str) -> None:
    """With one thread, one CPU, and more: loaded, traced, streamed, verified, scored, and replaced."""
    program = [sys.executable, "-m", "tests.support.machine.openvino_refusals"]
    arguments = [str(tmp_path), str(threads), str(cpus), operator]
    done = subprocess.run([*program, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
