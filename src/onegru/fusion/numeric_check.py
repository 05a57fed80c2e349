"""Numeric check of a match: compare old and new operators on random inputs in float64."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onegru.core.activations import ACTIVATIONS
from onegru.core.dtypes import Array
from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import LoopIndex, Op
from onegru.dataflow.table import UnknownOpError, operator_of
from onegru.dataflow.walk import reachable
from onegru.fusion.cells.cell import MissError
from onegru.fusion.drawn_inputs import DrawnSizes, RunLoop, least_sizes, loop_index, random_value
from onegru.fusion.float64 import GRU_KINDS, Float64Values, as_float64

# Factors of inputs and states, one for each draw. Zeros and tiny values test biases, large values test
# limits, and the values between test slopes.
_SCALES = (1.0, 0.0, 0.3, 3.0, 10.0, 30.0, 0.1, 1e-3)
# Relative to an output's largest value: files round constants such as 1/6, and steps add this up.
_TOLERANCE = 1e-5
_TOLERANCE_FLOAT64 = 1e-12  # for float64 outputs, as the file does not round to float32
_TINY = float(np.finfo(np.float32).tiny)  # smaller float32 values have fewer digits
# Relative changes of inputs and results; outputs that then change too much depend on rounding.
_NOISE, _NOISE_FLOAT64 = 1e-12, 1e-15
_NOISE_FLOAT32 = 2.0**-24  # the noise of float32 operators; smaller differences of their outputs agree
_CANCELLED = 1e-14  # of 1 or the largest output: rounding of 1 - z in a GRU node in float64
_NOISY_RUNS = 16
_MOST_INFINITE = 4  # number of values to test with infinity
_INITIAL_H = 5  # index of this input of a node


@dataclass(frozen=True, slots=True)
class Compared:
    """Result of a comparison of old and new operators."""

    difference: str  # the difference as text; "" if they agree
    outputs: int = 0  # the number of values compared in each run
    input_dependent: int = 0  # the number of these values that differ between runs


def compare(
    flow: Flow,
    new: Sequence[Op],
    constants: Mapping[str, Array],
    run_loop: RunLoop | None = None,
    indices: Mapping[str, LoopIndex] | None = None,
    dtype: str | None = None,
) -> Compared:
    """Compare a graph's operators with new ones; raise UnknownOpError if that is not possible."""
    comparison = _Comparison(flow, new, constants, run_loop, indices or {}, dtype)
    least = least_sizes(flow, comparison.old)
    try:
        found = comparison.run(DrawnSizes(False, least))
    except UnknownOpError:  # sizes with different names may need to be equal
        found = comparison.run(DrawnSizes(True, least))
    if not found.difference and (difference := comparison.at_infinity()):
        raise MissError(f"it is a GRU only for finite values: {difference}")
    return found


class _Comparison:
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
        self.flow, self.new, self.run_loop, self.indices, self.dtype = flow, new, run_loop, indices, dtype
        outputs = {name for op in new for name in op.outputs}
        self.replaced = sorted(outputs & flow.producers.keys())
        inputs = {name for op in new for name in op.inputs if name}
        external = inputs - outputs - constants.keys()
        # In float64, for all runs.
        self.constants: dict[str, Array | None] = {
            name: as_float64(constants[name]) for name in inputs & constants.keys()
        }
        self.derived = sorted(name for name in external if _is_derived(flow, name, external - {name}))
        needed = [*self.replaced, *self.derived]
        self.old, self.leaves = _ops_between(flow, needed, external.difference(self.derived))

    def run(self, sizes: DrawnSizes) -> Compared:
        """Compare the outputs on inputs of all magnitudes."""
        self.sizes, self.rng = sizes, np.random.default_rng(0)
        drawn: list[Array] = []
        for number, scale in enumerate(_SCALES):
            iteration = number % 2 if self.indices else 0
            given = self._draw(scale, iteration)
            try:
                before, after = self._both(given)
            except UnknownOpError:
                if iteration:  # there may be only one iteration
                    continue
                raise
            if not all(np.isfinite(before[name]).all() for name in self.replaced):
                continue  # overflowed values may become meaningless finite values
            if difference := self._difference(before, after, given):
                if not before.is_finite:  # log(1 + exp(x)) overflows, although a bounded function follows
                    continue
                return Compared(difference)
            drawn.append(np.concatenate([np.zeros(0), *(before[name].ravel() for name in self.replaced)]))
        differs = np.any([array != drawn[0] for array in drawn], axis=0)
        if not np.any(differs):
            raise UnknownOpError("no output depends on the inputs, or all depend on rounding")
        return Compared("", differs.size, int(np.count_nonzero(differs)))

    def at_infinity(self) -> str:
        """Return the difference with an infinite value in each row of an input; "" if there is none."""
        # Unbounded functions are skipped: they return infinity, and equivalent cells then differ.
        functions = {name for op in self.new for name in op.attributes.get("activations", ())}
        if any(ACTIVATIONS[name].bounds is None for name in functions):
            return ""
        for name in sorted(self._leaves_of(0) - self._leaves_of(_INITIAL_H))[:_MOST_INFINITE]:
            for number in (np.inf, -np.inf):
                given = self._draw(1.0, 0)
                if given[name].dtype.kind != "f" or not given[name].ndim:
                    break
                rows = given[name].reshape(-1, given[name].shape[-1])
                rows_in_order = np.arange(len(rows))
                rows[rows_in_order, rows_in_order % rows.shape[1]] = number
                given[name] = rows.reshape(given[name].shape)
                if difference := self._difference(*self._both(given), given):
                    return f"{difference} if {name!r} is infinite"
        return ""

    def _leaves_of(self, index: int) -> set[str]:
        """Return the inputs that affect this input of new nodes."""
        producers = {name: op for op in (*self.old, *self.new) for name in op.outputs}
        starts = [name for op in self.new if op.kind in GRU_KINDS for name in op.inputs[index : index + 1]]

        def inputs(name: str) -> Iterable[str]:
            if name not in producers:
                return [first] if (first := self.flow.resolve(name)) != name else ()
            return producers[name].reads() if name not in self.leaves else ()

        return set(reachable(starts, inputs)).intersection(self.leaves)

    def _draw(self, scale: float, iteration: int) -> dict[str, Array]:
        """Return random inputs."""
        return {
            name: loop_index(self.flow, name, self.sizes, self.indices[name], iteration)
            if name in self.indices
            else random_value(self.flow, name, self.sizes, self.rng, scale)
            for name in self.leaves
        }

    def _both(self, given: Mapping[str, Array]) -> tuple[Float64Values, Float64Values]:
        """Run the old and the new operators."""
        before = self._values(given, self.old)
        derived = {name: before[name] for name in self.derived}
        return before, self._values({**given, **derived}, self.new)

    def _values(self, given: Mapping[str, Array], ops: Sequence[Op], noise: float = 0.0) -> Float64Values:
        """Run operators; with noise, inputs and results change randomly, like rounding."""

        def add_noise(array: Array) -> Array:
            return array * (1 + noise * self.rng.uniform(-1, 1, array.shape))

        if noise:
            given = {
                name: add_noise(item) if item.dtype.kind == "f" else item for name, item in given.items()
            }
        values = Float64Values(self.flow, given, self.constants, add_noise=add_noise if noise else None)
        with np.errstate(all="ignore"):
            for op in ops:
                if op.bodies and self.run_loop is not None:
                    self.run_loop(op, values, self.sizes)
                else:
                    values.run(op)
        return values

    def _difference(self, before: Float64Values, after: Float64Values, given: Mapping[str, Array]) -> str:
        """Return the difference of the outputs where the old ones are finite; "" if they agree."""
        has_gru = any(op.kind in GRU_KINDS for op in self.new)
        sizes = [1.0, *(_size(before[name]) for name in self.replaced)]
        cancelled = _CANCELLED * max(sizes) if has_gru else 0.0
        for name in self.replaced:
            a, b = before[name], after[name]
            if a.shape != b.shape:
                return f"{name!r} is {list(a.shape)} and would become {list(b.shape)}"
            if a.dtype.kind != "f":
                continue
            is_float64 = (self.flow.dtype(name) or self.dtype) == "float64"
            allowed = (_TOLERANCE_FLOAT64 if is_float64 else _TOLERANCE) * _size(a)
            if not is_float64:
                allowed = max(allowed, cancelled, _TINY)
            apart = np.where(np.isfinite(a), _distance(a, b), 0)
            if np.any(apart > allowed):
                moved = self._moved_by_noise(given, name, _NOISE_FLOAT64 if is_float64 else _NOISE)
                is_sure = moved <= 0.1 * (apart if is_float64 else allowed)
                if not is_float64:
                    is_sure &= apart > self._moved_by_noise(given, name, _NOISE_FLOAT32)
                apart = apart[is_sure & (apart > allowed)]
                if apart.size:
                    words = "is float64 and would differ" if is_float64 else "would differ"
                    return f"{name!r} {words} by {np.max(apart):.3g}"
        return ""

    def _moved_by_noise(self, given: Mapping[str, Array], name: str, noise: float) -> Array:
        """Return how far a value moves if all inputs and results have noise."""
        noisy = [self._values(given, self.old, noise) for _ in range(_NOISY_RUNS)]
        exact = self._values(given, self.old)[name]
        return np.asarray(np.max([_distance(exact, values[name]) for values in noisy], axis=0))


def _size(array: Array) -> float:
    """Return the largest finite magnitude."""
    return float(np.max(np.abs(array), initial=0, where=np.isfinite(array)))


def _distance(a: Array, b: Array) -> Array:
    """Return |a - b|; infinity where it is not finite."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(a - b)
    return np.where(np.isnan(apart), np.inf, apart)


def _ops_between(flow: Flow, outputs: Collection[str], inputs: Collection[str]) -> tuple[list[Op], list[str]]:
    """Return the operators that compute `outputs`, in order, and their leaves: `inputs` or earlier values."""
    leaves = {name for name in inputs if flow.constant(name) is None}
    ops: set[Op] = set()
    only_shapes: set[str] = set()  # values needed only for their known shape

    def inputs_of(name: str) -> Iterable[str]:
        name = flow.resolve(name) if name in flow.aliases else name
        if name in leaves or flow.constant(name) is not None:
            return ()
        op = flow.find_producer(name)
        if op is None or not (operator_of(op.kind).computes or (op.bodies and name in outputs)):
            leaves.add(name)
            return ()
        ops.add(op)
        if op.kind == "Shape" and flow.shape(op.inputs[0]) is not None:
            only_shapes.add(op.inputs[0])
            return ()
        return op.reads()

    seen = set(reachable(outputs, inputs_of))
    leaves.update(name for name in only_shapes - seen if flow.constant(name) is None)
    return sorted(ops, key=flow.depth_and_position), sorted(leaves)


def _is_derived(flow: Flow, name: str, others: Collection[str]) -> bool:
    """Whether a value is computed only from others, such as a reversed sequence."""
    ops, leaves = _ops_between(flow, [name], others)
    return bool(ops) and set(leaves) <= set(others) and all(operator_of(op.kind).computes for op in ops)
