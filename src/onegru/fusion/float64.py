"""Compute operators in float64."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from onegru.core.dtypes import Array
from onegru.core.errors import SpecError, SpecWarning
from onegru.dataflow.flow import Flow
from onegru.dataflow.kinks import Kinks
from onegru.dataflow.operator import Op, Shape, Size
from onegru.dataflow.table import LargeResultError, UnknownOpError, operator_of
from onegru.dataflow.table import evaluate as value_of
from onegru.layers.call import apply
from onegru.layers.gru import GRU
from onegru.operators.lowering import lower
from onegru.operators.openvino import CELLS
from onegru.operators.schema import WEIGHTS, Port

#: The kinds of nodes that replace cells.
NODES = ("GRU", "onegru::AUGRU")
#: The smallest size for dynamic dimensions.
STEPS = 4


class Values(dict[str, Array]):
    """Arrays by the names of values."""

    def __init__(
        self,
        arrays: Mapping[str, Array],
        kinks: Kinks | None = None,
        rounding: Callable[[Array], Array] | None = None,
        layers: dict[Op, tuple[GRU, Sequence[Port]]] | None = None,
    ) -> None:
        super().__init__(arrays)
        self.kinks = kinks
        self.rounding = rounding
        self.layers = {} if layers is None else layers


class UnknownError(Exception):
    """A value cannot be computed."""


class Sizes(dict[str, int]):
    """A number for each named size."""

    def __init__(self, equal: bool = False, least: Mapping[Size, int] | None = None) -> None:
        super().__init__()
        self.equal = equal
        self.least = least or {}

    def of(self, size: Size) -> int:
        """Return the number for a size."""
        if isinstance(size, int):
            return size
        least = max(self.least.values(), default=0) if self.equal else self.least.get(size, 0)
        return self.setdefault(size, max(least, STEPS + (0 if self.equal else len(self) % 3)))

    def shape(self, shape: Shape) -> tuple[int, ...]:
        """Return the numbers for a shape."""
        return tuple(map(self.of, shape))


RunLoop = Callable[[Op, Values, Sizes], None]


def run(
    flow: Flow,
    ops: Sequence[Op],
    given: Values,
    constants: Mapping[str, Array],
    sizes: Sizes,
    run_loop: RunLoop | None,
) -> Values:
    """Run operators."""
    values = Values(given, given.kinks, given.rounding, given.layers)

    def value(name: str) -> Array:
        if name not in values:
            array = constants.get(name)
            if array is None:
                array = flow.constant(name)
            if array is None and (resolved := flow.resolve(name)) in values:
                array = values[resolved]
            if array is None:
                raise UnknownError(f"{name!r} is unknown")
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
    """Compute an operator in float64, and add its outputs to the values."""
    if values.kinks is not None:
        values.kinks.note(op, inputs)
    if op.kind == "Shape" and inputs[0] is not None:
        first, last = op.attributes.get("start", 0), op.attributes.get("end")
        values[op.outputs[0]] = np.array(inputs[0].shape[first:last], np.int64)
        return
    if op.kind in NODES:
        results: Sequence[Array] = _gru(op, inputs)
    elif op.kind in CELLS:
        results = [_cell(op, inputs, values)]
    elif op.kind == "Cast" and str(op.attributes.get("dtype")) in (
        "float16",
        "bfloat16",
        "float32",
        "float64",
    ):
        assert inputs[0] is not None
        results = [inputs[0].astype(np.float64)]
    elif operator_of(op.kind).computes:
        try:
            results = value_of(op.kind, op.attributes, inputs, len(op.outputs))
        except (ArithmeticError, LargeResultError, LookupError, UnknownOpError, ValueError) as error:
            raise UnknownError(f"{op.kind}: {error}") from error
    else:
        raise UnknownError(f"{op.kind} is not a known operator")
    if (rounding := values.rounding) is not None:
        results = [rounding(array) if array.dtype.kind == "f" else array for array in results]
    values.update((name, array) for name, array in zip(op.outputs, results, strict=False) if name)


def _cell(op: Op, inputs: list[Array | None], values: Values) -> Array:
    """Compute a cell layer with the float64 reference engine."""
    operator = CELLS[op.kind]
    given = {port.name: np.asarray(array) for port, array in zip(operator.inputs, inputs, strict=False)}
    try:
        if op not in values.layers:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SpecWarning)
                lowered = lower(operator, op.attributes, *map(given.get, WEIGHTS))
                layer = GRU.from_canonical(lowered.spec, lowered.weights, engine="reference")
            values.layers[op] = layer, lowered.ports
        layer, ports = values.layers[op]
        states = {name: array for name, array in given.items() if name not in WEIGHTS}
        return np.asarray(apply(layer, ports, states, {"Ho": None})["Ho"])
    except SpecError as error:
        raise UnknownError(str(error)) from error


def _gru(op: Op, inputs: list[Array | None]) -> list[Array]:
    """Compute a GRU with the float64 reference engine."""
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
            attention=None if A is None else op.attributes.get("attention", True),
            engine="reference",
            **options,
        )
    state = None if initial_h is None else np.asarray(initial_h, np.float64)
    attention = None if A is None else np.asarray(A, np.float64)[..., 0]
    try:
        Y, Y_h = layer(np.asarray(X, np.float64), state, sequence_lens=lengths, attention=attention)
    except SpecError as error:  # random sizes may not fit each other
        raise UnknownError(str(error)) from error
    return [np.asarray(Y), np.asarray(Y_h)]
