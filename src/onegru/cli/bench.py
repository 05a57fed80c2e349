"""Timing a model in onegru, and in ONNX Runtime if that runs it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np

from onegru.core.compare import count_finite, difference
from onegru.core.dtypes import Array
from onegru.core.errors import OneGRUError, SpecError
from onegru.engines.native import MOST_THREADS, set_num_threads
from onegru.formats.opened import Kind
from onegru.models.model import Model

_TURN = 0.1  # seconds
_SETTLE = 0.02  # seconds, for the other runtime's threads to fall asleep


@dataclass(frozen=True, slots=True)
class Timing:
    """A runtime's times for a run, in seconds; or why there are none.

    Attributes:
        runtime: its name.
        version: its version.
        median: the median of the turns.
        low: the fastest turn's mean.
        high: the slowest turn's mean.
        difference: the largest difference from onegru's outputs.
        refuses: why there are no times.
    """

    runtime: str
    version: str
    median: float | None = None
    low: float | None = None
    high: float | None = None
    difference: float | None = None
    refuses: str | None = None


def set_threads(threads: int) -> None:
    """Set the threads of onegru and, in sessions made from now on, of ONNX Runtime.

    Raises:
        SpecError: there cannot be so many.
    """
    if threads > MOST_THREADS:
        raise SpecError.of("--threads", f"{threads}; must be 1…{MOST_THREADS}")
    set_num_threads(threads)


def measure(model: Model, inputs: Mapping[str, Array], rounds: int) -> list[Timing]:
    """Check ONNX Runtime's outputs against onegru's, then time both in turns, with as many threads each.

    Args:
        model: the model.
        inputs: its inputs.
        rounds: the number of turns that each takes.
    """
    ours = model.run(inputs)
    calls: dict[str, Callable[[], object]] = {"onegru": lambda: model.run(inputs)}
    differences: dict[str, float | None] = {}
    refuses: str | None = None
    file = model._file
    if any(array.size == 0 for array in inputs.values()):
        refuses = "not run: it may crash on an empty input"
    elif file is not None and file.kind is Kind.ONNX:
        try:
            # Imported here, as an IR needs no onnx.
            from onegru.formats.onnx.validate import Source, read_model
            from onegru.formats.onnx.whole.optimizers import harmful_optimizers
            from onegru.formats.onnx.whole.session import Session

            source = Source.of(file)
            disabled = harmful_optimizers(read_model(source, file.data))
            session = Session(file.data, source, disabled=disabled)
            theirs = dict(zip(session.output_names, session.run(inputs), strict=True))
            differences["onnxruntime"] = _difference(ours, theirs)
            calls["onnxruntime"] = lambda: session.run(inputs)
        except OneGRUError as error:
            refuses = str(error)
    timings = [
        Timing(name, version(name), statistics.median(s), min(s), max(s), differences.get(name))
        for name, s in take_turns(calls, rounds).items()
    ]
    if refuses is not None:
        timings.append(Timing("onnxruntime", "", refuses=refuses))
    return timings


def take_turns(
    calls: Mapping[str, Callable[[], object]], rounds: int, turn: float = _TURN
) -> dict[str, list[float]]:
    """Time calls in turns, so that whatever else the machine does meets all of them alike.

    Args:
        calls: what is timed, by its name.
        rounds: the number of turns that each takes.
        turn: about how long one turn is, in seconds.

    Returns:
        for each, the mean time of a call in each of its turns, in seconds.
    """
    counts = {name: max(1, int(turn / _once(call))) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            time.sleep(_SETTLE)
            call()
            began = time.perf_counter()
            for _ in range(counts[name]):
                call()
            seconds[name].append((time.perf_counter() - began) / counts[name])
    return seconds


def _once(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return max(time.perf_counter() - began, 1e-7)


def _difference(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> float | None:
    """The largest difference; None where no number is finite."""
    floats = {
        name: array
        for name, array in ours.items()
        if isinstance(array, np.ndarray) and array.dtype.kind == "f"
    }
    if not any(map(count_finite, floats.values())):
        return None
    return max(difference(array, theirs[name]).max_abs for name, array in floats.items())
