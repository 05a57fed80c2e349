"""The checks of shapes."""

import pytest

from onegru.core.errors import SpecError
from onegru.core.shapes import check_shape


def test_an_axis_without_a_word_is_named_by_its_letter() -> None:
    with pytest.raises(SpecError, match=r"B: rank 3, shape \[1, 2, 3\]; must be \[num_directions, N\]"):
        check_shape("B", [1, 2, 3], "DN", {})
