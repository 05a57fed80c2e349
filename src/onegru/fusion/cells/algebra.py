"""Atoms of polynomials, and their arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onegru.core.activations import ACTIVATIONS
from onegru.core.dtypes import Array
from onegru.core.elementary import NumpyElementary
from onegru.dataflow.table.base import UnknownOpError
from onegru.dataflow.walk import reachable
from onegru.fusion.cells.polynomial import (
    CLOSE,
    CONSTANT,
    MOST_TERMS,
    Monomial,
    Polynomial,
    add,
    constant,
    one_atom,
    ratio,
    same,
    scalar,
    scale,
)

_MOST_FACTORS = 8


@dataclass(frozen=True, eq=False, slots=True)
class Matrix:
    """A constant matrix that is computed on demand."""

    key: Hashable  # a key that is equal for equal matrices
    make: Callable[[], Array]  # computes the matrix in float64


@dataclass(frozen=True, eq=False, slots=True)
class Atom:
    """A factor of a product."""

    id: int  # its position in `Algebra.atoms`
    kind: str  # "value", "matmul", or the name of a function
    view: Any = None  # the view of a value, or of the input of a matmul
    arguments: tuple[Polynomial, ...] = ()  # the arguments of a function, or the input row of a matmul
    parameters: tuple[float, ...] = ()  # the parameters of a function
    matrix: Matrix | None = None  # the matrix of a matmul
    values: frozenset[str] = frozenset()  # the names of all values that the atom depends on
    is_bool: bool = False  # whether the atom is 0 or 1

    def weights(self) -> Array:
        """Return the matrix of a matmul."""
        assert self.matrix is not None
        return self.matrix.make()


@dataclass(eq=False, slots=True)
class Algebra:
    """The atoms of an analysis, without duplicates."""

    atoms: list[Atom] = field(default_factory=list)  # all atoms, by id
    # digests of constants' contents, by `id(array)`; the array is stored so that no other gets its id
    digests: dict[int, tuple[Array, str]] = field(default_factory=dict)
    # atoms whose arguments consist of the same products, perhaps with other coefficients
    _similar: dict[Hashable, list[Atom]] = field(default_factory=dict)

    def atom_of(self, p: Polynomial) -> tuple[Atom, float] | None:
        """Return the atom and coefficient of a polynomial with one term; else None."""
        single = p.single()
        return None if single is None else (self.atoms[single[0]], single[1])

    def values(self, polynomials: Iterable[Polynomial]) -> frozenset[str]:
        """Return the names of the values that polynomials depend on."""
        atom_ids = {atom_id for p in polynomials for atom_id in p.atoms()}
        return frozenset().union(*(self.atoms[atom_id].values for atom_id in atom_ids))

    def value(self, key: Hashable, view: Any, name: str, is_bool: bool = False) -> Polynomial:
        """Return the atom for columns of a model's value."""
        return self._atom(("value", key), "value", view=view, values=frozenset((name,)), is_bool=is_bool)

    def matmul(self, operand: Polynomial, matrix: Matrix, view: Any) -> Polynomial:
        """Return the matmul of a row, which is `view` in the model, with a constant matrix."""
        key = ("matmul", frozenset(operand.terms), matrix.key)
        return self._atom(key, "matmul", (operand,), matrix=matrix, view=view)

    def function(self, name: str, *arguments: Polynomial, parameters: tuple[float, ...] = ()) -> Polynomial:
        """Return a function without simplification."""
        key = (name, parameters, *(frozenset(argument.terms) for argument in arguments))
        return self._atom(key, name, arguments, parameters=parameters)

    def _atom(
        self, key: Hashable, kind: str, arguments: tuple[Polynomial, ...] = (), **details: Any
    ) -> Polynomial:
        """Return the atom with these arguments; add it if there is none."""
        similar = self._similar.setdefault(key, [])
        for atom in similar:
            if all(same(a, b) for a, b in zip(atom.arguments, arguments, strict=True)):
                return one_atom(atom.id)
        details.setdefault("values", self.values(arguments))
        similar.append(Atom(len(self.atoms), kind, arguments=arguments, **details))
        self.atoms.append(similar[-1])
        return one_atom(similar[-1].id)

    # Arithmetic

    def multiply(self, p: Polynomial, q: Polynomial) -> Polynomial:
        """Return p∘q, expanded to a sum of products."""
        if p.is_constant or q.is_constant:
            fixed, other = (p, q) if p.is_constant else (q, p)
            return scale(other, fixed.constant)
        for first, second in ((p, q), (q, p)):
            if (found := self.atom_of(second)) is not None and found[0].kind == "Reciprocal":
                quotient = self._as_softsign(first, found[0].arguments[0])
                if quotient is not None:
                    return scale(quotient, found[1])
        if len(p.terms) * len(q.terms) > 4 * MOST_TERMS:
            raise UnknownOpError
        result = Polynomial({})
        for a, x in p.terms.items():
            for b, y in q.terms.items():
                result = add(result, Polynomial({self._joined(a, b): x * y}))
        return result

    def _joined(self, a: Monomial, b: Monomial) -> Monomial:
        """Return the product of two monomials; the square of a Boolean is the Boolean."""
        atom_ids = sorted((*a, *b))
        if len(atom_ids) > _MOST_FACTORS:
            raise UnknownOpError
        pairs = zip([None, *atom_ids], atom_ids, strict=False)
        return tuple(
            atom_id for before, atom_id in pairs if before != atom_id or not self.atoms[atom_id].is_bool
        )

    def divide(self, p: Polynomial, q: Polynomial) -> Polynomial:
        """Return p / q, element-wise."""
        if q.is_constant:
            if not np.all(q.constant):
                raise UnknownOpError
            return scale(p, 1 / q.constant)
        exponential = self._one_plus(q, "Exp")
        if exponential is not None:
            base, factor, atom = exponential  # q = base·(1 + factor·e^x)
            shift = constant(np.log(factor))
            low = self.sigmoid(scale(add(atom.arguments[0], shift), -1.0))  # 1 / (1 + factor·e^x)
            high = add(constant(1), low, -1.0)  # factor·e^x / (1 + factor·e^x)
            result = Polynomial({})
            for monomial, coefficient in p.terms.items():
                rest = tuple(atom_id for atom_id in monomial if atom_id != atom.id)
                if len(monomial) - len(rest) > 1:
                    raise UnknownOpError
                part = scale(low, 1 / base) if len(rest) == len(monomial) else scale(high, 1 / base / factor)
                result = add(result, self.multiply(Polynomial({rest: coefficient}), part))
            return result
        if (quotient := self._as_softsign(p, q)) is not None:
            return quotient
        return self.multiply(p, self.function("Reciprocal", q))

    def _one_plus(self, q: Polynomial, kind: str) -> tuple[float, float, Atom] | None:
        """Return (base, factor, atom) of base·(1 + factor·atom) with positive numbers; else None."""
        if len(q.terms) != 2 or CONSTANT not in q.terms:
            return None
        base = scalar(q.constant)
        ((monomial, coefficient),) = (item for item in q.terms.items() if item[0])
        factor = scalar(coefficient)
        if base is None or factor is None or base <= 0 or factor <= 0 or len(monomial) != 1:
            return None
        atom = self.atoms[monomial[0]]
        return (base, factor / base, atom) if atom.kind == kind else None

    def _as_softsign(self, p: Polynomial, q: Polynomial) -> Polynomial | None:
        """Return p / q if it is k·x / (1 + |x|); else None."""
        found = self._one_plus(q, "Abs")
        if found is None:
            return None
        base, factor, atom = found
        k = ratio(p, atom.arguments[0])
        if k is None or abs(factor - 1) > CLOSE:
            return None
        return scale(self.odd_function("Softsign", atom.arguments[0]), k / base)

    # Functions

    def sigmoid(self, p: Polynomial) -> Polynomial:
        """Return 1 / (1 + e^-p); in normal form, -p becomes p."""
        if p.is_constant:
            return constant(NumpyElementary.sigmoid(p.constant))
        if _is_negative(p):
            return add(constant(1), self.function("Sigmoid", scale(p, -1.0)), -1.0)
        return self.function("Sigmoid", p)

    def tanh(self, p: Polynomial) -> Polynomial:
        """Return the hyperbolic tangent as 2·σ(2p) - 1."""
        return add(scale(self.sigmoid(scale(p, 2.0)), 2.0), constant(1), -1.0)

    def odd_function(self, name: str, p: Polynomial) -> Polynomial:
        """Return f(p) for a function with f(-p) = -f(p)."""
        if _is_negative(p):
            return scale(self.function(name, scale(p, -1.0)), -1.0)
        return self.function(name, p)

    def absolute(self, p: Polynomial) -> Polynomial:
        """Return |p|."""
        if p.is_constant:
            return constant(np.abs(p.constant))
        return self.function("Abs", scale(p, -1.0) if _is_negative(p) else p)

    def exp(self, p: Polynomial) -> Polynomial:
        """Return e^p."""
        return constant(np.exp(p.constant)) if p.is_constant else self.function("Exp", p)

    def log(self, p: Polynomial) -> Polynomial:
        """Return the natural logarithm of p; the logarithm of 1 + e^x is Softplus."""
        if p.is_constant:
            return constant(np.log(p.constant))
        if (found := self._one_plus(p, "Exp")) is not None:
            base, factor, atom = found
            if abs(base - 1) < CLOSE:
                return self.function("Softplus", add(atom.arguments[0], constant(np.log(factor))))
        return self.function("Log", p)

    def clip(self, p: Polynomial, low: float, high: float) -> Polynomial:
        """Return min(max(p, low), high); nested clips are merged."""
        if low > high:
            raise UnknownOpError
        if low == -np.inf and high == np.inf:
            return p
        if p.is_constant:
            return constant(np.clip(p.constant, low, high))
        found = self.atom_of(p)
        if found is not None and found[0].kind == "Clip" and found[1]:
            inner, (before, after) = scale(found[0].arguments[0], found[1]), found[0].parameters
            ends = sorted((before * found[1], after * found[1]))
            return self._clip_atom(inner, *(float(np.clip(end, low, high)) for end in ends))
        return self._clip_atom(p, low, high)

    def _clip_atom(self, p: Polynomial, low: float, high: float) -> Polynomial:
        """Return min(max(p, low), high) as an atom."""
        if low == high:
            return constant(low)
        return self.function("Clip", p, parameters=(low, high))

    def maximum(self, p: Polynomial, q: Polynomial) -> Polynomial:
        """Return max(p, q); the maximum of x and alpha·x is LeakyRelu."""
        for first, second in ((p, q), (q, p)):
            if first.is_constant and (low := scalar(first.constant)) is not None:
                return self.clip(second, low, np.inf)
        for first, second in ((p, q), (q, p)):
            alpha = ratio(second, first)
            if alpha is not None and 0 < alpha < 1:
                return self.function("LeakyRelu", first, parameters=(alpha,))
        return self.function("Max", p, q)

    def minimum(self, p: Polynomial, q: Polynomial) -> Polynomial:
        """Return min(p, q)."""
        for first, second in ((p, q), (q, p)):
            if first.is_constant and (high := scalar(first.constant)) is not None:
                return self.clip(second, -np.inf, high)
        return scale(self.maximum(scale(p, -1.0), scale(q, -1.0)), -1.0)

    def apply(self, atom: Atom, arguments: Sequence[Polynomial]) -> Polynomial:
        """Apply an atom's function to other arguments."""
        match atom.kind:
            case "value" | "matmul":
                raise UnknownOpError
            case "Sigmoid" | "Exp" | "Log":
                return {"Sigmoid": self.sigmoid, "Exp": self.exp, "Log": self.log}[atom.kind](*arguments)
            case "Abs":
                return self.absolute(*arguments)
            case kind if kind in ACTIVATIONS and ACTIVATIONS[kind].is_odd:
                return self.odd_function(kind, *arguments)
            case "Clip":
                return self.clip(arguments[0], *atom.parameters)
            case "Max":
                return self.maximum(*arguments)
            case "Reciprocal":
                return self.divide(constant(1), *arguments)
            case _:
                return self.function(atom.kind, *arguments, parameters=atom.parameters)

    def piecewise(self, w: Polynomial, p: Polynomial, q: Polynomial, is_strict: bool) -> Polynomial:
        """Return p where w > 0 (or w ≥ 0 unless strict), else q, as a function like Relu."""
        for sign, right, left in ((1.0, p, q), (-1.0, q, p)):
            x = scale(w, sign)
            if left.terms == {} and right.terms:
                threshold = add(right, x, -1.0)  # x + threshold > threshold
                if threshold.is_constant and (t := scalar(threshold.constant)) is not None:
                    if t == 0:
                        return self.clip(right, 0.0, np.inf)
                    if is_strict == (sign > 0):  # it is 0 at the threshold; the others are continuous
                        return self.function("ThresholdedRelu", right, parameters=(t,))
            if (k := ratio(right, x)) is None or abs(k - 1) > CLOSE:
                continue
            if (alpha := ratio(left, right)) is not None:
                return self.function("LeakyRelu", right, parameters=(alpha,))
            alpha = scalar(-left.constant)
            if alpha and same(left, scale(add(self.exp(right), constant(1), -1.0), alpha)):
                return self.function("Elu", right, parameters=(alpha,))
        raise UnknownOpError

    def inner_atoms(self, *polynomials: Polynomial) -> Iterable[int]:
        """Return the atoms of polynomials and of their functions' arguments."""
        return reachable(
            [atom_id for p in polynomials for atom_id in p.atoms()],
            lambda atom_id: [inner for p in self.atoms[atom_id].arguments for inner in p.atoms()],
        )


def _is_negative(p: Polynomial) -> bool:
    """Whether functions use -p instead of p in normal form."""
    key = min((monomial for monomial in p.terms if monomial), default=CONSTANT)
    if key not in p.terms:
        return False
    first = p.terms[key].ravel()
    return bool(first[np.flatnonzero(first)[0]] < 0) if np.any(first) else False
