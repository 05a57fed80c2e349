"""Numeric check of a match: compare old and new operators in float64."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onegru.core.activations import ACTIVATIONS
from onegru.core.dtypes import Array
from onegru.dataflow.flow import Flow
from onegru.dataflow.kinks import Kinks, Side
from onegru.dataflow.operator import LoopIndex, Op
from onegru.dataflow.table import operator_of
from onegru.fusion.cells.cell import MissError
from onegru.fusion.drawn_inputs import least_sizes, loop_index, random
from onegru.fusion.float64 import NODES, RunLoop, Sizes, UnknownError, Values, run

_TOLERANCE = (
    1e-5  # relative to an output's largest value; files round constants such as 1/6, and steps add this up
)
_TINY = float(np.finfo(np.float32).tiny)  # smaller float32 values have fewer digits
_TOLERANCE_FLOAT64 = 1e-12  # for float64 outputs, as the file does not round to float32
# Factors of inputs and states in each run. Zeros and tiny values test biases, large values test limits, and
# the values between test slopes.
_SCALES = (1.0, 0.0, 0.3, 3.0, 10.0, 30.0, 0.1, 1e-3)
_SMALLEST = 0.01  # smallest factor after overflow
_SHAKEN = 1e-11  # input change; outputs that then change too much depend on rounding
_COARSE = 1e-12  # change of results, because cancelled large values leave rounding errors
_FINENESS = 1e-3  # float64 rounding relative to the coarse rounding above
_SHAKES = 4
_MOST_SEARCHED = 2**22  # computed values in the search for inputs beyond non-differentiable points
_MOST_INFINITE = 4  # number of values to test with infinity
_INITIAL_H = 5  # index of this input of a node
_MOST_TRIES, _LEAST_TRIES = 48, 4


@dataclass(frozen=True, slots=True)
class Compared:
    """Result of a comparison of old and new operators."""

    difference: str  # the difference as text; "" if they agree
    outputs: int = 0  # the number of values compared in each run
    moved: int = 0  # the number of these values that differ between runs


def compare(
    flow: Flow,
    new: Sequence[Op],
    constants: Mapping[str, Array],
    run_loop: RunLoop | None = None,
    indices: Mapping[str, LoopIndex] | None = None,
    dtype: str | None = None,
) -> Compared:
    """Compare a graph's operators with new ones, on inputs of all magnitudes and on all sides of kinks."""
    runs = _Runs(flow, new, constants, run_loop, indices or {}, dtype)
    difference = at_infinity = ""
    for equal in (False, True):  # sizes with different names may need to be equal
        try:
            runs.begin(equal)
            difference = runs.at_all_scales() or runs.beyond_kinks()
            at_infinity = "" if difference else runs.at_infinity()
        except UnknownError:
            if equal:
                raise
        else:
            break
    if at_infinity:
        raise MissError(f"it is a GRU only for finite values: {at_infinity}")
    if not difference and not runs.moved.any():
        raise UnknownError("no output depends on the inputs, or all depend on rounding")
    return Compared(difference, runs.moved.size, int(runs.moved.sum()))


class _Runs:
    """Runs of old and new operators on the same inputs."""

    def __init__(
        self,
        flow: Flow,
        new: Sequence[Op],
        constants: Mapping[str, Array],
        run_loop: RunLoop | None,
        indices: Mapping[str, LoopIndex],
        dtype: str | None,
    ) -> None:
        self.flow, self.new, self.constants = flow, new, constants
        self.run_loop, self.indices, self.dtype = run_loop, indices, dtype
        given_again = {name for op in new for name in op.outputs}
        self.wanted = [name for name in given_again if name in flow.producers]
        taken = {name for op in new for name in op.inputs if name} - given_again - constants.keys()
        self.derived = sorted(name for name in taken if _is_derived(flow, name, taken - {name}))
        begin = taken.difference(self.derived)
        self.old, self.leaves = _leading(flow, [*self.wanted, *self.derived], begin)
        self.moving = _moving(flow, self.leaves, [*self.old, *new])
        self.least = least_sizes(flow, self.old)

    def begin(self, equal: bool) -> None:
        """Start a new comparison."""
        self.rng = np.random.default_rng(0)
        self.sizes = Sizes(equal, self.least)
        self.kinks = Kinks()
        self.nearest: dict[Side, Values] = {}
        self.first: Array | None = None
        self.moved = np.zeros(0, bool)
        self.cost = 1

    def at_all_scales(self) -> str:
        """Return the difference on random inputs of all magnitudes; "" if they agree."""
        iterations = (0, 1) if self.indices else (0,)
        waiting = [(iteration, scale) for scale in _SCALES for iteration in iterations][::-1]
        while waiting:
            iteration, scale = waiting.pop()
            try:
                difference = self._compare(self._draw(scale, iteration))
            except UnknownError:
                if iteration:  # there may be only one iteration
                    continue
                raise
            if difference is None:  # overflowed values may become meaningless finite values
                waiting += [(iteration, scale / 10)] * (scale > _SMALLEST)
            elif difference:
                return difference
        return ""

    def beyond_kinks(self) -> str:
        """Return the difference on inputs that are moved to the missing sides of kinks."""
        for tries in range(min(_MOST_TRIES, max(_LEAST_TRIES, _MOST_SEARCHED // self.cost))):
            missing = [side for side in self.kinks.missing if side in self.nearest and side[0] in self.moving]
            if not missing:
                break
            start = self.nearest[missing[tries % len(missing)]]
            if difference := self._compare(self._moved(start)):
                return difference
        return ""

    def at_infinity(self) -> str:
        """Return the difference with an infinite value in each row of an input, as in masks of gates.

        Unbounded functions are skipped: they return infinity, and equivalent cells then differ.
        """
        nodes = [op for op in self.new if op.kind in NODES]
        functions = {name for op in nodes for name in op.attributes.get("activations", ())}
        if any(ACTIVATIONS[name].bounds is None for name in functions):
            return ""
        for name in self._leaves_of(0)[:_MOST_INFINITE]:
            for sign in (np.inf, -np.inf):
                given = self._draw(1.0, 0)
                if given[name].dtype.kind != "f" or not given[name].ndim:
                    break
                rows = given[name].reshape(-1, given[name].shape[-1])
                places = np.arange(len(rows))
                rows[places, places % rows.shape[1]] = sign
                given[name] = rows.reshape(given[name].shape)
                if difference := self._difference(*self._both(given), given):
                    return f"{difference} if {name!r} is infinite"
        return ""

    def _leaves_of(self, place: int) -> list[str]:
        """Return the inputs that affect this input of new nodes, but not an initial state."""
        made = {name: op for op in self.new for name in op.outputs}
        found: list[set[str]] = []
        for number in (place, _INITIAL_H):
            waiting = [name for op in self.new if op.kind in NODES for name in op.inputs[number : number + 1]]
            seen: set[str] = set()
            while waiting:
                name = waiting.pop()
                name = name if name in made else self.flow.resolve(name)
                if name not in seen:
                    seen.add(name)
                    op = made.get(name) or (None if name in self.leaves else self.flow.producer(name))
                    waiting += [] if op is None else op.taken()
            found.append(seen.intersection(self.leaves))
        return sorted(found[0] - found[1])

    def _draw(self, scale: float, iteration: int) -> Values:
        given = {name: random(self.flow, name, self.sizes, self.rng, scale) for name in self.leaves}
        iterated = [name for name in self.leaves if name in self.indices]
        given.update(
            (name, loop_index(self.flow, name, self.sizes, self.indices, iteration)) for name in iterated
        )
        return Values(given)

    def _moved(self, start: Values) -> Values:
        """Return inputs near `start`, or a multiple of `start`."""
        factor, width = self.rng.choice([1.0, 1.0, 0.7, 1.5, -1.0]), 10.0 ** self.rng.uniform(-2, 0.5)
        return Values(
            {
                name: array * factor + self.rng.standard_normal(array.shape) * width
                if array.dtype.kind == "f" and name not in self.indices
                else array
                for name, array in start.items()
            }
        )

    def _compare(self, given: Values) -> str | None:
        """Return the difference on inputs; "" if they agree, None if values overflow."""
        before, after = self._both(given)
        self.nearest.update(dict.fromkeys(self.kinks.end(), given))
        self.cost = sum(array.size for array in before.values())
        if not all(map(_is_finite, (before[name] for name in self.wanted))):
            return None
        if difference := self._difference(before, after, given):
            return difference
        self._note(
            np.concatenate([np.ravel(before[name]).astype(float) for name in self.wanted] or [np.zeros(0)])
        )
        return ""

    def _both(self, given: Values) -> tuple[Values, Values]:
        """Run the old and the new operators."""
        before = self._run(self.old, Values(given, self.kinks), {})
        derived = {name: before[name] for name in self.derived}
        return before, self._run(self.new, Values({**given, **derived}), self.constants)

    def _difference(self, before: Values, after: Values, given: Values) -> str:
        """Return the difference of the outputs where the old ones are finite; "" if they agree."""
        for name in self.wanted:
            a, b = before[name], after[name]
            if a.shape != b.shape:
                return f"{name!r} is {list(a.shape)} and would become {list(b.shape)}"
            allowed = max(_TOLERANCE * _size(a), _TINY)
            apart = _abs_error(a, b)
            if np.any(apart > allowed):  # rounding errors grow in sums
                is_sure = self._rounding_sensitivity(name, a, given) <= 0.1 * allowed
                if np.any(is_sure & (apart > allowed)):
                    return f"{name!r} would differ by {np.max(apart[is_sure]):.3g}"
            is_fine = apart <= allowed
            allowed = _TOLERANCE_FLOAT64 * _size(a)
            if (self.flow.dtype(name) or self.dtype) == "float64" and np.any(is_fine & (apart > allowed)):
                rounding = self._rounding_sensitivity(name, a, given, _FINENESS)
                is_sure = is_fine & (apart > np.maximum(allowed, 10 * rounding))
                if np.any(is_sure):
                    return f"{name!r} is float64 and would differ by {np.max(apart[is_sure]):.3g}"
        return ""

    def _note(self, outputs: Array) -> None:
        """Record which outputs have changed."""
        if self.first is None or self.first.shape != outputs.shape:
            self.first, self.moved = outputs, np.zeros(outputs.shape, bool)
        self.moved |= outputs != self.first

    def _rounding_sensitivity(self, name: str, array: Array, given: Values, fineness: float = 1.0) -> Array:
        """Return how much an old output changes with tiny changes of inputs and results, as by rounding."""
        most = np.zeros(array.shape)
        for _ in range(_SHAKES):
            moves = {
                name: self.rng.uniform(-_SHAKEN, _SHAKEN, item.shape) * (fineness * _size(item))
                for name, item in given.items()
                if item.dtype.kind == "f"
            }
            for sign in (1, -1):
                shaken = {key: item + sign * moves.get(key, 0) for key, item in given.items()}
                found = self._run(self.old, Values(shaken, rounding=self._rounded(fineness)), {})
                most = np.maximum(most, _abs_error(found[name], array))
        return most

    def _rounded(self, fineness: float) -> Callable[[Array], Array]:
        """Return a function that changes results randomly, like rounding."""
        coarse = _COARSE * fineness
        return lambda array: array * (1 + coarse * self.rng.uniform(-1, 1, array.shape))

    def _run(self, ops: Sequence[Op], given: Values, constants: Mapping[str, Array]) -> Values:
        return run(self.flow, ops, given, constants, self.sizes, self.run_loop)


def _abs_error(a: Array, b: Array) -> Array:
    """Return |a - b| where `a` is finite; 0 elsewhere, and for types other than floats."""
    if a.dtype.kind != "f":
        return np.zeros(a.shape)
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(a), np.where(np.isfinite(b), np.abs(a - b), np.inf), 0.0)


def _leading(flow: Flow, wanted: Collection[str], begin: Collection[str]) -> tuple[list[Op], list[str]]:
    """Return the operators that compute `wanted`, in order, and their inputs: `begin` or earlier values."""
    leaves = {name for name in begin if flow.constant(name) is None}
    ops: dict[int, Op] = {}
    seen: set[str] = set()
    shown: set[str] = set()  # values of which only the known shape matters
    waiting = list(wanted)
    while waiting:
        name = waiting.pop()
        name = flow.resolve(name) if name in flow.aliases else name
        if name in seen or name in leaves:
            continue
        seen.add(name)
        if flow.constant(name) is not None:
            continue
        op = flow.producer(name)
        is_loop = op is not None and bool(op.bodies) and name in wanted
        if op is None or not (operator_of(op.kind).computes or op.kind == "Shape" or is_loop):
            leaves.add(name)
            continue
        ops[id(op)] = op
        if op.kind == "Shape" and flow.shape(op.inputs[0]) is not None:
            shown.add(op.inputs[0])
        else:
            waiting += [item for item in op.taken()]
    leaves |= {name for name in shown - seen if flow.constant(name) is None}
    return sorted(ops.values(), key=lambda op: flow.depth_and_position(op)), sorted(leaves)


def _moving(flow: Flow, leaves: Collection[str], ops: Sequence[Op]) -> set[int]:
    """Return the ids of operators that depend on values and not only on sizes; in bodies, of all."""
    depend = set(leaves)
    found: set[int] = set()
    for op in ops:
        taken = set(op.taken())
        if op.kind != "Shape" and not depend.isdisjoint(taken | set(map(flow.resolve, taken))):
            depend.update(op.outputs)
            found.add(id(op))
        waiting = list(op.bodies.values())
        while waiting:
            inner = waiting.pop().ops
            found.update(map(id, inner))
            waiting += [body for other in inner for body in other.bodies.values()]
    return found


def _is_derived(flow: Flow, name: str, others: Collection[str]) -> bool:
    """Whether a value is computed only from others, such as a reversed sequence."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current in seen or flow.constant(current) is not None:
            continue
        seen.add(current)
        op = flow.producer(flow.resolve(current))
        if op is None or not operator_of(op.kind).computes:
            return False
        waiting += [item for item in op.taken() if item not in others]
    return bool(seen)


def _is_finite(array: Array) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _size(array: Array) -> float:
    """Return the largest finite absolute value of an array."""
    if array.dtype.kind != "f":
        return 0.0
    return float(np.max(np.abs(array), initial=0, where=np.isfinite(array)))
