"""Where operators bend: the sides of each kink that runs have reached, and how near they came to others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from onegru.core.dtypes import Array
from onegru.dataflow.operator import Op

#: How far beyond a kink a value must be, relative to the largest there or 1, for the bend to show in outputs.
_FAR = 0.05

Inputs = list[Array | None]


def _over(x: Array | None, bound: Any) -> list[Array]:
    return [] if x is None or bound is None or not np.all(np.isfinite(bound)) else [x - bound]


def _clip(attributes: Mapping[str, Any], inputs: Inputs) -> list[Array]:
    ends = [attributes.get(name, inputs[place] if len(inputs) > place else None) for name, place in _ENDS]
    return [margin for end in ends for margin in _over(inputs[0], end)]


_ENDS = (("min", 1), ("max", 2))


def _sign(attributes: Mapping[str, Any], inputs: Inputs) -> list[Array]:
    return _over(inputs[0], 0.0)


def _threshold(attributes: Mapping[str, Any], inputs: Inputs) -> list[Array]:
    return _over(inputs[0], attributes.get("alpha", 1.0))


def _hard_sigmoid(attributes: Mapping[str, Any], inputs: Inputs) -> list[Array]:
    alpha, beta = attributes.get("alpha", 0.2), attributes.get("beta", 0.5)
    return [margin for end in (0.0, 1.0) for margin in _over(inputs[0] * alpha + beta, end)]


def _compared(attributes: Mapping[str, Any], inputs: Inputs) -> list[Array]:
    first, *others = (item for item in inputs if item is not None)
    return [margin for other in others if other.dtype.kind == "f" for margin in _over(first, other)]


#: The numbers whose sign says on which side of its kinks an operator is, by its kind.
_MARGINS: dict[str, Callable[[Mapping[str, Any], Inputs], list[Array]]] = {
    **dict.fromkeys(("Abs", "Relu", "LeakyRelu", "PRelu", "Elu"), _sign),
    **dict.fromkeys(("Max", "Min", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"), _compared),
    "ThresholdedRelu": _threshold,
    "HardSigmoid": _hard_sigmoid,
    "Clip": _clip,
}

#: An operator, which of its kinks, and the side: 1 above, -1 below.
Side = tuple[int, int, int]


class Kinks:
    """The sides of kinks, and how far beyond each the runs have been."""

    def __init__(self) -> None:
        self.best: dict[Side, float] = {}
        self.now: dict[Side, float] = {}

    def note(self, op: Op, inputs: Inputs) -> None:
        """Note where an operator's inputs are."""
        if op.kind not in _MARGINS:
            return
        for number, margin in enumerate(_MARGINS[op.kind](op.attributes, inputs)):
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
