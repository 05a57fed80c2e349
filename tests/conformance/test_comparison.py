"""What passes and what does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onegru.conformance.case import Case, _Drawn
from onegru.conformance.comparison import compare
from onegru.conformance.expect import Expectation
from onegru.core.dtypes import LARGEST, numpy_dtype
from onegru.core.errors import SpecError
from onegru.operators.onnx import GRU_VERSIONS
from tests.support.comparison import Arrays


def case_of(values: dict[str, Any], tolerance: dict[str, Any], dtype: str = "float32") -> Case:
    """A case that expects these numbers of Y and Y_h."""
    case = Case(GRU_VERSIONS[22], {} if dtype == "float32" else {"type": dtype})
    expected = {name: np.array(numbers, np.float64) for name, numbers in values.items()}
    allowed = {name: np.array(numbers, np.float64) for name, numbers in tolerance.items()}
    # What is drawn otherwise.
    case.__dict__["_drawn"] = _Drawn({}, {}, {}, Expectation(expected, allowed))
    case.__dict__["outputs"] = tuple(values)
    return case


def compared(expected: Any, tolerance: Any, got: Any, dtype: str = "float32") -> Any:
    array = np.array(got, np.float64).astype(numpy_dtype(dtype))
    return compare(case_of({"Y": expected}, {"Y": tolerance}, dtype), {"Y": array})


def test_each_number_has_its_own_tolerance() -> None:
    assert compared([1.0, 2.0], [0.5, 0.125], [1.5, 2.125]).status == "passes"
    found = compared([1.0, 2.0, 3.0], [0.5, 0.125, 0.25], [1.5, 2.25, 3.0])
    assert (found.status, found.reason) == ("differs", "Y beyond the tolerance")
    assert (found.output, found.where) == ("Y", (1,))
    assert (found.expected, found.got, found.tolerance) == (2.0, 2.25, 0.125)


def test_the_worst_is_off_by_the_most_times_its_tolerance() -> None:
    expected = {"Y": [[1.0, 2.0]], "Y_h": [3.0]}
    case = case_of(expected, {"Y": [[1.0, 0.25]], "Y_h": [0.125]})
    outputs: Arrays = {"Y": np.array([[4.0, 3.0]], np.float32), "Y_h": np.array([3.25], np.float32)}
    found = compare(case, outputs)
    assert found.reason == "Y, Y_h beyond the tolerance"
    assert (found.output, found.where, found.got) == ("Y", (0, 1), 3.0)


def test_without_a_tolerance_it_has_to_be_equal() -> None:
    assert compared([0.0, 1.0], [0.0, 0.0], [-0.0, 1.0]).status == "passes"
    found = compared([0.0, 1.0], [0.0, 1e-3], [1e-30, 2.0])
    assert found.where == (0,)  # infinitely many times 0


@pytest.mark.parametrize("got", [0.0, np.inf, -np.inf])
def test_nan_equals_only_nan(got: float) -> None:
    assert compared([np.nan], [0.0], [np.nan]).status == "passes"
    assert compared([np.nan], [1.0], [got]).status == "differs"
    assert compared([0.5], [1.0], [np.nan]).status == "differs"


def test_infinities() -> None:
    assert compared([np.inf, -np.inf], [0.0, 0.0], [np.inf, -np.inf]).status == "passes"
    for got in (-np.inf, np.nan, 3e38):
        assert compared([np.inf], [1.0], [got]).status == "differs"
    assert compared([1.0], [1e30], [np.inf]).status == "differs"


@pytest.mark.parametrize("dtype", LARGEST)
def test_numbers_that_may_lie_beyond_the_type(dtype: str) -> None:
    largest = LARGEST[dtype]
    near, allowed = largest * 0.999, largest * 0.002
    assert compared([near, -near], [allowed] * 2, [np.inf, -np.inf], dtype).status == "passes"
    assert compared([near], [allowed], [-np.inf], dtype).status == "differs"
    assert compared([near], [largest * 0.0005], [np.inf], dtype).status == "differs"


def test_the_largest_numbers() -> None:
    for dtype, largest in LARGEST.items():
        kind = numpy_dtype(dtype)
        bits = np.array(largest, kind).view(f"u{kind.itemsize}")
        assert np.isinf((bits + 1).view(kind)) and float(np.array(largest, kind)) == largest


def test_names_types_and_shapes() -> None:
    case = case_of({"Y": [1.0], "Y_h": [2.0]}, {"Y": [1.0], "Y_h": [1.0]})
    right: Arrays = {"Y": np.ones(1, np.float32), "Y_h": np.ones(1, np.float32)}
    assert compare(case, right).status == "passes"
    wrong: list[tuple[Arrays, str]] = [
        ({"Y": right["Y"]}, "returned Y; must return Y, Y_h"),
        (right | {"Z": right["Y"]}, "returned Y, Y_h, Z; must return Y, Y_h"),
        (right | {"Y_h": np.ones(1)}, "Y_h: type float64; must be float32"),
        (right | {"Y": np.ones((1, 1), np.float32)}, "Y: shape [1, 1]; must be [1]"),
    ]
    for outputs, reason in wrong:
        found = compare(case, outputs)
        assert (found.status, found.reason) == ("differs", reason)


def test_what_is_no_array() -> None:
    case = case_of({"Y": [1.0]}, {"Y": [0.1]})
    for given in ([[1], [2, 3]], object(), "Y", None):
        outcome = compare(case, {"Y": given})  # type: ignore[dict-item]
        assert (outcome.status, outcome.output) == ("differs", "Y")
    with pytest.raises(SpecError, match=r"^outputs: 5; must be a mapping from names to arrays"):
        compare(case, 5)  # type: ignore[arg-type]


def test_no_numbers_at_all() -> None:
    assert compared(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros((0, 2))).status == "passes"
