"""Compute the elementary functions that activation functions consist of.

This module computes them for NumPy arrays. onegru.torch.autograd.fallback does so for tensors, and
onegru.formats.onnx.writing.gru_step for the nodes of an ONNX graph.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from onegru.core.dtypes import Array


class Elementary(Protocol):
    """Elementwise functions of values and numbers; NaN returns NaN."""

    def add(self, x: Any, y: Any) -> Any:
        """Return x + y."""

    def mul(self, x: Any, y: Any) -> Any:
        """Return x·y."""

    def div(self, x: Any, y: Any) -> Any:
        """Return x / y."""

    def abs(self, x: Any) -> Any:
        """Return the absolute value."""

    def tanh(self, x: Any) -> Any:
        """Return the hyperbolic tangent."""

    def sigmoid(self, x: Any) -> Any:
        """Return 1 / (1 + e^-x), without overflow."""

    def relu(self, x: Any) -> Any:
        """Return the larger of a value and 0."""

    def expm1_of_negative(self, x: Any) -> Any:
        """Return e^x - 1 where x ≤ 0; elsewhere an arbitrary number, which the caller must not use."""

    def softplus(self, x: Any) -> Any:
        """Return log(1 + e^x), without overflow."""

    def maximum(self, x: Any, bound: float) -> Any:
        """Return the larger of a value and a number; the gradient at the number is 0."""

    def minimum(self, x: Any, bound: float) -> Any:
        """Return the smaller of a value and a number; the gradient at the number is 0."""

    def where_less(self, x: Any, bound: float, then: Any, otherwise: Any) -> Any:
        """Return one value where x < bound, else another, whose gradient at the bound is 0."""

    def piecewise(self, x: Any, negative: Any, positive: Any) -> Any:
        """Return one value where x < 0, else another; equal at 0, where the first has the gradient."""

    def finite(self, x: Any) -> Any:
        """Return the value, with a large number instead of an infinity, for quotients with a finite limit."""


class NumpyElementary:
    """Elementary functions of NumPy's arrays, in their type; see `Elementary`."""

    add = staticmethod(np.add)
    mul = staticmethod(np.multiply)
    div = staticmethod(np.divide)
    abs = staticmethod(np.abs)
    tanh = staticmethod(np.tanh)
    maximum = staticmethod(np.maximum)
    minimum = staticmethod(np.minimum)

    @staticmethod
    def sigmoid(x: Array) -> Array:
        e = np.exp(-np.abs(x))  # at most 1, so there is no overflow
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
