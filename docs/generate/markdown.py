"""Helpers that write Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NONE = "–"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def code(text: object) -> str:
    """Return `text` as code for a cell of a table."""
    return f"`{text}`".replace("|", "\\|")


def listed(names: Iterable[object]) -> str:
    """Return names as code, separated by commas."""
    return ", ".join(map(code, names))
