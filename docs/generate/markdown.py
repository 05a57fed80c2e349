"""Pieces of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NONE = "–"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def code(text: object) -> str:
    """`text` as code, in a cell of a table."""
    return f"`{text}`".replace("|", "\\|")


def listed(names: Iterable[object]) -> str:
    """Names as code, with commas."""
    return ", ".join(map(code, names))
