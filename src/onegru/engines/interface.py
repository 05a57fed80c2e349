"""The interface of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

from onegru import _native
from onegru.core.dtypes import DEFAULT_ACTIVATION_STORAGE, Array, is_int8, may_round
from onegru.core.spec import Weights


class EngineOptions(NamedTuple):
    """What runs a layer, and in which types, as in the arguments of `onegru.GRU`.

    Options of a model may name a type for each GRU node, in lines NODE=TYPE: this is also how ONNX Runtime
    hands them to its provider.
    """

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
        """The options that are set, as ONNX Runtime hands them to its provider."""
        return {name: "1" if value is True else value for name, value in self._asdict().items() if value}

    def for_node(self, name: str) -> Self:
        """The options of one GRU node of a model."""
        weights, activations = (
            _told(value, name) for value in (self.weight_storage, self.activation_storage)
        )
        if not may_round(weights, activations):
            activations = DEFAULT_ACTIVATION_STORAGE if is_int8(weights) else None
        return self._replace(weight_storage=weights, activation_storage=activations)

    def for_type(self, dtype: str) -> Self:
        """The options for a GRU node of a model: only float32 nodes can store weights in another type."""
        return self if dtype == "float32" else self._replace(weight_storage=None, activation_storage=None)


def _told(value: str | None, node: str) -> str | None:
    """What an option says of a node."""
    if value is None or "=" not in value:
        return value
    lines = (line.rpartition("=") for line in value.split("\n"))
    return next((storage for name, _, storage in lines if name == node), None)


#: The best engine, and weights in the layer's own type.
DEFAULT_OPTIONS = EngineOptions()


@dataclass(frozen=True, slots=True)
class Problem:
    """One call in canonical form: checked views of any strides; outputs overlap nothing."""

    X: Array  # [T, B, I]
    initial_h: Array | None  # [D, B, H]; None for zeros
    sequence_lens: Array | None  # [B], intp, each in 0…T; None for all T
    attention: Array | None  # [T, B]; None without attention
    Y: Array | None  # [T, D, B, H], to be written; None if not wanted
    Y_h: Array | None  # [D, B, H], to be written; None if not wanted


class EngineStream(Protocol):
    """Steps on a state [B, H], of the type computed in, that is changed in place."""

    @property
    def native(self) -> _native.Stream | None:
        """The native fast path for plain steps, if there is one."""

    def run(self, X: Array, attention: Array | None, rows: Array | None, Y: Array) -> None:
        """Do checked steps: X [T, n, I], attention [T, n], rows [n] of the state or None, Y [T, 1, n, H]."""


class Engine(Protocol):
    """Weights, prepared once, and what runs calls on them."""

    @property
    def name(self) -> str:
        """The engine's name, as in the argument of `onegru.GRU`."""

    @property
    def weights(self) -> Weights:
        """The weights, restored from the form that they are kept in."""

    def run(self, problem: Problem) -> None:
        """Write the outputs of `problem`."""

    @property
    def native(self) -> _native.Layer | None:
        """The native fast path for plain calls, if there is one."""

    def stream(self, state: Array) -> EngineStream:
        """Steps on `state`."""
