"""The summands of each gate, and their common input and W."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from onegru.core.dtypes import Array
from onegru.dataflow.view import Role, View
from onegru.fusion.cells.algebra import Algebra
from onegru.fusion.cells.cell import MissError
from onegru.fusion.cells.polynomial import Monomial

_Value = tuple[str, tuple[Role, ...]]  # a value's name, and the roles of its axes


class _Term(NamedTuple):
    """A product of columns of a value with weights, in one gate."""

    gate: int  # 0, 1 or 2 for z, r and n
    value: _Value
    columns: list[tuple[int, ...]]  # the coordinates of each, as in `View`
    weights: Array  # [columns, units]
    is_matmul: bool  # whether each unit uses all columns


class GateSum:
    """The argument of one gate: a sum of products with x, of a product with h, and of biases."""

    def __init__(self, hidden_size: int) -> None:
        self.x: dict[Monomial, Array] = {}  # the coefficients of terms without h
        self.R: Array = np.zeros((hidden_size, hidden_size))
        self.bias: Array = np.zeros(hidden_size)
        self.inner_bias: Array = np.zeros(hidden_size)  # Rb, if the reset gate multiplies it
        self.linear_before_reset = False  # whether the reset gate is applied after the matmul with R


def join_inputs(
    algebra: Algebra, hidden_size: int, gates: Sequence[GateSum]
) -> tuple[tuple[View, ...], Array, tuple[bool, ...]]:
    """Return the values that form x, W, and for each value whether all units of all gates use all of it."""
    columns: dict[_Value, dict[tuple[int, ...], int]] = {}  # the position in W of each column
    terms: list[_Term] = []
    used: dict[bool, set[object]] = {False: set(), True: set()}  # columns, by whether a matmul uses them
    for gate, gate_sum in enumerate(gates):
        for monomial, coefficient in gate_sum.x.items():
            atom = algebra.atoms[monomial[0]]
            if len(monomial) != 1 or atom.view is None:
                raise MissError("a term of a gate is not a product of one value with a constant")
            view: View = atom.view
            if atom.matrix is not None:
                weights = atom.weights() * coefficient
            elif view.has_columns:
                weights = np.eye(hidden_size) * coefficient
            else:
                weights = np.broadcast_to(coefficient, hidden_size)[None]
            value, is_matmul = (view.name, view.roles), atom.matrix is not None or not view.has_columns
            coordinates = view.coordinates if view.has_columns else np.zeros((0, 1), int)
            terms.append(_Term(gate, value, list(map(tuple, coordinates.T.tolist())), weights, is_matmul))
            columns.setdefault(value, {}).update(dict.fromkeys(terms[-1].columns, 0))
            used[is_matmul].update((value, column) for column in terms[-1].columns)
    if not terms:
        raise MissError("it has no input x")
    if 1 < hidden_size <= len(used[False] - used[True]) / len(gates):  # a matmul that the model does not need
        raise MissError("its gates use values without a matmul, so W would be an identity matrix")
    views, starts, total = [], {}, 0
    for value, known in columns.items():
        order = sorted(known)
        columns[value] = {column: position for position, column in enumerate(order, total)}
        starts[value], total = total, total + len(order)
        views.append(View(*value, np.array(order, np.int64).T.reshape(-1, len(order))))
    W, is_used = np.zeros((3 * hidden_size, total)), np.zeros((3 * hidden_size, total), bool)
    for term in terms:
        positions = [columns[term.value][column] for column in term.columns]
        units = slice(term.gate * hidden_size, (term.gate + 1) * hidden_size)
        np.add.at(W[units].T, positions, term.weights)
        is_used[units, positions] |= term.is_matmul or np.eye(hidden_size, dtype=bool)
    shared = [is_used[:, start : start + len(columns[value])].all() for value, start in starts.items()]
    return tuple(views), W, tuple(map(bool, shared))
