"""Compute ONNX's activation functions in NumPy, and decompose them into other operators in all variants."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.support.decomposed.graph import Array, Generator, Graph, chance, pick

#: The number of variants of each function.
FORMS = {
    "Sigmoid": 4,
    "Tanh": 2,
    "HardSigmoid": 5,
    "Relu": 3,
    "LeakyRelu": 3,
    "Elu": 1,
    "Softsign": 2,
    "Softplus": 2,
    "Affine": 1,
    "ScaledTanh": 1,
    "ThresholdedRelu": 2,
}
KERAS_3 = float(np.float32(1 / 6))


@dataclass(frozen=True)
class Function:
    """Activation function, by its ONNX name, with alpha and beta as in a file."""

    name: str
    alpha: float | None = None
    beta: float | None = None

    def __call__(self, a: Array) -> Array:
        """Return the function's value in float64."""
        alpha = 0.0 if self.alpha is None else self.alpha
        beta = 0.0 if self.beta is None else self.beta
        if self.name == "Sigmoid":
            return np.asarray(0.5 + 0.5 * np.tanh(0.5 * a))
        if self.name == "Tanh":
            return np.asarray(np.tanh(a))
        if self.name == "HardSigmoid":
            return np.clip(alpha * a + beta, 0.0, 1.0)
        if self.name == "Relu":
            return np.maximum(a, 0.0)
        if self.name == "LeakyRelu":
            return np.where(a >= 0.0, a, alpha * a)
        if self.name == "Elu":
            return np.where(a >= 0.0, a, alpha * np.expm1(a))
        if self.name == "Softsign":
            return np.asarray(a / (1.0 + np.abs(a)))
        if self.name == "Softplus":
            return np.asarray(np.log1p(np.exp(a)))
        if self.name == "Affine":
            return np.asarray(alpha * a + beta)
        if self.name == "ScaledTanh":
            return np.asarray(alpha * np.tanh(beta * a))
        if self.name == "ThresholdedRelu":
            return np.where(a > alpha, a, 0.0)
        raise ValueError(f"unknown activation {self.name!r}")

    @property
    def symmetric(self) -> bool:
        """Whether f(-a) is 1 - f(a), so that the roles of the states may be exchanged."""
        return self.name == "Sigmoid" or (self.name == "HardSigmoid" and self.beta == 0.5)

    def __str__(self) -> str:
        values = [f"{value:g}" for value in (self.alpha, self.beta) if value is not None]
        return f"{self.name}({', '.join(values)})" if values else self.name


def rounded(value: float) -> float:
    return float(np.float32(value))


def draw_function(rng: Generator, name: str) -> Function:
    """Draw common values of alpha and beta for a function."""
    if name == "HardSigmoid":
        return Function(name, rounded(pick(rng, [0.2, KERAS_3, 0.25])), 0.5)
    if name == "LeakyRelu":
        return Function(name, rounded(pick(rng, [0.1, 0.01, 0.25])))
    if name == "Elu":
        return Function(name, pick(rng, [1.0, 0.5]))
    if name == "Affine":
        return Function(name, pick(rng, [0.5, 1.0, 0.75]), pick(rng, [0.25, 0.0, -0.5]))
    if name == "ScaledTanh":
        return Function(name, rounded(pick(rng, [1.7159, 0.5])), rounded(pick(rng, [2 / 3, 1.5])))
    if name == "ThresholdedRelu":
        return Function(name, pick(rng, [0.25, 0.5, 1.0]))
    return Function(name)


def draw_gate(rng: Generator) -> Function:
    """Draw the function of z and r: usually Sigmoid or HardSigmoid."""
    usual = ["Sigmoid"] * 12 + ["HardSigmoid"] * 6
    return draw_function(rng, pick(rng, [*usual, *FORMS]))


def draw_candidate(rng: Generator) -> Function:
    """Draw the function of n: Tanh half of the time."""
    return draw_function(rng, pick(rng, ["Tanh"] * len(FORMS) + [*FORMS]))


def given(graph: Graph, **values: tuple[float, float]) -> dict[str, float]:
    """Return attributes; those equal to their defaults may be omitted."""
    left_out = chance(graph.rng, 0.5)
    return {name: value for name, (value, default) in values.items() if value != default or not left_out}


def write(graph: Graph, function: Function, a: str, form: int) -> str:
    """Write a function of the tensor `a` in one of its variants."""
    number = graph.scalar
    alpha = 0.0 if function.alpha is None else function.alpha
    beta = 0.0 if function.beta is None else function.beta
    if function.name == "Sigmoid":
        return _sigmoid(graph, a, form)
    if function.name == "HardSigmoid":
        return _hard_sigmoid(graph, a, form, alpha, beta)
    if function.name == "Tanh" and form == 1:
        doubled = graph.op("Sigmoid", graph.either("Mul", a, number(2.0)))
        return graph.op("Sub", graph.either("Mul", doubled, number(2.0)), number(1.0))
    if function.name == "Relu" and form > 0:
        if form == 1:
            return graph.either("Max", a, number(0.0))
        return graph.op("Clip", a, graph.constant(0.0))
    if function.name == "LeakyRelu":
        if form == 0:
            return graph.op("LeakyRelu", a, **given(graph, alpha=(alpha, rounded(0.01))))
        scaled = graph.either("Mul", a, number(alpha))
        if form == 1:
            return graph.either("Max", a, scaled)
        return graph.op("Where", graph.op("Less", a, number(0.0)), scaled, a)
    if function.name == "Softsign" and form == 1:
        return graph.op("Div", a, graph.either("Add", number(1.0), graph.op("Abs", a)))
    if function.name == "Softplus" and form == 1:
        return graph.op("Log", graph.either("Add", number(1.0), graph.op("Exp", a)))
    if function.name == "Affine":
        return graph.either("Add", graph.either("Mul", a, number(alpha)), number(beta))
    if function.name == "ScaledTanh":
        return graph.either("Mul", graph.op("Tanh", graph.either("Mul", a, number(beta))), number(alpha))
    if function.name == "ThresholdedRelu" and form == 1:
        return graph.op("Where", graph.op("Greater", a, number(alpha)), a, number(0.0))
    if function.name in ("Elu", "ThresholdedRelu"):
        return graph.op(function.name, a, **given(graph, alpha=(alpha, 1.0)))
    return graph.op(function.name, a)


def _sigmoid(graph: Graph, a: str, form: int) -> str:
    number = graph.scalar
    if form == 0:
        return graph.op("Sigmoid", a)
    if form == 1:
        half = graph.op("Tanh", graph.either("Mul", a, number(0.5)))
        return graph.either("Add", graph.either("Mul", half, number(0.5)), number(0.5))
    below = graph.either("Add", number(1.0), graph.op("Exp", graph.op("Neg", a)))
    return graph.op("Div", number(1.0), below) if form == 2 else graph.op("Reciprocal", below)


def _hard_sigmoid(graph: Graph, a: str, form: int, alpha: float, beta: float) -> str:
    number = graph.scalar
    if form == 0:
        return graph.op("HardSigmoid", a, **given(graph, alpha=(alpha, rounded(0.2)), beta=(beta, 0.5)))
    if alpha == KERAS_3 and form >= 3:
        moved = graph.either("Add", a, number(3.0))
        if form == 3:
            six = graph.op("Clip", moved, graph.constant(0.0), graph.constant(6.0))
            return graph.op("Div", six, number(6.0))
        six = graph.either("Min", graph.op("Relu", moved), number(6.0))
        return graph.either("Mul", six, number(KERAS_3))
    line = graph.either("Add", graph.either("Mul", a, number(alpha)), number(beta))
    if form == 1:
        return graph.op("Clip", line, graph.constant(0.0), graph.constant(1.0))
    if form == 2:
        return graph.either("Min", graph.either("Max", line, number(0.0)), number(1.0))
    return graph.either("Max", graph.either("Min", line, number(1.0)), number(0.0))
