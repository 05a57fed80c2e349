"""Numbers, shapes and names as text for messages."""

from __future__ import annotations

from collections.abc import Sequence


def count(number: int, noun: str) -> str:
    """A count of things: "1 GRU node" or "2 GRU nodes"."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{ending}"


def an(noun: str) -> str:
    """A noun with its article: "a Tensor" or "an int"; that of a u is taken to sound as in "uint8"."""
    return f"{'an' if noun[:1].lower() in tuple('aeio') else 'a'} {noun}"


def shape_words(shape: Sequence[int | str | None]) -> str:
    """A shape with "?" for unknown sizes: "[batch, ?, 64]"."""
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def duration(seconds: float) -> str:
    """A time with three digits in a fitting unit: 1.23 µs, 45.6 ms, 789 s."""
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if float(f"{seconds * factor:.3g}") < 1000:
            return f"{seconds * factor:#.3g}".rstrip(".") + f" {unit}"
    return f"{seconds:.0f} s" if seconds >= 999.5 else f"{seconds:#.3g}".rstrip(".") + " s"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows of a table as lines, their cells one below the other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def printable(text: str) -> str:
    """`text` without control characters: a name in a file may hold anything."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
