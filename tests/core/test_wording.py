"""Texts of numbers and shapes."""

from __future__ import annotations

import pytest

from onegru.core.wording import count, duration, shape_words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0.00 µs"),
        (1.234e-6, "1.23 µs"),
        (45.67e-6, "45.7 µs"),
        (999.4e-6, "999 µs"),
        (999.6e-6, "1.00 ms"),
        (60092.5e-6, "60.1 ms"),
        (0.9996, "1.00 s"),
        (12.345, "12.3 s"),
        (120.4, "120 s"),
        (12345.0, "12345 s"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_counts() -> None:
    assert [count(number, "GRU node") for number in (0, 1, 2)] == ["0 GRU nodes", "1 GRU node", "2 GRU nodes"]


def test_shapes_are_on_one_line() -> None:
    """Dimension names come from files, and can contain any characters."""
    assert shape_words(["batch", None, 64]) == "[batch, ?, 64]"
    assert shape_words(["\nme", "\x1b[31m"]) == r"[\nme, \x1b[31m]"
