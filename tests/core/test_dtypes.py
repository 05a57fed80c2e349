"""Conversions between element types."""

from __future__ import annotations

import numpy as np
import pytest

from onegru import SpecError
from onegru.core.dtypes import convert


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint64"])
def test_floats_are_converted_to_all_integers_of_a_type(dtype: str) -> None:
    """Also the smallest of 64 bits, and what is rounded towards it; nothing beyond."""
    limits = np.iinfo(dtype)
    least, beyond = float(limits.min), limits.max + 1.0
    most = np.nextafter(beyond, 0) if limits.bits == 64 else limits.max + 0.5
    assert convert([least, most], dtype).tolist() == [limits.min, int(most)]
    if limits.bits < 64:
        assert convert([least - 0.5], dtype).tolist() == [limits.min]
    below = np.nextafter(least, -np.inf) if limits.bits == 64 and least else least - 1
    for number in (below, beyond, np.nan, np.inf, -np.inf):
        with pytest.raises(SpecError, match=f"not finite in {dtype}; must be finite"):
            convert([number], dtype)
