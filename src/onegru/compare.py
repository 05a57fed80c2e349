"""How far two arrays are apart: the largest absolute difference, and in units in the last place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from onegru.dtypes import ELEMENT_TYPES, Array
from onegru.errors import SpecError

__all__ = ["Difference", "difference"]


@dataclass(frozen=True, slots=True)
class Difference:
    """How far two arrays are apart.

    Attributes:
        max_abs: the largest absolute difference; infinity where a NaN or an infinity meets anything else.
        max_ulp: the largest difference in units in the last place: how many numbers of the type lie between,
            plus one. For integers the difference itself. Where a NaN meets a number, the largest there is.
        where: the index of the largest absolute difference, the first if there are several; None if all
            numbers are equal. NaN equals NaN, and -0 equals 0.
    """

    max_abs: float
    max_ulp: int
    where: tuple[int, ...] | None


def difference(a: object, b: object) -> Difference:
    """How far two arrays of numbers are apart.

    Args:
        a: an array of any numeric type but complex, or of booleans.
        b: an array of a's shape and type.

    Raises:
        SpecError: shapes or types differ, or they do not hold such numbers.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        raise SpecError(f"b: {b.dtype} {list(b.shape)}; must be {a.dtype} {list(a.shape)}, like a")
    is_float = a.dtype.name in ELEMENT_TYPES
    if not is_float and a.dtype.kind not in "biu":
        names = ", ".join(ELEMENT_TYPES)
        raise SpecError(f"a: type {a.dtype.name}; must be booleans, integers or one of {names}")
    ulps = _ulps(a, b) if is_float else _distances(a, b)
    max_ulp = int(ulps.max(initial=0))
    if max_ulp == 0:
        return Difference(0.0, 0, None)
    with np.errstate(all="ignore"):
        apart = np.abs(a.astype(np.float64) - b.astype(np.float64)) if is_float else ulps.astype(np.float64)
    # Where NaN or infinity meets something else the difference is no number; equal ones are none at all.
    apart = np.where(ulps == 0, 0.0, np.where(np.isnan(apart), np.inf, apart))
    where = np.unravel_index(int(apart.argmax()), apart.shape)
    return Difference(float(apart[where]), max_ulp, tuple(int(index) for index in where))


def _ulps(a: Array, b: Array) -> Array:
    """For each pair, how many steps from one number of the type to the next lead from a to b."""
    bits = 8 * a.dtype.itemsize
    sign = np.uint64(1 << (bits - 1))
    raw = [np.ascontiguousarray(x).view(f"u{a.dtype.itemsize}").astype(np.uint64) for x in (a, b)]
    size_a, size_b = (x & (sign - np.uint64(1)) for x in raw)
    same_sign = (raw[0] & sign) == (raw[1] & sign)
    steps = np.where(same_sign, np.maximum(size_a, size_b) - np.minimum(size_a, size_b), size_a + size_b)
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    most = np.uint64((1 << bits) - 1)
    steps = np.where(nan_a | nan_b, np.where(nan_a & nan_b, np.uint64(0), most), steps)
    return cast(Array, steps.reshape(a.shape))


def _distances(a: Array, b: Array) -> Array:
    """|a - b| of integers or booleans, which uint64 always holds."""
    if a.dtype.kind == "b":
        return cast(Array, (a != b).astype(np.uint64))
    high: Array = np.maximum(a, b).astype(np.uint64)
    low: Array = np.minimum(a, b).astype(np.uint64)
    return high - low  # modulo 2**64, in which negative numbers are right, too
