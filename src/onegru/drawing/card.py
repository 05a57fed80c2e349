"""Cards for notebooks: a few facts as HTML, without scripts, in the colours of whatever is around them."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from html import escape

import numpy as np
import numpy.typing as npt

from onegru.core.wording import aligned, printable
from onegru.drawing.colours import colours
from onegru.drawing.picture import Floats, View

_LONGEST = 200  # characters of a text
_MOST_ROWS = 50
_SMALL = (64, 320)  # units and steps of a small map

#: The title, the facts, and the headings and rows of a table, as of `card`.
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
    """A report that shows the same table in notebooks and where it is printed."""

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
    view: View | None = None,
) -> str:
    """A card, as HTML. Every text may hold anything: it is escaped, and cut where it is long.

    Args:
        title: what it is about.
        facts: labels, each with what there is to say; without words, a fact is left out.
        headings: those of a table; none for no table.
        rows: the rows of the table, of which the first are shown.
        view: maps to show in small, of its first run.
    """
    parts = [f'<div style="{_BOX}"><div style="font-weight:600;overflow-wrap:anywhere">{_safe(title)}</div>']
    named = [_row((label, words), "td", faint=1) for label, words in facts if words]
    parts.append(f'<table style="{_TABLE}">{"".join(named)}</table>')
    if headings:
        shown = [_row(headings, "th", faint=len(headings))] + [_row(row, "td") for row in rows[:_MOST_ROWS]]
        parts.append(f'<table style="{_TABLE}">{"".join(shown)}</table>')
        if len(rows) > _MOST_ROWS:
            parts.append(f"<div>… and {len(rows) - _MOST_ROWS} more</div>")
    if view is not None:
        parts += [_small(view, index) for index in range(len(view.panels))]
    return "".join([*parts, "</div>"])


def _safe(text: str) -> str:
    """A text for HTML, from wherever it is."""
    text = printable(text[: _LONGEST + 1])
    return escape(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")


def _row(cells: Sequence[str], tag: str, faint: int = 0) -> str:
    """A row of a table, whose first cells are faint."""
    styles = [
        f"{_CELL};font-weight:normal{';opacity:.65' if index < faint else ''}" for index in range(len(cells))
    ]
    inner = "".join(
        f'<{tag} style="{style}">{_safe(cell)}</{tag}>' for style, cell in zip(styles, cells, strict=True)
    )
    return f'<tr style="border:0;background:none">{inner}</tr>'


def _small(view: View, index: int) -> str:
    """A panel as a small image."""
    panel, values = view.panels[index], view.runs[0].values[index]
    if not values.size:
        return ""
    order = next(iter(view.orders.values()))
    cells = _reduced(_reduced(values.T[list(order)], _SMALL[0]).T, _SMALL[1]).T
    with np.errstate(all="ignore"):
        shares = np.clip((cells - panel.low) / (panel.high - panel.low), 0, 1)
    table = colours("light", panel.kind)
    image = table[np.round(np.nan_to_num(shares, nan=0.5) * (len(table) - 1)).astype(np.intp)]
    data = base64.b64encode(_png(image)).decode()
    return (
        f'<div style="margin-top:6px;opacity:.65">{_safe(panel.title)}</div>'
        f'<img alt="{_safe(panel.title)}, units over steps" src="data:image/png;base64,{data}" '
        'style="display:block;width:480px;max-width:100%;height:64px;image-rendering:pixelated">'
    )


def _reduced(values: Floats, most: int) -> Floats:
    """Means of neighbours along the first axis, so that there are at most so many."""
    starts = np.unique(np.linspace(0, len(values), min(most, len(values)), endpoint=False).astype(np.intp))
    counts = np.diff(np.append(starts, len(values)))
    with np.errstate(all="ignore"):
        means: Floats = np.add.reduceat(values, starts, axis=0, dtype=np.float64) / counts[:, None]
    return means


def _png(image: npt.NDArray[np.uint8]) -> bytes:
    """A PNG of colours [height, width, 3]."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = image.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, 3 * width)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body
