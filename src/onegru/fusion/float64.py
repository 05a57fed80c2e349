"""Compute operators in float64."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from onegru.core.dtypes import Array
from onegru.core.errors import SpecError, SpecWarning
from onegru.dataflow.evaluate import EvaluatedValues
from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import Op
from onegru.dataflow.table import UnknownOpError, operator_of
from onegru.layers.call import apply
from onegru.layers.gru import GRU
from onegru.operators.lowering import lower
from onegru.operators.openvino import CELLS
from onegru.operators.schema import WEIGHTS

#: The kinds of nodes that replace cells.
GRU_KINDS = ("GRU", "onegru::AUGRU")
_FLOATS = ("float16", "bfloat16", "float32", "float64")


class Float64Values(EvaluatedValues):
    """Values of a graph in float64; runs can share `constants`, which has None for other values."""

    def __init__(
        self,
        flow: Flow,
        given: Mapping[str, Array],
        constants: dict[str, Array | None],
        outer: Float64Values | None = None,
        add_noise: Callable[[Array], Array] | None = None,
    ) -> None:
        super().__init__(flow, given, outer)
        self.constants = constants
        # Changes each float result, as rounding does.
        self.add_noise: Callable[[Array], Array] | None = add_noise if outer is None else outer.add_noise
        self.outermost: Float64Values = self if outer is None else outer.outermost
        self.is_finite = True  # whether no operator has returned infinity or NaN

    def constant(self, name: str) -> Array | None:
        """Return a constant in float64; None for anything else."""
        if name not in self.constants:
            array = self.flow.constant(name)
            self.constants[name] = None if array is None else as_float64(array)
        return self.constants[name]

    def results(self, op: Op, inputs: Sequence[Array | None]) -> Sequence[Array]:
        """Return an operator's outputs in float64."""
        if op.kind in GRU_KINDS or op.kind in CELLS:
            found = _node(op, inputs)
        elif op.kind == "Cast" and op.attributes.get("dtype") in _FLOATS and inputs[0] is not None:
            found = [inputs[0].astype(np.float64)]
        elif operator_of(op.kind).computes:
            found = super().results(op, inputs)
        else:
            raise UnknownOpError(f"{op.kind} is not a known operator")
        self.outermost.is_finite &= all(np.isfinite(item).all() for item in found if item.dtype.kind == "f")
        noisy = self.add_noise
        return [noisy(item) if item.dtype.kind == "f" else item for item in found] if noisy else found


def as_float64(array: Array) -> Array:
    """Return floats as float64, and other types unchanged."""
    return array.astype(np.float64, copy=False) if array.dtype.kind == "f" else array


def _node(op: Op, inputs: Sequence[Array | None]) -> Sequence[Array]:
    """Compute a node or a cell layer with the float64 reference engine."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SpecWarning)
            return _gru(op, inputs) if op.kind in GRU_KINDS else [_cell(op, inputs)]
    except SpecError as error:  # random sizes may not fit each other
        raise UnknownOpError(str(error)) from error


def _cell(op: Op, inputs: Sequence[Array | None]) -> Array:
    operator = CELLS[op.kind]
    given = {port.name: np.asarray(array) for port, array in zip(operator.inputs, inputs, strict=False)}
    lowered = lower(operator, op.attributes, *map(given.get, WEIGHTS))
    layer = GRU.from_canonical(lowered.spec, lowered.weights, engine="reference")
    states = {name: array for name, array in given.items() if name not in WEIGHTS}
    return np.asarray(apply(layer, lowered.ports, states, {"Ho": None})["Ho"])


def _gru(op: Op, inputs: Sequence[Array | None]) -> list[Array]:
    given: list[Array | None] = [None if array is None else as_float64(array) for array in inputs]
    X, W, R, B, lengths, initial_h, A = given + [None] * (7 - len(given))
    options: dict[str, Any] = {
        name: op.attributes[name]
        for name in ("direction", "clip", "activations", "activation_alpha", "activation_beta")
        if name in op.attributes
    }
    layer = GRU(
        np.asarray(W),
        np.asarray(R),
        B,
        linear_before_reset=bool(op.attributes.get("linear_before_reset", 0)),
        attention=None if A is None else op.attributes.get("attention", True),
        engine="reference",
        **options,
    )
    attention = None if A is None else A[..., 0]
    Y, Y_h = layer(np.asarray(X), initial_h, sequence_lens=lengths, attention=attention)
    return [np.asarray(Y), np.asarray(Y_h)]
