"""Polynomials with one normal form for each function.

A value is a row of numbers for each sequence of the batch. It is written as a sum of element-wise products of
atoms. An atom is also a row: columns of another value, the matmul of a row with a constant matrix, or a
function of a polynomial. Equivalent expressions have the same polynomial: (1 - z)∘n + z∘h and n + z∘(h - n)
are both n - z∘n + z∘h.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from onegru.core.dtypes import Array
from onegru.dataflow.table.base import UnknownOpError

#: The largest number of terms of a polynomial.
MOST_TERMS = 48
#: The largest relative difference of equal coefficients that are computed in two ways in float64.
CLOSE = 1e-13

#: The ids of a product's atoms, in ascending order.
Monomial = tuple[int, ...]
CONSTANT: Monomial = ()


@dataclass(frozen=True, eq=False, slots=True)
class Polynomial:
    """A sum of products."""

    terms: Mapping[Monomial, Array]  # the coefficient of each product: one for all columns, or one per column

    @property
    def constant(self) -> Array:
        """Constant term."""
        return self.terms.get(CONSTANT, _ZERO)

    @property
    def is_constant(self) -> bool:
        """Whether the polynomial has no atoms."""
        return all(not monomial for monomial in self.terms)

    def atoms(self) -> set[int]:
        """Return the ids of all atoms."""
        return {atom_id for monomial in self.terms for atom_id in monomial}

    def single(self) -> tuple[int, float] | None:
        """Return the id of an atom and its coefficient, if the polynomial is one atom times a number."""
        if len(self.terms) != 1:
            return None
        ((monomial, coefficient),) = self.terms.items()
        scale = scalar(coefficient)
        return None if len(monomial) != 1 or scale is None else (monomial[0], scale)


_ZERO = np.zeros(())


def scalar(array: Array) -> float | None:
    """Return the number that all elements of an array equal; None if they differ."""
    first = float(array.ravel()[0])
    return first if array.ndim == 0 or bool(np.all(array == first)) else None


def close(a: Array, b: Array) -> bool:
    """Whether two coefficients are equal except for rounding."""
    if a.shape and b.shape and a.shape != b.shape:
        return False
    return bool(np.all(np.abs(a - b) <= CLOSE * np.maximum(np.abs(a), np.abs(b))))


def same(p: Polynomial, q: Polynomial) -> bool:
    """Whether two polynomials are the same function."""
    return p.terms.keys() == q.terms.keys() and all(close(p.terms[key], q.terms[key]) for key in p.terms)


def constant(value: float | Array) -> Polynomial:
    """Return a polynomial without atoms."""
    array = np.asarray(value, np.float64)
    return Polynomial({CONSTANT: array} if np.any(array) else {})


def one_atom(atom_id: int) -> Polynomial:
    """Return a polynomial that is one atom."""
    return Polynomial({(atom_id,): np.ones(())})


def add(p: Polynomial, q: Polynomial, factor: float = 1.0) -> Polynomial:
    """Return p + factor·q."""
    terms = dict(p.terms)
    for monomial, coefficient in q.terms.items():
        if monomial not in terms:
            terms[monomial] = coefficient * factor
            continue
        total = terms[monomial] + coefficient * factor
        size = np.abs(terms[monomial]) + np.abs(coefficient * factor)
        if monomial and np.all(np.abs(total) <= CLOSE * size):  # the terms cancel
            del terms[monomial]
        else:
            terms[monomial] = total
    return _checked(terms)


def drop(monomial: Monomial, atom_id: int) -> Monomial:
    """Return a monomial without an atom."""
    return tuple(other for other in monomial if other != atom_id)


def divided(monomial: Monomial, factor: Monomial) -> Monomial | None:
    """Return a monomial divided by another; None if it is not divisible."""
    left = list(monomial)
    for atom_id in factor:
        if atom_id not in left:
            return None
        left.remove(atom_id)
    return tuple(left)


def quotient(p: Polynomial, atom_id: int) -> Polynomial | None:
    """Return p / atom; None unless every term contains the atom exactly once."""
    if any(monomial.count(atom_id) != 1 for monomial in p.terms):
        return None
    return Polynomial({drop(monomial, atom_id): item for monomial, item in p.terms.items()})


def scale(p: Polynomial, factor: float | Array) -> Polynomial:
    """Return factor·p."""
    if not np.any(factor):
        return constant(0)
    return Polynomial({monomial: coefficient * factor for monomial, coefficient in p.terms.items()})


def _checked(terms: dict[Monomial, Array]) -> Polynomial:
    """Return a polynomial, without a constant 0; raise UnknownOpError if it is too long."""
    if len(terms) > MOST_TERMS:
        raise UnknownOpError
    return Polynomial({monomial: item for monomial, item in terms.items() if monomial or np.any(item)})


def ratio(p: Polynomial, q: Polynomial) -> float | None:
    """Return the number p / q; None if it is not a number."""
    if p.terms.keys() != q.terms.keys() or not p.terms:
        return None
    key = next(iter(p.terms))
    largest = int(np.argmax(np.abs(q.terms[key])))
    divisor = float(q.terms[key].ravel()[largest])
    numerator = np.broadcast_to(p.terms[key], q.terms[key].shape) if p.terms[key].ndim == 0 else p.terms[key]
    found = float(numerator.ravel()[largest if numerator.size > largest else 0]) / divisor if divisor else 0.0
    return found if found and same(p, scale(q, found)) else None
