"""The engines by name, and the reference as one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from onegru.core.arguments import choice, shown
from onegru.core.dtypes import WEIGHT_STORAGES, Array
from onegru.core.errors import SpecError
from onegru.core.spec import Spec, Weights
from onegru.engines import reference
from onegru.engines.interface import Engine, EngineStream, Problem
from onegru.engines.native import NativeEngine


class ReferenceEngine:
    """The NumPy float64 reference, its results rounded once to the element type."""

    name = "reference"
    native = None

    def __init__(self, spec: Spec, weights: Weights) -> None:
        self._spec = spec
        self._weights = reference.ReferenceWeights.split(weights)
        self.weights = weights

    def run(self, problem: Problem) -> None:
        """Write the outputs of `problem`."""
        reference.run(self._spec, self._weights, problem)

    def stream(self, state: Array) -> EngineStream:
        """Steps on `state`."""
        return _ReferenceStream(self, state)


class _ReferenceStream:
    """Steps of the reference; the state is rounded to its type at each end of a chunk."""

    native = None

    def __init__(self, engine: ReferenceEngine, state: Array) -> None:
        self._engine = engine
        self._state = state

    def run(self, X: Array, attention: Array | None, rows: Array | None, Y: Array) -> None:
        """Do checked steps."""
        if len(X) == 0:
            return
        chosen = slice(None) if rows is None else rows
        Y_h = np.empty((1, X.shape[1], self._state.shape[1]), self._state.dtype)
        self._engine.run(Problem(X, self._state[None, chosen], None, attention, Y, Y_h))
        self._state[chosen] = Y_h[0]


#: Engines by name, best first.
ENGINES: Mapping[str, Callable[[Spec, Weights], Engine]] = {
    "native": NativeEngine,
    "reference": ReferenceEngine,
}


def make_engine(name: str, spec: Spec, weights: Weights, weight_storage: str | None = None) -> Engine:
    """The engine called `name`, or the best one for "auto", with these weights.

    Raises:
        SpecError: there is no such engine, or it cannot keep weights in this type.
    """
    name = choice("engine", name, ("auto", *ENGINES))
    if weight_storage is None:
        return ENGINES[next(iter(ENGINES)) if name == "auto" else name](spec, weights)
    if not isinstance(weight_storage, str) or weight_storage not in WEIGHT_STORAGES:
        raise SpecError(
            f"weight_storage: {shown(weight_storage)}; must be {', '.join(WEIGHT_STORAGES)} or None"
        )
    if spec.dtype != "float32":
        raise SpecError(f"weight_storage: {weight_storage!r}; must be None for a layer of {spec.dtype}")
    if name == "reference":
        raise SpecError(f"weight_storage: {weight_storage!r}; must be None with the reference engine")
    return NativeEngine(spec, weights, weight_storage)
