"""Recognize masks of steps, and states that are zero for masked steps."""

from __future__ import annotations

import numpy as np

from onegru.dataflow.table import UnknownOpError
from onegru.fusion.cells.algebra import Algebra
from onegru.fusion.cells.cell import Cell, Mask
from onegru.fusion.cells.expression import Expressions
from onegru.fusion.cells.polynomial import Monomial, Polynomial, add, constant, drop


def split_masks(algebra: Algebra, keep: Polynomial, state: str) -> tuple[Polynomial, tuple[Mask, ...]]:
    """Split the factor of the old state into masks of whole steps and the update gate's part."""
    share = add(constant(1), keep, -1.0)  # of the candidate
    masks: list[Mask] = []
    for atom_id in sorted(share.atoms()):
        atom = algebra.atoms[atom_id]
        if not atom.is_bool or atom.kind != "value" or state in atom.values:
            continue
        if_zero = Polynomial({m: item for m, item in share.terms.items() if atom_id not in m})
        if_one = if_zero
        for m, item in share.terms.items():
            if atom_id in m:
                if_one = add(if_one, Polynomial({drop(m, atom_id): item}))
        if not if_zero.terms:
            masks.append(Mask(atom.view, is_off=False))
            share = if_one
        elif all(not np.any(item) for item in if_one.terms.values()):
            masks.append(Mask(atom.view, is_off=True))
            share = if_zero
    return add(constant(1), share, -1.0), tuple(masks)


def zeroed_state(exprs: Expressions, cell: Cell) -> Polynomial | None:
    """Return a cell's new state, or zero for masked steps."""
    result = exprs.definition(cell.output)
    if result is None:
        return None
    try:
        for mask in cell.masks:
            m = exprs.polynomial(mask.view)
            result = exprs.algebra.multiply(add(constant(1), m, -1.0) if mask.is_off else m, result)
    except UnknownOpError:
        return None
    return result


def is_new_state(exprs: Expressions, cell: Cell, name: str) -> bool:
    """Whether another value equals a cell's new state, except for terms that are known to be zero."""
    first, second = exprs.definition(cell.output), exprs.definition(name)
    if first is None or second is None:
        return False
    rest = add(first, second, -1.0).terms
    return all(not np.any(item) or _has_zero(exprs, monomial) for monomial, item in rest.items())


def _has_zero(exprs: Expressions, monomial: Monomial) -> bool:
    atoms = (exprs.algebra.atoms[atom_id] for atom_id in monomial)
    return any(atom.kind == "value" and exprs.flow.fill_value(atom.view.name) == 0 for atom in atoms)
