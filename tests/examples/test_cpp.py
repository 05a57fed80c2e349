"""The execution provider in a program without Python."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import onegru
from tests.support.machine.repository import DIGITS, ROOT


def documented_lines() -> list[str]:
    """The lines that compile and run the program; the guide and the example's own page have the same ones."""
    pages = (ROOT / "docs" / "guides" / "onnxruntime.md", ROOT / "examples" / "cpp" / "README.md")
    found = [
        re.findall(r"^(?:c\+\+|build/main) .*$", page.read_text(encoding="utf-8"), re.M) for page in pages
    ]
    assert found[0] == found[1] and len(found[0]) == 2
    return found[0]


def test_the_example_runs(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    (runtime,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    built = max(ROOT.glob("build/*/libonegru_execution_provider.so"), key=lambda path: path.stat().st_mtime)
    if compiler is None:
        pytest.skip("no C++ compiler")
    program = tmp_path / "main"
    warnings = ["-Wall", "-Wextra", "-Werror"]
    paths = {
        "c++": compiler,
        "build/main": program,
        "path/to/libonnxruntime.so": runtime,
        "$PWD/build/provider/libonegru_execution_provider.so": built,
    }
    compile_line, run_line = (
        [str(paths.get(word, word)) for word in shlex.split(line)] for line in documented_lines()
    )
    subprocess.run([*compile_line, *warnings], cwd=ROOT, check=True)
    command = run_line[:3]
    done = subprocess.run(run_line, cwd=ROOT, check=True, capture_output=True, text=True)
    guide = (ROOT / "docs" / "guides" / "onnxruntime.md").read_text(encoding="utf-8")
    result = re.search(r"blank image, `(.*?)`", guide)
    assert result is not None and abs(float(result[1]) - float(done.stdout)) < 1e-5
    logits = next(iter(onegru.load(DIGITS).run({"rows": np.zeros((1, 8, 8), np.float32)}).values()))
    assert abs(float(done.stdout) - float(logits.sum(dtype=np.float64))) < 2e-6 * logits.size
    assert b"Py" not in subprocess.run(["nm", "-D", built], check=True, capture_output=True).stdout
    done = subprocess.run([*command, ROOT / "README.md"], check=False, capture_output=True, text=True)
    assert done.returncode == 1 and "README.md" in done.stderr
