"""Recognize masks of steps, and states that are zero for masked steps."""

from __future__ import annotations

import numpy as np

from onegru.dataflow.table import UnknownOpError
from onegru.fusion.cells.algebra import Algebra
from onegru.fusion.cells.cell import Cell, Mask
from onegru.fusion.cells.expression import Expressions
from onegru.fusion.cells.polynomial import Monomial, Polynomial, add, constant, drop


def split_masks(algebra: Algebra, keep: Polynomial, state: str) -> tuple[Polynomial, tuple[Mask, ...]]:
    """Split the factor of the old state into masks of whole steps and the rest."""
    share = add(constant(1), keep, -1.0)
    masks: list[Mask] = []
    for number in sorted(share.atoms()):
        atom = algebra.atoms[number]
        if not atom.is_bool or atom.kind != "value" or state in atom.values:
            continue
        without = Polynomial({m: item for m, item in share.terms.items() if number not in m})
        with_it = without
        for m, item in share.terms.items():
            if number in m:
                with_it = add(with_it, Polynomial({drop(m, number): item}))
        if not without.terms:
            masks.append(Mask(atom.view, is_off=False))
            share = with_it
        elif all(not np.any(item) for item in with_it.terms.values()):
            masks.append(Mask(atom.view, is_off=True))
            share = without
    return add(constant(1), share, -1.0), tuple(masks)


def zeroed_state(at: Expressions, cell: Cell) -> Polynomial | None:
    """Return a cell's new state, or zero for masked steps."""
    found = at.of(cell.output)
    if found is None:
        return None
    result = found[1]
    try:
        for mask in cell.masks:
            m = at.polynomial(mask.view)
            result = at.algebra.multiply(add(constant(1), m, -1.0) if mask.is_off else m, result)
    except UnknownOpError:
        return None
    return result


def is_new_state(at: Expressions, cell: Cell, name: str) -> bool:
    """Whether another value equals a cell's new state, except for terms that are known to be zero."""
    first, second = at.of(cell.output), at.of(name)
    if first is None or second is None:
        return False
    rest = add(first[1], second[1], -1.0).terms
    return all(not np.any(item) or _has_zero(at, monomial) for monomial, item in rest.items())


def _has_zero(at: Expressions, monomial: Monomial) -> bool:
    atoms = (at.algebra.atoms[number] for number in monomial)
    return any(atom.kind == "value" and at.flow.fill(atom.view.name) == 0 for atom in atoms)
