"""The execution provider in a program without Python."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import onegru
from tests.support.machine.repository import DIGITS, ROOT


def test_the_example_runs(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    (runtime,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    built = max(ROOT.glob("build/*/libonegru_execution_provider.so"), key=lambda path: path.stat().st_mtime)
    if compiler is None:
        pytest.skip("no C++ compiler")
    program = tmp_path / "main"
    source = ROOT / "examples" / "cpp" / "main.cc"
    warnings = ["-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, "-std=c++17", *warnings, source, "-o", program, "-ldl"], check=True)
    command = [program, runtime, built]
    done = subprocess.run([*command, DIGITS], check=True, capture_output=True, text=True)
    logits = next(iter(onegru.load(DIGITS).run({"rows": np.zeros((1, 8, 8), np.float32)}).values()))
    assert abs(float(done.stdout) - float(logits.sum(dtype=np.float64))) < 2e-6 * logits.size
    assert b"Py" not in subprocess.run(["nm", "-D", built], check=True, capture_output=True).stdout
    done = subprocess.run([*command, ROOT / "README.md"], check=False, capture_output=True, text=True)
    assert done.returncode == 1 and "README.md" in done.stderr
