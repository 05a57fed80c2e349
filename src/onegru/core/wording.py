"""Format numbers, shapes and names for messages."""

from __future__ import annotations

from collections.abc import Sequence


def count(number: int, noun: str) -> str:
    """Return a count with a noun: "1 GRU node" or "2 GRU nodes"."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{ending}"


def an(noun: str) -> str:
    """Return a noun with its article: "a Tensor" or "an int"; a u is assumed to sound as in "uint8"."""
    return f"{'an' if noun[:1].lower() in tuple('aeio') else 'a'} {noun}"


def shape_words(shape: Sequence[int | str | None]) -> str:
    """Return a shape with "?" for unknown sizes: "[batch, ?, 64]"."""
    return f"[{', '.join('?' if size is None else printable(str(size)) for size in shape)}]"


def duration(seconds: float) -> str:
    """Return a duration with three digits and a suitable unit: 1.23 µs, 45.6 ms, 789 s."""
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if float(f"{seconds * factor:.3g}") < 1000:
            return f"{seconds * factor:#.3g}".rstrip(".") + f" {unit}"
    return f"{seconds:.0f} s" if seconds >= 999.5 else f"{seconds:#.3g}".rstrip(".") + " s"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows of a table as lines with aligned cells."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def printable(text: str) -> str:
    """Return `text` without control characters, because a name in a file may contain any."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
