"""Compare results: bit for bit, or within the tolerance of a runtime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from onegru.core.dtypes import Array

TYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


def same_bits(got: Any, want: Any) -> bool:
    return bool(got.shape == want.shape and got.tobytes() == want.tobytes())


def assert_bits(actual: Array, expected: Array) -> None:
    assert actual.dtype == expected.dtype
    view = f"u{actual.dtype.itemsize}"
    np.testing.assert_array_equal(
        np.ascontiguousarray(actual).view(view), np.ascontiguousarray(expected).view(view)
    )


Arrays = dict[str, Any]

# The largest allowed error, relative to max(1, |expected|). About half of it was measured.
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-12}


def is_right(got: Arrays, expected: Arrays, dtype: str) -> bool:
    for name, want in expected.items():
        have = np.asarray(got[name])
        if have.shape != want.shape or have.dtype != want.dtype:
            return False
        error = np.abs(have.astype(np.float64) - want.astype(np.float64))
        if not bool(np.all(error <= TOLERANCE[dtype] * np.maximum(1.0, np.abs(want.astype(np.float64))))):
            return False
    return True
