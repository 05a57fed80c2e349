"""When a runtime's result counts as right."""

from __future__ import annotations

from typing import Any

import numpy as np

Arrays = dict[str, Any]

# The largest error that still counts as right, relative to max(1, |expected|); measured: about half of it.
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
