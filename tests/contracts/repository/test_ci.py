"""Test the scripts in .ci: their output, their files, and their exit status."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.machine.repository import ROOT
from tests.support.machine.systems import linux

pytestmark = linux


def run(command: list[str], **variables: str) -> tuple[int, str]:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **variables}, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


def steps(folder: Path, lines: str, tenths: int = 100) -> tuple[int, str]:
    program = f'set -euo pipefail\ncd "$1"\nlogs=logs\n. "$2"\n{lines}'
    return run(
        ["bash", "-c", program, "steps", str(folder), str(ROOT / ".ci/steps")], STEP_TENTHS=str(tenths)
    )


def test_a_failed_check_leaves_what_was_built_and_tells(tmp_path: Path) -> None:
    lines = """
mkdir dist; touch dist/a.whl
check first "Looking at it" bash -c 'echo something is wrong; exit 3' || true
check second "Looking again" true || true
finish dist
"""
    status, said = steps(tmp_path, lines)
    assert status == 1
    assert "Looking again" in said and "something is wrong" in said and "a.whl" in said
    assert said.rstrip().endswith("FAILED: first. dist has what was built; do not release it.")
    assert (tmp_path / "dist/a.whl").exists()
    assert steps(tmp_path, 'check second "Looking" true\nfinish dist')[0] == 0


def test_a_failed_step_ends_it(tmp_path: Path) -> None:
    status, said = steps(tmp_path, 'step build "Building" bash -c "echo no; exit 3"\necho later')
    assert status == 1 and "no" in said and "later" not in said


def test_a_long_step_is_not_silent(tmp_path: Path) -> None:
    lines = """step build "Building" bash -c 'for i in 1 2 3; do echo "part $i"; sleep 1; done'"""
    status, said = steps(tmp_path, lines, tenths=4)
    assert status == 0
    assert {f"… part {number}" for number in (1, 2, 3)} <= {line[6:].strip() for line in said.splitlines()}


def test_a_long_step_says_how_long_it_takes(tmp_path: Path) -> None:
    lines = """about=140\nstep build "Building" bash -c 'echo "[1/49] a.o"; sleep 1'"""
    status, said = steps(tmp_path, lines, tenths=4)
    assert status == 0 and "… of about 2:20" in said and "a.o" not in said


def test_help_is_in_groups_within_80_columns() -> None:
    status, said = run(["make", "-C", str(ROOT), "--no-print-directory", "help"])
    assert status == 0 and max(map(len, said.splitlines())) <= 80
    assert said.startswith("Use onegru\n  make help ") and said.count("\n\n") >= 5


def test_an_interrupted_step_ends_all_that_it_started(tmp_path: Path) -> None:
    lines = "step build \"Building\" bash -c 'sleep 50 & echo $! >number; wait'"
    program = f'cd "$1"; logs=logs; . "$2"; {lines}'
    process = subprocess.Popen(["bash", "-c", program, "steps", tmp_path, ROOT / ".ci/steps"])
    number = tmp_path / "number"
    while not number.exists() or not number.read_text().strip():
        time.sleep(0.05)
    process.terminate()
    process.wait(10)
    for _ in range(100):
        if not _runs(int(number.read_text())):
            return
        time.sleep(0.05)
    pytest.fail("the step goes on")


def _runs(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize("status", [0, 7])
def test_continuous_integration_tests_in_an_odd_path(status: int, tmp_path: Path) -> None:
    checkout, tools = tmp_path / "checkout", tmp_path / "tools"
    (checkout / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci/run", checkout / ".ci/run")
    (checkout / "a file").write_text("tracked")
    tools.mkdir()
    make = tools / "make"
    make.write_text(
        f'#!/bin/sh\nfor last; do :; done\ncd "${{2#*=}}" && pwd && ls && echo $last\nexit {status}\n'
    )
    make.chmod(0o755)
    for arguments in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *arguments], cwd=checkout, check=True)
    (checkout / "left out").write_text("not tracked")
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    found, said = run([str(checkout / ".ci/run")], PATH=path, TMPDIR=str(tmp_path))
    assert found == status, said
    _, *lines = said.splitlines()
    folder = lines[0]
    assert folder.endswith("/onegru") and " " in folder and not folder.isascii()
    first, *others = (line for line in lines if line not in (folder, "a file"))
    assert first == "test"
    web = ["test-web"] if shutil.which("node") else ["The JavaScript tests did not run: install Node."]
    targets = [".venv/.torch", "test-torch", *web, "test-one-cpu", "test-targets"]
    assert others == ([] if status else targets)
    assert not Path(folder).exists() and not Path(folder).parents[1].exists()
