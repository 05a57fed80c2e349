"""Express a GRU step with elementary ONNX operators.

The symbols are those of `onegru.Spec`. Activations consist of elementary operators, because these support
float64 and propagate NaN. The operators of activations do not always do so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from onegru.core.activations import ACTIVATIONS, Activation


class StepNodes(Protocol):
    """Receiver of the nodes of a step."""

    def op(self, kind: str, inputs: Sequence[str], suffix: str) -> str:
        """Add a node and return the name of its output, which can end in `suffix`."""

    def number(self, value: float) -> str:
        """Add a scalar constant with the type of the computation."""

    def halves(self, value: str, names: tuple[str, str]) -> list[str]:
        """Split the last axis of a matrix into halves, which can have these names."""


def gru_step(
    nodes: StepNodes,
    activations: tuple[Activation, Activation],
    clip: float | None,
    x: tuple[str, str],
    h: str,
    h_zr: str,
    *,
    h_n: str | None = None,
    R_n: str = "",
    attention: str | None = None,
    a: str = "",
) -> str:
    """Add the nodes of a step."""
    x_zr, x_n = x
    f, g = (_Activated(nodes, kind, clip) for kind in activations)
    z, r = nodes.halves(f.of(nodes.op("Add", [x_zr, h_zr], "zr_sum"), "zr"), ("z", "r"))
    if h_n is not None:
        h_n = nodes.op("Mul", [r, h_n], "reset")
    else:
        h_n = nodes.op("MatMul", [nodes.op("Mul", [r, h], "reset"), R_n], "rhR")
    n = g.of(nodes.op("Add", [x_n, h_n], "n_sum"), "n")
    one = nodes.number(1.0)
    if attention == "openvino":
        z = nodes.op("Mul", [nodes.op("Sub", [one, a], "1-a"), z], "z_attended")
    elif attention == "dien":
        z = nodes.op("Sub", [one, nodes.op("Mul", [a, nodes.op("Sub", [one, z], "1-z")], "az")], "z_attended")
    rest = nodes.op("Sub", [one, z], "1-z")
    return nodes.op("Add", [nodes.op("Mul", [rest, n], "zn"), nodes.op("Mul", [z, h], "zh")], "h_next")


class _Activated:
    """An activation that adds its nodes."""

    def __init__(self, nodes: StepNodes, activation: Activation, clip: float | None) -> None:
        self.nodes = nodes
        self.activation = activation
        self.clip = clip

    def of(self, x: str, what: str) -> str:
        """Add the nodes for the activation of a value, with clipping; names begin with `what`."""
        if self.clip is not None:
            x = self.nodes.op("Min", [x, self.nodes.number(self.clip)], f"{what}_below")
            x = self.nodes.op("Max", [x, self.nodes.number(-self.clip)], f"{what}_clipped")
        row = ACTIVATIONS[self.activation.name]
        result: str = row.compute(_OnnxElementary(self.nodes, what), x, *self.activation.parameters)
        return result


class _OnnxElementary:
    """Elementary functions that add nodes to a graph; see `onegru.core.elementary.Elementary`."""

    def __init__(self, nodes: StepNodes, what: str) -> None:
        self.nodes = nodes
        self.what = what

    def op(self, kind: str, *inputs: str | float) -> str:
        """Add a node and return the name of its output."""
        names = [item if isinstance(item, str) else self.nodes.number(item) for item in inputs]
        return self.nodes.op(kind, names, f"{self.what}/{kind.lower()}")

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
        """Add nodes for max(x, 0) + log(1 + e^-|x|)."""
        small = self.op("Exp", self.op("Neg", self.op("Abs", x)))
        return self.op("Add", self.op("Max", x, 0.0), self.op("Log", self.op("Add", small, 1.0)))

    def maximum(self, x: str, bound: float) -> str:
        return self.op("Max", x, bound)

    def minimum(self, x: str, bound: float) -> str:
        return self.op("Min", x, bound)

    def where_less(self, x: str, bound: float, then: str | float, otherwise: str | float) -> str:
        return self.op("Where", self.op("Less", x, bound), then, otherwise)

    def piecewise(self, x: str, negative: str, positive: str) -> str:
        return self.where_less(x, 0.0, negative, positive)

    def finite(self, x: str) -> str:
        largest = float(np.finfo(np.float32).max) / 4
        return self.op("Max", self.op("Min", x, largest), -largest)
