"""The interface of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

from onegru import _native
from onegru.core.dtypes import DEFAULT_ACTIVATION_STORAGE, Array, is_int8, may_round
from onegru.core.spec import Weights


class EngineOptions(NamedTuple):
    """Options of the engine and its types, as in `onegru.GRU`; a type may be a list of lines NODE=TYPE."""

    engine: str = "auto"
    weight_storage: str | None = None
    activation_storage: str | None = None
    flush_subnormals: bool = False

    @property
    def named(self) -> Mapping[str, frozenset[str]]:
        """The GRU nodes that each option names."""
        return {
            name: frozenset(line.rpartition("=")[0] for line in value.split("\n"))
            for name, value in self._asdict().items()
            if isinstance(value, str) and "=" in value
        }

    @property
    def texts(self) -> dict[str, Any]:
        """The options that are set, as the texts that ONNX Runtime passes to its provider."""
        return {name: "1" if value is True else value for name, value in self._asdict().items() if value}

    def for_node(self, name: str) -> Self:
        """Return the options of one GRU node of a model."""
        weights, activations = (
            _option_for(value, name) for value in (self.weight_storage, self.activation_storage)
        )
        if not may_round(weights, activations):
            activations = DEFAULT_ACTIVATION_STORAGE if is_int8(weights) else None
        return self._replace(weight_storage=weights, activation_storage=activations)

    def for_type(self, dtype: str) -> Self:
        """Return the options for a GRU node of a model. Only float32 nodes can use another storage type."""
        return self if dtype == "float32" else self._replace(weight_storage=None, activation_storage=None)


def _option_for(value: str | None, node: str) -> str | None:
    """Return the value of an option for a node."""
    if value is None or "=" not in value:
        return value
    lines = (line.rpartition("=") for line in value.split("\n"))
    return next((storage for name, _, storage in lines if name == node), None)


#: The best engine, and weights in the layer's type.
DEFAULT_OPTIONS = EngineOptions()


@dataclass(frozen=True, slots=True)
class Problem:
    """One call in canonical form, as checked views of any strides. Outputs overlap no other array."""

    X: Array  # [T, B, I]
    initial_h: Array | None  # [D, B, H]; None for zeros
    sequence_lens: Array | None  # [B], intp, each in 0…T; None for all T
    attention: Array | None  # [T, B]; None without attention
    Y: Array | None  # [T, D, B, H], output; None if not requested
    Y_h: Array | None  # [D, B, H], output; None if not requested


class EngineStream(Protocol):
    """A stream that changes a state [B, H], of the type of the computation, in place."""

    @property
    def native(self) -> _native.Stream | None:
        """The native fast path for plain steps; None without one."""

    def run(self, X: Array, attention: Array | None, rows: Array | None, Y: Array) -> None:
        """Run checked steps: X [T, n, I], attention [T, n], rows [n] of the state or None, Y [T, 1, n, H]."""


class Engine(Protocol):
    """An engine with weights that are prepared once for many calls."""

    @property
    def name(self) -> str:
        """The engine's name, as in the argument of `onegru.GRU`."""

    @property
    def weights(self) -> Weights:
        """The weights, restored from the engine's form."""

    def run(self, problem: Problem) -> None:
        """Write the outputs of `problem`."""

    @property
    def native(self) -> _native.Layer | None:
        """The native fast path for plain calls; None without one."""

    def stream(self, state: Array) -> EngineStream:
        """Return a stream with this state."""
