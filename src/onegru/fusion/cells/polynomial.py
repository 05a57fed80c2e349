"""Polynomials with one normal form for each function.

A value of a model is a row of numbers for each sequence of the batch. It is written as a sum of products of
atoms, each factor a row as well and each product taken element by element: columns of another value, the
product of a row with a constant matrix, or a function of a polynomial. However a model writes an expression,
its polynomial is the same: (1 - z)∘n + z∘h and n + z∘(h - n) are both n - z∘n + z∘h.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from onegru.core.dtypes import Array
from onegru.dataflow.table.base import UnknownOpError

#: How many terms a polynomial may have.
MOST_TERMS = 48
#: How far two coefficients are apart, at most, that are one number computed in two ways in float64.
CLOSE = 1e-13

#: The atoms of a product, by their numbers, in ascending order.
Monomial = tuple[int, ...]
CONSTANT: Monomial = ()


@dataclass(frozen=True, eq=False, slots=True)
class Polynomial:
    """A sum of products."""

    terms: Mapping[Monomial, Array]  # the coefficients of each product: one for all columns, or one for each

    @property
    def constant(self) -> Array:
        """The constant term."""
        return self.terms.get(CONSTANT, _ZERO)

    @property
    def is_constant(self) -> bool:
        """Whether it has no atoms."""
        return all(not monomial for monomial in self.terms)

    def atoms(self) -> set[int]:
        """The numbers of its atoms."""
        return {number for monomial in self.terms for number in monomial}

    def single(self) -> tuple[int, float] | None:
        """Its atom and its coefficient, if it is one atom times a number."""
        if len(self.terms) != 1:
            return None
        ((monomial, coefficient),) = self.terms.items()
        scale = scalar(coefficient)
        return None if len(monomial) != 1 or scale is None else (monomial[0], scale)


_ZERO = np.zeros(())


def scalar(array: Array) -> float | None:
    """The one number that an array holds, once or in every element; None if it holds others."""
    first = float(array.ravel()[0])
    return first if array.ndim == 0 or bool(np.all(array == first)) else None


def close(a: Array, b: Array) -> bool:
    """Whether two coefficients are the same number."""
    if a.shape and b.shape and a.shape != b.shape:
        return False
    return bool(np.all(np.abs(a - b) <= CLOSE * np.maximum(np.abs(a), np.abs(b))))


def same(p: Polynomial, q: Polynomial) -> bool:
    """Whether two polynomials are one function."""
    return p.terms.keys() == q.terms.keys() and all(close(p.terms[key], q.terms[key]) for key in p.terms)


def constant(value: float | Array) -> Polynomial:
    """A polynomial without atoms."""
    array = np.asarray(value, np.float64)
    return Polynomial({CONSTANT: array} if np.any(array) else {})


def add(p: Polynomial, q: Polynomial, factor: float = 1.0) -> Polynomial:
    """P + factor·q."""
    terms = dict(p.terms)
    for monomial, coefficient in q.terms.items():
        if monomial not in terms:
            terms[monomial] = coefficient * factor
            continue
        total = terms[monomial] + coefficient * factor
        size = np.abs(terms[monomial]) + np.abs(coefficient * factor)
        if monomial and np.all(np.abs(total) <= CLOSE * size):
            del terms[monomial]
        else:
            terms[monomial] = total
    return _limited(terms)


def drop(monomial: Monomial, number: int) -> Monomial:
    """A monomial without an atom."""
    return tuple(item for item in monomial if item != number)


def divided(monomial: Monomial, factor: Monomial) -> Monomial | None:
    """A monomial divided by another; None if that is no factor of it."""
    left = list(monomial)
    for number in factor:
        if number not in left:
            return None
        left.remove(number)
    return tuple(left)


def quotient(p: Polynomial, number: int) -> Polynomial | None:
    """P / atom; None if a term does not have the atom just once."""
    if any(monomial.count(number) != 1 for monomial in p.terms):
        return None
    return Polynomial({drop(monomial, number): item for monomial, item in p.terms.items()})


def scale(p: Polynomial, factor: float | Array) -> Polynomial:
    """factor·p."""
    if not np.any(factor):
        return constant(0)
    return Polynomial({monomial: coefficient * factor for monomial, coefficient in p.terms.items()})


def _limited(terms: dict[Monomial, Array]) -> Polynomial:
    if len(terms) > MOST_TERMS:
        raise UnknownOpError
    return Polynomial({monomial: item for monomial, item in terms.items() if monomial or np.any(item)})


def ratio(p: Polynomial, q: Polynomial) -> float | None:
    """The number p / q; None if it is not a number."""
    if p.terms.keys() != q.terms.keys() or not p.terms:
        return None
    key = next(iter(p.terms))
    size = int(np.argmax(np.abs(q.terms[key])))
    below = float(q.terms[key].ravel()[size])
    above = np.broadcast_to(p.terms[key], q.terms[key].shape) if p.terms[key].ndim == 0 else p.terms[key]
    found = float(above.ravel()[size if above.size > size else 0]) / below if below else 0.0
    return found if found and same(p, scale(q, found)) else None
