"""The difference of two arrays: in numbers, in units in the last place, and where."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from onegru.core.compare import Comparison, difference
from onegru.core.errors import SpecError
from tests.support.cases import DTYPES


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_steps_of_a_type(dtype: np.dtype[Any]) -> None:
    one = np.ones((2, 3), dtype)
    other = one.copy()
    epsilon = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-23, "float64": 2**-52}[dtype.name]
    other[1, 2] = 1 + epsilon
    assert difference(one, one) == Comparison()
    assert difference(one, other) == Comparison(max_abs=epsilon, max_ulp=1, where=(1, 2))
    assert difference(-other, -one) == difference(one, other)
    across = difference(np.array([-1], dtype), np.array([1], dtype))
    steps_to_one = int(np.ones(1, dtype).view(f"u{dtype.itemsize}")[0])
    assert (across.max_abs, across.max_ulp) == (2.0, 2 * steps_to_one)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_special_numbers(dtype: np.dtype[Any]) -> None:
    numbers = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], dtype)
    assert difference(numbers, numbers) == Comparison()
    assert difference(numbers[3:4], numbers[4:]) == Comparison()  # -0 equals 0
    for left, right in ((0, 1), (1, 2), (1, 3)):
        found = difference(numbers[[4, left]], numbers[[3, right]])
        assert found.max_abs == math.inf and found.where == (1,) and found.max_ulp > 0
    assert difference(numbers[:1], numbers[1:2]).max_ulp == 2 ** (8 * dtype.itemsize) - 1


def test_the_largest_difference_is_where() -> None:
    a = np.zeros((3, 2), np.float32)
    b = np.array([[0, 1e-30], [0.5, 0.25], [0.5, 0]], np.float32)
    found = difference(a, b)
    assert (found.max_abs, found.where) == (0.5, (1, 0))


def test_other_types_and_shapes() -> None:
    assert difference(np.float32(1), np.float32(1)) == Comparison()
    assert difference(np.float64(1), np.float64(3)).where == ()
    assert difference(np.zeros((0, 2)), np.zeros((0, 2))) == Comparison()
    low, high = np.array([-(2**63)]), np.array([2**63 - 1])
    assert difference(low, high) == Comparison(max_abs=float(2**64 - 1), max_ulp=2**64 - 1, where=(0,))
    assert difference(np.array([3, 250], np.uint8), np.array([7, 249], np.uint8)) == Comparison(
        max_abs=4.0, max_ulp=4, where=(0,)
    )
    assert difference(np.array([True, False]), np.array([True, True])) == Comparison(
        max_abs=1.0, max_ulp=1, where=(1,)
    )
    assert difference(np.ones((2, 3)).T, np.ones((3, 2))) == Comparison()


def test_refuses() -> None:
    with pytest.raises(SpecError, match=r"b: float32 \[3\]; must be float32 \[2\], like a"):
        difference(np.zeros(2, "f"), np.zeros(3, "f"))
    with pytest.raises(SpecError, match="b: float64"):
        difference(np.zeros(2, "f"), np.zeros(2))
    for array in (np.array(["a"]), np.zeros(2, complex), np.array([None])):
        with pytest.raises(SpecError, match="a: type"):
            difference(array, array)
