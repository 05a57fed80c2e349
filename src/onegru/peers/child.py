"""Run a runtime in a worker process, so that its crash or hang becomes a result.

The request is pickled in a private folder. The answer is untrusted, so it is checked.
"""

from __future__ import annotations

import pickle
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

from onegru.core.wording import printable
from onegru.peers.base import ModelUnderTest, Runtime
from onegru.system.child_process import child_folder, read_answer, run_child, run_limits

#: Longest message of an error, in characters.
LONGEST_REASON = 10_000

#: The module of the worker process.
WORKER = "onegru.peers.worker"

# The results of a run, from the worker or from its end.
_Said = Literal["ran", "refuses", "failed", "differs"]
Status = Literal[_Said, "crashed", "timed out"]


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of a run."""

    # the result: "failed" for an error of onegru; "differs" for results that cannot be outputs
    status: Status
    outputs: Mapping[str, Any] = field(default_factory=dict)  # the tensors and sequences of tensors, by name
    reason: str = ""  # the reason for a result without outputs, in one line


def run_apart(
    runtime: Runtime, subject: ModelUnderTest, inputs: Mapping[str, Any], timeout: float
) -> RunResult:
    """Run a model in a runtime, in a new process."""
    subject = replace(subject, path=str(Path(subject.path).absolute()))  # the worker runs in another folder
    with child_folder() as folder:
        (folder / "request").write_bytes(pickle.dumps((runtime, [(subject, dict(inputs))])))
        ended = run_child(WORKER, ["0"], folder, run_limits(timeout))
        if ended.code is None:
            return RunResult("timed out", reason=f"took longer than {timeout:g} s")
        try:
            return read_result(folder, "answer-0")
        except FileNotFoundError:
            words = "" if (folder / "ready-0").exists() or not ended.error else f", {ended.error}"
            return RunResult("crashed", reason=f"crashed ({end_words(ended.code)}{words})")
        except Exception as error:  # a faulty process may have written anything
            return RunResult("crashed", reason=f"left no readable answer ({error})")


def end_words(code: int) -> str:
    """Describe how a process ended."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code}, {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def read_result(folder: Path, name: str) -> RunResult:
    """Read a worker's result from a file of this name."""
    head, arrays = read_answer(folder, name)
    counts, reason, status = head["outputs"], head["reason"], head["status"]
    are_texts = all(isinstance(text, str) for text in (reason, *(name for name, _ in counts)))
    sizes = [1 if size is None else size for _, size in counts]
    fits = sum(sizes) == len(arrays) and min(sizes, default=0) >= 0
    if not fits or not are_texts or status not in get_args(_Said):
        raise ValueError("of an unexpected form")
    reason = printable(reason[:LONGEST_REASON])
    items = iter(array.astype(object) if array.dtype.kind == "U" else array for array in arrays)
    outputs = {name: next(items) if size is None else list(islice(items, size)) for name, size in counts}
    if status == "failed":
        reason = f"could not be run: onegru failed ({reason}), which is a bug in onegru"
    return RunResult(status, outputs, reason)
