"""The effect of rounding on the outputs of a model."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from onegru.core.compare import nudged, rounding_effect
from onegru.core.errors import OneGRUError, SpecWarning
from onegru.engines.interface import EngineOptions
from onegru.models.model import Model, graph_in


def with_engine(model: Model, engine: str) -> Model:
    """The same model, its GRU nodes run by another of onegru's engines."""
    with warnings.catch_warnings(action="ignore", category=SpecWarning):  # given when the model was loaded
        return Model(graph_in(model), EngineOptions(engine))


class Rounding:
    """How far rounding may move a model's outputs.

    A model may be so sensitive, or so deep, that no two runtimes agree on it to the last digits. A run on
    inputs of which every number is one rounding away shows how sensitive it is. Of inputs that are all
    integers there is none: there, how far GRU nodes in their own type are from those in float64.
    """

    def __init__(
        self,
        model: Model,
        inputs: Mapping[str, Any],
        exact: Mapping[str, Any] | None = None,
        dtypes: Collection[str] = (),
        judge: Model | None = None,
    ) -> None:
        self._model, self._inputs, self._exact = model, inputs, exact
        self._dtypes, self._judge = dtypes, judge

    def effect(self, name: str) -> float:
        """How far an output may be off, relative to max(1, its absolute value); of integers, which share."""
        exact, moved = (outputs.get(name) for outputs in self._pair)
        if not isinstance(exact, np.ndarray) or not isinstance(moved, np.ndarray):
            return 0.0
        return rounding_effect(exact, moved)

    @cached_property
    def _pair(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Outputs, and what rounding makes of them."""
        moved = {
            name: nudged(value, self._dtypes) if isinstance(value, np.ndarray) else value
            for name, value in self._inputs.items()
        }
        is_moved = any(moved[name] is not value for name, value in self._inputs.items())
        model = self._model if is_moved else self._judge
        if model is None:
            return {}, {}
        try:
            reference = with_engine(model, "reference")
            exact = reference.run(self._inputs) if self._exact is None else self._exact
            other = reference if is_moved else with_engine(model, "native")
            return exact, other.run(moved)
        except OneGRUError:  # the moved ones are out of its range, or it has what the reference cannot run
            return {}, {}
