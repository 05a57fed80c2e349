"""The HTML page of gate values: one file that loads nothing."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from onegru.drawing.colours import KINDS, THEMES, colours
from onegru.drawing.picture import DirectionView, Floats, Panel, Picture

#: The largest count of numbers in a page, each in two bytes. As text they take 27 MB.
MOST_NUMBERS = 10_000_000

_NONE = 65535  # stands for NaN


def page(picture: Picture) -> str:
    """Return the page of a picture. If it is too large, it holds means of a few steps each, and says so."""
    numbers = sum(array.size for view in picture.views for run in view.runs for array in run.values)
    stride = max(1, math.ceil(numbers / MOST_NUMBERS))
    notes = []
    if stride > 1:
        notes.append(
            f"This is a large run: each column is the mean of {stride} steps, so that the page stays small. "
            "The .npz file has every step."
        )
    if not any(run.steps for view in picture.views for run in view.runs):
        notes.append("This row is an empty sequence.")
    data = {
        "words": picture.words,
        "notes": notes,
        "stride": stride,
        "colours": {
            f"{theme} {kind}": _text(colours(theme, kind).tobytes()) for theme in THEMES for kind in KINDS
        },
        "views": [_view(view, stride) for view in picture.views],
    }
    folder = Path(__file__).parent
    parts = {
        "title": escape(picture.title),
        # Only "<" could end the element.
        "data": json.dumps(data, allow_nan=False).replace("<", "\\u003c"),
        "script": "\n".join((folder / name).read_text(encoding="utf-8") for name in ("maps.js", "page.js")),
    }
    pieces = (folder / "page.html").read_text(encoding="utf-8").split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        filled += [parts[name], rest]
    return "".join(filled)


def _view(view: DirectionView, stride: int) -> dict[str, Any]:
    panels = [asdict(panel) for panel in view.panels]
    runs = [
        {
            "label": run.label,
            "words": run.words,
            "length": run.steps,
            "steps": -(-run.steps // stride),
            "data": [
                _text(_packed(array, panel, stride))
                for array, panel in zip(run.values, view.panels, strict=True)
            ],
        }
        for run in view.runs
    ]
    orders = {name: list(order) for name, order in view.orders.items()}
    return {"name": view.name, "units": view.units, "panels": panels, "runs": runs, "orders": orders}


def _packed(array: Floats, panel: Panel, stride: int) -> bytes:
    """Return numbers of a panel's range in two bytes each, unit by unit; infinities become range ends."""
    if stride > 1 and len(array):
        starts = np.arange(0, len(array), stride)
        counts = np.diff(np.append(starts, len(array)))
        with np.errstate(all="ignore"):
            array = np.add.reduceat(array, starts, axis=0, dtype=np.float64) / counts[:, None]
    with np.errstate(all="ignore"):
        shares = np.clip((array - panel.low) / (panel.high - panel.low), 0, 1)
    whole = np.where(np.isnan(shares), _NONE, np.round(np.nan_to_num(shares) * (_NONE - 1)))
    return whole.T.astype("<u2").tobytes()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
