"""The process that `run` starts: runs case after case in one runtime."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from onegru.verification.runtimes.worker import answer


def main(arguments: Sequence[str]) -> None:
    """Carry out the file `request` in the current folder, and leave an answer to each part of it there.

    Args:
        arguments: the number of the first part to carry out.
    """
    runtime, parts = pickle.loads(Path("request").read_bytes())
    with suppress(ImportError):  # a runtime is called as its package is; its import is no part of a case
        importlib.import_module(runtime.name)
    Path("ready").touch()
    for number in range(int(arguments[0]), len(parts)):
        subject, inputs = parts[number]
        answer(runtime, subject, inputs, f"answer-{number}")
