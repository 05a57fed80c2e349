"""Whether two results agree, and where they first do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from onegru.compare import TOLERANCE_ACROSS_RUNTIMES, difference
from onegru.dtypes import Array

__all__ = ["SENSITIVITY_FACTOR", "Agreement", "agreement", "beyond", "tolerance_of"]

#: How much more than one rounding of its inputs moves a model, rounding at every operation may move it.
SENSITIVITY_FACTOR = 16.0


@dataclass(frozen=True, slots=True)
class Agreement:
    """How a result compares with what it should be.

    Attributes:
        agrees: whether every element lies within the tolerance.
        max_abs: the largest absolute difference; None where the two cannot be compared element by element.
        max_ulp: the largest distance in units of the last place, likewise.
        where: the first index, in the order of the array, that is beyond the tolerance; None if there is
            none.
        expected: what should be there.
        got: what is there.
        reason: why the two cannot be compared element by element; empty if they can.
    """

    agrees: bool
    max_abs: float | None = None
    max_ulp: int | None = None
    where: tuple[int, ...] | None = None
    expected: Any = None
    got: Any = None
    reason: str = ""


def tolerance_of(dtype: str) -> float:
    """The default tolerance for an element type; 0 where numbers are exact."""
    return TOLERANCE_ACROSS_RUNTIMES.get(dtype, 0.0)


def agreement(expected: Any, got: Any, tolerance: float) -> Agreement:
    """Compare a result with what it should be.

    Args:
        expected: what it should be.
        got: what it is.
        tolerance: the most that an element may be off, relative to max(1, |expected|). NaN equals NaN.
    """
    if not isinstance(expected, np.ndarray) or not isinstance(got, np.ndarray):
        return Agreement(True, reason="not a tensor; not compared")
    if expected.shape != got.shape:
        return Agreement(False, reason=f"shape {list(got.shape)}; must be {list(expected.shape)}")
    if expected.dtype != got.dtype:
        return Agreement(False, reason=f"type {got.dtype.name}; must be {expected.dtype.name}")
    if expected.dtype.kind in "OUST":
        wrong = expected.astype(np.str_) != got.astype(np.str_)
        where = _first(wrong)
        if where is None:
            return Agreement(True)
        return Agreement(False, None, None, where, str(expected[where]), str(got[where]))
    if expected.dtype.kind not in "biuf" and expected.dtype.name != "bfloat16":
        same = expected.tobytes() == got.tobytes()
        return Agreement(same, reason="" if same else f"other values of type {expected.dtype.name}")
    apart = difference(expected, got)
    where = _first(beyond(expected, got, tolerance))
    if where is None:
        return Agreement(True, apart.max_abs, apart.max_ulp)
    values = expected[where].item(), got[where].item()
    return Agreement(False, apart.max_abs, apart.max_ulp, where, *values)


def beyond(expected: Array, got: Array, tolerance: float) -> Array:
    """For each element, whether it is off by more than the tolerance."""
    if expected.dtype.kind in "biu":
        return np.asarray(expected != got)
    want, have = expected.astype(np.float64), got.astype(np.float64)
    with np.errstate(all="ignore"):
        near = np.abs(have - want) <= tolerance * np.maximum(1.0, np.abs(want))
    # Infinity is near nothing but itself: its difference from anything is no number, or infinite.
    near &= np.isfinite(want)
    wrong: Array = ~(near | (want == have) | (np.isnan(want) & np.isnan(have)))
    return wrong


def _first(wrong: Array) -> tuple[int, ...] | None:
    if not wrong.any():
        return None
    return tuple(int(index) for index in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
