"""A call of a GRU node, and variations of it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from onegru.core.compare import Comparison, beyond, compare, nudged, rounding_effect, tolerance_of
from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import SpecWarning
from onegru.core.spec import Spec, Weights
from onegru.layers.call import apply
from onegru.layers.gru import GRU
from onegru.models.gru_node import GruNode, ports_for
from onegru.operators.lowering import lower
from onegru.operators.schema import WEIGHTS, OpSchema, Port


@dataclass(frozen=True, slots=True)
class GruCall:
    """A call of a GRU."""

    operator: OpSchema  # the operator that gives the ports names and axes
    spec: Spec  # the computation
    weights: Weights  # the weights
    ports: tuple[Port, ...]  # the inputs and outputs
    values: Mapping[str, Array]  # the given inputs without weights, by the ports' names
    outputs: tuple[str, ...]  # the requested outputs

    def run(self) -> dict[str, Array]:
        """Return the reference engine's outputs."""
        layer = GRU.from_canonical(self.spec, self.weights, engine="reference")
        return apply(layer, self.ports, self.values, dict.fromkeys(self.outputs))

    def tolerance(self, expected: Mapping[str, Array]) -> float:
        """Return the tolerance of outputs: the default, or more if the call amplifies rounding."""
        floats = [p.name for p in self.ports if p.role in ("X", "initial_h") and p.name in self.values]
        moved = {name: nudged(self.values[name]) for name in floats}
        others = replace(self, values={**self.values, **moved}).run()
        allowed = (rounding_effect(expected[name], others[name]) for name in self.outputs)
        return max(tolerance_of(self.spec.dtype), *allowed)

    def agreements(self, expected: Mapping[str, Array], got: Mapping[str, Array]) -> dict[str, Comparison]:
        """Compare each output in `got` with `expected`."""
        tolerance = tolerance_of(self.spec.dtype)
        first = {name: compare(expected[name], got[name], tolerance) for name in expected if name in got}
        if all(item.agrees for item in first.values()):
            return first
        tolerance = self.tolerance(expected)
        return {name: compare(expected[name], got[name], tolerance) for name in first}


def call_of(gru: GruNode, values: Mapping[str, Array] | None) -> GruCall:
    """Return the call of a node on these values; None for a call without inputs."""
    node, known = gru.step, values or {}
    names = [name for name in WEIGHTS if name in node.inputs]
    weights = dict(zip(names, gru.weights or [known[node.inputs[name]] for name in names], strict=True))
    with warnings.catch_warnings(action="ignore", category=SpecWarning):  # given when the model was loaded
        lowered = lower(node.operator, node.attributes, *(weights.get(name) for name in WEIGHTS))
    given = {} if values is None else {k: values[v] for k, v in node.inputs.items() if k not in WEIGHTS}
    ports = tuple(ports_for(node, lowered.ports))
    return GruCall(node.operator, lowered.spec, lowered.weights, ports, given, tuple(node.outputs))


def first_wrong(
    call: GruCall, name: str, expected: Array, got: Array
) -> tuple[tuple[int, ...], dict[str, int]]:
    """Return the index, in order and by axis, of the element beyond the tolerance that is computed first."""
    axes = next(port.axes for port in call.ports if port.name == name)
    tolerance = call.tolerance(call.run())
    indices = np.argwhere(beyond(expected, got, tolerance))
    if not len(indices):
        indices = np.argwhere(beyond(expected, got, tolerance_of(call.spec.dtype)))
    backwards = call.spec.reversed_directions

    def computed(index: Array) -> tuple[int, ...]:
        at = dict(zip(axes, map(int, index), strict=True))
        step = at.get("T", 0)
        if backwards[at.get("D", 0)] and "T" in at:
            step = expected.shape[axes.index("T")] - 1 - step
        return step, at.get("B", 0), at.get("D", 0), at.get("H", 0)

    index = tuple(int(number) for number in min(indices, key=computed))
    return index, dict(zip(axes, index, strict=True))


def in_type(call: GruCall, dtype: str) -> GruCall:
    """Return the call with weights and inputs rounded to another element type."""
    kind = numpy_dtype(dtype)
    weights = Weights(*(array.astype(kind) for array in (call.weights.W, call.weights.R, call.weights.B)))
    values = {
        name: array.astype(kind) if array.dtype.name == call.spec.dtype else array
        for name, array in call.values.items()
    }
    return replace(call, spec=replace(call.spec, dtype=dtype), weights=weights, values=values)
