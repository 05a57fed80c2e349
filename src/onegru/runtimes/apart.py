"""Running a runtime in a process of its own, so that its crash or hang is a verdict and not the end of ours.

The child is started as `python -m onegru.runtimes.child FOLDER`. What it is to do lies pickled in that
folder, which is ours alone; what comes back is JSON and plain arrays, as a process that may have gone astray
is not to be trusted with more.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from onegru.dtypes import Array, numpy_dtype
from onegru.runtimes.subject import Runtime, Subject

__all__ = ["Outcome", "run_apart"]

Status = Literal["ran", "refuses", "crashed", "timed out"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a run.

    Attributes:
        status: what happened.
        outputs: what it gave, by name: tensors alone.
        reason: why there is nothing, in one line.
    """

    status: Status
    outputs: Mapping[str, Array] = field(default_factory=dict)
    reason: str = ""


def run_apart(runtime: Runtime, subject: Subject, inputs: Mapping[str, Any], timeout: float) -> Outcome:
    """Run a model in a runtime, in a new process.

    Args:
        runtime: what runs it.
        subject: the model.
        inputs: its inputs, by name.
        timeout: the most seconds that it may take, its start included.
    """
    with tempfile.TemporaryDirectory(prefix="onegru-") as name:
        folder = Path(name)
        (folder / "request").write_bytes(pickle.dumps((runtime, subject, dict(inputs))))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        # -P: what lies in the user's folder is no module of ours.
        command = [sys.executable, "-P", "-m", "onegru.runtimes.child", name]
        nowhere = subprocess.DEVNULL
        try:
            code = subprocess.run(
                command, env=environment, stdin=nowhere, stdout=nowhere, stderr=nowhere, timeout=timeout
            ).returncode
        except subprocess.TimeoutExpired:
            return Outcome("timed out", reason=f"took longer than {timeout:g} s")
        if not (folder / "answer").is_file():
            return Outcome("crashed", reason=f"crashed ({_end(code)})")
        try:
            return _read_answer(folder / "answer")
        except Exception as error:  # a file that something gone astray has written may hold anything
            return Outcome("crashed", reason=f"left no readable answer ({error})")


def _end(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code}, {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def _read_answer(path: Path) -> Outcome:
    with zipfile.ZipFile(path) as archive:
        head = json.loads(archive.read("head"))
        outputs: dict[str, Array] = {}
        for number, (name, dtype) in enumerate(head["outputs"]):
            with archive.open(str(number)) as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
            outputs[name] = array.astype(object) if dtype == "str" else array.view(numpy_dtype(dtype))
    return Outcome("ran" if head["ran"] else "refuses", outputs, head["reason"])
