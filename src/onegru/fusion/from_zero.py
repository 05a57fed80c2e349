"""Recognize a first step that an exporter computed from a zero state."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onegru.core.dtypes import contiguous
from onegru.dataflow.memoized import memoized
from onegru.dataflow.table import UnknownOpError
from onegru.dataflow.view import View
from onegru.fusion.cells.algebra import Atom, Matrix
from onegru.fusion.cells.cell import Cell
from onegru.fusion.cells.expression import Expressions
from onegru.fusion.cells.polynomial import Polynomial, add, constant, one_atom, same, scale
from onegru.fusion.nodes.node import is_zero
from onegru.fusion.nodes.sources import source_views, step_before


def is_step_from_zero(exprs: Expressions, name: str, first: Cell, second: Cell) -> bool:
    """Whether a value is the result of a cell with a zero state, one step before `first`."""
    state = exprs.flow.resolve(first.state.name)
    pairs = zip(first.step_inputs, second.step_inputs, strict=True)
    following = {(a.name, a.roles): b for a, b in pairs}

    def earlier(view: View) -> Polynomial:
        if exprs.flow.resolve(view.name) == state:
            return constant(0)
        after = following.get((view.name, view.roles))
        found = after and step_before(exprs, (view, View(after.name, after.roles, view.coordinates)))
        if found is None:
            raise UnknownOpError
        return _source(exprs, found)

    expected, found = exprs.definition(first.output), exprs.definition(name)
    if expected is None or found is None:
        return False
    try:
        return same(
            _Substitution(exprs, earlier).apply(expected),
            _Substitution(exprs, lambda view: _source(exprs, view)).apply(found),
        )
    except UnknownOpError:
        return False


def _source(exprs: Expressions, view: View) -> Polynomial:
    """Return a view as an atom, shared by all views of the same elements; 0 for a zero state."""
    return constant(0) if is_zero(exprs.flow, view.name) else exprs.atom(source_views(exprs, view)[-1])


class _Substitution:
    """Replaces values in polynomials by other polynomials."""

    # Matmuls with matrices of equal content become one, regardless of their storage in the model.

    def __init__(self, exprs: Expressions, value: Callable[[View], Polynomial]) -> None:
        self.algebra = exprs.algebra
        self.value = value
        self._known: dict[int, Polynomial] = {}

    def apply(self, p: Polynomial) -> Polynomial:
        result = constant(0)
        for monomial, coefficient in p.terms.items():
            term = constant(coefficient)
            for atom_id in monomial:
                term = self.algebra.multiply(term, self._atom(atom_id))
            result = add(result, term)
        return result

    # without circles, because atoms depend only on older atoms
    @memoized("_known", if_circular=lambda _, atom_id: constant(0))
    def _atom(self, atom_id: int) -> Polynomial:
        atom = self.algebra.atoms[atom_id]
        return self.value(atom.view) if atom.kind == "value" else self._function(atom)

    def _function(self, atom: Atom) -> Polynomial:
        arguments = [self.apply(argument) for argument in atom.arguments]
        if atom.matrix is None:
            return self.algebra.apply(atom, arguments)
        (row,) = arguments
        weights = contiguous(atom.matrix.make())
        if row.is_constant:
            return constant(np.broadcast_to(row.constant, len(weights)) @ weights)
        matrix = Matrix((weights.shape, weights.tobytes()), lambda: weights)
        single = row.single()
        if single is None:
            return self.algebra.matmul(row, matrix, atom.view)
        return scale(self.algebra.matmul(one_atom(single[0]), matrix, atom.view), single[1])
