"""Statistics of the gate values of a call."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onegru.core.activations import ACTIVATIONS, Activation
from onegru.core.compare import difference
from onegru.core.dtypes import Array
from onegru.layers.gates.data import GATES, Gates, matched

Numbers = npt.NDArray[np.float64]

#: The fraction of a range that counts as one of its ends.
_END = 0.05

#: A unit is dead if its h stays within this range.
DEAD = 1e-3

_MOST_ACTIVE = 5


@dataclass(frozen=True, slots=True)
class GateSummary:
    """The values of one gate over steps, rows and units; None if there are no values."""

    gate: str  # "z", "r", "n" or "h"
    least: float | None  # the smallest
    mean: float | None  # their mean
    most: float | None  # the largest
    # The fraction of values in the lowest twentieth of the activation's range, for z and r below 0.05; None
    # also if the range does not have two ends.
    low: float | None
    high: float | None  # fraction of values in the highest twentieth of the range: for z and r above 0.95


@dataclass(frozen=True, slots=True)
class DirectionSummary:
    """Summary of one direction of a call."""

    direction: str  # "forward" or "reverse"
    steps: int  # the number of steps in all rows
    gates: tuple[GateSummary, ...]  # z, r, n and h
    # the units whose h stays within 0.001 over all steps, including the state before the first step
    dead: tuple[int, ...]
    # the most active units, by the mean of |change of h| in a step, with that mean
    active: tuple[tuple[int, float], ...]


@np.errstate(all="ignore")  # for infinities, and signaling NaNs, which are invalid in casts
def summarise(gates: Gates, row: int | None) -> tuple[DirectionSummary, ...]:
    """Return a summary of each direction, over all rows or one row."""
    rows = slice(None) if row is None else [gates.row_index(row)]
    inside = (np.arange(len(gates.h))[:, None] < gates.lengths)[:, rows]
    found = []
    before = gates.previous_h
    for d, direction in enumerate(gates.directions):
        values = {name: _values(getattr(gates, name), d, rows, inside) for name in GATES}
        states = _values(before, d, rows, inside)
        functions = gates.spec.activations[d]
        items = tuple(_gate(name, values[name], functions[name in "nh"]) for name in GATES)
        dead, active = _units(values["h"], states)
        found.append(DirectionSummary(direction, len(states), items, dead, active))
    return tuple(found)


@np.errstate(all="ignore")
def largest_differences(gates: Gates, row: int, against: Gates) -> tuple[dict[str, float], ...]:
    """Return the largest difference of each gate, per direction, between a row of two calls."""
    (_, own), (_, other) = matched(gates, row, against)
    steps = min(gates.lengths[own], against.lengths[other])
    found = []
    for d in range(len(gates.directions)):
        rows = [
            {name: getattr(item, name)[:steps, d, at].astype(np.float64) for name in GATES}
            for item, at in ((gates, own), (against, other))
        ]
        found.append({name: difference(rows[0][name], rows[1][name]).max_abs for name in GATES})
    return tuple(found)


def activity(h: Array, before: Array) -> Numbers:
    """Return the mean |change of h| per step for each unit; 0 for an empty sequence. NaN counts as 0."""
    changes = np.nan_to_num(np.abs(h.astype(np.float64) - before), posinf=0.0)
    means: Numbers = np.sum(changes, axis=0) / max(1, len(changes))
    return means


def _values(array: Array, d: int, rows: object, inside: Array) -> Numbers:
    """Return the values of a direction's steps outside the padding, [steps, H]."""
    return array[:, d][:, rows][inside].astype(np.float64)  # type: ignore[index]


def _gate(name: str, values: Numbers, function: Activation) -> GateSummary:
    if not values.size:
        return GateSummary(name, None, None, None, None, None)
    figures = (float(values.min()), float(values.mean()), float(values.max()))
    low = high = None
    if (ends := ACTIVATIONS[function.name].bounds) is not None:
        least, most = ends
        margin = _END * (most - least)
        low, high = float(np.mean(values < least + margin)), float(np.mean(values > most - margin))
    return GateSummary(name, *figures, low, high)


def _units(h: Numbers, before: Numbers) -> tuple[tuple[int, ...], tuple[tuple[int, float], ...]]:
    """Return the dead units, and the most active units."""
    if not len(h):
        return (), ()
    both = np.concatenate([before, h])
    dead = np.flatnonzero(both.max(axis=0) - both.min(axis=0) < DEAD)
    means = activity(h, before)
    order = np.argsort(-means, kind="stable")[:_MOST_ACTIVE]
    return tuple(map(int, dead)), tuple((int(unit), float(means[unit])) for unit in order)
