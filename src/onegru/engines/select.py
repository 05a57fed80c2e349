"""Select an engine by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from onegru.core.arguments import choice, flag, shown
from onegru.core.dtypes import (
    ACTIVATION_STORAGES,
    DEFAULT_ACTIVATION_STORAGE,
    WEIGHT_STORAGES,
    Array,
    group_size,
    is_int8,
    may_round,
)
from onegru.core.errors import SpecError
from onegru.core.spec import Spec, Weights
from onegru.engines import reference
from onegru.engines.interface import Engine, EngineOptions, EngineStream, Problem
from onegru.engines.native import NativeEngine
from onegru.engines.storage import check_storage, stored


class ReferenceEngine:
    """The NumPy float64 reference engine, with results rounded once to the element type."""

    name = "reference"
    native = None

    def __init__(self, spec: Spec, weights: Weights, options: EngineOptions) -> None:
        self._spec = spec
        storage = options.weight_storage
        self.weights = weights if storage is None else stored(weights, storage)
        self._weights = reference.ReferenceWeights.split(
            self.weights, options.activation_storage, group_size(options.weight_storage)
        )
        rounds = options.activation_storage == "bfloat16"
        self._least = reference.LEAST_NORMAL if rounds else 0.0
        if options.flush_subnormals:
            self._least = reference.LEAST_STATES[spec.dtype == "float64"]

    def run(self, problem: Problem) -> None:
        """Write the outputs of `problem`."""
        reference.run(self._spec, self._weights, problem, self._least)

    def stream(self, state: Array) -> EngineStream:
        """Return a stream with this state."""
        return _ReferenceStream(self, state)


class _ReferenceStream:
    """Steps of the reference. The state is rounded to its type after each chunk."""

    native = None

    def __init__(self, engine: ReferenceEngine, state: Array) -> None:
        self._engine = engine
        self._state = state

    def run(self, X: Array, attention: Array | None, rows: Array | None, Y: Array) -> None:
        """Run checked steps."""
        if len(X) == 0:
            return
        chosen = slice(None) if rows is None else rows
        Y_h = np.empty((1, X.shape[1], self._state.shape[1]), self._state.dtype)
        self._engine.run(Problem(X, self._state[None, chosen], None, attention, Y, Y_h))
        self._state[chosen] = Y_h[0]


#: Engines by name, best first.
ENGINES: Mapping[str, Callable[[Spec, Weights, EngineOptions], Engine]] = {
    "native": NativeEngine,
    "reference": ReferenceEngine,
}


def engine_options(
    engine: object, weight_storage: object, activation_storage: object, flush_subnormals: object = False
) -> EngineOptions:
    """Check and return the options, as in the arguments of `onegru.GRU`."""
    flushes = flag("flush_subnormals", flush_subnormals)
    name = choice("engine", engine, ("auto", *ENGINES))
    storage = _among("weight_storage", weight_storage, tuple(WEIGHT_STORAGES))
    activations = _among("activation_storage", activation_storage, tuple(ACTIVATION_STORAGES))
    if activations is not None and not may_round(storage, activations):
        fitting = [item for item in ACTIVATION_STORAGES if may_round(storage, item)]
        must = f"{', '.join(fitting)} or None with weight_storage {storage!r}"
        if not fitting:
            must = "None, unless weight_storage is an int8 type or bfloat16"
        raise SpecError.of("activation_storage", f"{activations!r}; must be {must}")
    default = DEFAULT_ACTIVATION_STORAGE if is_int8(storage) else None
    return EngineOptions(name, storage, activations or default, flushes)


def model_options(
    engine: object, weight_storage: object, activation_storage: object, flush_subnormals: object = False
) -> EngineOptions:
    """Check the options of a model; nodes that a mapping does not name keep the default."""
    weights = _by_node("weight_storage", weight_storage)
    activations = _by_node("activation_storage", activation_storage)
    named = [item for item in (weights, activations) if isinstance(item, dict)]
    if not named:
        return engine_options(engine, weights, activations, flush_subnormals)
    for node in dict.fromkeys(node for item in named for node in item):
        own, its = (item.get(node) if isinstance(item, dict) else item for item in (weights, activations))
        engine_options(engine, own, its if may_round(own, its) or isinstance(activations, dict) else None)
    if (
        isinstance(weights, dict)
        and isinstance(activations, str)
        and not any(may_round(kept, activations) for kept in weights.values())
    ):
        engine_options(engine, None, activations)
    others = engine_options(engine, None, None, flush_subnormals)
    return others._replace(weight_storage=_text(weights), activation_storage=_text(activations))


def storage_text(name: str, value: object) -> object:
    """Return an option in the form of EngineOptions if it is a mapping; others unchanged."""
    return _text(_by_node(name, value))


def _text(value: object) -> Any:
    if not isinstance(value, dict):
        return value
    return "\n".join(f"{node}={storage}" for node, storage in value.items())


def _by_node(name: str, value: object) -> object:
    """Return an option: a dict if it names nodes, None for an empty mapping, others unchanged."""
    if isinstance(value, str) and "=" in value:
        lines = [line.rpartition("=") for line in value.split("\n")]
        value = {node: storage for node, _, storage in lines}
        if len(value) < len(lines) or not all(equals for _, equals, _ in lines):
            raise SpecError.of(name, "must be one type, or NODE=TYPE once for each node")
    if not isinstance(value, Mapping):
        return value
    for node, storage in value.items():
        if not isinstance(node, str) or "\n" in node or not isinstance(storage, str):
            raise SpecError.of(name, f"{shown(node)}: {shown(storage)}; must map names of GRU nodes to types")
    return dict(value) or None


def check_names(options: EngineOptions, names: Sequence[str]) -> None:
    """Raise SpecError unless the GRU nodes that options name all exist, once each."""
    for option, nodes in options.named.items():
        for node in sorted(nodes):
            if names.count(node) != 1:
                there = "several GRU nodes are" if node in names else "no GRU node is"
                listed = ", ".join(map(repr, names)) or "none"
                raise SpecError.of(option, f"{there} called {node!r}; must name a single one of {listed}")


def make_engine(options: EngineOptions, spec: Spec, weights: Weights) -> Engine:
    """Return an engine with these options and weights, the best one for "auto"."""
    name, storage, *_ = options
    if storage is not None and spec.dtype != "float32":
        raise SpecError.of("weight_storage", f"{storage!r}; must be None for a layer of {spec.dtype}")
    check_storage(weights, storage)
    return ENGINES[next(iter(ENGINES)) if name == "auto" else name](spec, weights, options)


def _among(name: str, value: object, values: tuple[str, ...]) -> str | None:
    if value is None or (isinstance(value, str) and value in values):
        return value
    raise SpecError.of(name, f"{shown(value)}; must be {', '.join(values)} or None")
