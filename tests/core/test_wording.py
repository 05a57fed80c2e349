"""Numbers as a person reads them."""

from __future__ import annotations

import pytest

from onegru.core.wording import count, duration


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
