"""The process that `subprocess_runner` starts: runs one model in one runtime."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onegru.system.child_process import write_answer
from onegru.verification.runtimes.base import Runtime, Subject


def main(arguments: Sequence[str]) -> None:
    """Carry out the file `request` in the current folder, and leave the answer there. No arguments."""
    answer(*pickle.loads(Path("request").read_bytes()))


def answer(runtime: Runtime, subject: Subject, inputs: Mapping[str, Any], name: str = "answer") -> None:
    """Run a model, and leave what came of it in a file of this name."""
    outputs: dict[str, Any] = {}
    reason = ""
    try:
        outputs = runtime.run(subject, inputs)
    except Exception as error:  # whatever a runtime raises is its refusal
        reason = " ".join(str(error).split())[:10_000] or type(error).__name__
    tensors = {
        name: np.asarray(value.astype(np.str_) if value.dtype.kind in "OUST" else value)
        for name, value in outputs.items()
        if isinstance(value, np.ndarray | np.generic)
    }
    write_answer({"reason": reason, "outputs": list(tensors)}, list(tensors.values()), name)
