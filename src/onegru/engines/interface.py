"""The interface of an engine: what it is given, and what it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

from onegru import _native
from onegru.core.dtypes import Array
from onegru.core.spec import Weights


class EngineOptions(NamedTuple):
    """What runs a layer, and in which types, as in the arguments of `onegru.GRU`."""

    engine: str = "auto"
    weight_storage: str | None = None
    activation_storage: str | None = None

    def for_type(self, dtype: str) -> Self:
        """The options for a GRU node of a model: only those of float32 keep their weights in another type."""
        return self if dtype == "float32" else self._replace(weight_storage=None, activation_storage=None)


#: The best engine, and weights in the layer's own type.
DEFAULT_OPTIONS = EngineOptions()


@dataclass(frozen=True, slots=True)
class Problem:
    """One call in canonical form: checked views of any strides; outputs overlap nothing.

    Attributes:
        X: [T, B, I].
        initial_h: [D, B, H]; None for zeros.
        sequence_lens: [B], intp, each in 0…T; None for all T.
        attention: [T, B]; None without attention.
        Y: [T, D, B, H], to be written; None if not wanted.
        Y_h: [D, B, H], to be written; None if not wanted.
    """

    X: Array
    initial_h: Array | None
    sequence_lens: Array | None
    attention: Array | None
    Y: Array | None
    Y_h: Array | None


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
