"""Numbers as a person reads them."""

from __future__ import annotations


def count(number: int, noun: str) -> str:
    """A number of things, as "1 GRU node" or "2 GRU nodes"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """A time with three digits in the unit that suits it: 1.23 µs, 45.6 ms, 789 s."""
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if float(f"{seconds * factor:.3g}") < 1000:
            return f"{seconds * factor:#.3g}".rstrip(".") + f" {unit}"
    return f"{seconds:.0f} s" if seconds >= 999.5 else f"{seconds:#.3g}".rstrip(".") + " s"
