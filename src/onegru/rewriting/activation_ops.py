"""The eleven activation functions, expressed with elementary ONNX operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from onegru.core.activations import Activation
from onegru.rewriting.scope import Draft

# Adds a node of some type on values and numbers, and returns the name of its output.
_Op = Callable[..., str]


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

    def op(kind: str, *inputs: str | float) -> str:
        names = [item if isinstance(item, str) else body.scope.number(item, dtype) for item in inputs]
        return body.op(kind, names, f"{what}/{kind.lower()}")

    return EXPRESSIONS[activation.name](op, x, activation)


def _affine(op: _Op, x: str, alpha: float, beta: float) -> str:
    return op("Add", op("Mul", x, alpha), beta)


def _softplus(op: _Op, x: str) -> str:
    """The sum max(x, 0) + log(1 + e^-|x|), which never overflows."""
    small = op("Exp", op("Neg", op("Abs", x)))
    return op("Add", op("Max", x, 0.0), op("Log", op("Add", small, 1.0)))


def _softsign(op: _Op, x: str) -> str:
    """The quotient x / (1 + |x|); infinity is replaced by a large number, so that the result is 1."""
    largest = float(np.finfo(np.float32).max) / 4
    x = op("Max", op("Min", x, largest), -largest)
    return op("Div", x, op("Add", op("Abs", x), 1.0))


#: Each function, of operators that take float64 too and propagate NaN, which its own operator may not do.
EXPRESSIONS: Mapping[str, Callable[[_Op, str, Activation], str]] = {
    "Relu": lambda op, x, a: op("Relu", x),
    "Tanh": lambda op, x, a: op("Tanh", x),
    "Sigmoid": lambda op, x, a: op("Sigmoid", x),
    "Affine": lambda op, x, a: _affine(op, x, *a.parameters),
    "LeakyRelu": lambda op, x, a: op("Where", op("Less", x, 0.0), op("Mul", x, a.parameters[0]), x),
    "ThresholdedRelu": lambda op, x, a: op("Where", op("Less", x, a.parameters[0]), 0.0, x),
    "ScaledTanh": lambda op, x, a: op("Mul", op("Tanh", op("Mul", x, a.parameters[1])), a.parameters[0]),
    "HardSigmoid": lambda op, x, a: op("Max", op("Min", _affine(op, x, *a.parameters), 1.0), 0.0),
    "Elu": lambda op, x, a: op(
        "Where", op("Less", x, 0.0), op("Mul", op("Sub", op("Exp", x), 1.0), a.parameters[0]), x
    ),
    "Softsign": lambda op, x, a: _softsign(op, x),
    "Softplus": lambda op, x, a: _softplus(op, x),
}
