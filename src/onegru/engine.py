"""What computes: the interface of an engine, and which engines there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from onegru import reference
from onegru.dtypes import Array
from onegru.errors import SpecError
from onegru.spec import Spec, Weights

__all__ = ["ENGINES", "Engine", "Problem", "make_engine"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One call in canonical form: checked views, of any strides, outputs not overlapping anything.

    Attributes:
        X: [T, B, I].
        initial_h: [D, B, H]; None for zeros.
        sequence_lens: [B], intp, each in 0…T; None for all T.
        attention: [T, B]; None without attention.
        Y: [T, D, B, H], to be written; None if nobody asks for it.
        Y_h: [D, B, H], to be written; None if nobody asks for it.
    """

    X: Array
    initial_h: Array | None
    sequence_lens: Array | None
    attention: Array | None
    Y: Array | None
    Y_h: Array | None


class Engine(Protocol):
    """Weights, prepared once, and what runs calls on them."""

    @property
    def name(self) -> str:
        """What to call the engine by: an argument of `onegru.GRU`."""

    def run(self, problem: Problem) -> None:
        """Write the outputs of `problem`."""


class ReferenceEngine:
    """The NumPy float64 reference, its results rounded once to the element type."""

    name = "reference"

    def __init__(self, spec: Spec, weights: Weights) -> None:
        self._spec = spec
        self._weights = reference.ReferenceWeights.split(weights)

    def run(self, problem: Problem) -> None:
        """Write the outputs of `problem`."""
        Y_h = reference.run(
            self._spec,
            self._weights,
            problem.X,
            problem.initial_h,
            problem.sequence_lens,
            problem.attention,
            problem.Y,
        )
        if problem.Y_h is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                problem.Y_h[...] = Y_h


#: Engines by name, best first.
ENGINES: Mapping[str, Callable[[Spec, Weights], Engine]] = {"reference": ReferenceEngine}


def make_engine(name: str, spec: Spec, weights: Weights) -> Engine:
    """The engine called `name`, or the best one for "auto", with these weights.

    Raises:
        SpecError: there is no such engine.
    """
    if not isinstance(name, str) or (name != "auto" and name not in ENGINES):
        raise SpecError(f"engine: {name!r}; must be one of auto, {', '.join(ENGINES)}")
    return ENGINES[next(iter(ENGINES)) if name == "auto" else name](spec, weights)
