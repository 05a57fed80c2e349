"""The second proof of a match: old and new operators computed in float64, and compared."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from onegru.core.dtypes import Array
from onegru.core.errors import SpecError, SpecWarning
from onegru.fusion.dataflow.flow import Flow
from onegru.fusion.dataflow.numeric import NUMERIC
from onegru.fusion.dataflow.operator import LoopIndex, Op, Shape, Size
from onegru.layers.gru import GRU

_STEPS = 4
_TOLERANCE = 1e-5  # of the largest number: constants such as 1/6 are rounded in files, and steps add that up
_EXACT = 1e-11
# What inputs and states are multiplied by in each of the runs.
_SCALES = (1.0, 0.0, 30.0, 1e-3)
_SMALLEST = 0.01  # of those that replace one with which numbers overflow
_MOST_ELEMENTS = 2**24

Values = dict[str, Array]


class UnknownError(Exception):
    """Something cannot be computed here."""


def compare(
    flow: Flow,
    new: Sequence[Op],
    constants: Mapping[str, Array],
    run_loop: Callable[[Op, Values, Sizes], None] | None = None,
    indices: Mapping[str, LoopIndex] | None = None,
    *,
    exact: bool = False,
) -> str:
    """Compute values by a graph's own and by new operators, on random and extreme numbers.

    Args:
        flow: the graph.
        new: operators that give some of its values anew, in an order in which they can run.
        constants: new constants.
        run_loop: runs an operator with a body.
        indices: values that are indices of the loop around, of which the first iterations are computed.
        exact: whether the rounding of constants in a file counts as a difference.

    Returns:
        how they differ; "" if they agree.

    Raises:
        UnknownError: they cannot be computed here.
    """
    rng = np.random.default_rng(0)
    given_anew = {name for op in new for name in op.outputs}
    wanted = [name for name in given_anew if name in flow.producers]
    taken = {name for op in new for name in op.inputs if name} - given_anew
    begin = {name for name in taken if name not in constants}
    old, leaves = _leading(flow, wanted, begin)
    equal = False
    waiting = [(run % 2 if indices else 0, factor) for run, factor in enumerate((*_SCALES, *_SCALES))][::-1]
    while waiting:
        iteration, factor = waiting.pop()
        sizes = Sizes(equal)
        try:
            given = {name: _random(flow, name, sizes, rng, factor) for name in leaves}
            iterated = [name for name in leaves if name in (indices or ())]
            given.update((name, _index(flow, name, sizes, indices, iteration)) for name in iterated)
            before = _run(flow, old, given, {}, sizes, run_loop)
            after = _run(flow, new, given, constants, sizes, run_loop)
        except UnknownError:
            if iteration:  # there may be but one
                continue
            if equal:
                raise
            equal = True  # sizes of different names may have to be the same
            continue
        if factor > _SMALLEST and not all(map(_is_finite, (before[name] for name in wanted))):
            # Comparisons turn what has overflowed into finite numbers that mean nothing.
            waiting.append((iteration, factor / 10))
            continue
        size = max(
            _size(array) for array in (np.ones(()), *given.values(), *(before[name] for name in wanted))
        )
        for name in wanted:
            a, b = before[name], after[name]
            if a.shape != b.shape:
                return f"{name!r} is {list(a.shape)} and would become {list(b.shape)}"
            fine = np.isfinite(a) & np.isfinite(b) if a.dtype.kind == "f" else np.zeros(a.shape, bool)
            apart = np.abs(a[fine] - b[fine])
            if np.any(
                apart > (_EXACT if exact else _TOLERANCE) * size
            ):  # rounding grows with what is added up
                return f"{name!r} would differ by {np.max(apart):.3g}"
    return ""


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
        if op is None or not (op.kind in NUMERIC or op.kind == "Shape" or is_loop):
            leaves.add(name)
            continue
        ops[id(op)] = op
        if op.kind == "Shape" and flow.shape(op.inputs[0]) is not None:
            shown.add(op.inputs[0])
        else:
            waiting += [item for item in op.taken()]
    leaves |= {name for name in shown - seen if flow.constant(name) is None}
    return sorted(ops.values(), key=lambda op: flow.depth_and_position(op)), sorted(leaves)


def _is_finite(array: Array) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _size(array: Array) -> float:
    """The largest finite number of an array."""
    if array.dtype.kind != "f":
        return 0.0
    return float(np.max(np.abs(array), initial=0, where=np.isfinite(array)))


class Sizes(dict[str, int]):
    """A number for each size that has a name.

    Args:
        equal: whether all are the same.
    """

    def __init__(self, equal: bool = False) -> None:
        super().__init__()
        self.equal = equal

    def of(self, size: Size) -> int:
        """The number of a size."""
        return (
            size
            if isinstance(size, int)
            else self.setdefault(size, _STEPS + (0 if self.equal else len(self) % 3))
        )

    def shape(self, shape: Shape) -> tuple[int, ...]:
        """The numbers of a shape."""
        return tuple(map(self.of, shape))


def _index(
    flow: Flow, name: str, sizes: Sizes, indices: Mapping[str, LoopIndex] | None, iteration: int
) -> Array:
    """An index of one of the first iterations."""
    index = (indices or {})[name]
    number = index.base + index.sign * iteration + (sizes.of(index.size) if index.size != 0 else 0)
    return np.full(sizes.shape(flow.shape(name) or ()), number, np.int64)


def _random(flow: Flow, name: str, sizes: Sizes, rng: np.random.Generator, factor: float) -> Array:
    array = flow.constant(name)
    if array is not None:
        return array.astype(np.float64) if array.dtype.kind == "f" else array
    shape = flow.shape(name)
    if shape is None:
        raise UnknownError(f"the shape of {name!r} is not known")
    numbers = sizes.shape(shape)
    if np.prod(numbers, dtype=float) > _MOST_ELEMENTS:
        raise UnknownError(f"{name!r} is too large")
    dtype = flow.dtype(name)
    if dtype == "bool":
        return rng.random(numbers) < 0.6
    if dtype in ("int32", "int64"):
        return rng.integers(0, _STEPS + 2, numbers).astype(dtype)
    values = rng.standard_normal(numbers) * factor
    spread = rng.choice([1.0, 1.0, 0.1, 3.0, -1.0], numbers)
    return np.asarray(values * spread)


def _run(
    flow: Flow,
    ops: Sequence[Op],
    given: Mapping[str, Array],
    constants: Mapping[str, Array],
    sizes: Sizes,
    run_loop: Callable[[Op, Values, Sizes], None] | None,
) -> Values:
    """Run operators."""
    values: Values = {**given}

    def value(name: str) -> Array:
        if name not in values:
            array = constants.get(name)
            if array is None:
                array = flow.constant(name)
            if array is None and (resolved := flow.resolve(name)) in values:
                array = values[resolved]
            if array is None:
                raise UnknownError(f"{name!r} is not known")
            values[name] = array.astype(np.float64) if array.dtype.kind == "f" else array
        return values[name]

    with np.errstate(all="ignore"):
        for op in ops:
            if op.bodies and run_loop is not None:
                run_loop(op, values, sizes)
                continue
            evaluate(op, [value(name) if name else None for name in op.inputs], values)
    return values


def evaluate(op: Op, inputs: list[Array | None], values: Values) -> None:
    """Compute an operator in float64, and add what it gives to the values.

    Raises:
        UnknownError: it is none that can be computed here.
    """
    if op.kind == "Shape" and inputs[0] is not None:
        first, last = op.attributes.get("start", 0), op.attributes.get("end")
        values[op.outputs[0]] = np.array(inputs[0].shape[first:last], np.int64)
        return
    if op.kind in ("GRU", "onegru::AUGRU"):
        results: Sequence[Array] = _gru(op, inputs)
    elif op.kind == "Cast" and str(op.attributes.get("dtype")) in (
        "float16",
        "bfloat16",
        "float32",
        "float64",
    ):
        assert inputs[0] is not None
        results = [inputs[0].astype(np.float64)]
    elif op.kind in NUMERIC:
        try:
            results = NUMERIC[op.kind](op.attributes, inputs, len(op.outputs))
        except Exception as error:
            raise UnknownError(f"{op.kind}: {error}") from None
    else:
        raise UnknownError(f"{op.kind} is none of the operators that are known")
    values.update((name, array) for name, array in zip(op.outputs, results, strict=False) if name)


def _gru(op: Op, inputs: list[Array | None]) -> list[Array]:
    """A GRU by the float64 reference."""
    given: list[Array | None] = [*inputs, *[None] * (7 - len(inputs))]
    X, W, R, B, lengths, initial_h, A = given
    options: dict[str, Any] = {
        name: op.attributes[name]
        for name in ("direction", "clip", "activations", "activation_alpha", "activation_beta")
        if name in op.attributes
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpecWarning)
        layer = GRU(
            np.asarray(W, np.float64),
            np.asarray(R, np.float64),
            None if B is None else np.asarray(B, np.float64),
            linear_before_reset=bool(op.attributes.get("linear_before_reset", 0)),
            attention=A is not None,
            engine="reference",
            **options,
        )
    state = None if initial_h is None else np.asarray(initial_h, np.float64)
    attention = None if A is None else np.asarray(A, np.float64)[..., 0]
    try:
        Y, Y_h = layer(np.asarray(X, np.float64), state, sequence_lens=lengths, attention=attention)
    except SpecError as error:  # sizes that need not fit each other
        raise UnknownError(str(error)) from None
    return [np.asarray(Y), np.asarray(Y_h)]
