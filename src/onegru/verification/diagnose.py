"""Find the mistake that explains the result of a GRU node."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np

from onegru.core.compare import compare
from onegru.core.dtypes import Array
from onegru.core.errors import SpecError
from onegru.verification.gru_call import GruCall, in_type
from onegru.verification.mistakes import PAIRS_OF_MISTAKES, SINGLE_MISTAKES
from onegru.verification.weight_mistakes import GATE_ORDERS, Mistake


def diagnose(call: GruCall, got: Mapping[str, Array]) -> str | None:
    """Return the mistake that explains `got`, as text that follows "as if"; None if no known mistake does.

    If several single mistakes explain `got`, because the call cannot distinguish them, all are named.
    """
    tolerance = call.tolerance(call.run())
    explains = partial(_explains, call, got, tolerance)
    if single := [mistake.words for mistake in SINGLE_MISTAKES if explains(mistake)]:
        return ", or ".join(single)
    for mistake in (*GATE_ORDERS, *PAIRS_OF_MISTAKES):
        if explains(mistake):
            return mistake.words
    return _rounding(call, got)


def _explains(call: GruCall, got: Mapping[str, Array], tolerance: float, mistake: Mistake) -> bool:
    if (other := mistake.make(call)) is None:
        return False
    try:
        with np.errstate(all="ignore"):
            results = other.run()
    except SpecError:  # this mistake would give no result
        return False
    return all(compare(results[name], array, tolerance).agrees for name, array in got.items())


def _rounding(call: GruCall, got: Mapping[str, Array]) -> str | None:
    """Return a smaller element type whose error is similar, as text; None if there is none."""
    exact = call.run()
    theirs = _largest(exact, got)
    times: dict[str, float] = {}
    for dtype in _SMALLER.get(call.spec.dtype, ()):
        rounded = _largest(exact, in_type(call, dtype).run())
        if theirs > 0 and rounded > 0:
            times[dtype] = max(theirs / rounded, rounded / theirs)
    nearest = min(times, key=times.__getitem__, default=None)
    return None if nearest is None or times[nearest] > _ALIKE else f"it were computed in {nearest}"


_SMALLER: Mapping[str, tuple[str, ...]] = {
    "float64": ("float32", "float16", "bfloat16"),
    "float32": ("float16", "bfloat16"),
}
_ALIKE = 8.0  # the largest ratio of two errors that may have the same cause


def _largest(exact: Mapping[str, Array], other: Mapping[str, Array]) -> float:
    """Return the largest error; infinite if the shapes differ."""
    found = 0.0
    for name, array in other.items():
        if array.shape != exact[name].shape:
            return math.inf
        if array.size:
            found = max(found, float(np.abs(array.astype(np.float64) - exact[name]).max()))
    return found
