"""Compute GRU steps in NumPy and float64, with or without faults, for random parameters.

No function here reads an ONNX model: the expected outputs come only from the random parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tests.support.decomposed.activations import Function, draw_candidate, draw_function, draw_gate
from tests.support.decomposed.graph import Array, Generator, chance, pick

Bounds = tuple[float, float] | None
GATES = "zrn"

#: Faults in the equations of a step, as text.
FAULTS = {
    "mixed gates": "h' = (1-z)n + r h: the blend takes z for n and r for h",
    "wrong blend": "h' = (1-z)n + (1-z)h",
    "wrong sign": "h' = n + z(n-h)",
    "no reset": "the candidate takes R h without r",
    "update inside": "r z stands in the place of r in the candidate",
    "tied": "z stands in the place of r in the candidate",
    "swapped roles": "h' = z n + (1-z)h",
    "reset on x": "r multiplies the candidate's product with x too",
    "not one": "h' = (0.75-z)n + z h",
    "stale": "the products take another state than the blend",
    "attention on r": "(1-a) multiplies r instead of z",
    "attention on 1-z": "h' = (1-a)(1-z)n + z h",
    "wide attention": "the attention has a value for each unit",
    "attention on h": "h' = (1-z)n + (1-a)z h",
}
#: Faults after which a step is a GRU's with other weights: equal gates, or u = 1 - z.
OTHER_WEIGHTS = ("tied", "swapped roles")
OF_ATTENTION = ("attention on r", "attention on 1-z", "wide attention", "attention on h")


@dataclass(frozen=True)
class Cell:
    """Parameters of a step: W [3H, I], R [3H, H], Wb and Rb [3H] in float64, exact in float32.

    `functions` and `bounds` (the clip of the activations' inputs) are in the order z, r, n. A GRU has the
    same function in z and r, and the same symmetric bounds everywhere; a near miss need not.
    """

    W: Array
    R: Array
    Wb: Array
    Rb: Array
    functions: tuple[Function, Function, Function]
    bounds: tuple[Bounds, Bounds, Bounds] = (None, None, None)
    reset_after: bool = False

    @property
    def I(self) -> int:  # noqa: E743
        return int(self.W.shape[1])

    @property
    def H(self) -> int:
        return int(self.R.shape[1])

    def gate(self, matrix: Array, gate: str) -> Array:
        """Return the rows of a gate."""
        at = GATES.index(gate) * self.H
        return matrix[at : at + self.H]

    def activate(self, gate: str, a: Array) -> Array:
        at = GATES.index(gate)
        bounds = self.bounds[at]
        return self.functions[at](a if bounds is None else np.clip(a, *bounds))

    def product(self, gate: str, x: Array) -> Array:
        return np.asarray(x @ self.gate(self.W, gate).T)

    def recurrent(self, gate: str, h: Array) -> Array:
        return np.asarray(h @ self.gate(self.R, gate).T)

    def bias(self, gate: str) -> Array:
        return np.asarray(self.gate(self.Wb, gate) + self.gate(self.Rb, gate))


@dataclass(frozen=True)
class Results:
    """New state of a step, with the intermediate results."""

    new: Array
    z: Array
    r: Array
    n: Array


def step(
    cell: Cell,
    x: Array,
    h: Array,
    a: Array | None = None,
    fault: str | None = None,
    stale: Array | None = None,
) -> Results:
    """Compute one step, by the equations or by faulty ones; `stale` is the other state."""
    read = h if stale is None else stale
    z, r = (
        cell.activate(gate, cell.product(gate, x) + cell.recurrent(gate, read) + cell.bias(gate))
        for gate in "zr"
    )
    seen = {"update inside": r * z, "tied": z, "no reset": np.ones_like(r)}.get(fault or "", r)
    if fault == "attention on r" and a is not None:
        seen = (1.0 - a) * r
    from_x = cell.product("n", x)
    Wb, Rb = cell.gate(cell.Wb, "n"), cell.gate(cell.Rb, "n")
    if fault == "reset on x":
        s = seen * (from_x + cell.recurrent("n", read) + Wb + Rb)
    elif cell.reset_after:
        s = from_x + Wb + seen * (cell.recurrent("n", read) + Rb)
    else:
        s = from_x + Wb + cell.recurrent("n", seen * read) + Rb
    n = cell.activate("n", s)
    weight_of_h, weight_of_n = z, 1.0 - z
    if a is not None:
        if fault == "attention on 1-z":
            weight_of_n = (1.0 - a) * (1.0 - z)
        elif fault == "attention on h":
            weight_of_h = (1.0 - a) * z
        elif fault != "attention on r":
            weight_of_h = (1.0 - a) * z
            weight_of_n = 1.0 - weight_of_h
    if fault == "mixed gates":
        weight_of_h = r
    elif fault == "wrong blend":
        weight_of_h = weight_of_n
    elif fault == "wrong sign":
        weight_of_h, weight_of_n = -z, 1.0 + z
    elif fault == "swapped roles":
        weight_of_h, weight_of_n = weight_of_n, weight_of_h
    elif fault == "not one":
        weight_of_n = 0.75 - z
    return Results(np.asarray(weight_of_n * n + weight_of_h * h), z, r, n)


def dyadic(rng: Generator, *shape: int, scale: float = 1.0) -> Array:
    """Draw values between -scale and scale whose sums, halves and doubles are exact in float32."""
    return rng.integers(-64, 65, shape) * (scale / 64.0)


def draw_cell(rng: Generator, I: int, H: int, *, plain: bool = False, symmetric: bool = False) -> Cell:
    """Draw random parameters; `plain` limits them to bounded functions, `symmetric` to symmetric gates."""
    f = draw_gate(rng)
    if plain or symmetric:
        f = draw_function(rng, pick(rng, ["Sigmoid", "Sigmoid", "HardSigmoid"]))
    g = draw_candidate(rng)
    if plain:
        g = draw_function(rng, pick(rng, ["Tanh", "Tanh", "Softsign"]))
    scale = 1.0 if f.name in ("Sigmoid", "HardSigmoid", "Tanh", "Softsign") else 0.25
    Wb, Rb = (dyadic(rng, 3 * H, scale=scale) * float(chance(rng, 0.75)) for _ in range(2))
    cell = Cell(dyadic(rng, 3 * H, I, scale=scale), dyadic(rng, 3 * H, H, scale=scale), Wb, Rb, (f, f, g))
    bound = pick(rng, [0.5, 0.75, 1.5])
    bounds = (-bound, bound) if chance(rng, 0.15) else None
    return replace(cell, bounds=(bounds,) * 3, reset_after=chance(rng, 0.5))


def exchanged(cell: Cell) -> Cell:
    """Return the cell whose first gate is u = 1 - z: its parameters are negated."""
    sign = np.repeat([-1.0, 1.0, 1.0], cell.H)
    return replace(
        cell,
        W=cell.W * sign[:, None],
        R=cell.R * sign[:, None],
        Wb=cell.Wb * sign,
        Rb=cell.Rb * sign,
    )
