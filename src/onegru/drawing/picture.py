"""Data of the page of gate values: panels over time, for one run or two."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Panel:
    """One kind of number."""

    key: str  # its symbol, such as "z"
    title: str  # its name, such as "update gate z"
    words: str  # the meaning of its values, in a line
    low: float  # the number of its first color
    high: float  # the number of its last color
    kind: str  # "sequential" or "diverging"
    apart: float = 0.0  # the largest difference between two runs; 0 if they are equal or there is one run


@dataclass(frozen=True, slots=True)
class Run:
    """The numbers of one run."""

    label: str  # its name
    words: str  # its description
    values: tuple[Floats, ...]  # the values of each panel, [T, H]

    @property
    def steps(self) -> int:
        """Number of steps (T)."""
        return len(self.values[0])


@dataclass(frozen=True, slots=True)
class DirectionView:
    """One direction of one run, or of two runs."""

    name: str  # the direction's name
    panels: tuple[Panel, ...]  # the panels to show
    runs: tuple[Run, ...]  # one run, or two runs to compare
    orders: Mapping[str, Sequence[int]]  # orders of the units, by name; the first is the default

    @property
    def units(self) -> int:
        """Hidden size (H)."""
        return int(self.runs[0].values[0].shape[1])


@dataclass(frozen=True, slots=True)
class Picture:
    """The data of a page."""

    title: str  # a short title
    words: str  # a description of the run, in a line
    views: tuple[DirectionView, ...]  # one view, or one for each direction


def extent(values: Sequence[Floats]) -> tuple[float, float]:
    """Return the least and the greatest finite number of the arrays; 0 and 0 if there is none."""
    finite = [array[np.isfinite(array)] for array in values]
    finite = [array for array in finite if array.size]
    if not finite:
        return 0.0, 0.0
    return float(min(array.min() for array in finite)), float(max(array.max() for array in finite))


def symmetrical(values: Sequence[Floats]) -> float:
    """Return a round number that no finite absolute value exceeds; 1 if all are 0."""
    most = max(map(abs, extent(values)))
    if most == 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(most))
    return next(unit * factor for factor in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if unit * factor >= most)
