"""The elementary functions that activation functions consist of.

This module computes them for NumPy arrays. onegru.torch.autograd.fallback does so for tensors, and
onegru.formats.onnx.writing.gru_step for the nodes of an ONNX graph.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from onegru.core.dtypes import Array


class Elementary(Protocol):
    """Functions of values and numbers, element by element; NaN gives NaN."""

    def add(self, x: Any, y: Any) -> Any:
        """The sum x + y."""

    def mul(self, x: Any, y: Any) -> Any:
        """The product x·y."""

    def div(self, x: Any, y: Any) -> Any:
        """The quotient x / y."""

    def abs(self, x: Any) -> Any:
        """The absolute value."""

    def tanh(self, x: Any) -> Any:
        """The hyperbolic tangent."""

    def sigmoid(self, x: Any) -> Any:
        """The logistic function 1 / (1 + e^-x), which does not overflow."""

    def relu(self, x: Any) -> Any:
        """The larger of a value and 0."""

    def expm1_of_negative(self, x: Any) -> Any:
        """The function e^x - 1 where x ≤ 0; elsewhere an arbitrary number, which the caller must not use."""

    def softplus(self, x: Any) -> Any:
        """The function log(1 + e^x), which does not overflow."""

    def maximum(self, x: Any, bound: float) -> Any:
        """The larger of a value and a number."""

    def minimum(self, x: Any, bound: float) -> Any:
        """The smaller of a value and a number."""

    def where_less(self, x: Any, bound: float, then: Any, otherwise: Any) -> Any:
        """One value where x < bound, else another."""

    def piecewise(self, x: Any, negative: Any, positive: Any) -> Any:
        """One value where x < 0, another where x > 0; they are equal at 0."""

    def finite(self, x: Any) -> Any:
        """The value, with a large number of the same sign instead of an infinity."""


class NumpyElementary:
    """The elementary functions of NumPy's arrays, in their type; see `Elementary`."""

    add = staticmethod(np.add)
    mul = staticmethod(np.multiply)
    div = staticmethod(np.divide)
    abs = staticmethod(np.abs)
    tanh = staticmethod(np.tanh)
    maximum = staticmethod(np.maximum)
    minimum = staticmethod(np.minimum)

    @staticmethod
    def sigmoid(x: Array) -> Array:
        e = np.exp(-np.abs(x))  # at most 1, so nothing overflows
        return np.asarray(np.where(x >= 0, 1 / (1 + e), e / (1 + e)))

    @staticmethod
    def relu(x: Array) -> Array:
        return np.asarray(np.maximum(x, 0.0))

    @staticmethod
    def expm1_of_negative(x: Array) -> Array:
        return np.asarray(np.expm1(np.minimum(x, 0.0)))

    @staticmethod
    def softplus(x: Array) -> Array:
        return np.asarray(np.logaddexp(x, 0))

    @staticmethod
    def finite(x: Array) -> Array:
        largest = np.finfo(x.dtype).max / 4
        return np.clip(x, -largest, largest)

    def where_less(self, x: Array, bound: float, then: Any, otherwise: Any) -> Array:
        return np.asarray(np.where(x < bound, then, otherwise))

    def piecewise(self, x: Array, negative: Any, positive: Any) -> Array:
        return np.asarray(np.where(x < 0, negative, positive))
