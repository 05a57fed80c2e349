"""The summands of each gate, and their common input and W."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onegru.core.dtypes import Array
from onegru.dataflow.view import Role, View
from onegru.fusion.cells.algebra import Algebra
from onegru.fusion.cells.cell import MissError
from onegru.fusion.cells.polynomial import Monomial


class GatePart:
    """Parameters of one gate."""

    def __init__(self, width: int) -> None:
        self.bias: Array = np.zeros(width)
        self.inner: Array = np.zeros(width)
        self.R: Array = np.zeros((width, width))
        self.x: dict[Monomial, Array] = {}
        self.after = False


def join_inputs(
    algebra: Algebra, width: int, parts: Sequence[GatePart]
) -> tuple[tuple[View, ...], Array, tuple[bool, ...]]:
    """Return the values that form x, W, and for each value whether all units of all gates use all of it."""
    columns: dict[tuple[str, tuple[Role, ...]], dict[tuple[int, ...], int]] = {}
    views_by_key: dict[tuple[str, tuple[Role, ...]], View] = {}
    entries: list[tuple[int, tuple[str, tuple[Role, ...]], Array, Array, bool]] = []
    used: dict[bool, set[object]] = {False: set(), True: set()}  # columns, by whether a matmul uses them
    for gate, part in enumerate(parts):
        for monomial, coefficient in part.x.items():
            atom = algebra.atoms[monomial[0]]
            if len(monomial) != 1 or atom.view is None:
                raise MissError("a term of a gate is not a product of one value with a constant")
            view: View = atom.view
            if atom.kind == "dot":
                assert atom.matrix is not None
                weights = atom.matrix.make() * coefficient
            else:
                weights = np.eye(width) * coefficient
                if not len(view.index):
                    weights = np.broadcast_to(coefficient, width)[None]
            key = view.name, view.roles
            views_by_key[key] = view
            known, is_product = columns.setdefault(key, {}), atom.kind == "dot" or not len(view.index)
            index = view.index if len(view.index) else np.zeros((0, 1), int)
            for column in map(tuple, index.T.tolist()):
                known.setdefault(column, len(known))
                used[is_product].add((key, column))
            entries.append((gate, key, index, weights, is_product))
    if not entries:
        raise MissError("it has no input x")
    if 1 < width <= len(used[False] - used[True]) / len(parts):  # a matmul that the model does not need
        raise MissError("its gates use values without a matmul, so W would be an identity matrix")
    views, starts, total = [], {}, 0
    for key, known in columns.items():
        order = sorted(known)
        columns[key] = {column: position for position, column in enumerate(order)}
        starts[key], total = total, total + len(order)
        index = np.array(order, np.int64).T.reshape(-1, len(order))
        views.append(View(views_by_key[key].name, views_by_key[key].roles, index))
    W, is_used = np.zeros((3 * width, total)), np.zeros((3 * width, total), bool)
    for gate, key, index, weights, is_product in entries:
        rows = [starts[key] + columns[key][column] for column in map(tuple, index.T.tolist())]
        units = slice(gate * width, (gate + 1) * width)
        np.add.at(W[units].T, rows, weights)
        is_used[units, rows] |= is_product or np.eye(width, dtype=bool)
    shared = [is_used[:, start : start + len(columns[key])].all() for key, start in starts.items()]
    return tuple(views), W, tuple(map(bool, shared))
