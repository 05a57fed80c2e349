"""The eleven activation functions spelled in elementary ONNX operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from onegru.core.activations import Activation
from onegru.rewriting.scope import Draft


def spell_activation(body: Draft, dtype: str, activation: Activation, x: str, what: str) -> str:
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
    spelling = Spelling(body, lambda number: body.scope.number(number, dtype), what)
    return SPELLINGS[activation.name](spelling, x, activation)


@dataclass
class Spelling:
    """What the spelling of an activation function needs."""

    body: Draft
    number: Callable[[float], str]
    what: str

    def __call__(self, kind: str, *inputs: str | float) -> str:
        """Add a node on values and numbers, and return what it gives."""
        names = [item if isinstance(item, str) else self.number(item) for item in inputs]
        return self.body.op(kind, names, f"{self.what}/{kind.lower()}")


def _affine(op: Spelling, x: str, alpha: float, beta: float) -> str:
    return op("Add", op("Mul", x, alpha), beta)


def _softplus(op: Spelling, x: str) -> str:
    """The sum max(x, 0) + log(1 + e^-|x|), which overflows nowhere."""
    small = op("Exp", op("Neg", op("Abs", x)))
    return op("Add", op("Max", x, 0.0), op("Log", op("Add", small, 1.0)))


def _softsign(op: Spelling, x: str) -> str:
    """The quotient x / (1 + |x|), with the largest numbers in the place of infinity: 1."""
    largest = float(np.finfo(np.float32).max) / 4
    x = op("Max", op("Min", x, largest), -largest)
    return op("Div", x, op("Add", op("Abs", x), 1.0))


#: Each function in operators that compute float64 too and pass NaN on, which its own operator may not do.
SPELLINGS: Mapping[str, Callable[[Spelling, str, Activation], str]] = {
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
