"""Recognize activations by the function that they compute."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from onegru.core.activations import ACTIVATIONS, Activation
from onegru.core.dtypes import Array, to_float32
from onegru.fusion.cells.algebra import Algebra, Atom
from onegru.fusion.cells.polynomial import CLOSE, Monomial, Polynomial, add, constant, one_atom, scalar, scale

_NEAR_FLOAT32 = 2e-7  # the largest relative difference of equal numbers after two roundings to float32


@dataclass(frozen=True, slots=True)
class FoundActivation:
    """An activation that a polynomial computes: factor·function(argument)."""

    function: Activation  # the function, with parameters rounded to float32
    argument: Polynomial  # the argument of the function
    factor: float = 1.0
    clip: float | None = None  # the clip value of the argument; None for no clipping
    exact_parameters: tuple[float, ...] = ()  # the function's parameters in the model, not rounded

    @classmethod
    def of(cls, name: str, argument: Polynomial, *parameters: float) -> Self:
        """Create an activation with parameters."""
        return cls(Activation(name, *parameters), argument, exact_parameters=parameters)


class Activations:
    """Finds activations."""

    def __init__(self, algebra: Algebra, is_float64: bool) -> None:
        self.algebra = algebra
        self.tolerance = CLOSE if is_float64 else _NEAR_FLOAT32

    def find(self, p: Polynomial) -> FoundActivation | None:
        """Return a polynomial as an activation; None if it is not one."""
        terms = [(m, scalar(item)) for m, item in p.terms.items() if m]
        if (signs := self._signs_of_units(p)) is not None:  # sigmoid(-q) is 1 - sigmoid(q)
            (atom_id,) = p.atoms()
            return FoundActivation(
                Activation("Sigmoid"), scale(self.algebra.atoms[atom_id].arguments[0], signs)
            )
        if len(terms) != 1 or len(terms[0][0]) != 1 or terms[0][1] is None:
            return self._affine(p)
        atom, k = self.algebra.atoms[terms[0][0][0]], terms[0][1]
        base = scalar(p.constant)
        if base is None or atom.kind in ("value", "matmul"):
            return self._affine(p)
        found = self._of_atom(atom, k, base)
        return None if found is None else self._with_clip(found)

    def _signs_of_units(self, p: Polynomial) -> Array | None:
        """Return 1 for units with z and -1 for units with 1 - z, if a polynomial mixes both; else None."""
        terms = [(m, item) for m, item in p.terms.items() if m]
        if len(terms) != 1 or len(terms[0][0]) != 1 or scalar(terms[0][1]) is not None:
            return None
        k, base = terms[0][1], p.constant
        pairs = ((np.abs(k), np.ones_like(k)), (base, (1 - k) / 2))
        is_choice = all(np.allclose(a, b, 0, self.tolerance) for a, b in pairs)
        return np.sign(k) if is_choice and self.algebra.atoms[terms[0][0][0]].kind == "Sigmoid" else None

    def _of_atom(self, atom: Atom, k: float, base: float) -> FoundActivation | None:
        """Return base + k·atom as an activation; None if it is not one."""
        q = atom.arguments[0] if atom.arguments else constant(0)
        low, high = atom.parameters if atom.kind == "Clip" else (np.nan, np.nan)
        near = self._near
        match atom.kind:
            case "Sigmoid" if near(base, 0) and near(k, 1):
                return FoundActivation(Activation("Sigmoid"), q)
            case "Sigmoid" if near(base, 1) and near(k, -1):
                return FoundActivation(Activation("Sigmoid"), scale(q, -1.0))
            case "Sigmoid" if near(k, -2 * base):
                slope = self._clipped_slope(q)
                if slope is not None and not near(slope, 2):  # slope of a clipped argument
                    return FoundActivation.of("ScaledTanh", scale(q, 1 / slope), -base, slope / 2)
                if near(abs(base), 1):
                    return FoundActivation(Activation("Tanh"), scale(q, -base / abs(base) / 2))
                return FoundActivation.of("ScaledTanh", scale(q, -base / abs(base) / 2), abs(base), 1.0)
            case "Sigmoid" if near(base, 0) and k > 0:
                return FoundActivation(Activation("Sigmoid"), q, k)
            case "Clip" if low == 0 and high == np.inf and near(base, 0) and k > 0:
                return FoundActivation(Activation("Relu"), scale(q, k))
            case "Clip" if low == 0 and near(base, 0) and near(k * high, 1):
                return self._hard_sigmoid(scale(q, k))
            case "Clip" if low == 0 and near(base, 1) and near(k * high, -1):
                return self._hard_sigmoid(add(constant(1), scale(q, k)))
            case "Clip" if low == 0 and near(base, 0) and near(k, 1):
                return FoundActivation(Activation("Relu"), q, clip=high)
            case "Clip" if near(low, -high):
                return FoundActivation.of("Affine", one_atom(atom.id), k, base)
            case "LeakyRelu" if near(base, 0) and k > 0:
                return FoundActivation.of("LeakyRelu", scale(q, k), atom.parameters[0])
        row = ACTIVATIONS.get(atom.kind)
        if row is None or not near(base, 0) or not near(abs(k) if row.is_odd else k, 1):
            return None
        return FoundActivation.of(row.name, scale(q, k), *atom.parameters)

    def _clipped_slope(self, q: Polynomial) -> float | None:
        """Return the factor of a clipped argument; None if it is not clipped."""
        single = self.algebra.atom_of(q)
        return single[1] if single is not None and self._clip_value(q) is not None and single[1] > 0 else None

    def _affine(self, p: Polynomial) -> FoundActivation | None:
        kinds = {self.algebra.atoms[atom_id].kind for atom_id in p.atoms()}
        # A gate's argument is a sum of matmuls; the candidate's argument also contains the reset gate.
        return FoundActivation(Activation("Affine", 1.0, 0.0), p) if "matmul" in kinds else None

    def _hard_sigmoid(self, q: Polynomial) -> FoundActivation:
        """Return min(max(q, 0), 1) with the slope of its matmuls as alpha, and beta = 0.5."""
        slopes = [scalar(item) for m, item in q.terms.items() if m and self._is_linear(m)]
        if len(slopes) == 1 and self._clip_value(q) is not None:
            beta, bounded = scalar(q.constant), {m: item for m, item in q.terms.items() if m}
            if beta is not None and slopes[0]:
                inner = scale(Polynomial(bounded), 1 / abs(slopes[0]))
                return FoundActivation.of("HardSigmoid", inner, abs(slopes[0]), beta)
        alpha = 1.0
        if slopes and slopes[0] and all(item is not None and self._near(item, slopes[0]) for item in slopes):
            alpha = to_float32(abs(slopes[0]))  # as in files; the weights absorb the rounding
        argument = scale(add(q, constant(0.5), -1.0), 1 / alpha)
        return FoundActivation(Activation("HardSigmoid", alpha, 0.5), argument)

    def _is_linear(self, monomial: Monomial) -> bool:
        """Whether a product consists of matmuls, perhaps clipped."""
        return all(self.algebra.atoms[atom_id].kind in ("matmul", "Clip") for atom_id in monomial)

    def _clip_value(self, q: Polynomial) -> float | None:
        """Return the clip value of a polynomial with a symmetric Clip as its only atom; else None."""
        terms = [m for m in q.terms if m]
        if len(terms) != 1 or len(terms[0]) != 1:
            return None
        atom = self.algebra.atoms[terms[0][0]]
        symmetric = atom.kind == "Clip" and self._near(atom.parameters[0], -atom.parameters[1])
        return atom.parameters[1] if symmetric else None

    def _with_clip(self, found: FoundActivation) -> FoundActivation:
        """Return the activation, with the clip of its argument as `clip`."""
        single = self.algebra.atom_of(found.argument)
        bound = self._clip_value(found.argument)
        if found.clip is not None or single is None or bound is None or not self._near(abs(single[1]), 1):
            return found
        return replace(found, argument=scale(single[0].arguments[0], single[1]), clip=bound)

    def with_parameters_of(self, found: FoundActivation, like: FoundActivation) -> FoundActivation:
        """Return an activation with the parameters of another, if both are equal or hard sigmoids."""
        if self._is_equal(found.function, like.function):
            return replace(found, function=like.function)
        names = {found.function.name, like.function.name}
        if names != {"HardSigmoid"} or found.clip is not None or like.clip is not None:
            return found
        (alpha, beta), (wanted, middle) = found.function.parameters, like.function.parameters
        argument = add(scale(found.argument, alpha / wanted), constant((beta - middle) / wanted))
        return replace(found, function=like.function, argument=argument)

    def _is_equal(self, a: Activation, b: Activation) -> bool:
        """Whether two functions are equal except for the rounding of their parameters."""
        return a.name == b.name and all(map(self._near, a.parameters, b.parameters))

    def _near(self, a: float, b: float) -> bool:
        """Whether two numbers are equal except for rounding; infinity only equals itself."""
        return a == b or abs(a - b) <= self.tolerance * max(abs(a), abs(b)) < np.inf
