"""Activation functions, expressed with elementary ONNX operators.

These take float64 too, and propagate NaN, which an activation's own operator may not do.
"""

from __future__ import annotations

import numpy as np

from onegru.core.activations import ACTIVATIONS, Activation
from onegru.rewriting.scope import Draft


def express_activation(body: Draft, dtype: str, activation: Activation, x: str, what: str) -> str:
    """Add the nodes that compute an activation of a value.

    Args:
        body: where they go.
        dtype: the value's element type, float32 or float64.
        activation: the function.
        x: the value.
        what: what new names begin with.

    Returns:
        the name of the result.
    """
    functions = _Elementary(body, dtype, what)
    result: str = ACTIVATIONS[activation.name].compute(functions, x, *activation.parameters)
    return result


class _Elementary:
    """The elementary functions as nodes of a graph; see `onegru.core.elementary.Elementary`."""

    def __init__(self, body: Draft, dtype: str, what: str) -> None:
        self.body = body
        self.dtype = dtype
        self.what = what

    def op(self, kind: str, *inputs: str | float) -> str:
        """Add a node; returns the name of its output."""
        number = self.body.scope.number
        names = [item if isinstance(item, str) else number(item, self.dtype) for item in inputs]
        return self.body.op(kind, names, f"{self.what}/{kind.lower()}")

    def add(self, x: str, y: str | float) -> str:
        return self.op("Add", x, y)

    def mul(self, x: str, y: str | float) -> str:
        return self.op("Mul", x, y)

    def div(self, x: str, y: str | float) -> str:
        return self.op("Div", x, y)

    def abs(self, x: str) -> str:
        return self.op("Abs", x)

    def tanh(self, x: str) -> str:
        return self.op("Tanh", x)

    def sigmoid(self, x: str) -> str:
        return self.op("Sigmoid", x)

    def relu(self, x: str) -> str:
        return self.op("Relu", x)

    def expm1_of_negative(self, x: str) -> str:
        return self.op("Sub", self.op("Exp", x), 1.0)

    def softplus(self, x: str) -> str:
        """The sum max(x, 0) + log(1 + e^-|x|)."""
        small = self.op("Exp", self.op("Neg", self.op("Abs", x)))
        return self.op("Add", self.op("Max", x, 0.0), self.op("Log", self.op("Add", small, 1.0)))

    def maximum(self, x: str, bound: float) -> str:
        return self.op("Max", x, bound)

    def minimum(self, x: str, bound: float) -> str:
        return self.op("Min", x, bound)

    def below(self, x: str, bound: float, then: str | float, otherwise: str | float) -> str:
        return self.op("Where", self.op("Less", x, bound), then, otherwise)

    def bent(self, x: str, negative: str, positive: str) -> str:
        return self.below(x, 0.0, negative, positive)

    def finite(self, x: str) -> str:
        largest = float(np.finfo(np.float32).max) / 4
        return self.op("Max", self.op("Min", x, largest), -largest)
