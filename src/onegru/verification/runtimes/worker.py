"""The process that runs models in one runtime, one after another."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from onegru.core.errors import OneGRUError
from onegru.system.child_process import write_answer
from onegru.verification.runtimes.base import Runtime, Subject


def main(arguments: Sequence[str]) -> None:
    """Carry out the file `request` in the current folder, and leave an answer to each part of it there.

    Args:
        arguments: the number of the first part to carry out.
    """
    runtime, parts = pickle.loads(Path("request").read_bytes())
    with suppress(ImportError):  # a runtime is called as its package is; its import is no part of a run
        importlib.import_module(runtime.name)
    Path("ready").touch()
    for number in range(int(arguments[0]), len(parts)):
        subject, inputs = parts[number]
        _answer(runtime, subject, inputs, f"answer-{number}")


def _answer(runtime: Runtime, subject: Subject, inputs: Mapping[str, Any], name: str) -> None:
    """Run a model, and leave what came of it in a file of this name."""
    outputs: dict[str, Any] = {}
    reason, is_own = "", False
    try:
        outputs = runtime.run(subject, inputs)
    except Exception as error:  # whatever a runtime raises is its refusal; what onegru stumbles over is not
        reason = " ".join(str(error).split())[:10_000] or type(error).__name__
        is_own = _is_own(error)
    tensors = {
        name: np.asarray(value.astype(np.str_) if value.dtype.kind in "OUST" else value)
        for name, value in outputs.items()
        if isinstance(value, np.ndarray | np.generic)
    }
    head = {"reason": reason, "own": is_own, "outputs": list(tensors)}
    write_answer(head, list(tensors.values()), name)


def _is_own(error: Exception) -> bool:
    """Whether onegru's own lines raised an error of Python's, as wrong arguments of a runtime do.

    Runtimes in C++ raise RuntimeError, or classes of their own, from the line that calls them.
    """
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    file = Path("" if place is None else place.tb_frame.f_code.co_filename)
    is_mistake = isinstance(error, _MISTAKES) and not isinstance(error, OneGRUError)
    return is_mistake and _PACKAGE in file.parents


_MISTAKES = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError)
_PACKAGE = Path(__file__).parents[2]
