"""Compute the expected outputs of a case, with a derived tolerance for each value.

The float64 reference computes the expected outputs. The tolerance bounds the error of every implementation
that computes the equations in the case's type. The same equations (`onegru.engines.reference.step`) propagate
it, on numbers that know their error. With u the unit roundoff of the type (of float32, for sums and
activations in 16-bit types), it allows

- a sum of n products in any order, in float32 at least: n·u times the sum of their magnitudes;
- storage of its parts (x·W, h·R, the biases, their sum) in the type: 4 u times that sum;
- an activation error of 16 u of its range, and storage in the type: another 4 u. The error of its argument is
  added, from the function's values at both ends of the interval;
- subnormal numbers flushed to zero.

Source: running error analysis, as in N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed.,
section 3.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onegru.core.activations import Activation
from onegru.core.dtypes import Array
from onegru.core.shapes import arrange
from onegru.core.spec import Spec, Weights
from onegru.engines import reference
from onegru.engines.interface import Problem
from onegru.operators.lowering import Lowered
from onegru.operators.schema import CANONICAL_AXES

#: Tolerance of an activation, in unit roundoffs of its range; float32's for 16-bit types.
ACTIVATION_ERROR = 16.0

#: Number of times that a sum or an activation may be rounded to the type.
STORED = 4.0

#: The unit roundoffs: half the distance from 1 to the next number.
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
_SMALLEST_NORMAL = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}

# Inputs are generated again if a tolerance exceeds this, relative to max(1, the value). A mistake in an
# equation changes far more.
_SHARP = {"float64": 1e-10, "float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}
_LARGEST = {"float64": 1e300, "float32": 1e37, "float16": 6e4, "bfloat16": 1e37}


@dataclass(frozen=True, slots=True)
class Expectation:
    """Expected outputs."""

    values: Mapping[str, Array]  # in float64, by name
    tolerance: Mapping[str, Array]  # the largest allowed error of each value; 0 if it is not finite

    def is_sharp(self, dtype: str) -> bool:
        """Whether every tolerance reveals faults, and all values fit the type."""
        for name, expected in self.values.items():
            size = np.abs(np.where(np.isfinite(expected), expected, 0.0))
            if np.any(self.tolerance[name] > _SHARP[dtype] * np.maximum(1.0, size)):
                return False
            if np.any(size > _LARGEST[dtype]):
                return False
        return True


class Rounded:
    """Values in float64, with a bound on the error of their computation so far."""

    __array_ufunc__ = None  # NumPy's arrays leave operators to this class

    def __init__(self, value: Array, error: Array, dtype: str, terms: int = 0, size: Any = None) -> None:
        self.value, self.error, self.dtype, self.terms = value, error, dtype, terms
        self.size = np.abs(value) if size is None else size  # the sum of the magnitudes of these terms

    def rounded(self) -> Rounded:
        """Return the sum after addition and storage."""
        if not self.terms:
            return self
        u = ROUNDOFF[self.dtype]
        error = self.error + (self.terms * min(u, ROUNDOFF["float32"]) + STORED * u) * self.size
        return Rounded(self.value, _finite(error, self.value), self.dtype)

    def __matmul__(self, matrix: Array) -> Rounded:
        x, sizes = self.rounded(), np.abs(matrix)
        return Rounded(x.value @ matrix, x.error @ sizes, self.dtype, len(matrix), x.size @ sizes)

    def __add__(self, other: Any) -> Rounded:
        b = other if isinstance(other, Rounded) else Rounded(other, np.zeros_like(other), self.dtype)
        terms = max(1, self.terms) + max(1, b.terms)
        return Rounded(self.value + b.value, self.error + b.error, self.dtype, terms, self.size + b.size)

    def __rsub__(self, one: float) -> Rounded:
        z = self.rounded()
        return Rounded(one - z.value, z.error, self.dtype, 2, one + z.size)

    def __mul__(self, other: Any) -> Rounded:
        a = self.rounded()
        b = (
            other.rounded()
            if isinstance(other, Rounded)
            else Rounded(other, np.zeros_like(other), self.dtype)
        )
        value = a.value * b.value
        error = np.abs(a.value) * b.error + np.abs(b.value) * a.error + a.error * b.error
        return Rounded(value, _finite(error, value), self.dtype, 1)

    def clip(self, low: float, high: float, **_: Any) -> Rounded:
        """Return clipped values; called by `numpy.clip`."""
        a = self.rounded()
        value, *ends = np.clip([a.value, a.value - a.error, a.value + a.error], low, high)
        return Rounded(value, _finite(_farthest(ends, value), value), self.dtype)

    def __getitem__(self, rows: Any) -> Rounded:
        return Rounded(self.value[rows], self.error[rows], self.dtype)

    def __setitem__(self, rows: Any, new: Rounded) -> None:
        new = new.rounded()
        self.value[rows], self.error[rows] = new.value, new.error


def _finite(error: Array, value: Array) -> Array:
    """Return no error for infinite and NaN values, because no value is close to them."""
    return np.where(np.isfinite(value), error, 0.0)


def _farthest(ends: Sequence[Array], value: Array) -> Array:
    """Return the largest distance of the results at the ends of an interval from the result within it."""
    farthest: Array = np.max(np.abs(np.asarray(ends) - value), axis=0)
    return farthest


def _activate(activation: Activation, x: Rounded) -> Rounded:
    """Apply an activation function, and add its error to the error of its argument."""
    x = x.rounded()
    low, high = x.value - x.error, x.value + x.error
    alpha = activation.alpha or 0.0
    # Between these points, every function must be monotone.
    breakpoints = (np.clip(point, low, high) for point in (0.0, alpha, np.nextafter(alpha, -np.inf)))
    value, *ends = reference.activate(activation, np.stack([x.value, low, high, *breakpoints]))
    span = max((abs(parameter) for parameter in activation.parameters), default=0.0)
    range_ = np.maximum(np.abs(value), max(1.0, span))
    u = ROUNDOFF[x.dtype]
    own = ACTIVATION_ERROR * min(u, ROUNDOFF["float32"]) + STORED * u
    error = _farthest(ends, value) + own * range_
    return Rounded(value, _finite(error, value), x.dtype)


def expect(lowered: Lowered, inputs: Mapping[str, Array], outputs: Sequence[str]) -> Expectation:
    """Return the expected outputs of a node."""
    problem = problem_of(lowered, inputs)
    spec = lowered.spec
    reference.run(spec, reference.ReferenceWeights.split(lowered.weights), problem)
    errors = errors_of(spec, lowered.weights, problem)
    values, tolerance = {}, {}
    for port in lowered.ports:
        if port.role in errors and port.name in outputs:
            found = getattr(problem, port.role)
            values[port.name] = arrange(found, CANONICAL_AXES[port.role], port.axes)
            tolerance[port.name] = arrange(errors[port.role], CANONICAL_AXES[port.role], port.axes)
    return Expectation(values, tolerance)


def problem_of(lowered: Lowered, inputs: Mapping[str, Array]) -> Problem:
    """Return the call of a node in canonical form, with outputs in float64."""
    canonical = {
        port.role: arrange(inputs[port.name], port.axes, CANONICAL_AXES[port.role])
        for port in lowered.ports
        if port.role in CANONICAL_AXES and port.name in inputs
    }
    X = canonical["X"]
    T, B, _ = X.shape
    shape = (T, lowered.spec.num_directions, B, lowered.spec.hidden_size)
    return Problem(
        X=X,
        initial_h=canonical.get("initial_h"),
        sequence_lens=canonical.get("sequence_lens"),
        attention=canonical.get("A"),
        Y=np.full(shape, np.nan),
        Y_h=np.full(shape[1:], np.nan),
    )


def errors_of(spec: Spec, weights: Weights, problem: Problem) -> dict[str, Array]:
    """Return the tolerance of each value of Y and Y_h, in canonical form."""
    X, dtype = problem.X.astype(np.float64), spec.dtype
    T, B, _ = X.shape
    lengths = np.full(B, T) if problem.sequence_lens is None else problem.sequence_lens
    errors = {"Y": np.zeros((T, spec.num_directions, B, spec.hidden_size))}
    errors["Y_h"] = np.zeros(errors["Y"].shape[1:])
    directions = zip(spec.reversed_directions, reference.ReferenceWeights.split(weights), strict=True)
    with np.errstate(all="ignore"):
        for d, (backwards, w) in enumerate(directions):
            start = np.zeros(errors["Y_h"][d].shape)
            if problem.initial_h is not None:
                start[...] = problem.initial_h[d]
            H = Rounded(start, np.zeros_like(start), dtype)
            for done in range(int(lengths.max(initial=0))):
                rows = np.flatnonzero(done < lengths)
                t = lengths[rows] - 1 - done if backwards else np.full(len(rows), done)
                a = None
                if problem.attention is not None:
                    scores = problem.attention[t, rows].astype(np.float64)[:, None]
                    a = Rounded(scores, np.zeros_like(scores), dtype)
                Xt = Rounded(X[t, rows], np.zeros_like(X[t, rows]), dtype)
                H[rows] = reference.step(spec, w, d, Xt, H[rows], a, _activate).h
                errors["Y"][t, d, rows] = _allowed(H[rows])
            errors["Y_h"][d] = np.where((lengths > 0)[:, None], _allowed(H), 0.0)
    return errors


def _allowed(H: Rounded) -> Array:
    """Return the tolerance of an output; in float64, it includes the error of the reference."""
    own = 2.0 if H.dtype == "float64" else 1.0
    return own * _finite(H.error + _SMALLEST_NORMAL[H.dtype], H.value)
