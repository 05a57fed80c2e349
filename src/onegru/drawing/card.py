"""HTML cards for notebooks, without scripts, in the notebook's colors."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from onegru.core.wording import aligned, printable

_LONGEST = 200  # characters of a text
_MOST_ROWS = 50

#: The arguments of `card`: the title, the facts, and the headings and rows of a table.
Card = tuple[str, Sequence[tuple[str, str]], Sequence[str], Sequence[Sequence[str]]]

_BOX = (
    "display:inline-block;max-width:100%;box-sizing:border-box;padding:10px 14px;overflow-x:auto;"
    "border:1px solid rgba(128,128,128,.4);border-radius:8px;background:rgba(128,128,128,.06);"
    "color:inherit;font:13px/1.5 system-ui,sans-serif;text-align:left"
)
_CELL = (
    "padding:1px 14px 1px 0;border:0;background:none;color:inherit;text-align:left;vertical-align:top;"
    "max-width:480px;overflow-wrap:break-word;white-space:normal"
)
_TABLE = "border-collapse:collapse;border:0;margin:6px 0 0;color:inherit;font-size:13px"


class CardReport:
    """A report that shows the same table in notebooks and as printed text."""

    __slots__ = ()

    def _card(self) -> Card:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return card(*self._card())

    def __str__(self) -> str:
        title, facts, headings, rows = self._card()
        named = [[printable(label), printable(words)] for label, words in facts if words]
        cells = [list(map(printable, row)) for row in (headings, *rows)] if rows else []
        return "\n".join([printable(title), *aligned(named), *([""] if cells else []), *aligned(cells)])


def card(
    title: str,
    facts: Sequence[tuple[str, str]],
    headings: Sequence[str] = (),
    rows: Sequence[Sequence[str]] = (),
) -> str:
    """Return a card as HTML. Texts can contain anything: they are escaped, and cut if they are long."""
    parts = [f'<div style="{_BOX}"><div style="font-weight:600;overflow-wrap:anywhere">{_safe(title)}</div>']
    named = [_row((label, words), "td", faint=1) for label, words in facts if words]
    parts.append(f'<table style="{_TABLE}">{"".join(named)}</table>')
    if headings:
        shown = [_row(headings, "th", faint=len(headings))] + [_row(row, "td") for row in rows[:_MOST_ROWS]]
        parts.append(f'<table style="{_TABLE}">{"".join(shown)}</table>')
        if len(rows) > _MOST_ROWS:
            parts.append(f"<div>… and {len(rows) - _MOST_ROWS} more</div>")
    return "".join([*parts, "</div>"])


def _safe(text: str) -> str:
    """Return a text from any source, safe for HTML."""
    text = printable(text[: _LONGEST + 1])
    return escape(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")


def _row(cells: Sequence[str], tag: str, faint: int = 0) -> str:
    """Return a row of a table. Its first cells are faint."""
    styles = [
        f"{_CELL};font-weight:normal{';opacity:.65' if index < faint else ''}" for index in range(len(cells))
    ]
    inner = "".join(
        f'<{tag} style="{style}">{_safe(cell)}</{tag}>' for style, cell in zip(styles, cells, strict=True)
    )
    return f'<tr style="border:0;background:none">{inner}</tr>'
