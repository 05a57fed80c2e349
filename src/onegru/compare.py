"""How far two arrays lie apart: in value, and in units of the last place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onegru.dtypes import Array
from onegru.errors import SpecError

__all__ = ["Difference", "difference"]


@dataclass(frozen=True, slots=True)
class Difference:
    """How far two arrays lie apart.

    Attributes:
        max_abs: the largest absolute difference; infinite between a number and a NaN, or unequal infinities.
        max_ulp: the largest number of representable numbers from one element to the other.
        where: the index of the largest absolute difference; None where there is none.
    """

    max_abs: float
    max_ulp: int
    where: tuple[int, ...] | None


def difference(a: Array, b: Array) -> Difference:
    """How far `a` and `b` lie apart; a NaN equals a NaN, and -0 equals 0.

    Args:
        a: numbers or booleans, of any shape.
        b: the same, of a's shape and type.

    Raises:
        SpecError: shapes or types differ, or hold no real numbers.
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        raise SpecError(f"b: {b.dtype} {list(b.shape)}; must be {a.dtype} {list(a.shape)}, like a")
    is_float = a.dtype.kind == "f" or a.dtype.name == "bfloat16"
    if not is_float and a.dtype.kind not in "biu":
        raise SpecError(f"a: type {a.dtype}; must be real numbers or booleans")
    if a.size == 0:
        return Difference(0.0, 0, None)
    apart = _distance(a, b) if is_float else _whole_distance(a, b)
    where = tuple(int(index) for index in np.unravel_index(int(np.argmax(apart)), a.shape))
    if not apart[where] > 0:
        return Difference(0.0, 0, None)
    return Difference(float(apart[where]), _max_ulp(a, b) if is_float else int(apart[where]), where)


def _distance(a: Array, b: Array) -> Array:
    left, right = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        apart = np.abs(left - right)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))


def _whole_distance(a: Array, b: Array) -> Array:
    """Exact beyond float64 too: distances of 64-bit integers as Python's own."""
    if a.dtype.itemsize < 8:
        return np.abs(a.astype(np.int64) - b.astype(np.int64))
    distance: Array = np.abs(a.astype(object) - b.astype(object))
    return distance


def _max_ulp(a: Array, b: Array) -> int:
    """The largest distance between places in the order of all numbers of the type, NaNs beyond infinity."""
    places = [_places(array) for array in (a, b)]
    swap = places[0] < places[1]
    high, low = np.where(swap, places[1], places[0]), np.where(swap, places[0], places[1])
    # The difference of two 64-bit places may need all 64 bits, without a sign.
    return int((high.astype(np.uint64) - low.astype(np.uint64)).max())


def _places(array: Array) -> Array:
    integer = np.dtype(f"int{array.dtype.itemsize * 8}")
    bits = np.ascontiguousarray(array).view(integer).astype(np.int64)
    magnitude = bits & np.int64(np.iinfo(integer).max)
    places = np.where(bits < 0, -magnitude, magnitude)
    beyond = np.ascontiguousarray(np.array(np.inf, array.dtype)).reshape(1).view(integer).astype(np.int64)[0]
    return np.where(np.isnan(array), beyond + 1, places)
