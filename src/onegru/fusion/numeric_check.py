"""The numeric check of a match: old and new operators computed in float64, and compared."""

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
    1e-5  # of an output's largest number: constants such as 1/6 are rounded in files, and steps add that up
)
_TINY = float(np.finfo(np.float32).tiny)  # below, float32 numbers have fewer digits
_TOLERANCE_FLOAT64 = 1e-12  # of an output in float64, whose file rounds nothing to float32
# What inputs and states are multiplied by in each of the runs. Zeros and tiny numbers show biases, large ones
# what bounds there are, and those between every slope.
_SCALES = (1.0, 0.0, 0.3, 3.0, 10.0, 30.0, 0.1, 1e-3)
_SMALLEST = 0.01  # of those that replace one with which numbers overflow
_SHAKEN = 1e-11  # of inputs: what changes by more than it should where they change so little says nothing
_COARSE = 1e-12  # of results: large ones that cancel leave their roundings, whatever the inputs
_FINENESS = 1e-3  # of roundings in float64, relative to the coarse ones that stand for them
_SHAKES = 4
_MOST_SEARCHED = 2**22  # numbers computed in the search for inputs beyond kinks
_MOST_INFINITE = 4  # values of which infinite numbers are drawn
_INITIAL_H = 5  # the place of this input of a node
_MOST_TRIES, _LEAST_TRIES = 48, 4


@dataclass(frozen=True, slots=True)
class Compared:
    """What a comparison of old and new operators has found."""

    difference: str  # how they differ, as text; "" if they agree
    outputs: int = 0  # how many numbers were compared in each run
    moved: int = 0  # how many of these changed from run to run: the others say little


def compare(
    flow: Flow,
    new: Sequence[Op],
    constants: Mapping[str, Array],
    run_loop: RunLoop | None = None,
    indices: Mapping[str, LoopIndex] | None = None,
    dtype: str | None = None,
) -> Compared:
    """Compute values by a graph's own and by new operators, on numbers of all sizes and beyond every kink."""
    runs = _Runs(flow, new, constants, run_loop, indices or {}, dtype)
    difference = at_infinity = ""
    for equal in (False, True):  # sizes of different names may have to be the same
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
        raise MissError(f"it is a GRU for finite numbers only: {at_infinity}")
    if not difference and not runs.moved.any():
        raise UnknownError("no output changes with the inputs, or rounding decides them")
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
        """Begin again."""
        self.rng = np.random.default_rng(0)
        self.sizes = Sizes(equal, self.least)
        self.kinks = Kinks()
        self.nearest: dict[Side, Values] = {}
        self.first: Array | None = None
        self.moved = np.zeros(0, bool)
        self.cost = 1

    def at_all_scales(self) -> str:
        """How old and new differ on random inputs of all sizes; "" if they agree."""
        iterations = (0, 1) if self.indices else (0,)
        waiting = [(iteration, scale) for scale in _SCALES for iteration in iterations][::-1]
        while waiting:
            iteration, scale = waiting.pop()
            try:
                difference = self._compare(self._draw(scale, iteration))
            except UnknownError:
                if iteration:  # there may be but one
                    continue
                raise
            if (
                difference is None
            ):  # comparisons turn what has overflowed into finite numbers that mean nothing
                waiting += [(iteration, scale / 10)] * (scale > _SMALLEST)
            elif difference:
                return difference
        return ""

    def beyond_kinks(self) -> str:
        """The same on inputs that are moved, step by step, to the sides of kinks that none has reached."""
        for tries in range(min(_MOST_TRIES, max(_LEAST_TRIES, _MOST_SEARCHED // self.cost))):
            missing = [side for side in self.kinks.missing if side in self.nearest and side[0] in self.moving]
            if not missing:
                break
            start = self.nearest[missing[tries % len(missing)]]
            if difference := self._compare(self._moved(start)):
                return difference
        return ""

    def at_infinity(self) -> str:
        """The same with an infinite number in each row of what steps take, as masks of gates have them.

        Functions without bounds give infinity, which any two forms of a cell turn into other numbers.
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
                    return f"{difference} where {name!r} is infinite"
        return ""

    def _leaves_of(self, place: int) -> list[str]:
        """The inputs that lead to this input of new nodes, and to no state before the first step."""
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
        """Inputs near others, or others times a number."""
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
        """How old and new differ on inputs; "" if they agree, None if numbers overflow."""
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
        """What the old and the new operators give."""
        before = self._run(self.old, Values(given, self.kinks), {})
        derived = {name: before[name] for name in self.derived}
        return before, self._run(self.new, Values({**given, **derived}), self.constants)

    def _difference(self, before: Values, after: Values, given: Values) -> str:
        """How wanted values differ where the old ones are finite; "" if they agree."""
        for name in self.wanted:
            a, b = before[name], after[name]
            if a.shape != b.shape:
                return f"{name!r} is {list(a.shape)} and would become {list(b.shape)}"
            allowed = max(_TOLERANCE * _size(a), _TINY)
            apart = _abs_error(a, b)
            if np.any(apart > allowed):  # rounding grows with what is added up
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
        """Note which outputs have changed."""
        if self.first is None or self.first.shape != outputs.shape:
            self.first, self.moved = outputs, np.zeros(outputs.shape, bool)
        self.moved |= outputs != self.first

    def _rounding_sensitivity(self, name: str, array: Array, given: Values, fineness: float = 1.0) -> Array:
        """How far an output of the old operators moves where inputs and results hardly do, as by rounding."""
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
        """What rounds results coarsely, or as finely as float64."""
        coarse = _COARSE * fineness
        return lambda array: array * (1 + coarse * self.rng.uniform(-1, 1, array.shape))

    def _run(self, ops: Sequence[Op], given: Values, constants: Mapping[str, Array]) -> Values:
        return run(self.flow, ops, given, constants, self.sizes, self.run_loop)


def _abs_error(a: Array, b: Array) -> Array:
    """How far `b` is from the finite numbers of `a`; 0 for others and for those that are no floats."""
    if a.dtype.kind != "f":
        return np.zeros(a.shape)
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(a), np.where(np.isfinite(b), np.abs(a - b), np.inf), 0.0)


def _leading(flow: Flow, wanted: Collection[str], begin: Collection[str]) -> tuple[list[Op], list[str]]:
    """The operators that lead to wanted values, in order, and what they begin with: `begin`, or before."""
    leaves = {name for name in begin if flow.constant(name) is None}
    ops: dict[int, Op] = {}
    seen: set[str] = set()
    shown: set[str] = set()  # of which only the shape counts, and is known
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
    """The operators, by identity, that depend on numbers and not on sizes alone; all of those in bodies."""
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
    """Whether a value is computed only from others, as a sequence reversed of which both orders are used."""
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
    """The largest finite number of an array."""
    if array.dtype.kind != "f":
        return 0.0
    return float(np.max(np.abs(array), initial=0, where=np.isfinite(array)))
