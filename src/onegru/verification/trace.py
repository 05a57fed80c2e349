"""Runs of a model that also return the inputs and outputs of its GRU nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onegru.core.compare import arrays_in, largest_allowed, tolerance_of
from onegru.core.dtypes import Array
from onegru.formats.graph import by_name
from onegru.models.model import Model, traced
from onegru.models.rounding import Rounding, with_engine
from onegru.operators.schema import WEIGHTS


@dataclass(frozen=True, slots=True)
class Trace:
    """The values of a run."""

    outputs: Mapping[str, Any]  # the model's outputs, by name
    values: Mapping[str, Any]  # the inputs and outputs of its GRU nodes, by the graph's names for them


def probed_values(model: Model) -> tuple[str, ...]:
    """Return the values around GRU nodes that only a run shows: neither inputs of the model nor constants."""
    known = {info.value for info in model.inputs} | set(model.graph.constants)
    found: dict[str, None] = {}
    for gru in model.gru_nodes:
        if gru.bodies:  # no runtime returns values in a body
            continue
        weights = WEIGHTS if gru.weights else ()
        found |= dict.fromkeys(value for name, value in gru.step.inputs.items() if name not in weights)
        found |= dict.fromkeys(gru.step.outputs.values())
    return tuple(value for value in found if value not in known)


def given_values(model: Model, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are known before a run: constants and given inputs."""
    names = by_name(model.inputs)
    values: dict[str, Any] = dict(model.graph.constants)
    for name, array in inputs.items():
        values[names[name].value or names[name].name] = array
    return values


def traced_run(model: Model, inputs: Mapping[str, Any], engine: str) -> Trace:
    """Run a model with one of onegru's engines."""
    outputs, arrays = traced(with_engine(model, engine), inputs)
    values = given_values(model, inputs)
    for gru, ports in zip(model.gru_nodes, arrays, strict=True):
        names = {**gru.step.inputs, **gru.step.outputs}
        values |= {names[port]: array for port, array in ports.items()}
    return Trace(outputs, values)


def tolerances(model: Model, inputs: Mapping[str, Any], exact: Mapping[str, Any]) -> dict[str, float]:
    """Return each output's tolerance: the default of its type, or more if the model amplifies rounding."""
    types = {gru.layer.spec.dtype for gru in model.gru_nodes if gru.layer is not None}
    rounding = Rounding(model, inputs, exact, types)

    def allowed(name: str, array: Array) -> float:
        base = tolerance_of(array.dtype.name)
        return max(min(base, largest_allowed(array, base)) if base else 0.0, rounding.effect(name))

    return {
        name: max((allowed(name, array) for array in arrays_in(output)), default=0.0)
        for name, output in exact.items()
    }
