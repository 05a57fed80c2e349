"""Arrays compared bit by bit."""

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
