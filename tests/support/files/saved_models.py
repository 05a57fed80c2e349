"""Run files that `onegru.save_layers` wrote in other runtimes."""

from __future__ import annotations

import numpy as np

from onegru import GRU, Stack
from onegru.core.dtypes import Array

LENGTHS = np.array([6, 1, 4], np.int32)
TOLERANCE = 1e-6
GROWN_TOLERANCE = 3e-6  # for states beyond 1: sums in OpenVINO's order, then growth; measured: 1.1e-6


def assert_close(found: Array, wanted: Array) -> None:
    assert found.shape == wanted.shape
    scale = max(1.0, float(np.abs(wanted).max(initial=0)))  # Affine and Relu are not bounded
    relative = TOLERANCE if scale == 1.0 else GROWN_TOLERANCE
    np.testing.assert_allclose(found, wanted, rtol=0, atol=relative * scale)


def ir_feeds(X: Array, states: list[Array], lengths: Array | None = None) -> dict[str, Array]:
    """Return the inputs of a written IR of sequences."""
    ends = [f"_{index}" for index in range(len(states))] if len(states) > 1 else [""]
    feeds = {"X": X.swapaxes(0, 1).copy()}
    for end, state in zip(ends, states, strict=True):
        feeds[f"initial_hidden_state{end}"] = state.swapaxes(0, 1).copy()
    return feeds if lengths is None else {**feeds, "sequence_lengths": lengths}


def assert_same_as(layers: GRU | Stack, results: dict[str, Array], Y: Array, Y_h: tuple[Array, ...]) -> None:
    """Assert that these are an IR's results."""
    assert_close(results["Y"], Y.transpose(2, 1, 0, 3))
    ends = [f"_{index}" for index in range(len(Y_h))] if len(Y_h) > 1 else [""]
    for end, last in zip(ends, Y_h, strict=True):
        assert_close(results[f"Ho{end}"], last.swapaxes(0, 1))
