"""Large layers whose weights are 16-bit numbers keep them so on CPUs with FMA, with the bits of float32."""

from __future__ import annotations

import numpy as np
import pytest

import onegru
from onegru import _native
from onegru.core.dtypes import Array, numpy_dtype
from tests.support.comparison import assert_bits

HIDDEN, INPUTS = 400, 30


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_bits_are_those_of_float32(dtype: str, after: bool) -> None:
    rng = np.random.default_rng()

    def weights(*shape: int) -> Array:
        numbers: Array = rng.uniform(-0.1, 0.1, shape).astype(numpy_dtype(dtype)).astype(np.float32)
        return numbers

    W, R, B = weights(1, 3 * HIDDEN, INPUTS), weights(1, 3 * HIDDEN, HIDDEN), weights(1, 6 * HIDDEN)
    other = W.copy()
    other[0, -1, 0] += np.float32(1e-7)  # no 16-bit number; only the last unit's first step depends on it
    small = onegru.GRU(W, R, B, linear_before_reset=after)
    large = onegru.GRU(other, R, B, linear_before_reset=after)
    for rows in (1, 7, 40):
        X = rng.standard_normal((1, rows, INPUTS), np.float32)
        h = rng.standard_normal((1, rows, HIDDEN), np.float32)
        assert_bits(small(X, h)[0][..., :-1], large(X, h)[0][..., :-1])
    packed = [layer.prepared_engine.native for layer in (small, large)]
    few, many = (0 if item is None else item.bytes for item in packed)
    has_fma, _ = _native.target_traits(onegru.targets().chosen)
    assert 0 < few < 0.51 * many if has_fma else few == many
    assert_bits(small.weights.W, W)
    assert_bits(small.weights.R, R)
