"""Estimate how far rounding may change a model's outputs."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from onegru.core.compare import arrays_in, nudged, rounding_effect
from onegru.core.errors import OneGRUError, SpecWarning
from onegru.engines.interface import EngineOptions
from onegru.models.model import Model


def with_engine(model: Model, engine: str) -> Model:
    """Return the same model with another engine for its GRU nodes."""
    with warnings.catch_warnings(action="ignore", category=SpecWarning):  # given when the model was loaded
        return Model(model.graph, EngineOptions(engine))


class Rounding:
    """Estimate of how far rounding may change a model's outputs.

    Some models are so sensitive, or so deep, that no two runtimes agree on the last digits. To measure this,
    onegru runs the model on inputs with every value changed by one rounding. If all inputs are integers,
    onegru compares GRU nodes in their own type with GRU nodes in float64 instead.
    """

    def __init__(
        self,
        model: Model,
        inputs: Mapping[str, Any],
        exact: Mapping[str, Any] | None = None,
        dtypes: Collection[str] = (),
        with_gru_nodes: Model | None = None,  # runs in two engines if all inputs are integers
    ) -> None:
        self._model, self._inputs, self._exact = model, inputs, exact
        self._dtypes, self._with_gru_nodes = dtypes, with_gru_nodes

    def effect(self, name: str) -> float:
        """Return the possible error of an output, relative to max(1, |value|); for integers, a fraction."""
        exact, moved = (arrays_in(outputs.get(name)) for outputs in self._pair)
        return max(map(rounding_effect, exact, moved), default=0.0)

    @cached_property
    def _pair(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return the exact outputs, and the outputs changed by rounding."""
        moved = {
            name: nudged(value, self._dtypes) if isinstance(value, np.ndarray) else value
            for name, value in self._inputs.items()
        }
        is_moved = any(moved[name] is not value for name, value in self._inputs.items())
        model = self._model if is_moved else self._with_gru_nodes
        if model is None:
            return {}, {}
        try:
            reference = with_engine(model, "reference")
            exact = reference.run(self._inputs) if self._exact is None else self._exact
            other = reference if is_moved else with_engine(model, "native")
            return exact, other.run(moved)
        except OneGRUError:  # changed inputs are out of range, or the reference engine does not support it
            return {}, {}
