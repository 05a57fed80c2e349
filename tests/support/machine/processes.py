"""Run code in child processes and threads."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

Done = subprocess.CompletedProcess[str]


def run_python(
    code: str,
    *arguments: object,
    status: int | None = 0,
    options: Sequence[str] = (),
    environment: Mapping[str, str | None] | None = None,
    folder: Path | None = None,
    timeout: float = 120,
) -> Done:
    """Run code in a new interpreter, and return its output.

    Args:
        code: the program; may be indented.
        arguments: its `sys.argv[1:]`.
        status: the required exit status; None for any.
        options: the interpreter's options.
        environment: variables to set, or to remove with None.
        folder: the current folder of the process.
        timeout: the timeout in seconds.
    """
    command = [sys.executable, *options, "-c", textwrap.dedent(code), *map(str, arguments)]
    variables = {**os.environ, **(environment or {})}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=folder,
        env={name: value for name, value in variables.items() if value is not None},
    )
    assert status is None or done.returncode == status, done.stderr
    return done


BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        first = name.partition(".")[0]
        if blocked(first):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Block())
"""


def run_python_without(blocked: str, code: str, *arguments: object) -> Done:
    """Run code without the packages that `blocked` (an expression of `name`) selects; it may fail."""
    lines = f"blocked = lambda name: {blocked}\n{BLOCK}{textwrap.dedent(code)}"
    return run_python(lines, *arguments, status=None)


Item = TypeVar("Item")


def run_threads(work: Callable[[Item], object], items: Iterable[Item], seconds: float = 300) -> None:
    """Call `work` with each item in a separate thread, and wait until all have ended."""
    threads = [threading.Thread(target=work, args=(item,), daemon=True) for item in items]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    assert not any(thread.is_alive() for thread in threads)
