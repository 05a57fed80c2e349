"""Locks that other processes see."""

from __future__ import annotations

from pathlib import Path

from onegru.system.file_lock import try_lock
from tests.support.machine.processes import run_python


def test_one_process_has_the_lock_until_it_closes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    program = f"from onegru.system.file_lock import try_lock; print(try_lock(open({str(path)!r}, 'a')))"
    with path.open("a") as file:
        assert try_lock(file)
        assert run_python(program).stdout.split() == ["False"]
    assert run_python(program).stdout.split() == ["True"]
