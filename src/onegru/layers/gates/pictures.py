"""Gate values as data for the HTML page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onegru.core.dtypes import Array
from onegru.core.wording import count, printable
from onegru.drawing.picture import DirectionView, Panel, Picture, Run, extent, symmetrical
from onegru.layers.gates.data import GATES, Gates, matched
from onegru.layers.gates.summary import activity

_TITLES = {
    "z": ("update gate z", "1 keeps the state, 0 replaces it with the candidate"),
    "r": ("reset gate r", "scales the previous state in the candidate"),
    "n": ("candidate n", "the new state if z is 0"),
    "h": ("state h", "the output: (1 − z)·n + z·(h of the previous step)"),
}


@np.errstate(all="ignore")
def picture(gates: Gates, row: int, direction: str | None, against: Gates | None) -> Picture:
    """Return the picture of one row of a call."""
    runs = matched(gates, row, against)
    names = gates.directions if direction is None else (gates.directions[gates.direction_index(direction)],)
    return Picture(
        title=printable(" · ".join(filter(None, (gates.source, gates.name))) or "GRU"),
        words=_words(*runs[0], names),
        views=tuple(_view(name, names, runs) for name in names),
    )


def _view(direction: str, names: Sequence[str], runs: list[tuple[Gates, int]]) -> DirectionView:
    labels = ("this run", "other run")
    drawn, befores = [], []
    for label, (gates, row) in zip(labels, runs, strict=False):
        d, steps = gates.directions.index(direction), gates.lengths[row]
        values = tuple(getattr(gates, name)[:steps, d, row].astype(np.float32) for name in GATES)
        words = printable(" · ".join(filter(None, (gates.source, gates.name, _words(gates, row, names)))))
        drawn.append(Run(label, words, values))
        befores.append(gates.previous_h[:steps, d, row])
    panels = tuple(
        _panel(name, [run.values[index] for run in drawn], bool(runs[0][0].spec.attention))
        for index, name in enumerate(GATES)
    )
    return DirectionView(direction, panels, tuple(drawn), _orders(drawn[0].values, befores[0]))


def _panel(name: str, values: list[Array], attention: bool) -> Panel:
    title, words = _TITLES[name]
    if name == "z" and attention:
        title += ", after attention"
    least, most = extent(values)
    apart = 0.0
    if len(values) == 2:
        common = min(map(len, values))
        difference = values[0][:common] - values[1][:common]
        if extent([difference]) != (0.0, 0.0):
            apart = symmetrical([difference])
    if name in "zr" and least >= 0 and most <= 1:
        return Panel(name, title, words, 0.0, 1.0, "sequential", apart)
    bound = symmetrical(values)
    return Panel(name, title, words, -bound, bound, "diverging", apart)


def _orders(values: tuple[Array, ...], before: Array) -> dict[str, list[int]]:
    """Return orders of the units, by their names."""
    z, h = values[0], values[GATES.index("h")]
    kept = np.sum(np.nan_to_num(z, posinf=0, neginf=0), axis=0, dtype=np.float64)
    peaks = np.argmax(np.nan_to_num(np.abs(h), posinf=0), axis=0) if len(h) else np.zeros(h.shape[1])
    ranks = {
        "most active first": -activity(h, before),
        "longest memory first (mean of z)": -kept,
        "by the step of the largest |h|": peaks,
        "by index": np.arange(h.shape[1]),
    }
    return {name: np.argsort(rank, kind="stable").tolist() for name, rank in ranks.items()}


def _words(gates: Gates, row: int, names: Sequence[str]) -> str:
    """Describe the run in a line, with the direction if there are several."""
    spec, rows = gates.spec, len(gates.lengths)
    reset = "after" if spec.linear_before_reset else "before"
    of = f"row {row} of {rows}, " if rows > 1 else ""
    way = f"{names[0]}, " if len(names) == 1 and gates.directions != ("forward",) else ""
    return (
        f"{way}{of}{count(int(gates.lengths[row]), 'step')}, {count(spec.hidden_size, 'unit')}, "
        f"{spec.dtype}, reset gate {reset} the recurrent product"
    )
