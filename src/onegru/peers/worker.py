"""Run models in one runtime, in a worker process."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onegru.core.dtypes import as_text
from onegru.core.errors import is_own_mistake
from onegru.peers.base import MisfitError, ModelUnderTest, Runtime
from onegru.peers.child import LONGEST_REASON, Status
from onegru.system.child_process import write_answer


def main(arguments: Sequence[str]) -> None:
    """Process the file `request` in the current folder, and write a result for each part there."""
    runtime, parts = pickle.loads(Path("request").read_bytes())
    answer_from(runtime, parts, int(arguments[0]))


def answer_from(
    runtime: Runtime, parts: Sequence[tuple[ModelUnderTest, Mapping[str, Any]]], first: int
) -> None:
    """Run models on their inputs, from an index on, and write the results to the current folder."""
    runtime.start()
    Path(f"ready-{first}").touch()
    for number in range(first, len(parts)):
        subject, inputs = parts[number]
        _answer(runtime, subject, inputs, f"answer-{number}")


def _answer(runtime: Runtime, subject: ModelUnderTest, inputs: Mapping[str, Any], name: str) -> None:
    """Run a model, and write the result to a file of this name."""
    outputs: dict[str, Any] = {}
    status: Status = "ran"
    reason = ""
    try:
        outputs = runtime.run(subject, inputs)
    except (
        Exception
    ) as error:  # an error of a runtime means that it rejects the model; an error of onegru does not
        reason = " ".join(str(error).split())[:LONGEST_REASON] or type(error).__name__
        is_misfit = isinstance(error, MisfitError)
        status = "differs" if is_misfit else "failed" if is_own_mistake(error) else "refuses"
    lists = {name: value if isinstance(value, list) else [value] for name, value in outputs.items()}
    kept = {
        name: [as_text(np.asarray(item)) if item.dtype.kind in "OUST" else np.asarray(item) for item in items]
        for name, items in lists.items()
        if all(isinstance(item, np.ndarray | np.generic) for item in items)
    }
    counts = [[name, len(kept[name]) if isinstance(outputs[name], list) else None] for name in kept]
    head = {"status": status, "reason": reason, "outputs": counts}
    write_answer(head, [item for items in kept.values() for item in items], name)
