"""Files that hold GRUs without a model around them, and what their own framework makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from onegru.core.compare import SENSITIVITY_FACTOR, tolerance_of
from onegru.core.dtypes import Array
from onegru.core.errors import SpecError
from onegru.core.shapes import side_by_side
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack
from onegru.models.random_inputs import draw_call
from onegru.verification.gru_call import nudged, sensitivity
from onegru.verification.results import RuntimeResult
from onegru.verification.runtimes.base import Runtime, Subject
from onegru.verification.runtimes.subprocess_runner import run_apart
from onegru.verification.runtimes.torch import TorchCheckpoint
from onegru.verification.verify import compare_outputs

__all__ = ["run_checkpoint"]

_STEPS, _ROWS = 7, 3


def run_checkpoint(
    path: Path, layers: Sequence[GRU], timeout: float, runtime: Runtime | None = None
) -> tuple[RuntimeResult, ...]:
    """Whether a checkpoint's own framework, where it is installed, agrees with onegru's reading of it.

    Args:
        path: the checkpoint.
        layers: what onegru read, the lowest first.
        timeout: the most seconds that the framework may take.
        runtime: the framework; None for PyTorch.
    """
    runtime = runtime or TorchCheckpoint()
    version = runtime.version()
    subject = Subject(str(path), None, {"Y": (), "Y_h": ()})
    if version is None or runtime.refuses(subject) is not None:
        return ()
    try:
        stack = Stack([GRU.from_canonical(layer.spec, layer.weights, "reference") for layer in layers])
    except SpecError:  # several GRUs, which are not on top of each other
        return ()
    spec = layers[0].spec
    X = draw_call(spec, _STEPS, _ROWS, np.random.default_rng(0))["X"]
    expected, moved = _run(stack, X), _run(stack, nudged(X))
    outcome = run_apart(runtime, subject, {"X": X}, timeout)
    if outcome.status != "ran":
        return (RuntimeResult(runtime.name, version, outcome.status, outcome.reason),)
    allowed = {
        name: max(tolerance_of(spec.dtype), SENSITIVITY_FACTOR * sensitivity(array, moved[name]))
        for name, array in expected.items()
    }
    outputs = compare_outputs(expected, outcome.outputs, allowed)
    if all(item.agrees for item in outputs):
        return (RuntimeResult(runtime.name, version, "agrees", outputs=outputs),)
    return (RuntimeResult(runtime.name, version, "differs", "reads the checkpoint otherwise", outputs),)


def _run(stack: Stack, X: Array) -> dict[str, Array]:
    """Y [T, B, D·H] and Y_h [L·D, B, H], as PyTorch has them."""
    Y, states = stack(X)
    return {"Y": side_by_side(Y), "Y_h": np.concatenate(states)}
