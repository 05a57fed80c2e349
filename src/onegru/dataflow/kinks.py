"""Points where operators are not smooth, and the sides that runs have covered."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onegru.core.dtypes import Array
from onegru.dataflow.operator import Op
from onegru.dataflow.table.base import Arrays, operator_of

#: How far beyond a kink a value must be, relative to the largest there or 1, for the bend to show in outputs.
_FAR = 0.05

#: An operator, which of its kinks, and the side: 1 above, -1 below.
Side = tuple[int, int, int]


class Kinks:
    """The sides of kinks, and how far beyond each the runs have been."""

    def __init__(self) -> None:
        self.best: dict[Side, float] = {}
        self.now: dict[Side, float] = {}

    def note(self, op: Op, inputs: Sequence[Array | None]) -> None:
        """Note where an operator's inputs are."""
        if not operator_of(op.kind).bends:
            return
        call = Arrays(op.kind, op.attributes, inputs)
        for number, margin in enumerate(call.operator.margins(call)):
            if not margin.size or not np.isfinite(margin).all():
                continue
            for sign in (1, -1):
                side = id(op), number, sign
                self.now[side] = max(self.now.get(side, -np.inf), float(np.max(sign * margin)))

    def end(self) -> set[Side]:
        """End a run; returns the sides of which it has come nearer, or farther beyond."""
        nearer = {side for side, far in self.now.items() if far > self.best.get(side, -np.inf)}
        self.best.update({side: self.now[side] for side in nearer})
        self.now = {}
        return nearer

    @property
    def missing(self) -> list[Side]:
        """The sides that no run has been on, or hardly."""
        return sorted(side for side, far in self.best.items() if far < _FAR)
