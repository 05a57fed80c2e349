"""The gate values of one call, as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from onegru.core.arguments import integer, shown
from onegru.core.dtypes import Array, as_array_of, as_lengths, group_size, numpy_dtype
from onegru.core.errors import SpecError
from onegru.core.shapes import check_shape, empty
from onegru.core.spec import Spec
from onegru.core.wording import count
from onegru.engines import reference
from onegru.layers.call import CallableLayer, bind, execute
from onegru.operators.schema import CANONICAL_AXES, Port

#: The arrays with shape [T, D, B, H], in the order of the equations.
GATES = ("z", "r", "n", "h")

_Gates = TypeVar("_Gates", bound="Gates")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Gates:
    """The gates of one call. Attributes: see `onegru.reports.GateTrace`."""

    spec: Spec
    z: Array
    r: Array
    n: Array
    h: Array
    initial_h: Array
    lengths: Array
    raw_z: Array | None = None
    name: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.spec, Spec):
            raise SpecError.of("spec", f"{shown(self.spec)}; must be a Spec")
        sizes = {"D": self.spec.num_directions, "H": self.spec.hidden_size}
        axes = {**dict.fromkeys(GATES, "TDBH"), "initial_h": "DBH", "raw_z": "TDBH"}
        if (self.raw_z is not None) != bool(self.spec.attention):
            raise SpecError.of("raw_z", "must be set if the layer has attention, and None otherwise")
        for name, letters in axes.items():
            if getattr(self, name) is not None:
                array = as_array_of(self.spec.dtype, name, getattr(self, name))
                check_shape(name, array.shape, letters, sizes)
                object.__setattr__(self, name, array)
        lengths = as_lengths("lengths", self.lengths)
        check_shape("lengths", lengths.shape, "B", sizes)
        if np.any((lengths < 0) | (lengths > sizes["T"])):
            raise SpecError.of("lengths", f"contains a length out of range; each must be in 0…{sizes['T']}")
        object.__setattr__(self, "lengths", lengths.astype(np.int64))
        for name in ("name", "source"):
            if not isinstance(getattr(self, name), str):
                raise SpecError.of(name, f"{shown(getattr(self, name))}; must be a string")

    @property
    def previous_h(self) -> Array:
        """The state before each step, [T, D, B, H]. NaN in the padding."""
        return _before(self.spec, self.h, self.initial_h, self.lengths)

    @property
    def directions(self) -> tuple[str, ...]:
        """The name of each direction: "forward", "reverse", or both."""
        return tuple("reverse" if backwards else "forward" for backwards in self.spec.reversed_directions)

    def direction_index(self, direction: object) -> int:
        """Return the index D of a direction."""
        if direction not in self.directions:
            names = " or ".join(map(repr, self.directions))
            raise SpecError.of("direction", f"{shown(direction)}; must be {names}")
        return self.directions.index(str(direction))

    def row_index(self, row: object) -> int:
        """Check and return the index of a row."""
        index, rows = integer("row", row), len(self.lengths)
        if not rows:
            raise SpecError.of("batch", "empty; must have at least one row")
        if not 0 <= index < rows:
            raise SpecError.of("row", f"{index}; must be in 0…{rows - 1}")
        return index


def _follows(later: Gates, earlier: Gates) -> bool:
    """Whether a run starts from the final states of another run, which must be forward with whole rows."""
    return (
        later.spec == earlier.spec
        and earlier.spec.direction == "forward"
        and len(earlier.h) > 0
        and all(np.all(part.lengths == len(part.h)) for part in (earlier, later))
        and np.array_equal(later.initial_h, earlier.h[-1], equal_nan=True)
    )


def matched(gates: Gates, row: int, against: Gates | None) -> list[tuple[Gates, int]]:
    """Return the gates and one of their rows; then, if `against` is given, those gates and their row."""
    pairs = [(gates, gates.row_index(row))]
    if against is None:
        return pairs
    if not isinstance(against, Gates):
        raise SpecError.of("against", f"{shown(against)}; must be a GateTrace")
    rows = len(against.lengths)
    if rows != 1 and row >= rows:
        raise SpecError.of("against", f"has {count(rows, 'row')}; must have 1 row, or at least {row + 1}")
    for what, ours, theirs in (
        ("hidden size", gates.spec.hidden_size, against.spec.hidden_size),
        ("direction", gates.spec.direction, against.spec.direction),
    ):
        if ours != theirs:
            raise SpecError.of("against", f"{what} {theirs}; must be {ours}")
    return [*pairs, (against, row if rows > 1 else 0)]


def gates_of(
    kind: type[_Gates],
    layer: CallableLayer,
    ports: Sequence[Port],
    values: Mapping[str, object],
    name: str = "",
    source: str = "",
) -> _Gates:
    """Run a layer through the ports of an operator, and return the gates."""
    spec, options = layer.spec, layer.engine_options
    inputs, sizes = bind(spec, ports, values)
    Y = empty("Y", tuple(sizes[axis] for axis in CANONICAL_AXES["Y"]), numpy_dtype(spec.dtype))
    problem = execute(layer.prepared_engine.run, inputs, {"Y": Y})
    if options.weight_storage is not None:
        source = ", ".join(filter(None, (source, f"weights in {options.weight_storage}")))
    T, D, B, H = Y.shape
    lengths = np.full(B, T) if problem.sequence_lens is None else problem.sequence_lens
    initial_h = np.zeros((D, B, H), Y.dtype) if problem.initial_h is None else problem.initial_h.copy()
    before = _before(spec, Y, initial_h, lengths)
    raw_z, z, r, n = (np.full_like(Y, np.nan) for _ in range(4))
    weights = reference.ReferenceWeights.split(
        layer.prepared_engine.weights, options.activation_storage, group_size(options.weight_storage)
    )
    reference.trace(spec, weights, problem, before, reference.StepResult(raw_z, z, r, n, Y))
    return kind(spec, z, r, n, Y, initial_h, lengths, raw_z if spec.attention else None, name, source)


def join_runs(parts: Sequence[_Gates]) -> _Gates:
    """Return the last run, preceded by the runs that it continues, joined in time."""
    first = len(parts) - 1
    while first and _follows(parts[first], parts[first - 1]):
        first -= 1
    parts = parts[first:]
    if len(parts) == 1:
        return parts[0]
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in (*GATES, "raw_z")
        if getattr(parts[0], name) is not None
    }
    lengths = np.full_like(parts[0].lengths, len(arrays["h"]))
    return replace(parts[0], **arrays, lengths=lengths)


def _before(spec: Spec, h: Array, initial_h: Array, lengths: Array) -> Array:
    """Return the state before each step; NaN in the padding."""
    before = np.full_like(h, np.nan)
    rows = np.flatnonzero(lengths)
    for d, backwards in enumerate(spec.reversed_directions):
        if backwards:
            before[:-1, d] = h[1:, d]
            before[lengths[rows] - 1, d, rows] = initial_h[d, rows]
        else:
            before[1:, d] = h[:-1, d]
            before[:1, d] = initial_h[d]
    past = np.arange(len(h))[:, None] >= lengths
    before.swapaxes(1, 2)[past] = np.nan
    return before
